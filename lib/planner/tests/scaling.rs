//! Changes the numbers of API servers and ingresses again and again, on machines that fail and return. No ingress ever sends connections to
//! an API server that is removed, and in the end all numbers are as in the spec.

mod ill_release;
mod keelway_first;
mod prefetch;
mod preflight;
mod upgrade_orders;
mod worker_releases;

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    ByteString, Component, Documents, Secret, Shared, argument,
    cluster::LocalSecretReference,
    documents::SecretName,
    duration::Span,
    hypervisor::{HypervisorRole, LOST_ANNOTATION},
    jiff::Timestamp,
    machine::{MachineState, ObservedValue, Pod, ServerAdmin},
    name::{ClusterRef, HypervisorName, PodName},
    registry::{PULL_SECRET, PULL_SECRET_KEY},
    role::Role,
    store_observation::{DatabaseSize, MemberId, MemberReport, StoreObservation},
};
use keelway_planner::{
    CertificateSeen, ComponentHealth, FirstBindings, PassObservation, Plan, SecretContents, UpgradePreflight,
    WaitBlocker, WaitKind, Waiting, begins_minor_upgrade, holds, invariants, machine_configs, plan,
};
use proptest::{collection::vec, prelude::*};

use crate::model::{apply, empty, hypervisors, identified, mint};

const CLUSTER: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default}
spec: {version: 1.37.0, etcd: {replicas: 3}}
";

/// The events of one round.
#[derive(Debug, Clone)]
struct Round {
    servers: u32,
    ingresses: u32,
    /// Machines that do not respond, as bits.
    silent: u8,
    /// Components that are not healthy, as bits.
    ill: u8,
    /// The number of connections of each server.
    sessions: u64,
    /// Whether machines apply their configs.
    obey: bool,
    /// Whether the cluster is paused.
    paused: bool,
    /// The Secret that a person removes.
    lost: Option<usize>,
}

fn round() -> impl Strategy<Value = Round> {
    let bits = || prop_oneof![3 => Just(0), 1 => any::<u8>()];
    let by_hand = || (proptest::bool::weighted(0.2), proptest::option::weighted(0.2, any::<usize>()));
    (1..4u32, 1..3u32, bits(), bits(), 0..2u64, any::<bool>(), by_hand()).prop_map(
        |(servers, ingresses, silent, ill, sessions, obey, (paused, lost))| Round {
            servers,
            ingresses,
            silent,
            ill,
            sessions,
            obey,
            paused,
            lost,
        },
    )
}

/// All machines respond, and all components are healthy.
fn calm(servers: u32, ingresses: u32) -> Round {
    Round { servers, ingresses, silent: 0, ill: 0, sessions: 0, obey: true, paused: false, lost: None }
}

struct World {
    documents: Documents,
    machines: BTreeMap<HypervisorName, MachineState>,
    certificates: BTreeMap<(SecretName, String), CertificateSeen>,
    /// An authority or a key that a person removed, and restores before the next round.
    missed: Option<(SecretName, Shared<Secret>)>,
    /// What the checks before an upgrade to another minor version find.
    preflight: UpgradePreflight,
    /// A component that is not healthy while it runs this release.
    fails_with: Option<(&'static str, &'static str)>,
}

impl World {
    fn new() -> Self {
        Self::of(CLUSTER)
    }

    fn of(cluster: &str) -> Self {
        let machines = ["Private", "Private", "Private", "Public", "Public"];
        let text: String = std::iter::once(cluster.to_owned()).chain(hypervisors(&machines)).collect();
        let (documents, machines) = identified(&text);
        let preflight = UpgradePreflight::default();
        Self { documents, machines, certificates: BTreeMap::new(), missed: None, preflight, fails_with: None }
    }

    fn ask(&mut self, round: &Round) {
        let cluster = ClusterRef { namespace: "default".to_owned(), name: "c1".to_owned() };
        let spec = &mut self.documents.clusters.get_mut(&cluster).unwrap().spec;
        spec.control_plane.replicas = round.servers;
        spec.ingress.replicas = round.ingresses;
        spec.paused = round.paused;
        self.documents.secrets.extend(self.missed.take());
        let lost = round.lost.and_then(|lost| lost.checked_rem(self.documents.secrets.len()));
        if let Some(name) = lost.and_then(|lost| self.documents.secrets.keys().nth(lost)).cloned() {
            let secret = self.documents.secrets.remove(&name).unwrap();
            self.missed = (holds(&name.name) != SecretContents::Certificates).then_some((name, secret));
        }
    }

    fn pod(&self, component: &str) -> PodName {
        let id = self.documents.clusters.values().next().unwrap().id().unwrap().clone();
        PodName { cluster: id, component: component.parse().unwrap() }
    }

    fn runs(&self, pod: &PodName) -> bool {
        self.machines.values().any(|state| state.sandboxes.iter().any(|sandbox| sandbox.pod == *pod))
    }

    /// What the manager's pass for the cluster sees.
    fn observe(&self, round: &Round) -> PassObservation {
        let bit = |bits: u8, number: usize| (bits >> (number % 8)) & 1 == 1;
        let cluster = self.documents.clusters.values().next().unwrap();
        let id = cluster.id().unwrap();
        let machine = |(number, (name, state)): (usize, (&HypervisorName, &MachineState))| {
            let unreachable = || ObservedValue::unreachable("it is silent");
            let seen = if bit(round.silent, number) { unreachable() } else { ObservedValue::Known(state.part_of(id)) };
            (name.clone(), seen)
        };
        // A check dials the address in the documents, so the rest of an earlier placement does not respond for it.
        let health = |(number, (pod, component)): (usize, (&PodName, &Shared<Component>))| {
            let state = &self.machines[&component.spec.hypervisor];
            let runs = state.sandboxes.iter().any(|sandbox| sandbox.pod == *pod);
            let fails = self.fails_with == Some((pod.component.as_str(), component.spec.version.as_str()));
            let well = runs && !fails && !bit(round.ill, number);
            (
                pod.clone(),
                if well { ComponentHealth::Healthy } else { ComponentHealth::Unhealthy("it is ill".to_owned()) },
            )
        };
        let preflight = || (id.clone(), self.preflight.clone());
        PassObservation {
            preflights: begins_minor_upgrade(&self.documents, cluster).then(preflight).into_iter().collect(),
            machines: self.machines.iter().enumerate().map(machine).collect(),
            refused: BTreeMap::new(),
            health: self.documents.components.iter().enumerate().map(health).collect(),
            bindings: [(id.clone(), ObservedValue::Known(FirstBindings::Cluster.digest()))].into(),
            certificates: self.certificates.clone(),
            ..PassObservation::default()
        }
    }

