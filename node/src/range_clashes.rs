//! What diverts packets of the cluster's ranges on a running worker: networks that the machine entered since the join, and programs that were installed.

use std::{collections::BTreeSet, time::Duration};

use keelway_api::worker::ClusterInformation;
use keelway_vpn::netlink::{NetlinkError, interface::Interface};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use crate::{
    changes::BRIDGE,
    checks::{self, CheckFault, NamedRanges},
    direct_paths,
    facts::{self, OwnNetworks},
    findings::{log_once, replace_findings},
    firewall::{self, FirewallError},
    information::TrustedInformation,
    peer::PeerAssignment,
    tunnels,
};

const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The machine cannot be observed.
#[derive(Debug, thiserror::Error)]
enum RangeClashError {
    #[error("cannot list the routes of this machine")]
    Routes(#[source] NetlinkError),
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}

/// Returns a fault for each range of the cluster that something else on the machine uses.
fn clashes(cluster: &ClusterInformation, assignment: &PeerAssignment) -> Result<Vec<CheckFault>, RangeClashError> {
    let ranges = NamedRanges::handled_by_worker(cluster);
    let own = own_networks(cluster, assignment);
    let (networks, routing) = facts::routing(&firewall::chains()?, &own).map_err(RangeClashError::Routes)?;
    let mut found = checks::overlaps(&ranges, &networks);
    found.extend(checks::routing_faults(&ranges, &routing));
    Ok(found)
}

fn own_networks(cluster: &ClusterInformation, assignment: &PeerAssignment) -> OwnNetworks {
    let tunnels = (0..tunnels::MOST).map(|slot| format!("{}{slot}", tunnels::INTERFACE));
    let bridge = Interface::find(BRIDGE).and_then(|bridge| bridge.addresses()).unwrap_or_default();
    let interfaces = tunnels
        .chain([direct_paths::INTERFACE, BRIDGE].map(str::to_owned))
        .filter_map(|name| Interface::find(&name).ok());
    let addresses: BTreeSet<_> =
        assignment.addresses.iter().chain(&cluster.api.addresses).copied().chain(bridge).collect();
    OwnNetworks {
        dropped: [cluster.vpn_cidrs.clone(), cluster.pod_cidrs.clone()].concat(),
        // A DNS cache on each node has the address of the cluster's DNS.
        addresses: addresses.into_iter().chain([cluster.dns_address]).collect(),
        interfaces: interfaces.map(|interface| interface.index()).collect(),
    }
}

/// Looks for clashes repeatedly, and logs each once. If the machine cannot be observed, the last ones stay.
pub(crate) async fn follow(
    known: &watch::Sender<TrustedInformation>,
    assignment: &watch::Sender<PeerAssignment>,
    found: &watch::Sender<Vec<String>>,
) {
    let mut turns = interval(LOOK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The daemon is still setting up its own networks.
    turns.reset();
    let mut fault = None;
    loop {
        turns.tick().await;
        let (cluster, assignment) = (known.borrow().cluster.clone(), assignment.borrow().clone());
        match spawn_blocking(move || clashes(&cluster, &assignment)).await {
            Ok(observed) => {
                let compared = observed.map(|now| {
                    let now = now.iter().map(|clash| format!("{}; {}", clash.problem, clash.help)).collect();
                    replace_findings(found, now, |clash| tracing::error!("{clash}"));
                });
                log_once(&mut fault, "cannot compare the cluster's ranges with this machine", compared);
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::isolated::{run, within};

    const WORKER: &str = "
ip link set lo up
ip address add 100.80.0.17/32 dev lo
ip address add 100.80.0.1/32 dev lo
ip link add keelway0 type bridge
ip address add 100.80.0.17/32 dev keelway0
ip link set keelway0 up
ip route add 100.80.0.0/16 dev keelway0 metric 100
ip route add 10.244.0.0/16 dev keelway0 metric 100
ip route add blackhole 100.80.0.0/16 metric 100000
ip route add blackhole 10.244.0.0/16 metric 100000
ip link add cni0 type bridge
ip address add 10.244.3.1/24 dev cni0
ip link set cni0 up
ip link add cache type bridge
ip address add 10.96.0.10/32 dev cache";

    #[test]
    fn the_workers_own_networks_do_not_clash_and_new_ones_do() {
        within(UnshareFlags::NEWNET, || {
            run("sh", &["-ec", WORKER]);
            let mut cluster = crate::samples::cluster();
            let assignment = PeerAssignment {
                addresses: vec!["100.80.0.17".parse().unwrap()],
                pod_cidrs: vec!["10.244.3.0/24".parse().unwrap()],
            };
            let problems = |cluster: &ClusterInformation| -> Vec<String> {
                clashes(cluster, &assignment).unwrap().into_iter().map(|clash| clash.problem).collect()
            };
            assert_eq!(problems(&cluster), [""; 0]);
            run("ip", &["link", "add", "wlan0", "type", "bridge"]);
            run("ip", &["link", "set", "wlan0", "up"]);
            run("ip", &["address", "add", "100.80.4.9/20", "dev", "wlan0"]);
            run("ip", &["route", "add", "10.244.0.0/15", "dev", "wlan0", "table", "52"]);
            let found = problems(&cluster).join("\n");
            assert!(
                found
                    .contains("vpn.cidrs of the cluster (100.80.0.0/16) overlaps this machine's network 100.80.0.0/20"),
                "{found}"
            );
            assert!(found.contains("overlaps the route 10.244.0.0/15 in the routing table 52"), "{found}");
            cluster.cni.enabled = false;
            assert!(!problems(&cluster).join("\n").contains("podCIDRs"), "another pod network has such routes");
        });
    }
}
