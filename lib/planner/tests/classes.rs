//! What classes determine for clusters: the machines of components, and the registries of images.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    ClusterClass, Documents, Secret,
    class::{ClassImagesSpec, ClusterClassSpec},
    cluster::LocalSecretReference,
    documents::SecretName,
    jiff::Timestamp,
    machine::{MachineState, ObservedValue},
    name::{ClusterRef, HypervisorName, PodName},
};
use keelway_planner::{CertificateSeen, PassObservation, Plan, machine_configs, plan};
use proptest::{collection::vec, prelude::*};

use crate::model::{hypervisors, identified, mint};

const CLUSTER: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default}
spec: {version: 1.37.0, className: gold, ingress: {replicas: 1}}
";
const CLASS: &str = "\
---
apiVersion: keelway.dev/v1alpha1
kind: ClusterClass
metadata: {name: gold}
spec:
  hypervisorSelector: {matchLabels: {tier: gold}}
  images: {registry: registry.example.com/mirror, pullSecrets: [{namespace: registries, name: mirror}]}
---
apiVersion: v1
kind: Secret
metadata: {name: mirror, namespace: registries}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{\"auths\":{\"registry.example.com\":{\"username\":\"keelway\",\"password\":\"x\"}}}'}
";

struct World {
    documents: Documents,
    machines: BTreeMap<HypervisorName, MachineState>,
    certificates: BTreeMap<(SecretName, String), CertificateSeen>,
}

impl World {
    fn new() -> Self {
        let machines = ["Private", "Private", "Private", "Public", "Public"];
        let text: String = std::iter::once(CLUSTER.to_owned()).chain(hypervisors(&machines)).collect();
        let (documents, machines) = identified(&(text + CLASS));
        Self { documents, machines, certificates: BTreeMap::new() }
    }

    /// Selects the machines of the class, as bits.
    fn select(&mut self, bits: u8) {
        for (number, machine) in self.documents.hypervisors.values_mut().enumerate() {
            let tier = if bits >> number & 1 == 1 { "gold" } else { "tin" };
            machine.metadata.labels.get_or_insert_default().insert("tier".to_owned(), tier.to_owned());
        }
    }

    fn servers(&mut self, number: u32) {
        self.cluster().spec.control_plane.replicas = number;
    }

    fn cluster(&mut self) -> &mut keelway_api::Shared<keelway_api::Cluster> {
        let name = ClusterRef { namespace: "default".to_owned(), name: "c1".to_owned() };
        self.documents.clusters.get_mut(&name).unwrap()
    }

    fn seen(&self) -> PassObservation {
        let machines = self.machines.iter().map(|(name, state)| (name.clone(), ObservedValue::Known(state.clone())));
        PassObservation {
            machines: machines.collect(),
            certificates: self.certificates.clone(),
            ..PassObservation::default()
        }
    }

    fn pass(&mut self) {
        drop(self.plan());
    }

    fn plan(&mut self) -> Plan {
        let mut plan = plan(self.documents.clone(), &self.seen(), Timestamp::UNIX_EPOCH).unwrap();
        mint(&mut plan, &mut self.certificates);
        self.documents = plan.documents.clone();
        plan
    }

    fn places(&self) -> BTreeMap<PodName, HypervisorName> {
        let components = self.documents.components.iter();
        components.map(|(pod, component)| (pod.clone(), component.spec.hypervisor.clone())).collect()
    }

    /// The registries of all images, and whether any pod has registry credentials.
    fn images(&self) -> (BTreeSet<String>, bool) {
        let configs = machine_configs(&self.documents, &self.seen()).unwrap();
        let pods = configs.values().flat_map(|config| config.pods.values());
        let pods: Vec<_> = pods.collect();
        let images = pods.iter().flat_map(|pod| &pod.containers).map(|container| container.image.clone());
        let registries = images.map(|image| image.rsplit_once('/').unwrap().0.to_owned());
        (registries.collect(), pods.iter().any(|pod| !pod.registries.is_empty()))
    }
}

fn waits_for(plan: &Plan, what: &str) -> bool {
    plan.waiting.iter().any(|waiting| waiting.blocker.to_string().contains(what))
}

#[test]
fn settings_of_a_class_override_those_of_a_cluster() {
    let mut world = World::new();
    world.select(0b11111);
    world.cluster().spec.images.registry = Some("registry.elsewhere.example".to_owned());
    world.pass();
    let (registries, known) = world.images();
    assert!(registries.iter().all(|registry| registry.starts_with("registry.example.com/mirror")), "{registries:?}");
    assert!(known && !registries.is_empty());
    let status = world.cluster().status.clone().unwrap();
    assert_eq!(status.class.unwrap().name, "gold");
    assert!(status.conditions.iter().any(|told| told.type_ == "WithinClass" && told.message.contains("registry")));
    // So do images by digest: those of the cluster have no effect.
    let by_digest = |registry: &str| vec![format!("{registry}/etcd:3.7.0-0@sha256:{}", "0".repeat(64))];
    world.cluster().spec.images.overrides = by_digest("registry.elsewhere.example");
    for class in world.documents.classes.values_mut() {
        class.spec.images.overrides = by_digest("registry.example.com/mirror/patched");
    }
    world.pass();
    let (registries, _) = world.images();
    assert_eq!(
        registries,
        ["registry.example.com/mirror", "registry.example.com/mirror/patched"].map(str::to_owned).into()
    );
    world.cluster().spec.images.overrides.clear();
    // If a class does not specify images, its clusters choose them.
    world.documents.classes.values_mut().for_each(|class| class.spec.images = ClassImagesSpec::default());
    world.pass();
    let (registries, _) = world.images();
    assert!(registries.iter().all(|registry| registry.starts_with("registry.elsewhere.example")), "{registries:?}");
}

/// Also if the cluster names pull Secrets of its own, which its class does not allow.
#[test]
fn credentials_of_a_class_do_not_reach_workers() {
    let mut world = World::new();
    world.select(0b11111);
    world.pass();
    for own in [vec![], vec![LocalSecretReference { name: "mirror".to_owned() }]] {
        world.cluster().spec.images.pull_secrets = own;
        let configs = machine_configs(&world.documents, &world.seen()).unwrap();
        let pods: Vec<_> = configs.values().flat_map(|config| config.pods.values()).collect();
        assert!(pods.iter().any(|pod| !pod.registries.is_empty()));
        assert!(pods.iter().flat_map(|pod| &pod.files).any(|file| file.path == "cluster-controller.json"));
        assert!(pods.iter().flat_map(|pod| &pod.files).all(|file| file.path != "registries.json"));
    }
}

#[test]
fn a_cluster_keeps_its_components_without_its_class() {
    let mut world = World::new();
    world.select(0b01001);
    world.pass();
    let (places, images) = (world.places(), world.images());
    assert!(!places.is_empty());
    let classes = std::mem::take(&mut world.documents.classes);
    let plan = world.plan();
    assert_eq!((world.places(), world.images()), (places.clone(), images.clone()));
    assert!(!waits_for(&plan, "ClusterClass"), "nothing more is asked for");
    world.servers(2);
    let plan = world.plan();
    assert_eq!(world.places(), places);
    assert!(waits_for(&plan, "its ClusterClass, which selects its machines"), "{:?}", plan.waiting);
    // Another default class does not take its place.
    let mut other = ClusterClass::new("other", ClusterClassSpec::default());
    other.metadata.annotations = Some([("keelway.dev/is-default-class".to_owned(), "true".to_owned())].into());
    world.documents.classes.insert("other".to_owned(), other);
    world.cluster().spec.class_name = None;
    world.pass();
    assert_eq!((world.places(), world.images()), (places.clone(), images));
    world.documents.classes = classes;
    world.pass();
    assert!(world.places().len() > places.len());
}

#[test]
fn credentials_of_a_class_are_the_operators() {
    let mut world = World::new();
    world.select(0b11111);
    // A Secret with this name in the cluster's own namespace is a different one.
    let own = SecretName { namespace: "default".to_owned(), name: "mirror".to_owned() };
    world.documents.secrets.insert(own, Secret::default());
    world.pass();
    assert!(world.images().1);
    let operators = SecretName { namespace: "registries".to_owned(), name: "mirror".to_owned() };
    world.documents.secrets.remove(&operators);
    assert!(!world.images().1);
}

proptest! {
    /// If a class selects other machines in each pass, new components are placed only on selected machines, and none moves.
    #[test]
    fn components_are_placed_where_their_class_selects_and_stay(rounds in vec((any::<u8>(), 1..4_u32), 1..8)) {
        let mut world = World::new();
        for (bits, servers) in rounds {
            world.select(bits);
            world.servers(servers);
            let before = world.places();
            world.pass();
            for (pod, place) in world.places() {
                if let Some(old) = before.get(&pod) {
                    prop_assert_eq!(old, &place, "{} moved", pod);
                    continue;
                }
                let labels = &world.documents.hypervisors[&place].metadata.labels;
                prop_assert_eq!(labels.as_ref().unwrap()["tier"].as_str(), "gold", "{} is on {}", pod, place);
            }
        }
    }
}
