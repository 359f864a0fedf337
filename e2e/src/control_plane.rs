//! A running cluster, with the clients and machines that tests use to examine it.

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

/// One cluster, as its documents describe it.
pub struct TestControlPlane<'a> {
    /// The `keelway` program.
    pub keelway: &'a Keelway,
    /// The documents that `reconcile` wrote.
    pub text: Vec<u8>,
    /// The same documents, parsed.
    pub documents: Documents,
    /// All machines.
    pub machines: Vec<TestMachine>,
    /// An administrator's client.
    pub kubectl: Kubectl,
}

impl<'a> TestControlPlane<'a> {
    /// Parses the output of `reconcile`. The kubeconfig is a file in the directory of the program.
    pub fn new(keelway: &'a Keelway, text: Vec<u8>, kubeconfig: &str) -> Self {
        let documents = Documents::read(&text).unwrap();
        let machines = TestMachine::all(&documents);
        let kubectl = Kubectl::new(&keelway.directory().join(kubeconfig));
        Self { keelway, text, documents, machines, kubectl }
    }

    /// Returns the id of the cluster.
    pub fn id(&self) -> &ClusterId {
        self.documents.clusters.values().next().unwrap().id().unwrap()
    }

    /// Returns the components by name.
    pub fn components(&self) -> BTreeMap<String, &Component> {
        self.documents.components.iter().map(|(pod, component)| (pod.component.to_string(), &**component)).collect()
    }

    /// Returns the components that run on any machine, by name.
    pub fn running(&self) -> BTreeMap<String, RunningComponent> {
        self.machines.iter().flat_map(TestMachine::running).collect()
    }

    /// Returns the private machine, which runs all components except the ingress and the gateway.
    pub fn private(&self) -> &TestMachine {
        self.machines.iter().find(|machine| !machine.is_public()).unwrap()
    }

    /// Returns the public machine.
    pub fn public(&self) -> &TestMachine {
        self.machines.iter().find(|machine| machine.is_public()).unwrap()
    }

    /// Returns the endpoint of the API for clients.
    pub fn ingress(&self) -> SocketAddr {
        ingress_of(&self.documents).unwrap()
    }

    /// Returns a value of one of the Secrets of the cluster.
    pub fn secret(&self, name: &str, key: &str) -> Vec<u8> {
        let secret = &self.documents.secrets[&SecretName::of(self.id(), name)];
        secret.data.as_ref().unwrap()[key].0.clone()
    }
}

/// Returns the endpoint of the API of the first cluster, if its ingress has been placed.
pub fn ingress_of(documents: &Documents) -> Option<SocketAddr> {
    let ingress = documents.components.values().find(|component| component.spec.role == Role::Ingress)?;
    let machine = &documents.hypervisors[&ingress.spec.hypervisor];
    let address: IpAddr = machine.spec.addresses.public[0].parse().unwrap();
    Some(SocketAddr::new(address, ingress.spec.port(API)))
}
