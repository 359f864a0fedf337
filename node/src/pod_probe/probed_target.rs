//! What a worker's pods must reach, and what it means if they do not. Pure.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use keelway_api::worker::ClusterInformation;
use tokio::time::Instant;

use crate::{
    changes::BRIDGE,
    peer::PeerAssignment,
    tunnels::{self, TunnelStatus},
};

/// The port of the Service `kubernetes`.
const SERVICE_PORT: u16 = 443;

/// What a target is for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProbedRole {
    /// A gateway that responds to the worker itself. The worker forwards packets from pods to it, and those from it to pods.
    Gateway,
    /// The Service `kubernetes`, which kube-proxy maps to the worker's own balancer.
    Service,
    /// The worker's own balancer.
    Api,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProbedTarget {
    pub(super) role: ProbedRole,
    pub(super) address: SocketAddr,
}

/// Returns what the pods must reach, in the address families that they have.
pub(super) fn targets(
    cluster: &ClusterInformation,
    assignment: &PeerAssignment,
    tunnels: &[TunnelStatus],
) -> Vec<ProbedTarget> {
    let responding = tunnels.iter().find(|tunnel| tunnel.active && tunnel.answers == Some(true));
    let gateway = responding.and_then(|tunnel| {
        let endpoint =
            cluster.endpoints.iter().find(|endpoint| tunnel.endpoints().any(|own| own == endpoint.address))?;
        endpoint.gateway.as_ref()
    });
    let gateways = gateway.into_iter().flat_map(|gateway| &gateway.addresses);
    let gateways = gateways.map(|address| (ProbedRole::Gateway, SocketAddr::new(*address, tunnels::PORT)));
    let api =
        cluster.api.addresses.iter().map(|address| (ProbedRole::Api, SocketAddr::new(*address, cluster.api.port)));
    // The API server assigns the first address of the first range to it.
    let services = cluster.service_cidrs.first().filter(|_| cluster.kube_proxy.enabled);
    let service = services
        .and_then(|range| range.hosts().next())
        .map(|to| (ProbedRole::Service, SocketAddr::new(to, SERVICE_PORT)));
    let has_family = |to: &SocketAddr| assignment.pod_cidrs.iter().any(|range| range.addr().is_ipv4() == to.is_ipv4());
    let all = gateways.chain(service).chain(api).filter(|(_, address)| has_family(address));
    all.map(|(role, address)| ProbedTarget { role, address }).collect()
}

impl ProbedTarget {
    /// Whether another target works if this one does.
    pub(super) fn implies(self, other: Self) -> bool {
        let is_same_family = self.address.is_ipv4() == other.address.is_ipv4();
        is_same_family && (self.role, other.role) == (ProbedRole::Service, ProbedRole::Api)
    }

    /// How long a target may not respond until that is a finding: several probes, and, for a Service, the start of kube-proxy.
    fn patience(self) -> Duration {
        match self.role {
            ProbedRole::Gateway | ProbedRole::Api => Duration::from_secs(5),
            ProbedRole::Service => Duration::from_secs(60),
        }
    }

    /// Returns what does not work, and what to do.
    fn text(self) -> String {
        let (to, tunnels) = (self.address.ip(), tunnels::INTERFACE);
        match self.role {
            ProbedRole::Gateway => format!(
                "connections from pods to the gateway {to} fail, although the worker itself reaches it: something on this machine drops packets that \
                 it forwards; look for it in `nft list ruleset`, in `iptables-legacy-save`, and in programs that filter with eBPF, and accept packets \
                 from and to the interfaces {BRIDGE} and {tunnels}* there"
            ),
            ProbedRole::Api => format!(
                "connections from pods to the API ({}) fail: something on this machine drops packets from pods to the machine itself; look for it in \
                 `nft list ruleset`, in `iptables-legacy-save`, and in programs that filter with eBPF, and accept packets from the interface {BRIDGE} \
                 there",
                self.address
            ),
            ProbedRole::Service => format!(
                "connections from pods to the Service kubernetes ({to}) fail, although those to the API's own address do not: kube-proxy has not set \
                 up Services on this machine; see `kubectl --namespace kube-system logs --selector k8s-app=kube-proxy`"
            ),
        }
    }
}

