//! The machines, clusters and workers of a test: public hypervisors, a private one, and machines for workers.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
};

use keelway_api::{Cluster, Component, Documents, cluster::ClusterSpec, role::Role};
use keelway_cri::testing::cache;
use keelway_node::{Layout, STATE};
use serde_json::{Value, json};

use crate::{
    FinishedCommand, Keelway, Kubectl, ReachMode, TestFleet, TestMachine, deadline, machine, program_directory,
};

/// The test container.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.66.1";
/// The kubectl container.
pub const KUBECTL: &str = "registry.k8s.io/kubectl:v1.37.0";

/// Public hypervisors, a private one, and machines for workers.
pub struct WorkerFleet {
    /// The hypervisors.
    pub fleet: TestFleet,
    /// The documents, as last written.
    documents: Mutex<Vec<u8>>,
}

/// A running cluster.
pub struct TestCluster {
    /// The name of the cluster.
    pub name: &'static str,
    /// The machines that are to become its workers.
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
    /// Creates all machines. `public` is the number of public hypervisors. They are reached through agents on the network. `workers` contains the
    /// names of the machines for workers, and the NATs in front of each, the nearest first.
    pub fn new(tag: &str, public: &str, workers: &[(&str, &str)]) -> Self {
        Self::reached(ReachMode::Network, tag, public, workers)
    }

    /// Creates all machines as [`Self::new`] does, reached in this way.
    pub fn reached(reach: ReachMode, tag: &str, public: &str, workers: &[(&str, &str)]) -> Self {
        let worker_fleet = Self::sized(reach, tag, public, "1");
        thread::scope(|scope| {
            for (name, behind) in workers {
                let worker_fleet = &worker_fleet;
                scope.spawn(move || worker_fleet.create_worker(name, behind));
            }
        });
        worker_fleet
    }

    /// Creates these numbers of hypervisors, and no machines for workers. They are reached through agents on the network.
    pub fn with_private(tag: &str, public: &str, private: &str) -> Self {
        Self::sized(ReachMode::Network, tag, public, private)
    }

    fn sized(reach: ReachMode, tag: &str, public: &str, private: &str) -> Self {
        let mut world = TestFleet::new(tag);
        let documents = world.create_reached(reach, public, private);
        Self { fleet: world, documents: Mutex::new(documents) }
    }

    /// Creates a machine for a worker, behind these NATs, the nearest first.
    pub fn create_worker(&self, name: &str, behind: &str) {
        self.create_worker_with(name, behind, &[]);
    }

    /// Creates a machine for a worker as [`Self::create_worker`] does, with more images in its runtime.
    pub fn create_worker_with(&self, name: &str, behind: &str, images: &[&str]) {
        let place = if behind.is_empty() { vec![] } else { vec!["--behind", behind] };
        let create = ["node", "local", "create", "--fleet", &self.fleet.fleet, "--name", name];
        let images = [AGNHOST, KUBECTL].iter().chain(images).flat_map(|image| ["--image", image]).collect::<Vec<_>>();
        let _ = self.fleet.keelway.run(&[&create[..], &images, &place].concat(), &[]).succeeded();
    }

    /// Removes a machine for a worker with everything on it.
    pub fn destroy_worker(&self, name: &str) {
        let destroy = ["node", "local", "destroy", "--fleet", &self.fleet.fleet, "--name", name];
        let _ = self.fleet.keelway.run(&destroy, &[]).succeeded();
    }

    /// Adds a cluster with two ingresses and two gateways to the documents.
    pub fn inject(&self, name: &str, arguments: &[&str]) {
        let inject = ["cluster", "inject", "--name", name, "--ingress-replicas", "2"];
        self.write(&[&inject[..], arguments].concat());
    }

    /// Reconciles the documents.
    pub fn reconcile(&self) {
        self.write(&["reconcile"]);
    }

    /// Changes the documents and reconciles.
    pub fn edit(&self, change: impl FnOnce(&mut Documents)) {
        let mut documents = self.documents();
        change(&mut documents);
        *self.documents.lock().unwrap() = documents.write().into_bytes();
        self.reconcile();
    }

    /// Changes a cluster and reconciles.
    pub fn change(&self, cluster: &TestCluster, change: impl FnOnce(&mut ClusterSpec)) {
        self.edit(|documents| {
            let found = documents.clusters.values_mut().find(|found| found.reference().name == cluster.name);
            change(&mut found.unwrap().spec);
        });
    }

    /// Returns the documents, as last written.
    pub fn documents(&self) -> Documents {
        Documents::read(&self.documents.lock().unwrap()).unwrap()
    }

