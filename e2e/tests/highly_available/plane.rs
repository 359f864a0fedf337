//! The cluster under test.

use std::fs;

use keelway_api::{Cluster, Component, Documents, cluster::ClusterSpec, role::Role};
use keelway_e2e::{Keelway, Kubectl, Machine, World};

/// The cluster as its documents tell.
pub(crate) struct Plane<'a> {
    keelway: &'a Keelway,
    /// What `reconcile` wrote last.
    pub(crate) text: Vec<u8>,
    /// The same, read.
    pub(crate) documents: Documents,
    pub(crate) machines: Vec<Machine>,
    /// An administrator's client.
    pub(crate) kubectl: Kubectl,
}

impl<'a> Plane<'a> {
    /// Three of each on private machines, two ingresses.
    pub(crate) fn new(world: &'a World, machines: &[u8]) -> Self {
        let keelway = &world.keelway;
        let size = ["--etcd-replicas", "3", "--control-plane-replicas", "3", "--ingress-replicas", "2"];
        let inject = [&["cluster", "inject", "--name", "c1"][..], &size].concat();
        let injected = keelway.run(&inject, machines).succeeded().stdout;
        let text = keelway.run(&["reconcile"], &injected).succeeded().stdout;
        let documents = Documents::read(&text).unwrap();
        let file = keelway.directory().join("c1.kubeconfig");
        let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
        fs::write(&file, kubeconfig).unwrap();
        Self { keelway, text, documents, machines: world.machines(), kubectl: Kubectl::new(&file) }
    }

    fn cluster(&self) -> &Cluster {
        self.documents.clusters.values().next().unwrap()
    }

    /// Components of one role, by name.
    pub(crate) fn of_role(&self, role: Role) -> Vec<&Component> {
        self.documents.components.values().filter(|component| component.spec.role == role).collect()
    }

    /// The machine of a component.
    pub(crate) fn machine(&self, component: &Component) -> &Machine {
        self.machines.iter().find(|machine| machine.name() == component.spec.hypervisor.as_str()).unwrap()
    }

    /// The container of a component.
    pub(crate) fn container(&self, component: &Component) -> String {
        let mut running = self.machine(component).running();
        running.remove(component.spec.name().unwrap().as_str()).unwrap().container
    }

    /// A directory of a component, as this process sees it.
    pub(crate) fn directory(&self, component: &Component, name: &str) -> std::path::PathBuf {
        let (id, component_name) = (self.cluster().id().unwrap(), component.spec.name().unwrap());
        self.machine(component).path(&format!("/var/lib/keelway/{id}/{component_name}/{name}"))
    }

    /// The documents with another spec.
    pub(crate) fn changed(&self, change: impl FnOnce(&mut ClusterSpec)) -> Vec<u8> {
        let mut documents = Documents::read(&self.text).unwrap();
        change(&mut documents.clusters.values_mut().next().unwrap().spec);
        documents.write().into_bytes()
    }

    /// What a pass would do on these documents.
    pub(crate) fn plan(&self, text: &[u8]) -> String {
        self.keelway.run(&["plan"], text).succeeded().text().to_owned()
    }

    /// Brings the world to another spec.
    pub(crate) fn reconcile(&mut self, change: impl FnOnce(&mut ClusterSpec)) {
        self.apply(&self.changed(change));
    }

    /// Takes the cluster away.
    pub(crate) fn delete(&mut self) {
        let deleted = self.keelway.run(&["cluster", "delete", "--name", "c1"], &self.text).succeeded().stdout;
        self.apply(&deleted);
    }

    fn apply(&mut self, text: &[u8]) {
        self.text = self.keelway.run(&["reconcile"], text).succeeded().stdout;
        self.documents = Documents::read(&self.text).unwrap();
    }
}
