//! The controller under test, as the process that ships.

use std::process::Child;

use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::ApiResource,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use keelway_cluster_controller::controller::{ROLE, USER};

use crate::plane::{Plane, RELEASE, free_port, log, path, replace, start};

/// A running replica.
pub(crate) struct Controller {
    name: String,
    child: Child,
    health: u16,
    configuration: Value,
}

impl Controller {
    /// Starts a replica with the rights that ship.
    pub(crate) fn start(plane: &Plane, name: &str, change: impl FnOnce(&mut Value)) -> Self {
        Self::start_as(&plane.kubeconfig(USER, &[]), name, change)
    }

    /// Starts a replica with this kubeconfig.
    pub(crate) fn start_as(kubeconfig: &str, name: &str, change: impl FnOnce(&mut Value)) -> Self {
        let health = free_port();
        let mut configuration = json!({
            "kubeconfig": kubeconfig,
            "version": RELEASE,
            "vpnCIDRs": ["100.80.0.0/16"],
            "podCIDRs": ["10.244.0.0/16"],
            "serviceCIDRs": ["10.96.0.0/16"],
            "dnsDomain": "cluster.local",
            "endpoints": [{ "address": "203.0.113.1:20000" }],
            "authorities": path("ca.crt"),
        });
        change(&mut configuration);
        let file = replace(&format!("{name}.json"), &configuration.to_string());
        let (address, metrics) = (format!("127.0.0.1:{health}"), metrics_of(name));
        let flags: [(&str, &str); 4] =
            [("config", &file), ("identity", name), ("health", &address), ("metrics", &metrics)];
        let flags = flags.map(|(flag, value)| format!("--{flag}={value}"));
        let arguments = [&["run".to_owned()][..], &flags].concat();
        let child = start(name, &crate::program().display().to_string(), &arguments);
        Self { name: name.to_owned(), child, health, configuration }
    }

    /// Changes the configuration while the replica runs.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Value)) {
        change(&mut self.configuration);
        replace(&format!("{}.json", self.name), &self.configuration.to_string());
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Ends the replica by SIGTERM.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}: {}", self.name, self.log());
    }

    /// Kills the replica, as the loss of its machine would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        log(&self.name)
    }

    /// Returns the response of a health endpoint.
    pub(crate) async fn ask(&self, path: &str) -> Option<String> {
        answer(tokio::net::TcpStream::connect(("127.0.0.1", self.health)).await.ok()?, path).await
    }

    /// Returns the metrics.
    pub(crate) async fn metrics(&self) -> Option<String> {
        answer(tokio::net::UnixStream::connect(metrics_of(&self.name)).await.ok()?, "/metrics").await
    }
}

fn metrics_of(name: &str) -> String {
    path(&format!("{name}.metrics.sock")).display().to_string()
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> Option<String> {
    let question = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

/// Applies the roles that ship, as a driver does for a new cluster.
pub(crate) async fn apply_role(admin: &Client) {
    let documents: Vec<Value> = serde_saphyr::from_multiple(ROLE).unwrap();
    for document in documents {
        let object: DynamicObject = serde_json::from_value(document).unwrap();
        let kind = object.types.clone().unwrap().kind;
        let resource = ApiResource {
            group: "rbac.authorization.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "rbac.authorization.k8s.io/v1".to_owned(),
            plural: format!("{}s", kind.to_lowercase()),
            kind,
        };
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(admin.clone(), namespace, &resource),
            None => Api::all_with(admin.clone(), &resource),
        };
        let name = object.metadata.name.clone().unwrap();
        api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&object)).await.unwrap();
    }
}
