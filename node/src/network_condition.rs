//! The condition `NetworkUnavailable` of the worker's Node: whether a gateway responds through its tunnel.
//!
//! The kubelet reports only that the container runtime has a network. Without a tunnel, the worker's pods reach no other node, and API servers do
//! not reach its kubelet. The control plane taints a Node with this condition (`node.kubernetes.io/network-unavailable`), so that no pod is scheduled
//! there. CNI agents set it in the same way.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    api::ApiError,
    node_event::{self, NodeEventText},
    tunnels::TunnelStatus,
};

/// The type of the condition (`NodeNetworkUnavailable` in `k8s.io/api/core/v1`).
pub(crate) const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
/// The reason while no gateway responds.
pub(crate) const NO_GATEWAY_RESPONDS: &str = "NoGatewayResponds";
/// The reason while a firewall of another program drops packets of the cluster.
pub(crate) const FIREWALL_DROPS_PACKETS: &str = "FirewallDropsPackets";
/// The reason while pods cannot connect, although the worker itself can.
pub(crate) const PODS_CANNOT_CONNECT: &str = "PodsCannotConnect";
/// The reason while pods get another network than the cluster's.
pub(crate) const POD_NETWORK_CONFLICT: &str = "PodNetworkConflict";
/// How long all gateways may be silent before the network counts as unavailable: several checks, and a handshake of WireGuard with a retry.
const SILENCE: Duration = Duration::from_secs(15);

/// The network of a worker, as its Node reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NetworkState {
    /// A gateway responds through its tunnel, or the cluster has no gateways.
    Available,
    /// No gateway responds. Contains their endpoints.
    Unavailable(Vec<String>),
    /// Pods get another network. Contains why, and what to do.
    OtherPodNetwork(Vec<String>),
    /// A firewall of another program cuts off the worker or its pods. Contains what it drops, and what to do.
    CutOff(Vec<String>),
    /// Connections from the place of a pod fail. Contains which of them, and what to do.
    PodsCutOff(Vec<String>),
}

/// Decides on the state from the checks of the tunnels. Pure: the time is an argument.
#[derive(Debug)]
pub(crate) struct NetworkCheck {
    responded: Instant,
}

impl NetworkCheck {
    pub(crate) fn new(now: Instant) -> Self {
        Self { responded: now }
    }

    /// Returns the state, or `None` while it is not clear: the tunnels are not up yet, or have been silent for a moment only.
    pub(crate) fn state(&mut self, has_gateways: bool, tunnels: &[TunnelStatus], now: Instant) -> Option<NetworkState> {
        if !has_gateways || tunnels.iter().any(|tunnel| tunnel.answers == Some(true)) {
            self.responded = now;
            return Some(NetworkState::Available);
        }
        let is_silent = now.duration_since(self.responded) >= SILENCE;
        let endpoints =
            || tunnels.iter().flat_map(TunnelStatus::endpoints).map(|endpoint| endpoint.to_string()).collect();
        is_silent.then(|| NetworkState::Unavailable(endpoints()))
    }
}

impl NetworkState {
    /// Returns the state, given what keeps pods from getting the cluster's network.
    pub(crate) fn with_conflicts(self, conflicts: Vec<String>) -> Self {
        if self == Self::Available && !conflicts.is_empty() { Self::OtherPodNetwork(conflicts) } else { self }
    }

    /// Returns the state, given what firewalls of other programs drop.
    pub(crate) fn with_drops(self, drops: Vec<String>) -> Self {
        if self == Self::Available && !drops.is_empty() { Self::CutOff(drops) } else { self }
    }

    /// Returns the state, given which connections from the place of a pod fail. A known reason comes first.
    pub(crate) fn with_probe_failures(self, failures: Vec<String>) -> Self {
        if self == Self::Available && !failures.is_empty() { Self::PodsCutOff(failures) } else { self }
    }

    /// Returns the state as text for people: what is wrong and what to do, if something is.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Available => "a gateway responds through its tunnel".to_owned(),
            Self::Unavailable(endpoints) if endpoints.is_empty() => {
                "the worker has no tunnel to a gateway: see `keelway node status` and the log of keelway-node"
                    .to_owned()
            }
            Self::Unavailable(endpoints) => format!(
                "no gateway responds through its tunnel: allow UDP from this machine to {}, and responses to it, in every firewall on the way",
                endpoints.join(", ")
            ),
            Self::OtherPodNetwork(texts) | Self::CutOff(texts) | Self::PodsCutOff(texts) => texts.join("; "),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Available => "GatewayResponds",
            Self::Unavailable(_) => NO_GATEWAY_RESPONDS,
            Self::OtherPodNetwork(_) => POD_NETWORK_CONFLICT,
            Self::CutOff(_) => FIREWALL_DROPS_PACKETS,
            Self::PodsCutOff(_) => PODS_CANNOT_CONNECT,
        }
    }

    fn condition(&self, now: Timestamp) -> NodeCondition {
        let status = if *self == Self::Available { "False" } else { "True" };
        condition(status, self.reason(), self.message(), now)
    }
}

