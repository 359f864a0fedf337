//! Machines, clusters and workers of the test.

use std::{fs, sync::Mutex, thread};

use keelway_e2e::{Keelway, Kubectl, Ran, World, deadline};

/// The container of tests.
pub(crate) const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.66.1";
/// kubectl, as a container.
pub(crate) const KUBECTL: &str = "registry.k8s.io/kubectl:v1.37.0";

/// One public and one private machine, and machines for workers.
pub(crate) struct Setting {
    pub(crate) world: World,
    /// What `reconcile` wrote last.
    documents: Mutex<Vec<u8>>,
}

/// A cluster that runs.
pub(crate) struct Cluster {
    pub(crate) name: &'static str,
    pub(crate) kubectl: Kubectl,
}

/// A machine for a worker.
pub(crate) struct Worker<'a> {
    keelway: &'a Keelway,
    fleet: &'a str,
    name: &'a str,
}

impl Setting {
    /// Two workers behind two NATs with equal private addresses, one of them behind another NAT, and one on the public network.
    pub(crate) fn new(tag: &str) -> Self {
        let mut world = World::new(tag);
        let documents = Mutex::new(world.create_two());
        let (keelway, fleet) = (&world.keelway, world.fleet.as_str());
        thread::scope(|scope| {
            for (name, behind) in [("w1", "nat-a"), ("w2", "nat-b,nat-c"), ("w3", "")] {
                scope.spawn(move || {
                    let place = if behind.is_empty() { vec![] } else { vec!["--behind", behind] };
                    let create = ["node", "local", "create", "--fleet", fleet, "--name", name];
                    let images = ["--image", AGNHOST, "--image", KUBECTL];
                    let _ = keelway.run(&[&create[..], &images, &place].concat(), &[]).succeeded();
                });
            }
        });
        Self { world, documents }
    }

    /// One more cluster.
    pub(crate) fn cluster(&self, name: &'static str) -> Cluster {
        let keelway = &self.world.keelway;
        let injected =
            keelway.run(&["cluster", "inject", "--name", name], &self.documents.lock().unwrap()).succeeded().stdout;
        let text = keelway.run(&["reconcile"], &injected).succeeded().stdout;
        let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", name], &text).succeeded().stdout;
        let file = keelway.directory().join(format!("{name}.kubeconfig"));
        fs::write(&file, kubeconfig).unwrap();
        *self.documents.lock().unwrap() = text;
        Cluster { name, kubectl: Kubectl::new(&file) }
    }

    /// `keelway` with the documents.
    pub(crate) fn keelway(&self, arguments: &[&str]) -> Ran {
        self.world.keelway.run(arguments, &self.documents.lock().unwrap())
    }

    pub(crate) fn worker<'a>(&'a self, name: &'a str) -> Worker<'a> {
        Worker { keelway: &self.world.keelway, fleet: &self.world.fleet, name }
    }

    /// Makes machines workers of a cluster, all at once, and waits until their Nodes are ready.
    pub(crate) fn join(&self, cluster: &Cluster, names: &[&str]) {
        let token = self.keelway(&["join-token", "create", "--cluster", cluster.name]).succeeded().stdout;
        thread::scope(|scope| {
            for name in names {
                let token = &token;
                scope.spawn(move || {
                    let command = ["keelway", "node", "join", "-", "--allow-cgroup-v1", "--service", "detached"];
                    let joined = self.worker(name).run(&command, token);
                    if joined.code() != 0 {
                        println!("{}", self.worker(name).log());
                    }
                    println!("{:>7} ms  {name} joined {}", joined.took.as_millis(), cluster.name);
                    let _ = joined.succeeded();
                });
            }
        });
        for name in names {
            cluster.kubectl.wait("condition=Ready", &[&format!("node/{name}")]);
        }
    }
}

impl Worker<'_> {
    /// Runs a command on it.
    pub(crate) fn run(&self, command: &[&str], stdin: &[u8]) -> Ran {
        let exec = ["node", "local", "exec", "--fleet", self.fleet, self.name, "--"];
        self.keelway.run(&[&exec[..], command].concat(), stdin)
    }

    /// The end of what its daemon and kubelet wrote.
    fn log(&self) -> String {
        let read = "tail -n 40 /var/lib/keelway-node/log/*.log";
        String::from_utf8_lossy(&self.run(&["sh", "-c", read], &[]).stdout).into_owned()
    }
}

impl Cluster {
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
