//! The members of a fleet: clusters with an agent.

use keelway_e2e::{Kubectl, deadline, worker_fleet::WorkerFleet};

use crate::Member;

/// Registers clusters with the commands of the documentation, and waits until the fleet reports them ready.
pub(crate) fn register(setting: &WorkerFleet, fleet: &Kubectl, members: &[&Member]) {
    for member in members {
        let kubeconfig = fleet.file().to_str().unwrap();
        let create = ["fleet", "token", "create", "--cluster-name", member.name, "--kubeconfig", kubeconfig];
        let token = setting.fleet.keelway.run(&create, &[]).succeeded().stdout;
        let manifests = setting.fleet.keelway.run(&["fleet", "agent-manifests", "-"], &token).succeeded().stdout;
        let _ = member.cluster.kubectl.run_with(&["apply", "-f", "-"], &manifests).succeeded();
    }
    for member in members {
        let object = format!("clusters.fleet.keelway.dev/{}", member.name);
        deadline::until(&format!("{} registers", member.name), deadline::KUBERNETES, || {
            fleet.run(&["get", &object]).code() == 0
        });
        fleet.wait("condition=Ready", &[&object]);
    }
}

/// The fleet lists its clusters with their release, and the status command finds nothing wrong.
pub(crate) fn are_reported(setting: &WorkerFleet, fleet: &Kubectl) {
    let table = fleet.run(&["get", "clusters.fleet.keelway.dev"]).succeeded().text().to_owned();
    let header: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["NAME", "K8S-VERSION", "REGION", "ZONE", "READY", "IDLE", "STANDBY", "AGE"], "{table}");
    for name in ["west", "east"] {
        assert!(table.lines().any(|line| line.starts_with(name) && line.contains("1.37")), "{table}");
    }
    let kubeconfig = fleet.file().to_str().unwrap();
    let _ = setting.fleet.keelway.run(&["fleet", "status", "--kubeconfig", kubeconfig], &[]).succeeded();
}

/// An agent's pod is replaced. No pod of a user restarts, and the agent's Lease is renewed.
pub(crate) fn an_agent_restarts(fleet: &Kubectl, member: &Member) {
    let uids = || member.cluster.kubectl.run(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
    let before = uids().succeeded().text().to_owned();
    let namespace = format!("fleet-{}", member.name);
    let renewed = || fleet.run(&["get", "lease", "agent", "-n", &namespace, "-o", "jsonpath={.spec.renewTime}"]);
    let _ = member.cluster.kubectl.run(&["delete", "pods", "--all", "-n", "keelway-fleet"]).succeeded();
    let last = renewed().succeeded().text().to_owned();
    deadline::until("the agent renews its Lease", deadline::KUBERNETES, || renewed().text() != last);
    assert_eq!(uids().succeeded().text(), before);
}