/// The targets that do not respond, each since when.
#[derive(Debug, Default)]
pub(super) struct FailedTargets(BTreeMap<ProbedTarget, Instant>);

impl FailedTargets {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes a round of probes, which began at this time. A target that was not probed is forgotten.
    pub(super) fn note(&mut self, round: &[(ProbedTarget, bool)], began: Instant) {
        self.0.retain(|target, _| round.contains(&(*target, false)));
        for (target, _) in round.iter().filter(|(_, has_responded)| !has_responded) {
            self.0.entry(*target).or_insert(began);
        }
    }

    /// Returns the text of each target that has not responded for a while.
    pub(super) fn findings(&self, now: Instant) -> Vec<String> {
        let lacks_api = self.0.keys().any(|target| target.role == ProbedRole::Api);
        let is_found = |(target, since): &(&ProbedTarget, &Instant)| {
            let is_consequence = lacks_api && target.role == ProbedRole::Service;
            !is_consequence && now.duration_since(**since) >= target.patience()
        };
        self.0.iter().filter(is_found).map(|(target, _)| target.text()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tunnel(active: bool, answers: bool) -> TunnelStatus {
        serde_json::from_value(json!({
            "interface": "keelway0", "endpoint": "203.0.113.2:20000", "otherEndpoints": ["[2001:db8::2]:20000"], "active": active, "answers": answers,
            "dataPath": "kernel", "receivedBytes": 0, "sentBytes": 0,
        }))
        .unwrap()
    }

    fn cluster() -> ClusterInformation {
        let mut cluster = crate::samples::cluster();
        cluster.endpoints = serde_json::from_value(json!([{
            "address": "[2001:db8::2]:20000", "gateway": { "publicKey": "", "addresses": ["100.80.0.2", "fd00:80::2"] },
        }]))
        .unwrap();
        cluster
    }

    fn probed(cluster: &ClusterInformation, tunnel: TunnelStatus) -> Vec<String> {
        let assignment =
            PeerAssignment { pod_cidrs: vec!["10.244.3.0/24".parse().unwrap()], ..PeerAssignment::default() };
        targets(cluster, &assignment, &[tunnel])
            .iter()
            .map(|target| format!("{:?} {}", target.role, target.address))
            .collect()
    }

    #[test]
    fn a_gateway_is_probed_while_it_responds_to_the_worker() {
        let all = ["Gateway 100.80.0.2:9", "Service 10.96.0.1:443", "Api 100.80.0.1:6443"];
        let mut cluster = cluster();
        assert_eq!(probed(&cluster, tunnel(true, true)), all);
        assert_eq!(probed(&cluster, tunnel(true, false)), all[1..]);
        assert_eq!(probed(&cluster, tunnel(false, true)), all[1..]);
        cluster.kube_proxy.enabled = false;
        assert_eq!(probed(&cluster, tunnel(true, true)), [all[0], all[2]]);
    }

    #[test]
    fn a_target_that_does_not_respond_for_a_while_is_a_finding() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let all = targets(
            &cluster(),
            &PeerAssignment { pod_cidrs: vec!["10.244.3.0/24".parse().unwrap()], ..PeerAssignment::default() },
            &[],
        );
        let (service, api) = (all[0], all[1]);
        assert!(service.implies(api) && !api.implies(service));
        let round = |api_responds, service_responds| [(service, service_responds), (api, api_responds)];
        let mut failed = FailedTargets::default();
        failed.note(&round(true, false), at(0));
        failed.note(&round(true, false), at(59));
        assert!(!failed.is_empty() && failed.findings(at(59)).is_empty(), "kube-proxy starts");
        let found = failed.findings(at(60));
        assert!(found.len() == 1 && found[0].contains("Service kubernetes (10.96.0.1) fail"), "{found:?}");
        failed.note(&round(false, false), at(61));
        assert!(failed.findings(at(61)).is_empty(), "the Service needs the API");
        let found = failed.findings(at(66));
        assert!(found.len() == 1 && found[0].contains("from pods to the API (100.80.0.1:6443) fail"), "{found:?}");
        failed.note(&round(true, true), at(67));
        assert!(failed.is_empty() && failed.findings(at(200)).is_empty());
        failed.note(&round(false, true), at(68));
        failed.note(&[], at(69));
        assert!(failed.is_empty(), "it is not probed any more");
    }
}
