//! Checks that pods get the cluster's network: that containerd uses the cluster's CNI configuration, and that the bridge of pods has no address of
//! another network.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    ops::Bound::{Excluded, Unbounded},
    path::PathBuf,
};

use ipnet::IpNet;
use keelway_api::worker::CNI_FILE;

use super::CheckFault;
use crate::changes::BRIDGE;

/// What decides on the network of pods on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNetworkFacts {
    /// The directory in which containerd looks for CNI configurations.
    pub directory: PathBuf,
    /// The names of the CNI configurations there.
    pub files: BTreeSet<String>,
    /// The addresses of the bridge of pods. Empty if there is no such bridge.
    pub bridge: BTreeSet<IpAddr>,
}

/// Returns what keeps pods from getting addresses of the worker's `ranges`, which are empty before the join. Use it only if the cluster's CNI
/// configuration is enabled.
#[must_use]
pub fn pod_network(facts: &PodNetworkFacts, ranges: &[IpNet]) -> Vec<CheckFault> {
    let earlier = facts.files.range::<str, _>((Unbounded, Excluded(CNI_FILE))).map(|file| {
        let path = facts.directory.join(file);
        CheckFault::new(
            format!(
                "containerd uses {} instead of the cluster's CNI configuration, because its name sorts before {CNI_FILE}",
                path.display()
            ),
            format!(
                "move it out of {}, or set spec.addons.cni.enabled of the cluster to false",
                facts.directory.display()
            ),
        )
    });
    let is_other = |address: &&IpAddr| !ranges.iter().any(|range| range.contains(*address));
    let bridge = facts.bridge.iter().find(is_other).map(|address| {
        CheckFault::new(
            format!("the bridge {BRIDGE} has the address {address} of another pod network, so that pods cannot use it"),
            format!(
                "stop the containers that use it and delete it with `ip link delete {BRIDGE}`, or set spec.addons.cni.enabled of the cluster to false"
            ),
        )
    });
    earlier.chain(bridge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(files: &[&str], bridge: &[&str]) -> PodNetworkFacts {
        PodNetworkFacts {
            directory: "/etc/cni/net.d".into(),
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            bridge: bridge.iter().map(|address| address.parse().unwrap()).collect(),
        }
    }

    /// The file of containerd's own installation script, and the one of podman.
    #[test]
    fn a_configuration_that_sorts_first_is_a_fault() {
        let found = pod_network(&facts(&["10-containerd-net.conflist", "10-keelway.conflist"], &[]), &[]);
        let [fault] = found.as_slice() else { panic!("{found:?}") };
        assert!(fault.problem.contains("/etc/cni/net.d/10-containerd-net.conflist"), "{fault}");
        assert!(fault.help.contains("move it out of") && fault.help.contains("spec.addons.cni"), "{fault}");
        assert_eq!(pod_network(&facts(&["10-keelway.conflist", "87-podman-bridge.conflist"], &[]), &[]), []);
        assert_eq!(pod_network(&facts(&[], &[]), &[]), []);
    }

    #[test]
    fn a_bridge_has_addresses_of_the_workers_ranges_only() {
        let ranges = ["10.244.3.0/24".parse().unwrap(), "fd01:3::/80".parse().unwrap()];
        assert_eq!(pod_network(&facts(&[], &["10.244.3.1", "fd01:3::1"]), &ranges), []);
        for (bridge, ranges) in [("10.88.0.1", &ranges[..]), ("10.244.9.1", &ranges), ("10.88.0.1", &[])] {
            let found = pod_network(&facts(&[], &[bridge]), ranges);
            let [fault] = found.as_slice() else { panic!("{bridge}: {found:?}") };
            assert!(fault.problem.contains(bridge) && fault.help.contains("ip link delete cni0"), "{fault}");
        }
    }
}