    /// One pass, and its effect on the machines.
    fn pass(&mut self, round: &Round) -> Plan {
        self.ask(round);
        let servers = self.machines.values_mut().flat_map(|state| state.servers.values_mut());
        servers.flat_map(BTreeMap::values_mut).for_each(|server| server.sessions = round.sessions);
        let seen = self.observe(round);
        let mut plan = plan(self.documents.clone(), &seen, Timestamp::UNIX_EPOCH).unwrap();
        mint(&mut plan, &mut self.certificates);
        assert_eq!(invariants::check(&self.documents, &plan.documents, &seen), []);
        assert_eq!(invariants::check_replicas(&plan), []);
        self.documents = plan.documents.clone();
        if round.obey {
            for (name, config) in machine_configs(&self.documents, &seen).unwrap() {
                apply(self.machines.get_mut(&name).unwrap(), &config);
            }
        }
        self.assert_served();
        plan
    }

    /// Every API server to which an ingress sends connections runs.
    fn assert_served(&self) {
        for (ingress, servers) in self.machines.values().flat_map(|state| &state.servers) {
            for (name, _) in servers.iter().filter(|(_, server)| server.admin == ServerAdmin::Serves) {
                let component = name.split_once('/').unwrap().1.parse().unwrap();
                let pod = PodName { cluster: ingress.cluster.clone(), component };
                assert!(self.runs(&pod), "{ingress} sends connections to {name}");
            }
        }
    }

    /// From now on, every haproxy reports these API servers as ready or not.
    fn report_ready(&mut self, servers: &[(&str, bool)]) {
        let reported = self.machines.values_mut().flat_map(|state| state.servers.values_mut());
        for found in reported {
            for (server, ready) in servers {
                found.get_mut(&format!("kube-apiserver/{server}")).unwrap().ready = *ready;
            }
        }
    }

    /// The API servers that each ingress knows.
    fn known(&self) -> Vec<Vec<&str>> {
        let servers = self.machines.values().flat_map(|state| state.servers.values());
        servers.map(|servers| servers.keys().map(String::as_str).collect()).collect()
    }

    /// The digest of each running pod.
    fn digests(&self) -> BTreeMap<PodName, String> {
        let sandboxes = self.machines.values().flat_map(|state| &state.sandboxes);
        sandboxes.map(|sandbox| (sandbox.pod.clone(), sandbox.digest.clone())).collect()
    }

    /// The pod of a component in the config of its machine.
    fn made(&self, component: &str) -> Pod {
        let configs = machine_configs(&self.documents, &self.observe(&calm(1, 1))).unwrap();
        let pod = self.pod(component);
        configs.values().find_map(|config| config.pods.get(&pod)).unwrap().clone()
    }

    /// The JSON content of a file in the pod of a component.
    fn document(&self, component: &str, path: &str) -> serde_json::Value {
        let pod = self.made(component);
        let file = pod.files.iter().find(|file| file.path == path).unwrap();
        serde_json::from_slice(&file.content).unwrap()
    }

    /// The pods that ran before a pass, still run, and were replaced by it.
    fn replaced(&mut self, round: &Round) -> Vec<PodName> {
        let before = self.digests();
        let _ = self.pass(round);
        let is_other = |(pod, digest): &(PodName, String)| before.get(pod).is_some_and(|before| before != digest);
        self.digests().into_iter().filter(is_other).map(|(pod, _)| pod).collect()
    }