/// Returns the condition of a Node whose worker has not reached a gateway yet.
pub(crate) fn not_reached_yet(now: Timestamp) -> NodeCondition {
    condition("True", "GatewayNotReachedYet", "the worker is setting up its tunnels".to_owned(), now)
}

fn condition(status: &str, reason: &str, message: String, now: Timestamp) -> NodeCondition {
    NodeCondition {
        type_: NETWORK_UNAVAILABLE.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// Sets the condition of the worker's Node, and records an Event on it.
pub(crate) async fn report(client: Client, node: &str, state: &NetworkState) -> Result<(), ApiError> {
    let now = Timestamp::now();
    let status = json!({ "status": { "conditions": [state.condition(now)] } });
    let nodes: Api<Node> = Api::all(client.clone());
    let patched = nodes.patch_status(node, &PatchParams::default(), &Patch::Strategic(&status)).await;
    patched.map_err(ApiError::request("report the network of the Node"))?;
    let (is_warning, message) = (*state != NetworkState::Available, state.message());
    let event = NodeEventText { is_warning, reason: state.reason(), message: &message };
    node_event::record(client, node, event).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnels::TunnelTransport;

    fn tunnel(answers: Option<bool>) -> TunnelStatus {
        TunnelStatus {
            interface: "keelway0".to_owned(),
            endpoint: "203.0.113.2:20000".parse().unwrap(),
            transport: TunnelTransport::Udp,
            other_endpoints: vec!["[2001:db8::2]:20000".parse().unwrap()],
            active: true,
            answers,
            data_path: "kernel".to_owned(),
            latency_microseconds: None,
            last_handshake: None,
            received_bytes: 0,
            sent_bytes: 0,
        }
    }

    #[test]
    fn the_network_is_unavailable_once_all_gateways_were_silent_for_a_while() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut check = NetworkCheck::new(start);
        assert_eq!(check.state(true, &[], at(1)), None, "tunnels come up");
        assert_eq!(check.state(true, &[tunnel(None), tunnel(Some(false))], at(3)), None);
        assert_eq!(check.state(true, &[tunnel(Some(false)), tunnel(Some(true))], at(5)), Some(NetworkState::Available));
        assert_eq!(check.state(true, &[tunnel(Some(false))], at(19)), None, "a few checks failed");
        let gone = check.state(true, &[tunnel(Some(false))], at(20)).unwrap();
        assert!(
            gone.message().contains("UDP from this machine to 203.0.113.2:20000, [2001:db8::2]:20000"),
            "{}",
            gone.message()
        );
        assert_eq!(gone.condition(Timestamp::UNIX_EPOCH).status, "True");
        assert!(matches!(check.state(true, &[], at(30)), Some(NetworkState::Unavailable(none)) if none.is_empty()));
        assert_eq!(check.state(false, &[], at(40)), Some(NetworkState::Available), "the cluster has no gateways");
    }

    #[test]
    fn a_firewall_that_cuts_off_pods_makes_the_network_unavailable() {
        let drops = || vec!["the policy of ip filter FORWARD drops packets".to_owned()];
        let state = NetworkState::Available.with_drops(drops());
        assert_eq!(
            (state.reason(), state.condition(Timestamp::UNIX_EPOCH).status.as_str()),
            ("FirewallDropsPackets", "True")
        );
        assert_eq!(NetworkState::Available.with_drops(vec![]), NetworkState::Available);
        let conflict = NetworkState::Available.with_conflicts(vec!["cni0 has another address".to_owned()]);
        assert_eq!((conflict.reason(), conflict.clone().with_drops(drops())), ("PodNetworkConflict", conflict.clone()));
        assert_eq!(NetworkState::Available.with_conflicts(vec![]), NetworkState::Available);
        let silent = NetworkState::Unavailable(vec![]);
        assert_eq!(silent.clone().with_drops(drops()), silent, "the tunnel comes first");
        let failures = || vec!["connections from pods to the API fail".to_owned()];
        assert_eq!(NetworkState::Available.with_probe_failures(failures()).reason(), "PodsCannotConnect");
        assert_eq!(state.clone().with_probe_failures(failures()), state, "the chain that drops packets is known");
    }
}
