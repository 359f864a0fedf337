//! Renders the status of a worker as tables, without side effects.

use keelway_api::jiff::Timestamp;
use keelway_node::{CertificateStatus, ENDED, TunnelStatus, WorkerStatus};

use crate::{table::TextTable, terminal};

/// Renders the tables of `node status` for this time.
pub(super) fn render(status: &WorkerStatus, now: Timestamp) -> String {
    let mut parts = vec![head(status), tunnels(status, now), ingresses(status), certificates(status)];
    parts.extend(problems(status, now).into_iter().chain(other_version(status)).map(|line| line + "\n"));
    parts.join("\n")
}

/// Returns what keeps this worker from running pods, or the cluster from reaching it.
pub(super) fn problems(status: &WorkerStatus, now: Timestamp) -> Vec<String> {
    let are_silent = |mut all: Vec<Option<bool>>| {
        all.dedup();
        all == [Some(false)]
    };
    let mut found = Vec::new();
    if status.kubelet.pid.is_none() {
        found.push("The kubelet is not running: see its log.".to_owned());
    }
    if are_silent(status.ingresses.iter().map(|ingress| ingress.answers).collect()) {
        let all: Vec<String> = status.ingresses.iter().map(|ingress| ingress.address.to_string()).collect();
        found.push(format!("No ingress responds: allow TCP from this machine to {}.", all.join(", ")));
    }
    if are_silent(status.tunnels.iter().map(|tunnel| tunnel.answers).collect()) {
        let all: Vec<String> =
            status.tunnels.iter().flat_map(TunnelStatus::endpoints).map(|endpoint| endpoint.to_string()).collect();
        found.push(format!(
            "No gateway responds through its tunnel: allow UDP from this machine to {}.",
            all.join(", ")
        ));
    }
    found.extend(ended(&status.certificates, now));
    found.extend(status.node_problem.iter().map(|problem| sentence(problem)));
    if !status.absent_settings.is_empty() {
        found.push(format!("The kernel lacks {}.", status.absent_settings.join(", ")));
    }
    let conflicts = status.pod_network_conflicts.iter();
    found.extend(conflicts.map(|conflict| format!("Pods do not get the cluster's network: {conflict}.")));
    found.extend(status.firewall_drops.iter().map(|drop| format!("A firewall drops packets of the cluster: {drop}.")));
    found
}

