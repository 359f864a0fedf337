//! The members of a fleet: clusters with an agent.

use keelway_e2e::{Kubectl, deadline, worker_fleet::WorkerFleet};

use crate::{Member, guestbook::VISITS};

/// Registers clusters with the commands of the documentation, and waits until the fleet reports them ready.
pub(crate) fn register(setting: &WorkerFleet, fleet: &Kubectl, members: &[&Member]) {
    for member in members {
        let kubeconfig = fleet.file().to_str().unwrap();
        let create = ["fleet", "token", "create", "--cluster-name", member.name, "--kubeconfig", kubeconfig];
        let token = setting.fleet.keelway.run(&create, &[]).succeeded().stdout;
        let manifests = setting
            .fleet
            .keelway
            .run(&["fleet", "agent-manifests", "-", "--resource", VISITS], &token)
            .succeeded()
            .stdout;
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

/// Returns the status of the condition `Ready` of a cluster, as `kubectl get clusters` prints it.
pub(crate) fn ready(fleet: &Kubectl, member: &Member) -> String {
    let object = format!("clusters.fleet.keelway.dev/{}", member.name);
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    fleet.run(&["get", &object, "-o", path, "--request-timeout=5s"]).text().to_owned()
}