    fn of_role(&self, role: Role) -> BTreeSet<String> {
        let components = self.documents.components.iter().filter(|(_, component)| component.spec.role == role);
        components.map(|(pod, _)| format!("{role}/{}", pod.component)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_removed_component_is_used_by_no_other(rounds in vec(round(), 0..24)) {
        let mut world = World::new();
        for round in &rounds {
            let _ = world.pass(round);
        }
        let last = rounds.last().cloned().unwrap_or_else(|| calm(3, 2));
        let calm = calm(last.servers, last.ingresses);
        for _ in 0..12 {
            let _ = world.pass(&calm);
        }
        let plan = world.pass(&calm);
        prop_assert_eq!((&plan.decisions, &plan.waiting, &plan.mint), (&vec![], &vec![], &vec![]));
        prop_assert!(world.documents.components.values().all(|component| !component.is_leaving()));
        let servers = world.of_role(Role::KubeApiserver);
        prop_assert_eq!(servers.len(), calm.servers as usize);
        let all: Vec<&str> = servers.iter().map(String::as_str).collect();
        prop_assert_eq!(world.known(), vec![all; calm.ingresses as usize]);
    }
}

/// If the digest of a pod changes, the pod is replaced. A change of this table means that an upgrade of the manager restarts that component
/// of every cluster.
#[test]
fn an_upgrade_of_the_manager_restarts_nothing() {
    let mut world = World::new();
    // Documents of earlier releases contain their own lifetime of workers' certificates.
    for document in world.documents.clusters.values_mut() {
        document.spec.certificates.worker_ttl = Span::hours(168);
    }
    for _ in 0..8 {
        let _ = world.pass(&calm(2, 2));
    }
    let line = |(pod, digest): (PodName, String)| format!("{} {digest}\n", pod.component);
    insta::assert_snapshot!(world.digests().into_iter().map(line).collect::<String>());
}

#[test]
fn an_api_server_is_ready_before_it_is_used_and_drained_before_it_stops() {
    let mut world = World::new();
    for _ in 0..5 {
        let _ = world.pass(&calm(1, 2));
    }
    assert_eq!(world.known(), [["kube-apiserver/kube-apiserver-0"]; 2]);

    let _ = world.pass(&calm(2, 2));
    assert!(world.known().iter().all(|servers| servers.len() == 1), "the new one was not ready yet");
    let _ = world.pass(&calm(2, 2));
    assert!(world.known().iter().all(|servers| servers.len() == 2));

    let second = world.pod("kube-apiserver-1");
    let leaving = Round { sessions: 1, ..calm(1, 2) };
    let plan = world.pass(&leaving);
    assert!(
        plan.waiting.iter().any(|waiting| waiting.subject.to_string() == "c1/kube-apiserver-1"),
        "{:?}",
        plan.waiting
    );
    assert!(world.runs(&second), "its ingresses are told first");
    let plan = world.pass(&leaving);
    assert!(!world.runs(&second), "{:?}", plan.waiting);
    assert!(
        plan.waiting.iter().any(|waiting| waiting.blocker.to_string().contains("1 connection ")),
        "{:?}",
        plan.waiting
    );
    let _ = world.pass(&calm(1, 2));
    let plan = world.pass(&calm(1, 2));
    assert_eq!((plan.waiting, plan.decisions), (vec![], vec![]));
    assert_eq!(world.known(), [["kube-apiserver/kube-apiserver-0"]; 2]);
}

/// A name is used again after its earlier machine was observed without the component.
#[test]
fn a_component_on_a_silent_machine_stays_known_when_it_is_no_longer_wanted() {
    let mut world = World::new();
    for _ in 0..6 {
        let _ = world.pass(&calm(2, 1));
    }
    let pod = world.pod("kube-scheduler-1");
    let machine = world.documents.components.get(&pod).unwrap().spec.hypervisor.clone();
    let number = world.machines.keys().position(|name| *name == machine).unwrap();
    for _ in 0..5 {
        let plan = world.pass(&Round { silent: 1 << number, ..calm(1, 1) });
        let waits = plan.waiting.iter().find(|waiting| waiting.subject.to_string() == "c1/kube-scheduler-1").unwrap();
        assert!(waits.blocker.to_string().contains("to respond"), "{waits}");
    }
    assert!(world.runs(&pod) && world.documents.components.contains_key(&pod));
    for _ in 0..4 {
        let _ = world.pass(&calm(1, 1));
    }
    assert!(!world.runs(&pod) && !world.documents.components.contains_key(&pod));
}

/// The components that have to be ready first do not share the machines with others.
#[test]
fn controllers_start_when_an_api_server_is_ready() {
    let mut world = World::new();
    let mut plan = world.pass(&calm(1, 1));
    let ready = |plan: &Plan| {
        let cluster = plan.documents.clusters.values().next().unwrap();
        cluster.status.as_ref().unwrap().initialization.is_some()
    };
    while !ready(&plan) {
        assert!(!world.runs(&world.pod("kube-controller-manager-0")));
        let waits =
            plan.waiting.iter().find(|waiting| waiting.subject.to_string() == "c1/kube-controller-manager-0").unwrap();
        assert_eq!(waits.blocker, WaitBlocker::ApiServer);
        plan = world.pass(&calm(1, 1));
    }
    assert!(world.runs(&world.pod("kube-apiserver-0")) && world.runs(&world.pod("kube-controller-manager-0")));
    let ill = Round { ill: u8::MAX, ..calm(1, 1) };
    assert!(ready(&world.pass(&ill)), "it was ready once");
}

/// Nothing that was not observed is removed.
#[test]
fn an_ingress_that_cannot_be_seen_is_waited_for() {
    let mut world = World::new();
    for _ in 0..6 {
        let _ = world.pass(&calm(2, 2));
    }
    let ingress = world.documents.components.values().find(|component| component.spec.role == Role::Ingress).unwrap();
    let name = ingress.spec.hypervisor.clone();
    let number = world.machines.keys().position(|machine| *machine == name).unwrap();
    let silent = Round { silent: 1 << number, ..calm(1, 2) };
    for _ in 0..5 {
        let plan = world.pass(&silent);
        let waits = plan.waiting.iter().find(|waiting| waiting.subject.to_string() == "c1/kube-apiserver-1").unwrap();
        assert!(
            waits.blocker.to_string().contains("to respond")
                || waits.blocker.to_string().contains("to stop sending it connections"),
            "{waits}"
        );
    }
    assert_eq!(world.of_role(Role::KubeApiserver).len(), 2);
    for _ in 0..4 {
        let _ = world.pass(&calm(1, 2));
    }
    assert_eq!(world.of_role(Role::KubeApiserver).len(), 1);
}

/// Two replicas of each role, on machines that have a config and have not applied it. Returns the machine of the leaving ingress, as a bit.
fn with_a_leaving_ingress() -> (World, u8) {
    let mut world = World::new();
    for _ in 0..6 {
        let _ = world.pass(&calm(2, 2));
    }
    let leaving = world.documents.components.get(&world.pod("ingress-1")).unwrap().spec.hypervisor.clone();
    let number = world.machines.keys().position(|machine| *machine == leaving).unwrap();
    let _ = world.pass(&Round { obey: false, ..calm(2, 1) });
    assert!(world.runs(&world.pod("ingress-1")));
    (world, 1 << number)
}

#[test]
fn an_ingress_that_leaves_is_known_until_it_is_seen_to_have_ended() {
    let (mut world, machine) = with_a_leaving_ingress();
    for _ in 0..5 {
        let plan = world.pass(&Round { silent: machine, ..calm(1, 1) });
        let waits = |what: &str| plan.waiting.iter().find(|waiting| waiting.subject.to_string() == what).unwrap();
        assert!(waits("c1/ingress-1").blocker.to_string().contains("to respond"));
        let _ = waits("c1/kube-apiserver-1");
    }
    let plan = world.pass(&Round { silent: machine, ..calm(1, 1) });
    let waits = plan.waiting.iter().find(|waiting| waiting.subject.to_string() == "c1/ingress-1").unwrap();
    assert!(
        waits.blocker.to_string().contains(LOST_ANNOTATION) && matches!(waits.delays, Some((_, WaitKind::Blocked))),
        "{waits:?}"
    );
    assert!(world.runs(&world.pod("kube-apiserver-1")), "the ingress sends it connections");
    for _ in 0..4 {
        let _ = world.pass(&calm(1, 1));
    }
    assert_eq!((world.of_role(Role::Ingress).len(), world.of_role(Role::KubeApiserver).len()), (1, 1));
}

#[test]
fn nothing_waits_for_an_ingress_on_a_lost_machine() {
    let (mut world, machine) = with_a_leaving_ingress();
    let lost = world.documents.components.get(&world.pod("ingress-1")).unwrap().spec.hypervisor.clone();
    let document = world.documents.hypervisors.get_mut(&lost).unwrap();
    document.metadata.annotations.get_or_insert_default().insert(LOST_ANNOTATION.to_owned(), "true".to_owned());
    // Nothing runs there any more, and the machine does not respond.
    *world.machines.get_mut(&lost).unwrap() = empty();
    for _ in 0..6 {
        let _ = world.pass(&Round { silent: machine, ..calm(1, 1) });
    }
    assert_eq!((world.of_role(Role::Ingress).len(), world.of_role(Role::KubeApiserver).len()), (1, 1));
}

#[test]
fn a_drained_machine_is_left_once_replacements_are_ready() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(1, 1));
    }
    let on = |world: &World, name: &HypervisorName| -> BTreeSet<Role> {
        let here = world.documents.components.values().filter(|component| component.spec.hypervisor == *name);
        here.map(|component| component.spec.role).collect()
    };
    let servers = |world: &World| -> Vec<HypervisorName> {
        let all = world.documents.components.values().filter(|component| component.spec.role == Role::KubeApiserver);
        all.map(|component| component.spec.hypervisor.clone()).collect()
    };
    let from = servers(&world).remove(0);
    world.documents.hypervisors.get_mut(&from).unwrap().spec.drain = true;
    // The replacement does not become healthy, so the component that is to leave stays.
    for _ in 0..4 {
        let _ = world.pass(&Round { ill: 0xff, ..calm(1, 1) });
        assert_eq!(servers(&world).len(), 2);
        assert!(servers(&world).contains(&from));
    }
    for _ in 0..12 {
        let _ = world.pass(&calm(1, 1));
    }
    assert!(on(&world, &from).is_subset(&[Role::Etcd].into()), "{:?}", on(&world, &from));
    assert_eq!(servers(&world).len(), 1);
    let conditions = &world.documents.hypervisors[&from].status.as_ref().unwrap().conditions;
    assert!(conditions.iter().any(|condition| condition.type_ == "Drained"));
}