/// Returns a problem of the daemon as a sentence.
fn sentence(problem: &str) -> String {
    let mut letters = problem.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

fn head(status: &WorkerStatus) -> String {
    let mut table = TextTable::new(&["NODE", "CLUSTER", "ADDRESS", "PODS", "KUBELET", "VERSION", "RESTARTS", "MEMORY"]);
    let kubelet = status.kubelet.pid.map_or_else(|| "not running".to_owned(), |pid| format!("running ({pid})"));
    table.row(vec![
        status.node.clone(),
        status.version.clone(),
        or_none(status.addresses.join(",")),
        or_none(status.pod_cidrs.join(",")),
        kubelet,
        kubelet_version(status).unwrap_or("<unknown>").to_owned(),
        status.kubelet.restarts.to_string(),
        format!("{:.1}Mi", f64::from(u32::try_from(status.resident_kib).unwrap_or(u32::MAX)) / 1024.0),
    ]);
    table.render(terminal::columns())
}

fn tunnels(status: &WorkerStatus, now: Timestamp) -> String {
    let mut table = TextTable::new(&[
        "TUNNEL",
        "GATEWAY",
        "ACTIVE",
        "REACHABLE",
        "LAST HANDSHAKE",
        "RECEIVED",
        "SENT",
        "DATA PATH",
    ]);
    for tunnel in &status.tunnels {
        let handshake = tunnel.last_handshake.and_then(|seconds| i64::try_from(seconds).ok());
        let handshake =
            handshake.map_or_else(|| "never".to_owned(), |then| format!("{}s ago", (now.as_second() - then).max(0)));
        table.row(vec![
            tunnel.interface.clone(),
            tunnel.endpoint.to_string(),
            yes(tunnel.active),
            known(tunnel.answers),
            handshake,
            tunnel.received_bytes.to_string(),
            tunnel.sent_bytes.to_string(),
            tunnel.data_path.clone(),
        ]);
    }
    table.render(terminal::columns())
}

fn ingresses(status: &WorkerStatus) -> String {
    let mut table = TextTable::new(&["INGRESS", "REACHABLE", "CONNECTIONS"]);
    for ingress in &status.ingresses {
        table.row(vec![ingress.address.to_string(), known(ingress.answers), ingress.connections.to_string()]);
    }
    table.render(terminal::columns())
}

fn certificates(status: &WorkerStatus) -> String {
    let mut table = TextTable::new(&["CERTIFICATE", "NOT BEFORE", "NOT AFTER"]);
    for certificate in &status.certificates {
        table.row(vec![
            certificate.name.clone(),
            certificate.not_before.to_string(),
            certificate.not_after.to_string(),
        ]);
    }
    table.render(terminal::columns())
}

/// While the client certificate is valid, the kubelet renews both certificates. After its expiry, it cannot.
fn ended(certificates: &[CertificateStatus], now: Timestamp) -> Option<String> {
    let client = certificates.iter().find(|certificate| certificate.name == "client")?;
    let has_ended = client.not_after <= now;
    has_ended.then(|| format!("The certificate of this worker expired at {}; {ENDED}.", client.not_after))
}

/// Returns the version that the kubelet reports, or that of its image before it has reported.
fn kubelet_version(status: &WorkerStatus) -> Option<&str> {
    let reported = status.kubelet.version.as_deref().map(|version| version.trim_start_matches('v'));
    reported.or_else(|| status.kubelet.image.as_deref().map(version))
}

/// A kubelet of another version than the cluster's is no problem: it may be up to three minor versions older.
fn other_version(status: &WorkerStatus) -> Option<String> {
    let reported = status.kubelet.version.as_deref()?.trim_start_matches('v');
    let text = || {
        let cluster = &status.version;
        format!("The kubelet runs Kubernetes {reported}, and the cluster {cluster}: run `keelway node upgrade`.")
    };
    (reported != status.version).then(text)
}

/// Returns the version of `NAME:vVERSION`, or the whole image if there is no version.
fn version(image: &str) -> &str {
    let tag = image.rsplit_once(":v").map(|(_, tag)| tag);
    tag.filter(|tag| tag.starts_with(|first: char| first.is_ascii_digit())).unwrap_or(image)
}

fn known(is: Option<bool>) -> String {
    is.map_or_else(|| "<unknown>".to_owned(), yes)
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_tag_of_the_image() {
        assert_eq!(version("registry.keelway.dev/node:v1.37.0"), "1.37.0");
        assert_eq!(version("registry:5000/node@sha256:00"), "registry:5000/node@sha256:00");
    }

    #[test]
    fn only_an_expired_client_certificate_is_reported() {
        let now: Timestamp = "2030-01-02T00:00:00Z".parse().unwrap();
        let certificate = |name: &str, not_after: &str| CertificateStatus {
            name: name.to_owned(),
            not_before: "2030-01-01T00:00:00Z".parse().unwrap(),
            not_after: not_after.parse().unwrap(),
        };
        let (before, after) = ("2030-01-01T12:00:00Z", "2030-01-02T12:00:00Z");
        assert_eq!(ended(&[certificate("client", after), certificate("serving", before)], now), None);
        let told = ended(&[certificate("client", before), certificate("serving", after)], now).unwrap();
        assert!(told.contains(before) && told.contains("keelway node forget"), "{told}");
    }

    fn healthy() -> WorkerStatus {
        serde_json::from_value(serde_json::json!({
            "node": "w1", "version": "1.37.0", "pid": 1, "residentKib": 1, "addresses": [], "podCIDRs": [], "tunnels": [],
            "ingresses": [], "kubelet": { "pid": 2, "restarts": 0 }, "certificates": [],
        }))
        .unwrap()
    }

    #[test]
    fn an_evicted_worker_is_a_problem() {
        let status = WorkerStatus { node_problem: Some("the worker was evicted".to_owned()), ..healthy() };
        assert_eq!(problems(&status, Timestamp::UNIX_EPOCH), ["The worker was evicted."]);
    }

    #[test]
    fn another_version_than_the_clusters_is_shown_and_is_no_problem() {
        let mut status = healthy();
        assert_eq!((kubelet_version(&status), other_version(&status)), (None, None));
        status.kubelet.image = Some("registry.keelway.dev/node:v1.37.0".to_owned());
        assert_eq!(kubelet_version(&status), Some("1.37.0"), "the kubelet has not reported yet");
        status.kubelet.version = Some("v1.36.3".to_owned());
        assert_eq!(kubelet_version(&status), Some("1.36.3"));
        assert!(other_version(&status).unwrap().contains("run `keelway node upgrade`"));
        assert_eq!(problems(&status, Timestamp::UNIX_EPOCH), Vec::<String>::new());
        status.kubelet.version = Some("v1.37.0".to_owned());
        assert_eq!(other_version(&status), None);
    }

    #[test]
    fn a_conflict_of_the_pod_network_is_a_problem() {
        let mut status = healthy();
        assert_eq!(problems(&status, Timestamp::UNIX_EPOCH), Vec::<String>::new());
        status.pod_network_conflicts = vec!["cni0 has another address; delete it".to_owned()];
        let expected = "Pods do not get the cluster's network: cni0 has another address; delete it.";
        assert_eq!(problems(&status, Timestamp::UNIX_EPOCH), [expected]);
    }

    #[test]
    fn unknown_values_are_shown_as_unknown() {
        assert_eq!([known(None), known(Some(true)), known(Some(false))], ["<unknown>", "yes", "no"]);
    }
}
