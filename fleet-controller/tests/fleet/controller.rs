//! The controller under test, as the process that ships.

use std::process::Child;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use keelway_fleet::names::CONTROLLER_USER;
use keelway_kube_object::KubeObject;
use kube::{
    Api, Client,
    runtime::wait::{await_condition, conditions},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::plane::{Plane, free_port, log, path, replace, start};

/// A running replica.
pub(crate) struct FleetController {
    name: String,
    child: Child,
    health: u16,
}

impl FleetController {
    /// Starts a replica with the rights that ship.
    pub(crate) fn start(plane: &Plane, name: &str) -> Self {
        let health = free_port();
        let configuration = json!({
            "kubeconfig": plane.kubeconfig(CONTROLLER_USER, &[]),
            "endpoints": [format!("127.0.0.1:{}", plane.port())],
            "authorities": path("ca.crt"),
        });
        let file = replace(&format!("{name}.json"), &configuration.to_string());
        let (address, metrics) = (format!("127.0.0.1:{health}"), metrics_of(name));
        let flags: [(&str, &str); 4] =
            [("config", &file), ("identity", name), ("health", &address), ("metrics", &metrics)];
        let flags = flags.map(|(flag, value)| format!("--{flag}={value}"));
        let arguments = [&["run".to_owned()][..], &flags].concat();
        let child = start(name, env!("CARGO_BIN_EXE_keelway-fleet-controller"), &arguments);
        Self { name: name.to_owned(), child, health }
    }

    /// Ends the replica by SIGTERM.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}: {}", self.name, log(&self.name));
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

/// Applies the roles that ship, as a driver does for a new fleet.
pub(crate) async fn apply_role(admin: &Client) {
    let documents: Vec<Value> = keelway_fleet::fleet_controller_role();
    assert!(!documents.is_empty());
    for document in documents {
        KubeObject::read(&document).unwrap().apply(admin, "test").await.unwrap();
    }
}

/// The controller applies all kinds.
pub(crate) async fn kinds_are_served(admin: &Client) {
    let api = Api::<CustomResourceDefinition>::all(admin.clone());
    for kind in ["clusters", "schedulepolicies", "placements", "works"] {
        let name = format!("{kind}.fleet.keelway.dev");
        await_condition(api.clone(), &name, conditions::is_crd_established()).await.unwrap();
    }
}