    /// Replaces the documents by those that another command wrote.
    pub fn replace_documents(&self, documents: Vec<u8>) {
        *self.documents.lock().unwrap() = documents;
    }

    /// Runs a command of `keelway` on the documents and stores its output.
    pub fn write(&self, command: &[&str]) {
        let mut documents = self.documents.lock().unwrap();
        *documents = self.fleet.keelway.run(command, &documents).succeeded().stdout;
    }

    /// Returns a running cluster.
    pub fn cluster(&self, name: &'static str, workers: &'static [&'static str]) -> TestCluster {
        let kubeconfig = self.keelway(&["cluster", "kubeconfig", "--name", name]).succeeded().stdout;
        let file = self.fleet.keelway.directory().join(format!("{name}.kubeconfig"));
        fs::write(&file, kubeconfig).unwrap();
        TestCluster { name, workers, kubectl: Kubectl::new(&file) }
    }

    /// Runs `keelway` with the documents.
    pub fn keelway(&self, arguments: &[&str]) -> FinishedCommand {
        self.fleet.keelway.run(arguments, &self.documents.lock().unwrap())
    }

    /// Returns one of the machines for workers.
    pub fn worker<'a>(&'a self, name: &'a str) -> TestWorker<'a> {
        TestWorker { keelway: &self.fleet.keelway, fleet: &self.fleet.fleet, name }
    }

    /// Calls a function for each component of one role of a cluster, and returns the results.
    pub fn each<T>(&self, cluster: &TestCluster, role: Role, what: impl Fn(&Component, &TestMachine) -> T) -> Vec<T> {
        let (documents, machines) = (self.documents(), self.fleet.machines());
        let all = documents.components_of(cluster.document(&documents).id().unwrap()).map(|(_, component)| component);
        let replicas = all.filter(|component| component.spec.role == role);
        let machine_of = |component: &Component| {
            machines.iter().find(|machine| machine.name() == component.spec.hypervisor.as_str()).unwrap()
        };
        replicas.map(|component| what(component, machine_of(component))).collect()
    }

    /// Creates a join token for a cluster.
    pub fn token(&self, cluster: &TestCluster) -> Vec<u8> {
        self.keelway(&["join-token", "create", "--cluster", cluster.name]).succeeded().stdout
    }

    /// Joins the workers of these clusters in parallel, and waits until their Nodes are ready.
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

    /// Joins one worker, and waits until its Node is ready.
    pub fn join_one(&self, cluster: &TestCluster, name: &str, token: &[u8]) {
        let joined = self.try_to_join(&self.worker(name), token);
        if joined.code() != 0 {
            println!("{}", self.worker(name).log());
        }
        println!("{:>7} ms  {name} joined {}", joined.took.as_millis(), cluster.name);
        let _ = joined.succeeded();
    }

    /// Runs the join of one worker.
    pub fn try_to_join(&self, worker: &TestWorker<'_>, token: &[u8]) -> FinishedCommand {
        let installed = ["--install-dir", program_directory()];
        let command = ["keelway", "node", "join", "-", "--allow-cgroup-v1", "--service", "detached"];
        worker.run(&[&command[..], &installed].concat(), token)
    }
}

impl TestWorker<'_> {
    /// Returns the status that the daemon of the worker reports.
    pub fn status(&self) -> Value {
        let finished = self.run(&["keelway", "node", "status", "-o", "json"], &[]);
        assert!(finished.code() <= 1, "{}", finished.stderr);
        finished.json()
    }

    /// Runs a `keelway node local` command for this machine: `reboot`, `unplug`, `plug`.
    pub fn local(&self, command: &str) {
        let _ = self.keelway.run(&["node", "local", command, "--fleet", self.fleet, self.name], &[]).succeeded();
    }

    /// Starts the daemon of this program as an init system would start its unit.
    pub fn start_daemon(&self, program: &Path) {
        let unit = keelway_node::unit(program, &Layout::new(STATE));
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let _ = self.shell(&format!("setsid {start} >> {STATE}/log/node.log 2>&1 < /dev/null &")).succeeded();
    }

    /// Waits until a daemon other than the previous one responds, and returns its status.
    pub fn another_daemon(&self, before: &Value) -> Value {
        let status = || self.run(&["keelway", "node", "status", "-o", "json"], &[]);
        let responds = |finished: &FinishedCommand| finished.code() <= 1 && !finished.stdout.is_empty();
        let is_another =
            || Some(status()).filter(responds).is_some_and(|finished| finished.json()["pid"] != before["pid"]);
        deadline::until(&format!("another daemon responds on {}", self.name), deadline::KUBERNETES, is_another);
        self.status()
    }

