//! The agent under test, as the process that ships.

use std::process::Child;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use keelway_fleet::{AgentRights, FleetToken, agent_rules};
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::{
    fleet::{BOOTSTRAP, apply},
    plane::{Plane, path, start, write},
};

/// The agent's user in the workload cluster.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:keelway-fleet:keelway-fleet-agent";

/// A running agent.
pub(crate) struct Agent(Child);

/// Applies the rights that ship, and those for one custom resource.
pub(crate) async fn grant(admin: &Client) {
    let rights = AgentRights { resources: vec!["widgets.example.com".to_owned()], ..AgentRights::default() };
    apply(&Api::<ClusterRole>::all(admin.clone()), json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "keelway-fleet-agent" },
        "rules": agent_rules(&rights),
    })).await;
    apply(&Api::<ClusterRoleBinding>::all(admin.clone()), json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "keelway-fleet-agent" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "keelway-fleet-agent" },
        "subjects": [{ "kind": "ServiceAccount", "name": "keelway-fleet-agent", "namespace": "keelway-fleet" }],
    })).await;
}

impl Agent {
    /// Starts the agent of the cluster `west`. The first endpoint of its token does not respond.
    pub(crate) fn start(fleet: &Plane, workload: &Plane) -> Self {
        let token = FleetToken {
            server: vec!["https://127.0.0.1:1".to_owned(), fleet.url()],
            authorities: fleet.authority().to_owned(),
            cluster: "west".to_owned(),
            bootstrap: format!("{}.{}", BOOTSTRAP.0, BOOTSTRAP.1).parse().unwrap(),
        };
        let arguments = [
            "run".to_owned(),
            format!("--token={}", write("token", token.to_text().as_bytes())),
            "--namespace=keelway-fleet".to_owned(),
            format!("--state={}", path("agent-state").display()),
            format!("--kubeconfig={}", workload.kubeconfig(ACCOUNT, &[])),
        ];
        Self(start("agent", env!("CARGO_BIN_EXE_keelway-fleet-agent"), &arguments))
    }

    /// Returns the memory of the process itself in KiB, without the files that it maps.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Ends the agent by SIGTERM.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }

    /// Kills the agent, as the loss of its node would.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
