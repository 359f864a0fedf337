//! The agent under test, as the process that ships.

use std::process::Child;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use keelway_fleet::{AgentRights, FleetToken, agent_rules};
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    fleet::{BOOTSTRAP, apply},
    plane::{Plane, free_port, path, start, write},
};

/// The agent's user in the workload cluster.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:keelway-fleet:keelway-fleet-agent";

/// A running agent.
pub(crate) struct Agent {
    child: Child,
    health: u16,
}

/// Applies the rights that ship, and those for one custom resource.
pub(crate) async fn grant(admin: &Client) {
    let resources = ["widgets.example.com", "gadgets.example.com"].map(str::to_owned).into();
    grant_rights(admin, &AgentRights { resources, ..AgentRights::default() }).await;
}

/// Applies these rights.
pub(crate) async fn grant_rights(admin: &Client, rights: &AgentRights) {
    apply(&Api::<ClusterRole>::all(admin.clone()), json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "keelway-fleet-agent" },
        "rules": agent_rules(rights),
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
        Self::start_with(fleet, workload, &[])
    }

    /// The same with more flags.
    pub(crate) fn start_with(fleet: &Plane, workload: &Plane, flags: &[&str]) -> Self {
        let token = FleetToken {
            server: vec!["https://127.0.0.1:1".to_owned(), fleet.url()],
            authorities: fleet.authority().to_owned(),
            cluster: "west".to_owned(),
            bootstrap: format!("{}.{}", BOOTSTRAP.0, BOOTSTRAP.1).parse().unwrap(),
        };
        let health = free_port();
        let own = [
            "run".to_owned(),
            format!("--health=127.0.0.1:{health}"),
            format!("--token={}", write("token", token.to_text().as_bytes())),
            "--namespace=keelway-fleet".to_owned(),
            format!("--state={}", path("agent-state").display()),
            format!("--kubeconfig={}", workload.kubeconfig(ACCOUNT, &[])),
        ];
        let arguments: Vec<String> = own.into_iter().chain(flags.iter().map(|&flag| flag.to_owned())).collect();
        Self { child: start("agent", env!("CARGO_BIN_EXE_keelway-fleet-agent"), &arguments), health }
    }

    /// Returns the response of the readiness endpoint.
    pub(crate) async fn readiness(&self) -> String {
        self.get("/readyz").await.unwrap_or_default()
    }

    /// Returns how often the agent wrote that the fleet refuses it.
    pub(crate) fn refusals() -> usize {
        Self::logged("the fleet refuses this agent: its cluster was removed")
    }

    /// Returns how often the log contains a text.
    pub(crate) fn logged(text: &str) -> usize {
        std::fs::read_to_string(path("agent.log")).unwrap().matches(text).count()
    }

    /// Returns the memory of the process itself in KiB, without the files that it maps.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Returns the value of a metric, which may have labels.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").await?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Returns a response of the agent, with its headers.
    async fn get(&self, target: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.health)).await.ok()?;
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        Some(text)
    }

    /// Ends the agent by SIGTERM.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// Kills the agent, as the loss of its node would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