/// Only what runs the image is replaced, one replica after the other. Workers and add-ons have the overrides from the cluster-controller.
#[test]
fn an_image_that_is_overridden_replaces_its_role_only() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(3, 2));
    }
    let of_api_server = format!("registry.example.com/kube-apiserver:v1.37.0@sha256:{}", "1".repeat(64));
    let of_other_release = format!("registry.example.com/etcd:3.6.8-0@sha256:{}", "2".repeat(64));
    let overrides = vec![of_api_server.clone(), of_other_release];
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.images.overrides.clone_from(&overrides);
    let replaced: Vec<PodName> = (0..6).flat_map(|_| world.replaced(&calm(3, 2))).collect();
    assert_eq!(replaced, ["kube-apiserver-0", "kube-apiserver-1", "kube-apiserver-2"].map(|name| world.pod(name)));
    assert_eq!(world.made("kube-apiserver-1").containers.last().unwrap().image, of_api_server);
    let configured = world.document("cluster-controller-0", "cluster-controller.json");
    assert_eq!(configured["imageOverrides"], serde_json::json!(overrides));
}

/// Every program changes at once. Replicas of a role are replaced one at a time, while the others are healthy.
#[test]
fn replicas_of_a_role_are_replaced_one_by_one() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(3, 2));
    }
    let first = world.digests();
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.images.registry = Some("registry.example.com/mirror".to_owned());

    // One member is unhealthy and does not have to be replaced for it, so nothing of the store changes.
    let number = world.documents.components.keys().position(|pod| pod.component.as_str() == "etcd-1").unwrap();
    let ill = Round { ill: 1 << number, ..calm(3, 2) };
    let replaced = world.replaced(&ill);
    assert_eq!(replaced.iter().filter(|pod| pod.component.as_str().starts_with("etcd-")).count(), 1);

    let mut most = BTreeMap::<Role, usize>::new();
    for _ in 0..12 {
        let (mut replaced, mut public) = (BTreeMap::<Role, usize>::new(), BTreeSet::new());
        for pod in world.replaced(&calm(3, 2)) {
            let spec = &world.documents.components[&pod].spec;
            *replaced.entry(spec.role).or_default() += 1;
            if matches!(spec.role, Role::Ingress | Role::Gateway) {
                public.insert(spec.hypervisor.clone());
            }
        }
        assert!(public.len() <= 1, "an ingress, and the gateway of another machine: {public:?}");
        for (role, count) in replaced {
            let most = most.entry(role).or_default();
            *most = count.max(*most);
        }
    }
    for role in [Role::Etcd, Role::KubeApiserver, Role::Ingress, Role::Gateway] {
        assert_eq!(most.get(&role), Some(&1), "{most:?}");
    }
    assert!(world.digests().iter().all(|(pod, digest)| first[pod] != *digest), "all of them were replaced");
}

/// A gateway whose ranges change is replaced after the other one is healthy, and not before.
#[test]
fn gateways_are_replaced_one_after_the_other() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(2, 2));
    }
    let gateways = [world.pod("gateway-0"), world.pod("gateway-1")];
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.network.pod_cidrs = vec!["10.240.0.0/16".to_owned()];
    // As if the cluster had been created with them.
    cluster.status.as_mut().unwrap().birth = None;
    let of_gateways = |replaced: Vec<PodName>| -> Vec<PodName> {
        replaced.into_iter().filter(|pod| gateways.contains(pod)).collect()
    };
    let number = |pod| world.documents.components.keys().position(|found| found == pod).unwrap();
    let second_is_ill = Round { ill: 1 << number(&gateways[1]), ..calm(2, 2) };
    let first_is_ill = Round { ill: 1 << number(&gateways[0]), ..calm(2, 2) };
    // The unhealthy one is replaced first, because the other one works.
    assert_eq!(of_gateways(world.replaced(&second_is_ill)), gateways[1..]);
    for _ in 0..3 {
        assert_eq!(of_gateways(world.replaced(&second_is_ill)), [], "it is not well yet");
    }
    assert_eq!(of_gateways(world.replaced(&first_is_ill)), gateways[..1]);
    assert_eq!(of_gateways(world.replaced(&calm(2, 2))), []);
}

/// This holds for any change of fields that are immutable.
#[test]
fn immutable_fields_of_a_cluster_stay() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(2, 2));
    }
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.network.pod_cidrs = vec!["10.240.0.0/16".to_owned()];
    cluster.spec.network.service_cidrs = vec!["10.241.0.0/16".to_owned()];
    "other.local".clone_into(&mut cluster.spec.network.dns_domain);
    cluster.spec.vpn.cidrs = vec!["10.242.0.0/16".to_owned()];
    let faults = world.documents.faults_of_changes(|_| true);
    let fields: Vec<&str> = faults.iter().map(|(_, fault)| fault.field.as_str()).collect();
    assert_eq!(
        fields,
        ["spec.network.podCIDRs", "spec.network.serviceCIDRs", "spec.network.dnsDomain", "spec.vpn.cidrs"]
    );
    assert!(faults.iter().all(|(_, fault)| fault.problem.contains("is immutable")), "{faults:?}");

    let before = world.digests();
    let plan = world.pass(&calm(2, 2));
    assert_eq!(plan.mint, []);
    assert_eq!(world.digests(), before);
    let blocked = |field: &str| {
        plan.waiting.iter().any(|waiting| {
            waiting.blocker.to_string().starts_with(field) && matches!(waiting.delays, Some((_, WaitKind::Blocked)))
        })
    };
    assert!(fields.into_iter().all(blocked), "{:?}", plan.waiting);
}

