//! Machines, clusters and workers of a test: public hypervisors and a private one, and machines for workers.

use std::{fs, path::Path, sync::Mutex, thread};

use keelway_api::{Component, Documents, cluster::ClusterSpec, role::Role};
use keelway_node::{Layout, STATE};
use serde_json::Value;

use crate::{FinishedCommand, Keelway, Kubectl, ReachMode, TestFleet, TestMachine, deadline, machine};

/// The container of tests.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.66.1";
/// kubectl, as a container.
pub const KUBECTL: &str = "registry.k8s.io/kubectl:v1.37.0";

/// Public machines and a private one, and machines for workers.
pub struct WorkerFleet {
    /// The machines.
    pub fleet: TestFleet,
    /// As they were written last.
    documents: Mutex<Vec<u8>>,
}

/// A cluster that runs.
pub struct TestCluster {
    /// Its name.
    pub name: &'static str,
    /// The machines that are to be its workers.
    pub workers: &'static [&'static str],
    /// An administrator's client.
    pub kubectl: Kubectl,
}

/// A machine for a worker.
pub struct TestWorker<'a> {
    keelway: &'a Keelway,
    fleet: &'a str,
    name: &'a str,
}

impl WorkerFleet {
    /// All machines, of which so many are public, reached over the network of their agents. `workers`: names, and the NATs that each is behind, the one next to it first.
    pub fn new(tag: &str, public: &str, workers: &[(&str, &str)]) -> Self {
        Self::reached(ReachMode::Network, tag, public, workers)
    }

    /// The same, reached so.
    pub fn reached(reach: ReachMode, tag: &str, public: &str, workers: &[(&str, &str)]) -> Self {
        let mut world = TestFleet::new(tag);
        let documents = world.create_reached(reach, public, "1");
        let (keelway, fleet) = (&world.keelway, world.fleet.as_str());
        thread::scope(|scope| {
            for (name, behind) in workers {
                scope.spawn(move || {
                    let place = if behind.is_empty() { vec![] } else { vec!["--behind", behind] };
                    let create = ["node", "local", "create", "--fleet", fleet, "--name", name];
                    let images = ["--image", AGNHOST, "--image", KUBECTL];
                    let _ = keelway.run(&[&create[..], &images, &place].concat(), &[]).succeeded();
                });
            }
        });
        Self { fleet: world, documents: Mutex::new(documents) }
    }

    /// Asks for a cluster with two ingresses, and a gateway beside each.
    pub fn inject(&self, name: &str, arguments: &[&str]) {
        let inject = ["cluster", "inject", "--name", name, "--ingress-replicas", "2"];
        self.write(&[&inject[..], arguments].concat());
    }

    /// Brings machines to what the documents ask for.
    pub fn reconcile(&self) {
        self.write(&["reconcile"]);
    }

    /// Has a cluster changed.
    pub fn change(&self, cluster: &TestCluster, change: impl FnOnce(&mut ClusterSpec)) {
        let mut documents = self.documents();
        let found = documents.clusters.values_mut().find(|found| found.reference().name == cluster.name);
        change(&mut found.unwrap().spec);
        *self.documents.lock().unwrap() = documents.write().into_bytes();
        self.reconcile();
    }

    /// As they were written last.
    pub fn documents(&self) -> Documents {
        Documents::read(&self.documents.lock().unwrap()).unwrap()
    }

    /// Has `keelway` write the documents anew.
    pub fn write(&self, command: &[&str]) {
        let mut documents = self.documents.lock().unwrap();
        *documents = self.fleet.keelway.run(command, &documents).succeeded().stdout;
    }

    /// A cluster that runs.
    pub fn cluster(&self, name: &'static str, workers: &'static [&'static str]) -> TestCluster {
        let kubeconfig = self.keelway(&["cluster", "kubeconfig", "--name", name]).succeeded().stdout;
        let file = self.fleet.keelway.directory().join(format!("{name}.kubeconfig"));
        fs::write(&file, kubeconfig).unwrap();
        TestCluster { name, workers, kubectl: Kubectl::new(&file) }
    }

    /// `keelway` with the documents.
    pub fn keelway(&self, arguments: &[&str]) -> FinishedCommand {
        self.fleet.keelway.run(arguments, &self.documents.lock().unwrap())
    }

    /// One of the machines for workers.
    pub fn worker<'a>(&'a self, name: &'a str) -> TestWorker<'a> {
        TestWorker { keelway: &self.fleet.keelway, fleet: &self.fleet.fleet, name }
    }

    /// Something of each component of one role of a cluster.
    pub fn each<T>(&self, cluster: &TestCluster, role: Role, what: impl Fn(&Component, &TestMachine) -> T) -> Vec<T> {
        let (documents, machines) = (self.documents(), self.fleet.machines());
        let found = documents.clusters.values().find(|found| found.reference().name == cluster.name).unwrap();
        let all = documents.components_of(found.id().unwrap()).map(|(_, component)| component);
        let replicas = all.filter(|component| component.spec.role == role);
        let machine_of = |component: &Component| {
            machines.iter().find(|machine| machine.name() == component.spec.hypervisor.as_str()).unwrap()
        };
        replicas.map(|component| what(component, machine_of(component))).collect()
    }

    /// A token for a cluster.
    pub fn token(&self, cluster: &TestCluster) -> Vec<u8> {
        self.keelway(&["join-token", "create", "--cluster", cluster.name]).succeeded().stdout
    }

    /// Makes machines workers of their clusters, all at once, and waits until their Nodes are ready.
    pub fn join(&self, clusters: &[&TestCluster]) {
        thread::scope(|scope| {
            for cluster in clusters {
                let token = self.token(cluster);
                for name in cluster.workers {
                    let token = token.clone();
                    scope.spawn(move || self.join_one(cluster, name, &token));
                }
            }
        });
        for cluster in clusters {
            cluster.are_ready();
        }
    }

    /// Makes a machine a worker, and waits until its Node is ready.
    pub fn join_one(&self, cluster: &TestCluster, name: &str, token: &[u8]) {
        let command = ["keelway", "node", "join", "-", "--allow-cgroup-v1", "--service", "detached"];
        let joined = self.worker(name).run(&command, token);
        if joined.code() != 0 {
            println!("{}", self.worker(name).log());
        }
        println!("{:>7} ms  {name} joined {}", joined.took.as_millis(), cluster.name);
        let _ = joined.succeeded();
    }
}

impl TestWorker<'_> {
    /// What its daemon tells.
    pub fn status(&self) -> Value {
        self.run(&["keelway", "node", "status", "-o", "json"], &[]).succeeded().json()
    }

