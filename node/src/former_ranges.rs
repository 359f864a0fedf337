//! Ends pods with addresses of pod ranges that the worker no longer has. The kubelet then starts them with addresses of its ranges.
//!
//! The control plane assigns other ranges to a Node that was deleted and created again. Gateways send packets for the former ranges to another worker,
//! and the bridge plugin refuses new pods while the bridge has an address of a former range.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use ipnet::IpNet;
use k8s_cri::v1::{
    ListPodSandboxRequest, PodSandboxStatusRequest, StopPodSandboxRequest, runtime_service_client::RuntimeServiceClient,
};
use keelway_cri::CriRuntime;
use keelway_vpn::netlink::{NetlinkError, interface::Interface};
use tokio::time::timeout;
use tonic::Status;

use crate::{changes::BRIDGE, undo::KUBELET_LABEL};

/// How long the runtime may take. The next attempt continues with the pods that are left.
const END_PODS: Duration = Duration::from_secs(60);

/// Pods with former addresses cannot be ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormerRangeError {
    #[error("cannot end pods with addresses of a former range")]
    Runtime(#[source] Box<Status>),
    #[error("the runtime did not end pods with addresses of a former range within {} s", END_PODS.as_secs())]
    TimedOut,
    #[error("cannot delete the bridge {BRIDGE}, which has an address of a former range")]
    Bridge(#[source] NetlinkError),
}

impl From<Status> for FormerRangeError {
    fn from(status: Status) -> Self {
        Self::Runtime(Box::new(status))
    }
}

/// The pod ranges of the cluster, and those of this worker. The worker has none of a family before the control plane assigned one.
pub(crate) struct PodRanges {
    pub(crate) of_cluster: Vec<IpNet>,
    pub(crate) own: Vec<IpNet>,
}

impl PodRanges {
    /// Whether the cluster assigned this address to a pod of the worker under a range that the worker no longer has.
    fn is_former(&self, address: IpAddr) -> bool {
        let is_in = |ranges: &[IpNet]| ranges.iter().any(|range| range.contains(&address));
        let has_family = self.own.iter().any(|range| range.addr().is_ipv4() == address.is_ipv4());
        has_family && is_in(&self.of_cluster) && !is_in(&self.own)
    }
}

/// Ends the pods with former addresses, and then deletes the bridge, if the bridge has such an address.
pub(crate) async fn leave(
    runtime: &CriRuntime,
    ranges: &PodRanges,
    bridge: &BTreeSet<IpAddr>,
) -> Result<(), FormerRangeError> {
    if !bridge.iter().any(|address| ranges.is_former(*address)) {
        return Ok(());
    }
    let ended = timeout(END_PODS, end_pods(runtime, ranges)).await.map_err(|_| FormerRangeError::TimedOut)??;
    Interface::find(BRIDGE).and_then(|bridge| bridge.delete()).map_err(FormerRangeError::Bridge)?;
    tracing::warn!(ended, "the worker has other pod ranges; ended its pods, which start again with other addresses");
    Ok(())
}

async fn end_pods(runtime: &CriRuntime, ranges: &PodRanges) -> Result<usize, Status> {
    let mut client = RuntimeServiceClient::new(runtime.channel());
    let all = client.list_pod_sandbox(ListPodSandboxRequest { filter: None }).await?.into_inner().items;
    let mut ended = 0;
    for sandbox in all.into_iter().filter(|sandbox| sandbox.labels.contains_key(KUBELET_LABEL)) {
        let asked = PodSandboxStatusRequest { pod_sandbox_id: sandbox.id.clone(), verbose: false };
        let status = client.pod_sandbox_status(asked).await?.into_inner().status;
        let address = status.and_then(|status| status.network?.ip.parse().ok());
        if address.is_some_and(|address| ranges.is_former(address)) {
            client.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: sandbox.id }).await?;
            ended += 1;
        }
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_cluster_outside_of_the_workers_ranges_are_former() {
        let nets = |all: &[&str]| all.iter().map(|net| net.parse().unwrap()).collect();
        let ranges = PodRanges { of_cluster: nets(&["10.244.0.0/16", "fd01::/56"]), own: nets(&["10.244.3.0/24"]) };
        for (address, is) in [("10.244.2.7", true), ("10.244.3.7", false), ("10.88.0.1", false), ("fd01::7", false)] {
            assert_eq!(ranges.is_former(address.parse().unwrap()), is, "{address}");
        }
        let both = PodRanges { own: nets(&["10.244.3.0/24", "fd01:0:0:3::/64"]), ..ranges };
        assert!(both.is_former("fd01::7".parse().unwrap()) && !both.is_former("fd01:0:0:3::7".parse().unwrap()));
        let none = PodRanges { own: vec![], ..both };
        assert!(!none.is_former("10.244.2.7".parse().unwrap()), "a worker without a Node has no ranges");
    }
}
