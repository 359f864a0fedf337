//! A cluster that runs, with all that looks at it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use keelway_api::{
    Component, Documents,
    documents::SecretName,
    name::ClusterId,
    role::{API, Role},
};

use crate::{Keelway, Kubectl, RunningComponent, TestMachine};

/// One cluster, as its documents tell.
pub struct TestControlPlane<'a> {
    /// The program.
    pub keelway: &'a Keelway,
    /// What `reconcile` wrote.
    pub text: Vec<u8>,
    /// The same, read.
    pub documents: Documents,
    /// All machines.
    pub machines: Vec<TestMachine>,
    /// An administrator's client.
    pub kubectl: Kubectl,
}

impl<'a> TestControlPlane<'a> {
    /// From what `reconcile` wrote, and a kubeconfig in the program's directory.
    pub fn new(keelway: &'a Keelway, text: Vec<u8>, kubeconfig: &str) -> Self {
        let documents = Documents::read(&text).unwrap();
        let machines = TestMachine::all(&documents);
        let kubectl = Kubectl::new(&keelway.directory().join(kubeconfig));
        Self { keelway, text, documents, machines, kubectl }
    }

    /// Its id.
    pub fn id(&self) -> &ClusterId {
        self.documents.clusters.values().next().unwrap().id().unwrap()
    }

    /// Its components by name.
    pub fn components(&self) -> BTreeMap<String, &Component> {
        self.documents.components.iter().map(|(pod, component)| (pod.component.to_string(), &**component)).collect()
    }

    /// What runs on all machines, by component.
    pub fn running(&self) -> BTreeMap<String, RunningComponent> {
        self.machines.iter().flat_map(TestMachine::running).collect()
    }

    /// The private machine, which holds all but the ingress.
    pub fn private(&self) -> &TestMachine {
        self.machines.iter().find(|machine| !machine.is_public()).unwrap()
    }

    /// The public machine.
    pub fn public(&self) -> &TestMachine {
        self.machines.iter().find(|machine| machine.is_public()).unwrap()
    }

    /// Where clients find the API.
    pub fn ingress(&self) -> SocketAddr {
        ingress_of(&self.documents).unwrap()
    }

    /// A value of one of its Secrets.
    pub fn secret(&self, name: &str, key: &str) -> Vec<u8> {
        let secret = &self.documents.secrets[&SecretName::of(self.id(), name)];
        secret.data.as_ref().unwrap()[key].0.clone()
    }
}

/// Where clients find the API of the first cluster, once its ingress has a machine.
pub fn ingress_of(documents: &Documents) -> Option<SocketAddr> {
    let ingress = documents.components.values().find(|component| component.spec.role == Role::Ingress)?;
    let machine = &documents.hypervisors[&ingress.spec.hypervisor];
    let address: IpAddr = machine.spec.addresses.public[0].parse().unwrap();
    Some(SocketAddr::new(address, ingress.spec.port(API)))
}
