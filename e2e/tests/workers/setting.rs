//! Machines, clusters and workers of the test.

use std::{fs, path::Path, sync::Mutex, thread};

use keelway_api::{Documents, cluster::ClusterSpec};
use keelway_e2e::{Keelway, Kubectl, Ran, World, deadline, machine};

/// The container of tests.
pub(crate) const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.66.1";
/// kubectl, as a container.
pub(crate) const KUBECTL: &str = "registry.k8s.io/kubectl:v1.37.0";

/// Machines for workers, and the NATs that each is behind, the one next to it first. Those next to `w1` and `w2` give the same addresses.
const WORKERS: [(&str, &str); 5] = [("w1", "nat-a"), ("w2", "nat-b,nat-c"), ("w3", ""), ("w4", "nat-a"), ("w5", "")];

/// Two public machines and a private one, and machines for workers.
pub(crate) struct Setting {
    pub(crate) world: World,
    /// As they were written last.
    documents: Mutex<Vec<u8>>,
}

/// A cluster that runs.
pub(crate) struct Cluster {
    pub(crate) name: &'static str,
    /// The machines that are to be its workers.
    pub(crate) workers: &'static [&'static str],
    pub(crate) kubectl: Kubectl,
}

/// A machine for a worker.
pub(crate) struct Worker<'a> {
    keelway: &'a Keelway,
    fleet: &'a str,
    name: &'a str,
}

impl Setting {
    /// All machines.
    pub(crate) fn new(tag: &str) -> Self {
        let mut world = World::new(tag);
        let documents = world.create(|keelway, fleet| {
            let create = ["hypervisor", "local", "create", "--fleet", fleet];
            keelway.run(&[&create[..], &["--public", "2", "--private", "1"]].concat(), &[])
        });
        let (keelway, fleet) = (&world.keelway, world.fleet.as_str());
        thread::scope(|scope| {
            for (name, behind) in WORKERS {
                scope.spawn(move || {
                    let place = if behind.is_empty() { vec![] } else { vec!["--behind", behind] };
                    let create = ["node", "local", "create", "--fleet", fleet, "--name", name];
                    let images = ["--image", AGNHOST, "--image", KUBECTL];
                    let _ = keelway.run(&[&create[..], &images, &place].concat(), &[]).succeeded();
                });
            }
        });
        Self { world, documents: Mutex::new(documents) }
    }

    /// Asks for a cluster with an ingress and a gateway on each public machine.
    pub(crate) fn inject(&self, name: &str, arguments: &[&str]) {
        let inject = ["cluster", "inject", "--name", name, "--ingress-replicas", "2"];
        self.write(&[&inject[..], arguments].concat());
    }

    /// Brings machines to what the documents ask for.
    pub(crate) fn reconcile(&self) {
        self.write(&["reconcile"]);
    }

    /// Has a cluster changed.
    pub(crate) fn change(&self, cluster: &Cluster, change: impl FnOnce(&mut ClusterSpec)) {
        let mut documents = self.documents();
        let mut clusters = documents.clusters.values_mut();
        change(&mut clusters.find(|found| found.reference().name == cluster.name).unwrap().spec);
        *self.documents.lock().unwrap() = documents.write().into_bytes();
        self.reconcile();
    }

    /// As they were written last.
    pub(crate) fn documents(&self) -> Documents {
        Documents::read(&self.documents.lock().unwrap()).unwrap()
    }

    fn write(&self, command: &[&str]) {
        let mut documents = self.documents.lock().unwrap();
        *documents = self.world.keelway.run(command, &documents).succeeded().stdout;
    }

    /// A cluster that runs.
    pub(crate) fn cluster(&self, name: &'static str, workers: &'static [&'static str]) -> Cluster {
        let kubeconfig = self.keelway(&["cluster", "kubeconfig", "--name", name]).succeeded().stdout;
        let file = self.world.keelway.directory().join(format!("{name}.kubeconfig"));
        fs::write(&file, kubeconfig).unwrap();
        Cluster { name, workers, kubectl: Kubectl::new(&file) }
    }

    /// `keelway` with the documents.
    pub(crate) fn keelway(&self, arguments: &[&str]) -> Ran {
        self.world.keelway.run(arguments, &self.documents.lock().unwrap())
    }

    pub(crate) fn worker<'a>(&'a self, name: &'a str) -> Worker<'a> {
        Worker { keelway: &self.world.keelway, fleet: &self.world.fleet, name }
    }

    /// A token for a cluster.
    pub(crate) fn token(&self, cluster: &Cluster) -> Vec<u8> {
        self.keelway(&["join-token", "create", "--cluster", cluster.name]).succeeded().stdout
    }

    /// Makes machines workers of their clusters, all at once, and waits until their Nodes are ready.
    pub(crate) fn join(&self, clusters: &[&Cluster]) {
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

    fn join_one(&self, cluster: &Cluster, name: &str, token: &[u8]) {
        let command = ["keelway", "node", "join", "-", "--allow-cgroup-v1", "--service", "detached"];
        let joined = self.worker(name).run(&command, token);
        if joined.code() != 0 {
            println!("{}", self.worker(name).log());
        }
        println!("{:>7} ms  {name} joined {}", joined.took.as_millis(), cluster.name);
        let _ = joined.succeeded();
    }
}

impl Worker<'_> {
    /// Runs a command on it.
    pub(crate) fn run(&self, command: &[&str], stdin: &[u8]) -> Ran {
        let exec = ["node", "local", "exec", "--fleet", self.fleet, self.name, "--"];
        self.keelway.run(&[&exec[..], command].concat(), stdin)
    }

    /// What a shell on it says.
    pub(crate) fn shell(&self, script: &str) -> Ran {
        self.run(&["bash", "-ec", script], &[])
    }

    /// Runs a function in its network.
    pub(crate) fn within<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
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

impl Cluster {
    /// Waits until all its workers are ready.
    pub(crate) fn are_ready(&self) {
        let nodes: Vec<String> = self.workers.iter().map(|name| format!("node/{name}")).collect();
        self.kubectl.wait("condition=Ready", &nodes.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Starts pods with this label, and waits until they are ready.
    pub(crate) fn start(&self, label: &str, pods: &[String]) {
        self.kubectl.apply(&pods.join("---"));
        self.kubectl.wait("condition=Ready", &["pod", "-l", label]);
    }

    /// What a shell in a pod says.
    pub(crate) fn shell(&self, pod: &str, script: &str) -> Ran {
        self.kubectl.run(&["exec", pod, "--", "/bin/bash", "-c", script])
    }

    /// A value of an object.
    pub(crate) fn value(&self, object: &str, path: &str) -> String {
        self.kubectl.run(&["get", object, "-o", &format!("jsonpath={path}")]).succeeded().text().to_owned()
    }

    /// Waits until a pod's log holds this.
    pub(crate) fn wait_for_log(&self, pod: &str, text: &str) {
        deadline::until(&format!("{pod} says {text}"), deadline::KUBERNETES, || {
            self.kubectl.run(&["logs", pod]).text().contains(text)
        });
    }
}
