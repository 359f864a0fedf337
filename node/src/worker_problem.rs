//! What keeps a worker from running pods, or the cluster from reaching it. `node status` and the metrics name the same problems. Pure.

use jiff::Timestamp;

use crate::{
    api::ENDED,
    network_condition::POD_NETWORK_CONFLICT,
    status::{CertificateStatus, IngressStatus, WorkerStatus},
    tunnels::TunnelStatus,
};

/// A problem of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProblem {
    /// What is wrong, in one word.
    pub reason: &'static str,
    /// What is wrong and what to do, as a sentence.
    pub message: String,
}

/// Returns the problems of a worker at this time.
#[must_use]
pub fn problems(status: &WorkerStatus, now: Timestamp) -> Vec<WorkerProblem> {
    let are_silent = |mut all: Vec<Option<bool>>| {
        all.dedup();
        all == [Some(false)]
    };
    let mut found = Vec::new();
    let mut add = |reason, message| found.push(WorkerProblem { reason, message });
    if status.kubelet.pid.is_none() {
        add("KubeletNotRunning", "The kubelet is not running: see its log.".to_owned());
    }
    let untrusted: Vec<&IngressStatus> = status.ingresses.iter().filter(|ingress| ingress.problem.is_some()).collect();
    if let Some(problem) = untrusted.first().and_then(|ingress| ingress.problem.as_ref()) {
        let all: Vec<String> = untrusted.iter().map(|ingress| ingress.address.to_string()).collect();
        add("IngressNotTrusted", format!("{} {problem}.", all.join(", ")));
    } else if are_silent(status.ingresses.iter().map(|ingress| ingress.answers).collect()) {
        let all: Vec<String> = status.ingresses.iter().map(|ingress| ingress.address.to_string()).collect();
        let message = format!("No ingress responds: allow TCP from this machine to {}.", all.join(", "));
        add("NoIngressResponds", message);
    }
    if are_silent(status.tunnels.iter().map(|tunnel| tunnel.answers).collect()) {
        let all: Vec<String> =
            status.tunnels.iter().flat_map(TunnelStatus::endpoints).map(|endpoint| endpoint.to_string()).collect();
        let message =
            format!("No gateway responds through its tunnel: allow UDP from this machine to {}.", all.join(", "));
        add("NoGatewayResponds", message);
    }
    if let Some(message) = ended(&status.certificates, now) {
        add("CertificateExpired", message);
    }
    if let Some(problem) = &status.node_problem {
        add("NodeMissing", sentence(problem));
    }
    for conflict in &status.pod_network_conflicts {
        add(POD_NETWORK_CONFLICT, format!("Pods do not get the cluster's network: {conflict}."));
    }
    found.extend(of_machine(&status.absent_settings, &status.range_clashes));
    let mut add = |reason, message| found.push(WorkerProblem { reason, message });
    for drop in &status.firewall_drops {
        add("FirewallDropsPackets", format!("A firewall drops packets of the cluster: {drop}."));
    }
    // A chain that drops packets is a reason for these.
    if status.firewall_drops.is_empty() {
        for failure in &status.pod_probe_failures {
            add("PodsCannotConnect", sentence(failure));
        }
    }
    found
}

/// Returns the problems of the machine that no condition of the Node reports.
pub(crate) fn of_machine(absent_settings: &[String], range_clashes: &[String]) -> Vec<WorkerProblem> {
    let mut found = Vec::new();
    if !absent_settings.is_empty() {
        let message = format!("The kernel lacks {}.", absent_settings.join(", "));
        found.push(WorkerProblem { reason: "KernelSettingsMissing", message });
    }
    found.extend(range_clashes.iter().map(|clash| WorkerProblem {
        reason: "RangeConflict",
        message: format!("Packets of the cluster may be lost: {clash}."),
    }));
    found
}

/// Returns a problem of the daemon as a sentence.
fn sentence(problem: &str) -> String {
    let mut letters = problem.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

/// While the client certificate is valid, the kubelet renews both certificates. After its expiry, it cannot.
fn ended(certificates: &[CertificateStatus], now: Timestamp) -> Option<String> {
    let client = certificates.iter().find(|certificate| certificate.name == "client")?;
    let has_ended = client.not_after <= now;
    has_ended.then(|| format!("The certificate of this worker expired at {}; {ENDED}.", client.not_after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(status: &WorkerStatus) -> Vec<String> {
        problems(status, Timestamp::UNIX_EPOCH).into_iter().map(|problem| problem.message).collect()
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
        let message = ended(&[certificate("client", before), certificate("serving", after)], now).unwrap();
        assert!(message.contains(before) && message.contains("keelway node forget"), "{message}");
    }

    fn healthy() -> WorkerStatus {
        serde_json::from_value(serde_json::json!({
            "node": "w1", "version": "1.37.0", "pid": 1, "residentKib": 1, "addresses": [], "podCIDRs": [], "tunnels": [],
            "ingresses": [], "kubelet": { "pid": 2, "restarts": 0 }, "certificates": [],
        }))
        .unwrap()
    }

    #[test]
    fn an_ingress_of_an_unknown_authority_is_a_problem() {
        let ingress = |address: &str, problem: Option<&str>| IngressStatus {
            address: address.parse().unwrap(),
            answers: Some(false),
            connections: 0,
            proxy: None,
            problem: problem.map(str::to_owned),
        };
        let untrusted =
            ["203.0.113.1:20000", "203.0.113.2:20000"].map(|address| ingress(address, Some("is unknown; join")));
        let silent = ingress("203.0.113.3:20000", None);
        let status = WorkerStatus { ingresses: untrusted.into_iter().chain([silent.clone()]).collect(), ..healthy() };
        assert_eq!(messages(&status), ["203.0.113.1:20000, 203.0.113.2:20000 is unknown; join."]);
        let status = WorkerStatus { ingresses: vec![silent], ..healthy() };
        assert_eq!(messages(&status), ["No ingress responds: allow TCP from this machine to 203.0.113.3:20000."]);
    }

    #[test]
    fn an_evicted_worker_is_a_problem() {
        let status = WorkerStatus { node_problem: Some("the worker was evicted".to_owned()), ..healthy() };
        assert_eq!(messages(&status), ["The worker was evicted."]);
    }

    #[test]
    fn a_failed_probe_is_a_problem_unless_its_reason_is_known() {
        let mut status = WorkerStatus { pod_probe_failures: vec!["connections fail; look".to_owned()], ..healthy() };
        assert_eq!(messages(&status), ["Connections fail; look."]);
        status.firewall_drops = vec!["a chain drops packets".to_owned()];
        assert_eq!(messages(&status), ["A firewall drops packets of the cluster: a chain drops packets."]);
    }

    #[test]
    fn a_conflict_of_the_pod_network_is_a_problem() {
        let mut status = healthy();
        assert_eq!(messages(&status), Vec::<String>::new());
        status.pod_network_conflicts = vec!["cni0 has another address; delete it".to_owned()];
        let expected = "Pods do not get the cluster's network: cni0 has another address; delete it.";
        assert_eq!(messages(&status), [expected]);
    }
}