/// The peers of a member know the address of its machine.
#[test]
fn the_address_of_a_machine_stays_under_a_member() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(1, 1));
    }
    let member = world.pod("etcd-0");
    let machine = world.documents.components[&member].spec.hypervisor.clone();
    let document = world.documents.hypervisors.get_mut(&machine).unwrap();
    document.spec.addresses.private = vec!["10.9.9.9".to_owned()];
    let faults = world.documents.faults_of_changes(|_| true);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(
        (faults[0].0.to_string(), faults[0].1.field.as_str()),
        (format!("Hypervisor {machine}"), "spec.addresses.private")
    );
    assert!(faults[0].1.problem.contains("etcd-0"), "{faults:?}");
}

/// The release of each component, in the order of roles.
fn versions(world: &World) -> Vec<(Role, String)> {
    let components = world.documents.components.values();
    let mut found: Vec<_> = components.map(|component| (component.spec.role, component.spec.version.clone())).collect();
    found.sort();
    found
}

#[test]
fn components_are_upgraded_one_after_the_other_and_stores_first() {
    let mut world = World::of(&CLUSTER.replace("1.37.0", "1.36.3"));
    for _ in 0..12 {
        let _ = world.pass(&calm(2, 2));
    }
    let set = |world: &mut World, version: &str| {
        version.clone_into(&mut world.documents.clusters.values_mut().next().unwrap().spec.version);
    };
    let old = world.digests();
    let ill = |world: &World, pod: &str| {
        let number = world.documents.components.keys().position(|found| *found == world.pod(pod)).unwrap();
        Round { ill: 1 << (number % 8), ..calm(2, 2) }
    };
    set(&mut world, "1.37.0");
    for _ in 0..3 {
        let round = ill(&world, "etcd-1");
        let plan = world.pass(&round);
        assert_eq!(world.digests(), old, "no member goes while another one is ill");
        assert!(
            plan.waiting.iter().any(|waiting| waiting.blocker.to_string().contains("its turn to run 1.37.0")),
            "{:?}",
            plan.waiting
        );
    }
    let mut passes = 0;
    while versions(&world).iter().any(|(_, version)| version == "1.36.3") {
        let (before, ran) = (versions(&world), world.digests());
        let _ = world.pass(&calm(2, 2));
        let after = versions(&world);
        let moved = before.iter().zip(&after).filter(|(old, new)| old != new).count();
        assert!(moved <= 1, "{before:?} {after:?}");
        let first_old = after.iter().position(|(_, version)| version == "1.36.3").unwrap_or(after.len());
        let role_of_old = after.get(first_old).map(|(role, _)| *role);
        let ahead = after.iter().filter(|(role, version)| version == "1.37.0" && Some(*role) > role_of_old);
        assert!(role_of_old.is_none() || ahead.count() == 0, "{after:?}");
        let replaced = world.digests().into_iter().filter(|(pod, digest)| ran[pod] != *digest).count();
        assert!(replaced <= 1, "one component at a time");
        passes += 1;
        assert!(passes < 60, "it ends");
    }
    for _ in 0..3 {
        let _ = world.pass(&calm(2, 2));
    }
    let plan = world.pass(&calm(2, 2));
    assert_eq!((&plan.decisions, &plan.waiting), (&vec![], &vec![]));
    assert!(world.made("etcd-0").containers[0].image.ends_with("3.7.0-0"));

    // No component is downgraded, not even if the manager was stopped in between.
    let ran = world.digests();
    set(&mut world, "1.36.3");
    let plan = world.pass(&calm(2, 2));
    assert_eq!(world.digests(), ran);
    assert!(
        plan.waiting.iter().any(|waiting| waiting.blocker.to_string().contains("older minor release")),
        "{:?}",
        plan.waiting
    );
}

/// A settled cluster of this release with two API servers and two ingresses.
fn settled_at(version: &str) -> World {
    let mut world = World::of(&CLUSTER.replace("1.37.0", version));
    for _ in 0..12 {
        let _ = world.pass(&calm(2, 2));
    }
    assert_eq!(runs(&world).as_deref(), Some(version));
    world
}

fn set_version(world: &mut World, version: &str) {
    version.clone_into(&mut world.documents.clusters.values_mut().next().unwrap().spec.version);
}

fn runs(world: &World) -> Option<String> {
    world.documents.clusters.values().next()?.status.as_ref()?.version.clone()
}

fn condition(world: &World, kind: &str) -> Option<(String, String)> {
    let status = world.documents.clusters.values().next()?.status.as_ref()?;
    let found = status.conditions.iter().find(|found| found.type_ == kind)?;
    Some((found.reason.clone(), found.message.clone()))
}

#[test]
fn components_follow_the_release_of_their_cluster_until_its_store_is_created() {
    let mut world = World::of(&CLUSTER.replace("1.37.0", "1.34.4"));
    let close = |world: &mut World, is_closed: bool| {
        for machine in world.documents.hypervisors.values_mut() {
            machine.spec.unschedulable = is_closed && machine.spec.role == HypervisorRole::Private;
        }
    };
    close(&mut world, true);
    let _ = world.pass(&calm(2, 2));
    assert!(versions(&world).iter().all(|(role, _)| matches!(role, Role::Ingress | Role::Gateway)));
    set_version(&mut world, "1.36.3");
    close(&mut world, false);
    for _ in 0..12 {
        let _ = world.pass(&calm(2, 2));
    }
    assert!(versions(&world).iter().all(|(_, version)| version == "1.36.3"), "{:?}", versions(&world));
    assert_eq!(runs(&world).as_deref(), Some("1.36.3"));
}

/// [`World::pass`] checks the version skew of each step.
#[test]
fn skipped_minor_versions_are_walked_through() {
    let mut world = settled_at("1.34.9");
    set_version(&mut world, "1.37.2");
    let (mut reached, mut reports) = (Vec::new(), Vec::new());
    for _ in 0..150 {
        let plan = world.pass(&calm(2, 2));
        reached.extend(runs(&world).filter(|runs| reached.last() != Some(runs)));
        reports.extend(condition(&world, "KubernetesUpToDate").map(|(_, message)| message));
        if plan.decisions.is_empty() && plan.waiting.is_empty() {
            break;
        }
    }
    assert_eq!(reached, ["1.34.9", "1.35.4", "1.36.3", "1.37.2"]);
    assert!(versions(&world).iter().all(|(_, version)| version == "1.37.2"));
    let first = "from 1.34.9 to 1.35.4 on the way to 1.37.2, one component at a time: 0 of ";
    assert!(reports[0].starts_with(first), "{reports:?}");
    assert!(reports.iter().any(|report| report.starts_with("from 1.36.3 to 1.37.2, one")), "{reports:?}");
    assert_eq!(condition(&world, "KubernetesUpToDate"), None);
    let untested = condition(&world, "VersionTested").unwrap();
    assert_eq!(untested.0, "UntestedPatch");
    assert!(
        world.made("kube-apiserver-0").containers.iter().any(|found| found.image.ends_with("kube-apiserver:v1.37.2"))
    );
}

