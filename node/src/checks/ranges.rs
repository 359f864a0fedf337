//! Checks whether ranges of the cluster overlap networks of the machine.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use keelway_api::worker::ClusterInformation;

use super::CheckFault;

const PODS: &str = "network.podCIDRs";
const SERVICES: &str = "network.serviceCIDRs";

/// The ranges of a cluster, each with its field name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRanges {
    named: Vec<(&'static str, IpNet)>,
    endpoints: Vec<SocketAddr>,
}

impl NamedRanges {
    /// Returns the ranges of this cluster.
    #[must_use]
    pub fn of(cluster: &ClusterInformation) -> Self {
        let named = |name, ranges: &[IpNet]| ranges.iter().map(move |range| (name, *range)).collect::<Vec<_>>();
        Self {
            named: [
                named("vpn.cidrs", &cluster.vpn_cidrs),
                named(PODS, &cluster.pod_cidrs),
                named(SERVICES, &cluster.service_cidrs),
            ]
            .concat(),
            endpoints: cluster.endpoints.iter().map(|endpoint| endpoint.address).collect(),
        }
    }

    /// Returns the ranges whose packets a running worker handles itself. Other CNI plugins and replacements of kube-proxy have routes and addresses of
    /// their own in the other ones.
    pub(crate) fn handled_by_worker(cluster: &ClusterInformation) -> Self {
        let mut ranges = Self::of(cluster);
        ranges.named.retain(|(name, _)| match *name {
            PODS => cluster.cni.enabled,
            SERVICES => cluster.kube_proxy.enabled,
            _ => true,
        });
        ranges
    }

    pub(super) fn named(&self) -> &[(&'static str, IpNet)] {
        &self.named
    }
}

/// Returns what to do about a range of the cluster that the machine uses otherwise.
pub(super) fn help(name: &str) -> String {
    format!("change {name} of the cluster, or the network of this machine")
}

/// Returns a fault for each range of the cluster that overlaps a network of the machine or contains an endpoint. Default routes are ignored.
#[must_use]
pub fn overlaps(ranges: &NamedRanges, networks: &[IpNet]) -> Vec<CheckFault> {
    let mut faults = Vec::new();
    for (name, range) in &ranges.named {
        for network in networks.iter().filter(|network| network.prefix_len() > 0 && overlap(range, network)) {
            faults.push(CheckFault::new(
                format!("{name} of the cluster ({range}) overlaps this machine's network {network}"),
                help(name),
            ));
        }
        for endpoint in ranges.endpoints.iter().filter(|endpoint| range.contains(&endpoint.ip())) {
            let problem = format!("{name} of the cluster ({range}) contains the cluster's endpoint {endpoint}");
            faults.push(CheckFault::new(problem, help(name)));
        }
    }
    faults.sort();
    faults.dedup();
    faults
}

pub(super) fn overlap(one: &IpNet, other: &IpNet) -> bool {
    let holds = |outer: &IpNet, inner: &IpNet| outer.contains(inner);
    same_family(one.addr(), other.addr()) && (holds(one, other) || holds(other, one))
}

fn same_family(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}
