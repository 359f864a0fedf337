//! The cluster as its administrator sees it, and the machine of the worker.

use std::{collections::BTreeMap, fs, io::BufRead, net::TcpStream, path::PathBuf, time::Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_cri::{CriRuntime, Deadlines};
use keelway_e2e::{FinishedCommand, TestControlPlane, TestFleet, https::HttpsClient};
use serde_json::Value;

use crate::MACHINE;

/// A running cluster, and a machine that joins it.
pub(crate) struct Cluster<'a> {
    world: &'a TestFleet,
    pub(crate) plane: TestControlPlane<'a>,
    pub(crate) token: Vec<u8>,
    admin: HttpsClient,
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(world: &'a TestFleet, made: &[u8]) -> Self {
        let keelway = &world.keelway;
        let wanted = keelway.run(&["cluster", "inject", "--name", "c1"], made).succeeded().stdout;
        let text = keelway.run(&["reconcile"], &wanted).succeeded().stdout;
        let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
        fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
        let plane = TestControlPlane::new(keelway, text, "c1.kubeconfig");
        let token = keelway.run(&["join-token", "create", "--cluster", "c1"], &plane.text).succeeded().stdout;
        let config = plane.kubectl.kubeconfig();
        let value =
            |list: &str, kind: &str, key: &str| STANDARD.decode(config[list][0][kind][key].as_str().unwrap()).unwrap();
        let authority = value("clusters", "cluster", "certificate-authority-data");
        let identity = ["client-certificate-data", "client-key-data"].map(|key| value("users", "user", key));
        let admin = HttpsClient::new(&authority, "kubernetes", Some((&identity[0], &identity[1])));
        Self { world, plane, token, admin }
    }

    /// Runs a command on the machine of the worker.
    pub(crate) fn on_machine(&self, command: &[&str], stdin: &[u8]) -> FinishedCommand {
        self.world.keelway.run(&[&self.enter(), command].concat(), stdin)
    }

    /// Returns the arguments that precede a command to run it on the machine of the worker.
    pub(crate) fn enter(&self) -> [&str; 7] {
        ["node", "local", "exec", "--fleet", &self.world.fleet, MACHINE, "--"]
    }

    /// Returns the containerd socket of that machine.
    fn socket(&self) -> PathBuf {
        format!("/run/keelway-local/{}/worker-{MACHINE}/run/containerd/containerd.sock", self.world.fleet).into()
    }

    /// Returns the path of a file of that machine, as this process sees it.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        let socket = std::os::unix::net::UnixStream::connect(self.socket()).unwrap();
        let pid = rustix::net::sockopt::socket_peercred(socket).unwrap().pid;
        format!("/proc/{}/root{path}", pid.as_raw_nonzero()).into()
    }

    /// Deletes a Node with its pods, both in the API server and on the machine.
    pub(crate) fn forget(&self, name: &str) {
        let kubectl = &self.plane.kubectl;
        let of_node = format!("--field-selector=spec.nodeName={name}");
        let _ = kubectl.run(&["delete", "node", name, "--ignore-not-found"]).succeeded();
        let _ = kubectl.run(&["delete", "pods", "-A", &of_node, "--grace-period=0", "--force"]).succeeded();
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        executor.block_on(async {
            let runtime = CriRuntime::on_socket(self.socket(), Deadlines::default()).unwrap();
            for sandbox in runtime.list_pod_sandboxes(&BTreeMap::new()).await.unwrap() {
                runtime.stop_pod_sandbox(&sandbox.id).await.unwrap();
                runtime.remove_pod_sandbox(&sandbox.id).await.unwrap();
            }
        });
    }

    /// Waits until a Node is ready, and returns the time of the watch event that reported it.
    pub(crate) fn ready(&self, name: &str) -> Instant {
        let path = format!("/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{name}");
        let stream = TcpStream::connect(self.plane.ingress()).unwrap();
        let events = self.admin.stream(stream, &path).unwrap();
        let is_ready = |event: &Value| {
            let conditions = event["object"]["status"]["conditions"].as_array();
            let is = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            conditions.is_some_and(|conditions| conditions.iter().any(is))
        };
        // Lines of the chunked transfer encoding are between the lines of the response.
        let mut events = events.lines().map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok());
        assert!(events.any(|event| is_ready(&event)), "the watch ended before {name} was ready");
        Instant::now()
    }
}