/// A patch release does not change what etcd stores.
#[test]
fn a_patch_downgrade_replaces_only_what_has_another_image() {
    let mut world = settled_at("1.37.2");
    let before = world.digests();
    set_version(&mut world, "1.37.0");
    for _ in 0..60 {
        let plan = world.pass(&calm(2, 2));
        if plan.decisions.is_empty() && plan.waiting.is_empty() {
            break;
        }
    }
    assert_eq!(runs(&world).as_deref(), Some("1.37.0"));
    assert_eq!(condition(&world, "VersionTested"), None);
    let after = world.digests();
    let replaced: BTreeSet<&str> = before
        .iter()
        .filter(|(pod, digest)| after[*pod] != **digest)
        .map(|(pod, _)| pod.component.as_str().rsplit_once('-').unwrap().0)
        .collect();
    assert_eq!(replaced, ["kube-apiserver", "kube-controller-manager", "kube-scheduler"].into());
}

/// A component that leaves is not upgraded, and may still run.
#[test]
fn a_minor_version_begins_only_once_older_components_are_gone() {
    let mut world = settled_at("1.36.3");
    for _ in 0..12 {
        let _ = world.pass(&calm(3, 2));
    }
    let leaves = Round { obey: false, ..calm(2, 2) };
    let _ = world.pass(&leaves);
    let pod = world.pod("kube-apiserver-2");
    let leaving = world.documents.components.get_mut(&pod).unwrap();
    assert!(leaving.is_leaving());
    "1.35.4".clone_into(&mut leaving.spec.version);
    set_version(&mut world, "1.37.0");
    let waits = |world: &World| {
        let plan = plan(world.documents.clone(), &world.observe(&leaves), Timestamp::UNIX_EPOCH).unwrap();
        assert!(!plan.decisions.iter().any(|decision| decision.to_string().contains("1.37.0")), "{:?}", plan.decisions);
        let is_left = |waiting: &Waiting| matches!(waiting.blocker, WaitBlocker::UpgradeAfterRemoval { .. });
        plan.waiting.iter().any(is_left)
    };
    assert!(waits(&world));
}

/// The next minor version begins only once everything works at the one before.
#[test]
fn a_minor_version_begins_only_while_every_component_works() {
    let mut world = settled_at("1.36.3");
    set_version(&mut world, "1.37.0");
    let number = world.documents.components.keys().position(|pod| *pod == world.pod("kube-scheduler-0")).unwrap();
    let round = Round { ill: 1 << (number % 8), ..calm(2, 2) };
    let before = versions(&world);
    for _ in 0..3 {
        let plan = world.pass(&round);
        assert_eq!(versions(&world), before);
        let waits = |waiting: &Waiting| matches!(waiting.blocker, WaitBlocker::Upgrade { .. });
        assert!(plan.waiting.iter().any(waits), "{:?}", plan.waiting);
    }
    let (reason, message) = condition(&world, "KubernetesUpToDate").unwrap();
    assert_eq!(reason, "UpgradingKubernetes");
    assert!(message.contains("must be ready first"), "{message}");
}

/// A haproxy may find an API server ready later than a pass does. Meanwhile, it must not lose the other one.
#[test]
fn an_api_server_is_replaced_once_every_ingress_sends_connections_to_another() {
    let mut world = settled_at("1.37.0");
    let spec = &mut world.documents.clusters.values_mut().next().unwrap().spec.control_plane;
    spec.kube_api_server.extra_args.insert("event-ttl".to_owned(), "2h".to_owned());
    world.report_ready(&[("kube-apiserver-0", false), ("kube-apiserver-1", true)]);
    let [first, second] = ["kube-apiserver-0", "kube-apiserver-1"].map(|component| world.pod(component));
    let before = world.digests();
    for _ in 0..3 {
        let _ = world.pass(&calm(2, 2));
        assert_ne!(world.digests()[&first], before[&first], "the ingresses use the second one");
        assert_eq!(world.digests()[&second], before[&second]);
    }

    world.report_ready(&[("kube-apiserver-0", true)]);
    let _ = world.pass(&calm(2, 2));
    assert_ne!(world.digests()[&second], before[&second]);
}

/// etcd members keep their addresses. A machine gets another one after its member has moved.
#[test]
fn the_address_of_a_member_is_not_changed() {
    let mut world = settled_at("1.37.0");
    let member = world.documents.components.get(&world.pod("etcd-0")).unwrap().spec.hypervisor.clone();
    let machine = world.documents.hypervisors.get_mut(&member).unwrap();
    "10.9.9.9".clone_into(&mut machine.spec.addresses.private[0]);
    let refused = format!("{:?}", world.documents.faults_of_changes(|_| true));
    assert!(refused.contains("spec.addresses.private"), "{refused}");
    assert!(refused.contains("drain the machine, and wait until the member has moved"), "{refused}");
}

#[test]
fn the_leader_of_a_store_is_upgraded_last_of_its_members() {
    let mut world = settled_at("1.36.3");
    set_version(&mut world, "1.37.0");
    let mut seen = world.observe(&calm(2, 2));
    let report = |id| MemberReport {
        id: MemberId(id),
        cluster_id: MemberId(9),
        leader: Some(MemberId(1)),
        term: 1,
        raft_index: 1,
        applied_index: 1,
        revision: 1,
        is_learner: false,
        version: "3.6.8".to_owned(),
        database: DatabaseSize::default(),
        alarms: BTreeSet::new(),
        errors: Vec::new(),
    };
    let members = [("etcd-0", 1), ("etcd-1", 2), ("etcd-2", 3)];
    let members = members.map(|(name, id)| (name.parse().unwrap(), ObservedValue::Known(report(id))));
    let store = StoreObservation { members: members.into(), ..StoreObservation::default() };
    let id = world.documents.clusters.values().next().unwrap().id().unwrap().clone();
    seen.stores.insert(id, store);
    let plan = plan(world.documents.clone(), &seen, Timestamp::UNIX_EPOCH).unwrap();
    let changed = |pod: &str| plan.documents.components[&world.pod(pod)].spec.version == "1.37.0";
    assert_eq!(["etcd-0", "etcd-1", "etcd-2"].map(changed), [false, true, false]);
}