    /// Runs a command on the worker.
    pub fn run(&self, command: &[&str], stdin: &[u8]) -> FinishedCommand {
        let exec = ["node", "local", "exec", "--fleet", self.fleet, self.name, "--"];
        self.keelway.run(&[&exec[..], command].concat(), stdin)
    }

    /// Runs a shell script on the worker.
    pub fn shell(&self, script: &str) -> FinishedCommand {
        self.run(&["bash", "-ec", script], &[])
    }

    /// Runs a function in the network of the worker.
    pub fn within<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        machine::within(machine::peer(&self.socket()), function)
    }

    /// Imports an image archive into the runtime of the worker.
    pub fn import(&self, archive: &Path) {
        machine::import(&self.socket(), archive);
    }

    /// Returns the socket of the runtime.
    fn socket(&self) -> PathBuf {
        let (fleet, name) = (self.fleet, self.name);
        format!("/run/keelway-local/{fleet}/worker-{name}/run/containerd/containerd.sock").into()
    }

    /// Returns the last lines of the logs of the daemon and the kubelet.
    fn log(&self) -> String {
        let read = "tail -n 40 /var/lib/keelway-node/log/*.log";
        String::from_utf8_lossy(&self.run(&["sh", "-c", read], &[]).stdout).into_owned()
    }
}

impl TestCluster {
    /// Returns its Cluster.
    pub fn document<'d>(&self, documents: &'d Documents) -> &'d Cluster {
        documents.clusters.values().find(|found| found.reference().name == self.name).unwrap()
    }

    /// Returns the cluster with another context of its kubeconfig.
    #[must_use]
    pub fn by(&self, context: &str) -> Self {
        Self { name: self.name, workers: self.workers, kubectl: self.kubectl.by(context) }
    }

    /// Waits until all workers are ready.
    pub fn are_ready(&self) {
        let nodes: Vec<String> = self.workers.iter().map(|name| format!("node/{name}")).collect();
        self.kubectl.wait("condition=Ready", &nodes.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Starts pods with this label, and waits until they are ready.
    pub fn start(&self, label: &str, pods: &[String]) {
        self.kubectl.apply(&pods.join("---"));
        self.kubectl.wait("condition=Ready", &["pod", "-l", label]);
    }

    /// Starts a pod `on-WORKER` with the label `app=peer` on each worker. It returns its name at `/hostname`.
    pub fn start_peers(&self) {
        let peers: Vec<String> =
            self.workers.iter().map(|worker| serves(&format!("on-{worker}"), "peer", worker)).collect();
        self.start("app=peer", &peers);
    }

    /// Creates a ServiceAccount for pods that may read the objects of the namespace, and its Leases.
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
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {name}-leases}}
rules: [{{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {name}-leases}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {name}-leases}}
subjects: [{{kind: ServiceAccount, name: {name}}}]
"
        ));
    }

    /// Starts a pod on a worker, as a ServiceAccount that may read ([`Self::add_reader`]). It runs a script of bash, in which `/kubectl` is a program. Waits
    /// until the pod is ready.
    pub fn start_reader(&self, name: &str, worker: &str, script: &str) {
        self.add_reader(name);
        let kubectl = cache().unwrap().join("bin/kubectl");
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name },
            "spec": {
                "nodeName": worker,
                "serviceAccountName": name,
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": name,
                    "image": AGNHOST,
                    "command": ["/bin/bash", "-c", script],
                    "volumeMounts": [{ "name": "kubectl", "mountPath": "/kubectl", "readOnly": true }],
                }],
                "volumes": [{ "name": "kubectl", "hostPath": { "path": kubectl, "type": "File" } }],
            },
        });
        self.kubectl.apply(&pod.to_string());
        self.kubectl.wait("condition=Ready", &[&format!("pod/{name}")]);
    }

    /// Runs a shell script in a pod.
    pub fn shell(&self, pod: &str, script: &str) -> FinishedCommand {
        self.kubectl.run(&["exec", pod, "--", "/bin/bash", "-c", script])
    }

    /// Returns a value of an object.
    pub fn value(&self, object: &str, path: &str) -> String {
        self.kubectl.run(&["get", object, "-o", &format!("jsonpath={path}")]).succeeded().text().to_owned()
    }

    /// Waits until the log of a pod contains this text.
    pub fn wait_for_log(&self, pod: &str, text: &str) {
        deadline::until(&format!("{pod} says {text}"), deadline::KUBERNETES, || {
            self.kubectl.run(&["logs", pod]).text().contains(text)
        });
    }
}

/// Returns the manifest of a pod on a worker that serves its name on port 8080.
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