    /// Does something to its machine: `reboot`, `unplug`, `plug`.
    pub fn local(&self, command: &str) {
        let _ = self.keelway.run(&["node", "local", command, "--fleet", self.fleet, self.name], &[]).succeeded();
    }

    /// Starts its daemon as an init does that has the unit, of this program.
    pub fn start_daemon(&self, program: &Path) {
        let unit = keelway_node::unit(program, &Layout::new(STATE));
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let _ = self.shell(&format!("setsid {start} >> {STATE}/log/node.log 2>&1 < /dev/null &")).succeeded();
    }

    /// Waits until another daemon than that of before answers, and returns what it tells.
    pub fn another_daemon(&self, before: &Value) -> Value {
        let asked = || self.run(&["keelway", "node", "status", "-o", "json"], &[]);
        let is_another =
            || Some(asked()).filter(|told| told.code() == 0).is_some_and(|told| told.json()["pid"] != before["pid"]);
        deadline::until(&format!("another daemon answers on {}", self.name), deadline::KUBERNETES, is_another);
        self.status()
    }

    /// Runs a command on it.
    pub fn run(&self, command: &[&str], stdin: &[u8]) -> FinishedCommand {
        let exec = ["node", "local", "exec", "--fleet", self.fleet, self.name, "--"];
        self.keelway.run(&[&exec[..], command].concat(), stdin)
    }

    /// What a shell on it says.
    pub fn shell(&self, script: &str) -> FinishedCommand {
        self.run(&["bash", "-ec", script], &[])
    }

    /// Runs a function in its network.
    pub fn within<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        let (fleet, name) = (self.fleet, self.name);
        let socket = format!("/run/keelway-local/{fleet}/worker-{name}/run/containerd/containerd.sock");
        machine::within(machine::peer(Path::new(&socket)), function)
    }

    /// The end of what its daemon and kubelet wrote.
    fn log(&self) -> String {
        let read = "tail -n 40 /var/lib/keelway-node/log/*.log";
        String::from_utf8_lossy(&self.run(&["sh", "-c", read], &[]).stdout).into_owned()
    }
}

impl TestCluster {
    /// The same, with one context of its kubeconfig.
    #[must_use]
    pub fn by(&self, context: &str) -> Self {
        Self { name: self.name, workers: self.workers, kubectl: self.kubectl.by(context) }
    }

    /// Waits until all its workers are ready.
    pub fn are_ready(&self) {
        let nodes: Vec<String> = self.workers.iter().map(|name| format!("node/{name}")).collect();
        self.kubectl.wait("condition=Ready", &nodes.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Starts pods with this label, and waits until they are ready.
    pub fn start(&self, label: &str, pods: &[String]) {
        self.kubectl.apply(&pods.join("---"));
        self.kubectl.wait("condition=Ready", &["pod", "-l", label]);
    }

    /// Starts a pod on each worker that says its name where it is asked for `/hostname`: `on-WORKER`, of the label `app=peer`.
    pub fn start_peers(&self) {
        let peers: Vec<String> =
            self.workers.iter().map(|worker| serves(&format!("on-{worker}"), "peer", worker)).collect();
        self.start("app=peer", &peers);
    }

    /// An account for pods, which may read what is in the namespace.
    pub fn add_reader(&self, name: &str) {
        self.kubectl.apply(&format!(
            "
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {name}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {name}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}}
subjects: [{{kind: ServiceAccount, name: {name}}}]
"
        ));
    }

    /// What a shell in a pod says.
    pub fn shell(&self, pod: &str, script: &str) -> FinishedCommand {
        self.kubectl.run(&["exec", pod, "--", "/bin/bash", "-c", script])
    }

    /// A value of an object.
    pub fn value(&self, object: &str, path: &str) -> String {
        self.kubectl.run(&["get", object, "-o", &format!("jsonpath={path}")]).succeeded().text().to_owned()
    }

    /// Waits until a pod's log holds this.
    pub fn wait_for_log(&self, pod: &str, text: &str) {
        deadline::until(&format!("{pod} says {text}"), deadline::KUBERNETES, || {
            self.kubectl.run(&["logs", pod]).text().contains(text)
        });
    }
}

/// A pod on a worker that says its name at port 8080.
pub fn serves(name: &str, app: &str, worker: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {app}}}}}
spec:
  nodeName: {worker}
  terminationGracePeriodSeconds: 1
  containers: [{{name: serves, image: '{AGNHOST}', args: [netexec, --http-port=8080]}}]
"
    )
}
