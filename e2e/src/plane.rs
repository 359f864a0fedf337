//! A cluster with replicas of its components on several machines.

pub mod ingress;
pub mod store;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Instant,
};

use keelway_api::{Cluster, Component, Documents, cluster::ClusterSpec, role::Role};

use crate::{Keelway, Kubectl, MachineFacts, RunningComponent, TestFleet, TestMachine, deadline, machine::millis};

/// What happens to a plane, and its function. Each leaves a settled cluster.
pub type PlaneCase = (&'static str, fn(&mut Plane<'_>));

/// The cluster under test, as its documents describe it.
pub struct Plane<'a> {
    world: &'a TestFleet,
    /// The `keelway` program.
    pub keelway: &'a Keelway,
    /// The name of the fleet of machines.
    pub fleet: &'a str,
    /// The last output of `reconcile`.
    pub text: Vec<u8>,
    /// The same documents, parsed.
    pub documents: Documents,
    /// All machines.
    pub machines: Vec<TestMachine>,
    /// The client of an administrator.
    pub kubectl: Kubectl,
}

impl<'a> Plane<'a> {
    /// Creates a cluster with three replicas of each role on private machines and two ingresses.
    pub fn new(world: &'a TestFleet, machines: &[u8]) -> Self {
        Self::with_replicas(world, machines, ["3", "3", "2"])
    }

    /// Creates a cluster with these numbers of etcd members, control planes and ingresses.
    pub fn with_replicas(world: &'a TestFleet, machines: &[u8], replicas: [&str; 3]) -> Self {
        let keelway = &world.keelway;
        let [etcd, control_plane, ingress] = replicas;
        let size = ["--etcd-replicas", etcd, "--control-plane-replicas", control_plane, "--ingress-replicas", ingress];
        let inject = [&["cluster", "inject", "--name", "c1"][..], &size].concat();
        let injected = keelway.run(&inject, machines).succeeded().stdout;
        let text = keelway.run(&["reconcile"], &injected).succeeded().stdout;
        let documents = Documents::read(&text).unwrap();
        let file = keelway.directory().join("c1.kubeconfig");
        let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
        fs::write(&file, kubeconfig).unwrap();
        Self {
            world,
            keelway,
            fleet: &world.fleet,
            text,
            documents,
            machines: world.machines(),
            kubectl: Kubectl::new(&file),
        }
    }

    /// Returns the cluster under test. Another cluster is created beside it during the test.
    pub fn cluster(&self) -> &Cluster {
        self.documents.clusters.values().find(|cluster| cluster.reference().name == "c1").unwrap()
    }

    /// Returns the components of the cluster, ordered by name.
    pub fn components(&self) -> impl Iterator<Item = &Component> {
        self.documents.components_of(self.cluster().id().unwrap()).map(|(_, component)| component)
    }

    /// Returns the components of one role, ordered by name.
    pub fn of_role(&self, role: Role) -> Vec<&Component> {
        self.components().filter(|component| component.spec.role == role).collect()
    }

    /// Returns the machine of a component.
    pub fn machine(&self, component: &Component) -> &TestMachine {
        self.machines.iter().find(|machine| machine.name() == component.spec.hypervisor.as_str()).unwrap()
    }

    /// Returns the machine with this name.
    pub fn machine_named(&self, name: &str) -> &TestMachine {
        self.machines.iter().find(|machine| machine.name() == name).unwrap()
    }

    /// Returns the sandbox and container of a component, if it runs.
    pub fn running(&self, component: &Component) -> Option<RunningComponent> {
        self.machine(component).of(component)
    }

    /// Returns the process id of each running component.
    pub fn pids(&self) -> BTreeMap<String, u32> {
        let pid = |component: &Component| {
            let running = self.running(component)?;
            Some((
                component.spec.name().unwrap().to_string(),
                self.machine(component).container_pid(&running.container),
            ))
        };
        self.components().filter_map(pid).collect()
    }

    /// Returns the container id of a component.
    pub fn container(&self, component: &Component) -> String {
        self.running(component).unwrap().container
    }