/// A member that joins a store must not be older than the store, and an API server not older than a controller manager.
#[test]
fn a_new_component_has_the_version_of_its_role() {
    let mut world = settled_at("1.36.3");
    set_version(&mut world, "1.37.0");
    let is_past = |world: &World| {
        let of = |role| world.documents.components.values().filter(move |found| found.spec.role == role);
        of(Role::KubeApiserver).all(|found| found.spec.version == "1.37.0")
            && of(Role::KubeScheduler).any(|found| found.spec.version == "1.36.3")
    };
    for _ in 0..60 {
        if is_past(&world) {
            break;
        }
        let _ = world.pass(&calm(2, 2));
    }
    assert!(is_past(&world));
    let _ = world.pass(&calm(3, 2));
    assert_eq!(world.documents.components[&world.pod("kube-apiserver-2")].spec.version, "1.37.0");
}

#[test]
fn a_component_beyond_its_version_skew_is_found() {
    let world = settled_at("1.36.3");
    let seen = world.observe(&calm(2, 2));
    let found = |changes: &[(&str, &str)]| {
        let mut after = world.documents.clone();
        for (pod, version) in changes {
            (*version).clone_into(&mut after.components.get_mut(&world.pod(pod)).unwrap().spec.version);
        }
        let found = invariants::check(&world.documents, &after, &seen);
        found.iter().filter(|violation| violation.invariant.contains("version skew")).count()
    };
    assert_eq!(found(&[("etcd-0", "1.37.0")]), 0);
    assert_eq!(found(&[("kube-apiserver-0", "1.36.9")]), 0);
    assert!(found(&[("kube-apiserver-0", "1.37.0")]) > 0, "before its store");
    assert!(found(&[("kube-scheduler-0", "1.37.0")]) > 0, "before the API servers");
    assert!(found(&[("etcd-0", "1.35.4")]) > 0, "back");
    assert!(found(&[("etcd-0", "1.37.0"), ("etcd-1", "1.37.0")]) > 0, "two at once");
    let older = settled_at("1.35.4");
    let mut after = older.documents.clone();
    "1.37.0".clone_into(&mut after.components.get_mut(&older.pod("etcd-0")).unwrap().spec.version);
    let found = invariants::check(&older.documents, &after, &older.observe(&calm(2, 2)));
    assert!(found.iter().any(|violation| violation.invariant.contains("version skew")), "a skipped minor version");
}

/// Components of an older release of Keelway followed their cluster without recording it. None of them is downgraded.
#[test]
fn clusters_of_an_older_release_are_adopted_unchanged() {
    // The MTU of the older release, which did not record it.
    let mut world = World::of(&CLUSTER.replace("etcd:", "vpn: {mtu: 1420}, etcd:"));
    for _ in 0..12 {
        let _ = world.pass(&calm(2, 2));
    }
    let ran = world.digests();
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.status.as_mut().unwrap().birth = None;
    cluster.spec.vpn.mtu = None;
    for component in world.documents.components.values_mut() {
        "1.35.4".clone_into(&mut component.spec.version);
    }
    assert_eq!(world.documents.faults_of_changes(|_| true), []);
    let _ = world.pass(&calm(2, 2));
    assert_eq!(world.digests(), ran);
    assert!(versions(&world).iter().all(|(_, version)| version == "1.37.0"));
}

/// Running gateways and controllers read changes of gateways and ingresses without a restart.
#[test]
fn gateways_and_controllers_stay_while_others_change() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(2, 1));
    }
    let first = world.digests();
    for ingresses in [2, 1] {
        for _ in 0..6 {
            let _ = world.pass(&calm(2, ingresses));
        }
        assert_eq!(world.of_role(Role::Gateway).len(), ingresses as usize);
        let now = world.digests();
        assert!(first.iter().all(|(pod, digest)| now[pod] == *digest), "one was replaced");
        let configs = machine_configs(&world.documents, &world.observe(&calm(2, ingresses))).unwrap();
        let (_, gateway) =
            configs.values().flat_map(|config| &config.pods).find(|(pod, _)| **pod == world.pod("gateway-0")).unwrap();
        let others = gateway.files.iter().find(|file| file.path == "gateways.json").unwrap();
        let others = String::from_utf8(others.content.clone()).unwrap();
        assert_eq!(others.contains("gateway-1"), ingresses == 2, "{others}");
    }
}

/// Documents of a release whose API servers had no egress.
#[test]
fn api_servers_of_the_last_release_get_an_egress_in_turns() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(3, 1));
    }
    let servers: Vec<PodName> = (0..3).map(|index| world.pod(&format!("kube-apiserver-{index}"))).collect();
    for pod in &servers {
        let spec = &mut world.documents.components.get_mut(pod).unwrap().spec;
        spec.ports.remove("egress").unwrap();
        let state = world.machines.get_mut(&spec.hypervisor).unwrap();
        state.sandboxes.iter_mut().find(|found| found.pod == *pod).unwrap().digest = "of the last release".to_owned();
    }
    // Such documents are valid.
    world.documents = Documents::read(world.documents.write().as_bytes()).unwrap();

    let silent = world.documents.components[&servers[2]].spec.hypervisor.clone();
    let number = world.machines.keys().position(|name| *name == silent).unwrap();
    let round = Round { silent: 1 << number, ..calm(3, 1) };
    assert_eq!(world.replaced(&round), [], "one of them cannot be seen");
    let has_egress = |world: &World, pod| world.documents.components[pod].spec.ports.contains_key("egress");
    let given: Vec<bool> = servers.iter().map(|pod| has_egress(&world, pod)).collect();
    assert_eq!(given, [true, true, false], "what is free on a machine is not known before it is seen");

    let mut replaced = Vec::new();
    for _ in 0..8 {
        let now = world.replaced(&calm(3, 1));
        assert!(now.len() <= 1, "{now:?}");
        replaced.extend(now);
    }
    replaced.sort();
    assert_eq!(replaced, servers);
    let configs = machine_configs(&world.documents, &world.observe(&calm(3, 1))).unwrap();
    for (_, pod) in configs.values().flat_map(|config| &config.pods).filter(|(pod, _)| servers.contains(pod)) {
        let names: Vec<&str> = pod.containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, ["egress", "kube-apiserver"]);
    }
}

/// It must reach neither their private addresses nor the public ones, where it may be trusted more than users are.
#[test]
fn an_egress_leads_to_no_machine() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(1, 1));
    }
    let egress = world.document("kube-apiserver-0", "egress.json");
    let forbidden = serde_json::json!(["10.0.0.0/30", "10.0.0.4/32", "198.18.0.3/32", "198.18.0.4/32"]);
    assert_eq!(egress["controlPlane"]["forbiddenCIDRs"], forbidden);
}

