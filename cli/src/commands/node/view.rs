//! Renders the status of a worker as tables, without side effects.

use keelway_api::jiff::Timestamp;
use keelway_node::WorkerStatus;

use crate::{table::TextTable, terminal};

/// Renders the tables of `node status` for this time.
pub(super) fn render(status: &WorkerStatus, now: Timestamp) -> String {
    let mut parts = vec![head(status), tunnels(status, now)];
    parts.extend((!status.direct_paths.is_empty()).then(|| direct_paths(status)));
    parts.extend([ingresses(status), certificates(status)]);
    parts.extend(problems(status, now).into_iter().chain(other_version(status)).map(|line| line + "\n"));
    parts.join("\n")
}

/// Returns what keeps this worker from running pods, or the cluster from reaching it.
pub(super) fn problems(status: &WorkerStatus, now: Timestamp) -> Vec<String> {
    keelway_node::problems(status, now).into_iter().map(|problem| problem.message).collect()
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
        "TRANSPORT",
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
            tunnel.transport.to_string(),
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

fn direct_paths(status: &WorkerStatus) -> String {
    let mut table = TextTable::new(&["WORKER", "ENDPOINT", "PATH", "RECEIVED", "SENT"]);
    for path in &status.direct_paths {
        table.row(vec![
            path.address.to_string(),
            path.endpoint.to_string(),
            path.state.to_string(),
            path.received_bytes.to_string(),
            path.sent_bytes.to_string(),
        ]);
    }
    table.render(terminal::columns())
}

fn ingresses(status: &WorkerStatus) -> String {
    let mut table = TextTable::new(&["INGRESS", "REACHABLE", "CONNECTIONS", "PROXY"]);
    for ingress in &status.ingresses {
        table.row(vec![
            ingress.address.to_string(),
            known(ingress.answers),
            ingress.connections.to_string(),
            or_none(ingress.proxy.clone().unwrap_or_default()),
        ]);
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

    fn healthy() -> WorkerStatus {
        serde_json::from_value(serde_json::json!({
            "node": "w1", "version": "1.37.0", "pid": 1, "residentKib": 1, "addresses": [], "podCIDRs": [], "tunnels": [],
            "ingresses": [], "kubelet": { "pid": 2, "restarts": 0 }, "certificates": [],
        }))
        .unwrap()
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
    fn unknown_values_are_shown_as_unknown() {
        assert_eq!([known(None), known(Some(true)), known(Some(false))], ["<unknown>", "yes", "no"]);
    }
}