    /// If machines have no agents, runs a pass, which does what agents do by themselves. The documents do not change.
    pub fn help(&self) {
        if !self.machines.iter().all(TestMachine::has_agent) {
            let _ = self.keelway.run(&["reconcile"], &self.text).succeeded();
        }
    }

    /// Waits until there is nothing to do or to wait for, and every ingress has observed it. If there are agents, no pass runs meanwhile.
    pub fn is_whole_again(&self, what: &str) {
        self.help();
        let idle = || self.keelway.run(&["plan", "--exit-code"], &self.text).code() == 0;
        let took = deadline::until(what, deadline::KUBERNETES, || ingress::are_whole(self) && idle());
        println!("{}  until all was well: {what}", millis(took));
    }

    /// Changes the power of a machine. `change` is `stop` or `start`.
    pub fn power(&self, change: &str, machine: &str) {
        self.world.power(change, machine);
    }

    /// Returns a directory of a component, as this process sees it.
    pub fn directory(&self, component: &Component, name: &str) -> std::path::PathBuf {
        let (id, component_name) = (self.cluster().id().unwrap(), component.spec.name().unwrap());
        self.machine(component).path(&format!("/var/lib/keelway/{id}/{component_name}/{name}"))
    }

    /// Returns the documents with a changed spec.
    pub fn changed(&self, change: impl FnOnce(&mut ClusterSpec)) -> Vec<u8> {
        let mut documents = Documents::read(&self.text).unwrap();
        change(&mut documents.clusters.get_mut(&self.cluster().reference()).unwrap().spec);
        documents.write().into_bytes()
    }

    /// Returns the plan for these documents.
    pub fn plan(&self, text: &[u8]) -> String {
        self.keelway.run(&["plan"], text).succeeded().text().to_owned()
    }

    /// Reconciles the cluster to a changed spec.
    pub fn reconcile(&mut self, change: impl FnOnce(&mut ClusterSpec)) {
        self.apply(&self.changed(change));
    }

    /// The replicas of [`Self::new`] are there, and those of a role run on different machines.
    pub fn is_spread(&self) {
        for role in Role::ALL {
            let components = self.of_role(role);
            let machines: BTreeSet<_> = components.iter().map(|component| &component.spec.hypervisor).collect();
            let wanted = match role {
                Role::FleetController => 0,
                Role::ClusterController | Role::Ingress | Role::Gateway => 2,
                Role::Etcd | Role::KubeApiserver | Role::KubeControllerManager | Role::KubeScheduler => 3,
            };
            assert_eq!((components.len(), machines.len()), (wanted, wanted), "{role}");
            assert!(components.iter().all(|component| !self.container(component).is_empty()));
        }
    }

    /// Runs cases one after the other, and prints how long each took.
    pub fn run(&mut self, cases: &[PlaneCase]) {
        for (name, case) in cases {
            let started = Instant::now();
            println!("-- {name}");
            case(self);
            println!("{}  {name}", millis(started.elapsed()));
        }
    }

    /// Deletes all clusters and machines. Afterwards, the host is as it was found.
    pub fn destroy(mut self, found: &MachineFacts) {
        self.delete();
        let gone = self.keelway.run(&["hypervisor", "local", "destroy"], &self.text).succeeded();
        println!("{:>7} ms  until all machines were gone", gone.took.as_millis());
        let difference = found.difference(&MachineFacts::on_host(self.fleet));
        assert!(difference.is_empty(), "not as it was found:\n{difference}");
    }

    /// Deletes all clusters.
    fn delete(&mut self) {
        let names: Vec<String> = self.documents.clusters.keys().map(|cluster| cluster.name.clone()).collect();
        let mut deleted = self.text.clone();
        for name in names {
            deleted = self.keelway.run(&["cluster", "delete", "--name", &name], &deleted).succeeded().stdout;
        }
        self.apply(&deleted);
    }

    /// Reconciles these documents, and continues with the result.
    pub fn apply(&mut self, text: &[u8]) {
        self.take(self.keelway.run(&["reconcile"], text).succeeded().stdout);
    }

    /// Continues with these documents.
    pub fn take(&mut self, text: Vec<u8>) {
        self.documents = Documents::read(&text).unwrap();
        self.text = text;
    }
}