/// The controller reads the list of add-ons while it runs.
#[test]
fn add_ons_are_turned_off_without_a_restart() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(1, 1));
    }
    let addons = |world: &World| world.document("cluster-controller-0", "cluster-controller.json")["addons"].clone();
    let on = serde_json::json!({ "enabled": true });
    assert_eq!(addons(&world), serde_json::json!({ "coreDNS": on, "kubeProxy": on, "metricsServer": on, "cni": on }));
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.addons.cni.enabled = false;
    assert_eq!(world.replaced(&calm(1, 1)), []);
    assert_eq!(addons(&world)["cni"]["enabled"], false);
    assert_eq!(addons(&world)["kubeProxy"], on);
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.addons.kube_proxy.node_port_addresses = vec!["primary".to_owned()];
    assert_eq!(world.replaced(&calm(1, 1)), []);
    assert_eq!(addons(&world)["kubeProxy"]["nodePortAddresses"], serde_json::json!(["primary"]));
}

/// Credentials of the cluster reach its cluster-controller, which publishes them to workers: those for repositories of workers' images, and no
/// others. A change of them restarts nothing.
#[test]
fn own_credentials_for_images_of_workers_reach_the_cluster_controller() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(1, 1));
    }
    let configured =
        |world: &World| world.document("cluster-controller-0", "cluster-controller.json")["registries"].clone();
    assert_eq!(configured(&world), serde_json::Value::Null);
    let config = r#"{"auths": {"registry.k8s.io": {"username": "user", "password": "x"}, "r.example.com": {"username": "other", "password": "y"}}}"#;
    let data = [(PULL_SECRET_KEY.to_owned(), ByteString(config.as_bytes().to_vec()))];
    let secret = Secret { type_: Some(PULL_SECRET.to_owned()), data: Some(data.into()), ..Secret::default() };
    world.documents.secrets.insert(SecretName { namespace: "default".to_owned(), name: "regcred".to_owned() }, secret);
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.images.pull_secrets = vec![LocalSecretReference { name: "regcred".to_owned() }];
    assert_eq!(world.replaced(&calm(1, 1)), []);
    assert_eq!(configured(&world), "/etc/keelway/registries.json");
    let published = world.document("cluster-controller-0", "registries.json");
    let repositories: Vec<&String> = published["auths"].as_object().unwrap().keys().collect();
    let of_workers = ["coredns/coredns", "kube-proxy", "metrics-server/metrics-server", "pause"];
    assert_eq!(repositories, of_workers.map(|name| format!("registry.k8s.io/{name}")).each_ref());
}

/// The port of a cluster-controller is in its arguments, so that it is not asked at another port than it listens on.
#[test]
fn a_cluster_controller_is_replaced_for_its_port_alone() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(3, 2));
    }
    let [first, second] = ["cluster-controller-0", "cluster-controller-1"].map(|name| world.pod(name));
    let spec = &mut world.documents.components.get_mut(&first).unwrap().spec;
    let port = spec.ports.get_mut("health").unwrap();
    *port += 1000;
    let health = format!("--health=127.0.0.1:{port}");
    assert_eq!(world.replaced(&calm(3, 2)), std::slice::from_ref(&first));
    assert!(world.made("cluster-controller-0").containers[0].command.contains(&health), "{health}");
    assert_eq!(world.document("cluster-controller-0", "cluster-controller.json")["health"], serde_json::Value::Null);

    // In the last release the port was in the file.
    for pod in [&first, &second] {
        let state = world.machines.get_mut(&world.documents.components[pod].spec.hypervisor).unwrap();
        state.sandboxes.iter_mut().find(|found| found.pod == *pod).unwrap().digest = "of the last release".to_owned();
    }
    assert_eq!(world.replaced(&calm(3, 2)), [first, second]);
    assert_eq!(world.replaced(&calm(3, 2)), []);
}

/// The socket is in a directory of the pod, where root finds it.
#[test]
fn a_cluster_controller_serves_its_metrics() {
    let mut world = World::new();
    for _ in 0..12 {
        let _ = world.pass(&calm(1, 1));
    }
    let pod = world.made("cluster-controller-0");
    assert_eq!(pod.data, ["run"]);
    let [container] = pod.containers.as_slice() else { panic!("{:?}", pod.containers) };
    let run = container.mounts.iter().find(|mount| mount.source == "run").unwrap();
    assert!(!run.read_only);
    let metrics = format!("--metrics={}/metrics.sock", run.target);
    assert!(container.command.contains(&metrics), "{:?}", container.command);
}

/// Pods can read the keys that verify tokens of service accounts, and no address of a private machine is published.
#[test]
fn an_api_server_names_its_issuer_for_the_keys_of_tokens() {
    let mut world = World::new();
    for _ in 0..6 {
        let _ = world.pass(&calm(1, 1));
    }
    let pod = world.made("kube-apiserver-0");
    let command = &pod.containers.last().unwrap().command;
    let flag = |name: &str| command.iter().find_map(|word| word.strip_prefix(name)).unwrap();
    let issuer = flag("--service-account-issuer=");
    assert_eq!(issuer, "https://kubernetes.default.svc.cluster.local");
    assert_eq!(flag("--service-account-jwks-uri="), format!("{issuer}/openid/v1/jwks"));
}

/// The user's arguments apply to their role alone. Every other flag is Keelway's, so no flag is set twice.
#[test]
fn extra_arguments_are_those_of_their_role() {
    let mut world = World::new();
    let spec = &mut world.documents.clusters.values_mut().next().unwrap().spec.control_plane;
    spec.kube_api_server.extra_args.insert("event-ttl".to_owned(), "2h".to_owned());
    spec.kube_controller_manager.extra_args.insert("concurrent-gc-syncs".to_owned(), "30".to_owned());
    spec.kube_scheduler.extra_args.insert("v".to_owned(), "4".to_owned());
    for _ in 0..6 {
        let _ = world.pass(&calm(1, 1));
    }
    let configs = machine_configs(&world.documents, &world.observe(&calm(1, 1))).unwrap();
    let mut given = BTreeSet::new();
    for (pod, wanted) in configs.values().flat_map(|config| &config.pods) {
        let role = world.documents.components[pod].spec.role;
        let program = wanted.containers.last().unwrap();
        let flags = program.command.iter().filter_map(|word| word.strip_prefix("--"));
        for flag in flags.filter(|_| !argument::of_role(role).is_empty()) {
            if !argument::is_own(flag) {
                given.insert((role, flag));
            }
        }
    }
    let expected = [
        (Role::KubeApiserver, "event-ttl=2h"),
        (Role::KubeControllerManager, "concurrent-gc-syncs=30"),
        (Role::KubeScheduler, "v=4"),
    ];
    assert_eq!(given, expected.into());
}
