//! What is reachable on a worker, and through it: the desired firewall, from what the daemon knows.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use keelway_api::worker::ClusterInformation;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use crate::{
    changes::BRIDGE,
    facts::PodPortsObserver,
    findings::log_once,
    firewall::{ExternalInterfaces, FirewallConfig, ShieldedRanges, Transport, WorkerInput},
    open_ports::OpenPorts,
    peer::PeerAssignment,
    tunnels,
};

/// How long a new port of a pod may stay closed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The ports of pods that use the machine's own network.
pub(crate) type PodPorts = BTreeSet<(Transport, u16)>;

/// Observes the ports of pods repeatedly. If they cannot be read, the last ones stay.
pub(crate) async fn follow_pod_ports(ports: &watch::Sender<PodPorts>) {
    let mut turns = interval(LOOK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut observer, mut fault) = (PodPortsObserver::default(), None);
    loop {
        turns.tick().await;
        let Ok((outcome, kept)) = spawn_blocking(move || (observer.observe(), observer)).await else { return };
        observer = kept;
        let outcome = outcome.map(|now| {
            let Some(now) = now else { return };
            ports.send_if_modified(|before| {
                let differs = *before != now;
                *before = now;
                differs
            });
        });
        log_once(&mut fault, "cannot observe the ports of pods; the last ones stay open", outcome);
    }
}

/// Decides on the firewall. `uplinks` returns the interfaces of default routes.
pub(crate) fn desired_firewall(
    cluster: ClusterInformation,
    assignment: PeerAssignment,
    open: &OpenPorts,
    pod_ports: &PodPorts,
    uplinks: impl FnOnce() -> Vec<String>,
) -> FirewallConfig {
    let inside = [cluster.vpn_cidrs.clone(), cluster.pod_cidrs.clone()].concat();
    let shielded = [cluster.vpn_cidrs, cluster.service_cidrs].concat();
    let tunnels = format!("{}*", tunnels::INTERFACE);
    if !cluster.cni.enabled {
        // The worker does not know through which interfaces pods are reached, whether their network uses the uplinks, what it needs on the worker
        // itself, and which traffic it masquerades.
        let shielded = ShieldedRanges { ranges: shielded, outside: ExternalInterfaces::Only(uplinks()) };
        return FirewallConfig { pods: vec![], inside, tunnels, shielded, input: None };
    }
    let interfaces = [tunnels.clone(), BRIDGE.to_owned()].to_vec();
    let outside = ExternalInterfaces::AllBut([vec!["lo".to_owned()], interfaces.clone()].concat());
    let ports = match open {
        OpenPorts::All => None,
        OpenPorts::Only(ports) => {
            Some(ports.iter().flat_map(|port| Transport::ALL.map(|transport| (transport, *port))))
        }
    };
    let api = cluster.api.addresses.iter().map(|address| SocketAddr::new(*address, cluster.api.port)).collect();
    let input =
        ports.map(|ports| WorkerInput { interfaces, api, ports: ports.chain(pod_ports.iter().copied()).collect() });
    let shielded = ShieldedRanges { ranges: [shielded, cluster.pod_cidrs].concat(), outside };
    FirewallConfig { pods: assignment.pod_cidrs, inside, tunnels, shielded, input }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firewall(cni: bool, open: &str) -> FirewallConfig {
        let mut cluster = crate::samples::cluster();
        cluster.cni.enabled = cni;
        let assignment =
            PeerAssignment { pod_cidrs: vec!["10.244.3.0/24".parse().unwrap()], ..PeerAssignment::default() };
        let pods = [(Transport::Tcp, 9100)].into();
        desired_firewall(cluster, assignment, &open.parse().unwrap(), &pods, || vec!["eth0".to_owned()])
    }

    #[test]
    fn pods_and_tunnels_reach_open_ports_and_those_of_pods() {
        let input = firewall(true, "53").input.unwrap();
        let ports: Vec<(Transport, u16)> = input.ports.into_iter().collect();
        assert_eq!(ports, [(Transport::Tcp, 53), (Transport::Tcp, 9100), (Transport::Udp, 53)]);
        assert!(firewall(true, "all").input.is_none());
    }

    #[test]
    fn a_pod_network_of_the_cluster_uses_the_worker_as_it_needs() {
        let own = firewall(true, "").shielded;
        let ranges: Vec<String> = own.ranges.iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["100.80.0.0/16", "10.96.0.0/16", "10.244.0.0/16"]);
        assert!(matches!(own.outside, ExternalInterfaces::AllBut(names) if names == ["lo", "keelway*", "cni0"]));
        let other = firewall(false, "");
        let ranges: Vec<String> = other.shielded.ranges.iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["100.80.0.0/16", "10.96.0.0/16"]);
        assert!(matches!(other.shielded.outside, ExternalInterfaces::Only(names) if names == ["eth0"]));
        assert!(other.input.is_none() && other.pods.is_empty());
    }
}
