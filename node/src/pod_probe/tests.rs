//! A worker and a gateway, each in a network namespace. Without root, the tests do nothing.

use rustix::process::geteuid;

use super::{probed_target::ProbedRole, *};
use crate::{
    foreign_drops,
    isolated::{network::NetworkMachine, run},
};

const WORKER: &str = "
ip link add cni0 type bridge
ip address add 10.244.3.1/24 dev cni0
ip link set cni0 up
ip address add 100.80.0.1/32 dev lo
ip route add 10.244.0.0/16 via 100.80.0.2
sysctl -qw net.ipv4.ip_forward=1";

/// Returns whether the gateway and the API respond on a worker with these rules, and whether reading its rules finds what drops packets.
fn probed(rules: &'static str) -> ([bool; 2], bool) {
    let (worker, gateway) = (NetworkMachine::new(), NetworkMachine::new());
    worker.connect(("keelway0", "100.80.0.3/16"), &gateway, ("wg0", "100.80.0.2/16"));
    worker.shell(WORKER);
    gateway.shell("ip route add 10.244.3.0/24 via 100.80.0.3");
    let _api = worker.listen(6443);
    worker.within(move || {
        run("sh", &["-ec", rules]);
        let directory = tempfile::tempdir().unwrap();
        let assignment =
            PeerAssignment { pod_cidrs: vec!["10.244.3.0/24".parse().unwrap()], ..PeerAssignment::default() };
        let cluster = crate::samples::cluster();
        let end = PodEnd::create_with(PodEndConfig::observe(&cluster, &assignment).unwrap(), directory.path()).unwrap();
        assert!(!PodEnd::is_gone() && std::fs::read_dir(directory.path()).unwrap().count() == 1);
        let target = |role, address: &str| ProbedTarget { role, address: address.parse().unwrap() };
        let targets = vec![target(ProbedRole::Gateway, "100.80.0.2:9"), target(ProbedRole::Api, "100.80.0.1:6443")];
        let round = end.connect(targets).unwrap();
        drop(end);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        ([round[0].1, round[1].1], !foreign_drops::check(&cluster).unwrap().is_empty())
    })
}

#[test]
fn probes_find_drops_that_no_rule_shows() {
    if !geteuid().is_root() {
        return;
    }
    assert_eq!(probed(""), ([true, true], false));
    // What another program does to packets is not known, so that this rule may match none of the cluster's.
    let forwarded =
        "nft 'table inet owner { chain f { type filter hook forward priority 0; iifname cni0 meta mark 0 drop; }; }'";
    assert_eq!(probed(forwarded), ([false, true], false));
    let delivered =
        "nft 'table inet owner { chain i { type filter hook input priority 0; iifname cni0 meta mark 0 drop; }; }'";
    assert_eq!(probed(delivered), ([true, false], false));
    let returning = "nft 'table inet owner { chain f { type filter hook forward priority 0; oifname cni0 ct state established drop; }; }'";
    assert_eq!(probed(returning), ([false, true], false));
}

#[test]
fn the_worker_probes_after_changes_and_failures_and_once_a_minute() {
    let plan = |generation| ProbePlan {
        end: None,
        targets: vec![],
        generation: Some(generation),
        legacy: LegacyTables::default(),
    };
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    assert!(is_due(None, &plan(1), false, at(0)));
    let last = (plan(1), at(0));
    let due = |now: &ProbePlan, has_failures, seconds| is_due(Some(&last), now, has_failures, at(seconds));
    assert!(!due(&plan(1), false, 59) && due(&plan(1), false, 60));
    assert!(!due(&plan(2), false, 5) && due(&plan(2), false, 10));
    assert!(due(&plan(1), true, 5));
}
