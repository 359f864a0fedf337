//! Documents that were restored from an older backup, and machines that changed since.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    ClusterClass, Documents, Time,
    class::ClusterClassSpec,
    cluster::MemberPhase,
    hypervisor::Applied,
    jiff::Timestamp,
    machine::{MachineConfig, MachineState, ObservedValue},
    name::{ClusterRef, HypervisorName, PodName},
    role::Role,
};
use keelway_planner::{
    ComponentHealth, DifferenceKind, FirstBindings, HeldConfig, HeldMachine, ObservedCertificates, PassObservation,
    Recovery, Remedy, complete_clusters, complete_from_backup, keep_replicas, machine_configs, note_issued, plan,
    recover, refuse,
};

use crate::model::{apply, hypervisors, identified, mint};

const CLUSTER: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default}
spec: {version: 1.37.0, etcd: {replicas: 3}}
";

struct World {
    documents: Documents,
    machines: BTreeMap<HypervisorName, MachineState>,
    configs: BTreeMap<HypervisorName, MachineConfig>,
    certificates: ObservedCertificates,
    /// Of the last pass.
    waiting: Vec<String>,
}

impl World {
    fn new() -> Self {
        let machines = ["Private", "Private", "Private", "Public", "Public"];
        let text: String = std::iter::once(CLUSTER.to_owned()).chain(hypervisors(&machines)).collect();
        let (documents, machines) = identified(&text);
        Self { documents, machines, configs: BTreeMap::new(), certificates: BTreeMap::new(), waiting: Vec::new() }
    }

    fn settled(servers: u32, ingresses: u32) -> Self {
        let mut world = Self::new();
        world.settle(servers, ingresses);
        world
    }

    fn reference() -> ClusterRef {
        ClusterRef { namespace: "default".to_owned(), name: "c1".to_owned() }
    }

    fn ask(&mut self, servers: u32, ingresses: u32) {
        let spec = &mut self.documents.clusters.get_mut(&Self::reference()).unwrap().spec;
        spec.control_plane.replicas = servers;
        spec.ingress.replicas = ingresses;
    }

    fn settle(&mut self, servers: u32, ingresses: u32) {
        self.ask(servers, ingresses);
        for _ in 0..8 {
            self.pass();
        }
    }

    fn observe(&self) -> PassObservation {
        let health = self.documents.components.iter().map(|(pod, component)| {
            let runs = self.machines[&component.spec.hypervisor].runs(pod);
            (
                pod.clone(),
                if runs { ComponentHealth::Healthy } else { ComponentHealth::Unhealthy("it does not run".to_owned()) },
            )
        });
        let ids = self.documents.clusters.values().filter_map(|cluster| cluster.id());
        let mut seen = PassObservation {
            machines: self
                .machines
                .iter()
                .map(|(name, state)| (name.clone(), ObservedValue::Known(state.clone())))
                .collect(),
            health: health.collect(),
            bindings: ids.map(|id| (id.clone(), ObservedValue::Known(FirstBindings::Cluster.digest()))).collect(),
            certificates: self.certificates.clone(),
            ..PassObservation::default()
        };
        refuse(&self.documents, &mut seen);
        seen
    }

    /// One pass, and its effect on the machines. Returns the machines that refused.
    fn pass(&mut self) -> BTreeSet<HypervisorName> {
        let seen = self.observe();
        let mut plan = plan(self.documents.clone(), &seen, Timestamp::UNIX_EPOCH).unwrap();
        mint(&mut plan, &mut self.certificates);
        let authorities = plan
            .documents
            .secrets
            .iter()
            .filter_map(|(name, secret)| Some((name.clone(), secret.data.as_ref()?.get("active.crt")?.clone())));
        // A bundle begins with the active certificate.
        for (name, active) in authorities.collect::<Vec<_>>() {
            plan.documents.put_secret_values(&name, [("bundle.crt".to_owned(), active)]);
        }
        let configs = machine_configs(&plan.documents, &seen).unwrap();
        note_issued(&mut plan.documents, &configs);
        self.documents = plan.documents.clone();
        for (name, config) in configs {
            let state = self.machines.get_mut(&name).unwrap();
            apply(state, &config);
            state.owner = Some(config.installation.clone());
            state.applied = Some(Applied { term: config.term, generation: config.generation, digest: config.digest() });
            self.configs.insert(name, config);
        }
        self.waiting = plan.waiting.iter().map(ToString::to_string).collect();
        seen.refused.keys().cloned().collect()
    }

    /// Deletes the cluster, and repeats passes until nothing is left of it.
    fn delete(&mut self) {
        let cluster = self.documents.clusters.get_mut(&Self::reference()).unwrap();
        cluster.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        for _ in 0..6 {
            self.pass();
            for state in self.machines.values_mut() {
                let pods: BTreeSet<String> = state.sandboxes.iter().map(|sandbox| sandbox.pod.to_string()).collect();
                let stays = |path: &String| pods.iter().any(|pod| path.starts_with(pod.as_str()));
                state.files.retain(|path, _| stays(path));
                state.data.retain(|path, _| stays(path));
            }
        }
        assert!(self.documents.clusters.is_empty() && self.digests().is_empty());
    }

    fn held(&self) -> BTreeMap<HypervisorName, ObservedValue<HeldMachine>> {
        let held = |(name, state): (&HypervisorName, &MachineState)| {
            let config = self.configs.get(name).cloned().map_or(HeldConfig::None, HeldConfig::Known);
            (name.clone(), ObservedValue::Known(HeldMachine { state: state.clone(), config }))
        };
        self.machines.iter().map(held).collect()
    }

    fn recover(&mut self) -> Recovery {
        let recovery = recover(&self.documents, &self.held(), &BTreeMap::new(), &Time(Timestamp::UNIX_EPOCH));
        self.documents = recovery.documents.clone();
        recovery
    }

    /// The digest of each running pod.
    fn digests(&self) -> BTreeMap<PodName, String> {
        let sandboxes = self.machines.values().flat_map(|state| &state.sandboxes);
        sandboxes.map(|sandbox| (sandbox.pod.clone(), sandbox.digest.clone())).collect()
    }

    fn pod(&self, component: &str) -> PodName {
        let id = self.documents.clusters[&World::reference()].id().unwrap().clone();
        PodName { cluster: id, component: component.parse().unwrap() }
    }

    /// The machine of a component.
    fn machine_of(&self, component: &str) -> HypervisorName {
        let pod = self.pod(component);
        self.configs.iter().find(|(_, config)| config.pods.contains_key(&pod)).unwrap().0.clone()
    }
}

fn subjects(recovery: &Recovery, which: impl Fn(&DifferenceKind) -> bool) -> Vec<&str> {
    recovery.differences.iter().filter(|found| which(&found.kind)).map(|found| found.subject.as_str()).collect()
}

fn attention(recovery: &Recovery) -> Vec<String> {
    let needs = recovery.differences.iter().filter(|found| found.kind.remedy() == Remedy::NeedsAttention);
    needs.map(|found| format!("{}: {}", found.subject, found.kind)).collect()
}

#[test]
fn current_documents_stay_as_they_are() {
    let mut world = World::settled(2, 2);
    let before = world.documents.clone();
    let recovery = world.recover();
    assert_eq!(recovery.differences, []);
    assert!(recovery.documents == before);
}

#[test]
fn components_that_are_newer_than_the_backup_are_adopted_and_nothing_is_replaced() {
    let mut world = World::settled(1, 1);
    let backup = world.documents.clone();
    world.settle(2, 2);
    let (newest, digests) = (world.documents.clone(), world.digests());
    let (configs, certificates) = (world.configs.clone(), world.certificates.clone());

    world.documents = backup;
    world.ask(2, 2);
    assert!(!world.pass().is_empty(), "the documents are stale");
    let recovery = world.recover();
    assert_eq!(attention(&recovery), [""; 0]);
    let adopted = subjects(&recovery, |kind| matches!(kind, DifferenceKind::NoDocument { .. }));
    let wanted = [
        "c1/cluster-controller-1",
        "c1/gateway-1",
        "c1/ingress-1",
        "c1/kube-apiserver-1",
        "c1/kube-controller-manager-1",
        "c1/kube-scheduler-1",
    ];
    assert_eq!(adopted, wanted);
    for (pod, component) in &newest.components {
        let mut found = world.documents.components[pod].spec.clone();
        found.placement.clone_from(&component.spec.placement);
        assert_eq!(found, component.spec);
    }
    // The public half of a gateway's key is derived from the private one, which this crate cannot do.
    let gateway = newest.secrets.iter().find(|(name, _)| name.name == "gateway-1").unwrap();
    let public = gateway.1.data.as_ref().unwrap()["wireguard.pub"].clone();
    world.documents.put_secret_values(gateway.0, [("wireguard.pub".to_owned(), public)]);
    for (name, secret) in &newest.secrets {
        assert!(world.documents.secrets[name].data == secret.data, "{name:?}");
    }

    world.certificates = certificates;
    assert_eq!(world.pass(), BTreeSet::new());
    assert_eq!(world.digests(), digests, "nothing was replaced");
    assert_eq!(world.configs, configs, "no machine is given another config");
    assert_eq!(world.recover().differences, []);
}

#[test]
fn a_component_that_is_too_many_leaves_in_the_ordinary_way() {
    let mut world = World::settled(1, 1);
    let backup = world.documents.clone();
    world.settle(2, 1);
    world.documents = backup;
    let _ = world.recover();
    assert!(world.documents.components.contains_key(&world.pod("kube-apiserver-1")));
    world.settle(1, 1);
    assert_eq!(world.documents.components.values().filter(|one| one.spec.role == Role::KubeApiserver).count(), 1);
    assert!(!world.digests().contains_key(&world.pod("kube-apiserver-1")));
}

#[test]
fn a_store_that_was_created_since_is_not_created_again() {
    let mut world = World::new();
    let backup = world.documents.clone();
    world.settle(1, 1);
    let born = world.documents.clusters[&World::reference()].status.clone().unwrap();
    let secrets = world.documents.secrets.clone();
    let digests = world.digests();
    world.documents = backup;
    world.ask(1, 1);
    let recovery = world.recover();
    let status = world.documents.clusters[&World::reference()].status.clone().unwrap();
    let (found, wanted) = (status.etcd.unwrap(), born.etcd.unwrap());
    assert_eq!((found.initial_cluster, found.cluster_id), (wanted.initial_cluster, wanted.cluster_id));
    assert_eq!(found.members, wanted.members);
    assert_eq!((status.birth, status.ingress_port), (born.birth, born.ingress_port));
    assert!(world.documents.clusters[&World::reference()].is_initialized());
    let missing = subjects(&recovery, |kind| matches!(kind, DifferenceKind::OtherKey { is_missing: true, .. }));
    assert_eq!(missing.len(), 6, "the authorities are not in the backup: {:?}", attention(&recovery));

    world.pass();
    assert_eq!(world.digests(), digests, "no second authority is made, and nothing is stopped");
    world.documents.secrets = secrets;
    world.settle(1, 1);
    assert_eq!((world.digests(), &world.waiting[..]), (digests, &[][..]), "with the authorities all goes on");
}

#[test]
fn another_authority_than_that_of_the_machines_blocks_its_cluster() {
    let mut world = World::settled(1, 1);
    let digests = world.digests();
    let name = world.documents.secrets.keys().find(|name| name.name == "etcd-ca").unwrap().clone();
    let other = ["active.crt", "bundle.crt"].map(|key| (key.to_owned(), keelway_api::ByteString(b"other".to_vec())));
    world.documents.put_secret_values(&name, other);
    world.documents.clusters.get_mut(&World::reference()).unwrap().status.as_mut().unwrap().minted.clear();
    let recovery = world.recover();
    assert_eq!(
        attention(&recovery),
        [
            "c1: the Secret etcd-ca holds a different key than its machines: restore it from a newer backup; the cluster is not \
             changed until then"
        ]
    );
    world.pass();
    assert_eq!(world.digests(), digests);
}

#[test]
fn a_cluster_without_documents_is_named_and_left_alone() {
    let mut world = World::settled(1, 1);
    let (digests, id) = (world.digests(), world.pod("etcd-0").cluster);
    world.documents.remove_cluster(&World::reference(), &id);
    let recovery = world.recover();
    let unknown = subjects(&recovery, |kind| matches!(kind, DifferenceKind::UnknownCluster { .. }));
    assert_eq!(unknown, [id.as_str()]);
    world.pass();
    assert_eq!(world.digests(), digests);
}

#[test]
fn a_cluster_that_was_deleted_since_does_not_start_without_its_data() {
    for are_left_as_found in [false, true] {
        let mut world = World::settled(1, 1);
        let backup = world.documents.clone();
        world.delete();
        if are_left_as_found {
            // An agent that has nothing to run keeps no record.
            for state in world.machines.values_mut() {
                (state.applied, state.owner) = (None, None);
            }
        }
        world.documents = backup;
        let recovery = world.recover();
        assert_eq!(subjects(&recovery, |kind| *kind == DifferenceKind::Gone), ["c1"]);
        for _ in 0..4 {
            world.pass();
        }
        let members = world.digests().into_keys().filter(|pod| pod.component.as_str().starts_with("etcd"));
        assert_eq!(members.collect::<Vec<_>>(), []);
    }
}

#[test]
fn a_machine_that_does_not_answer_keeps_its_numbers() {
    let mut world = World::settled(1, 1);
    let backup = world.documents.clone();
    world.settle(2, 1);
    let silent = world.machine_of("kube-apiserver-1");
    world.documents = backup;
    let mut held = world.held();
    held.insert(silent.clone(), ObservedValue::unreachable("no answer"));
    let recovery = recover(&world.documents, &held, &BTreeMap::new(), &Time(Timestamp::UNIX_EPOCH));
    assert_eq!(subjects(&recovery, |kind| matches!(kind, DifferenceKind::Silent { .. })), [silent.as_str()]);
    assert!(recovery.needs_attention());
    let issued = |documents: &Documents| documents.hypervisors[&silent].status.clone().unwrap().issued;
    assert_eq!(issued(&recovery.documents), issued(&world.documents));
    world.documents = recovery.documents;
    assert_eq!(world.pass(), [silent].into(), "it alone takes nothing");
    assert_eq!(attention(&world.recover()), [""; 0], "once it answers it is recovered, too");
}

#[test]
fn a_cluster_is_paused_if_a_machine_does_not_return_its_config() {
    let mut world = World::settled(1, 1);
    let backup = world.documents.clone();
    world.settle(2, 1);
    let digests = world.digests();
    let old = world.machine_of("kube-apiserver-1");
    world.documents = backup;
    let mut held = world.held();
    let Some(ObservedValue::Known(machine)) = held.get_mut(&old) else { panic!("{old}") };
    machine.config = HeldConfig::Unknown("its agent is too old".to_owned());
    let recovery = recover(&world.documents, &held, &BTreeMap::new(), &Time(Timestamp::UNIX_EPOCH));
    assert_eq!(subjects(&recovery, |kind| *kind == DifferenceKind::Paused), ["c1"]);
    world.documents = recovery.documents;
    for _ in 0..3 {
        assert_eq!(world.pass(), BTreeSet::new());
    }
    let now = world.digests();
    assert!(digests.keys().all(|pod| now.contains_key(pod)), "nothing is stopped");
    // The agent was upgraded.
    let recovery = world.recover();
    let adopted = subjects(&recovery, |kind| matches!(kind, DifferenceKind::NoDocument { .. }));
    assert!(adopted.is_empty() || adopted.contains(&"c1/kube-apiserver-1"), "{adopted:?}");
}

#[test]
fn phases_of_members_never_go_back() {
    let mut world = World::settled(1, 1);
    let name = "etcd-0".parse().unwrap();
    let cluster = world.documents.clusters.get_mut(&World::reference()).unwrap();
    let member = cluster.status.as_mut().unwrap().etcd.as_mut().unwrap().members.get_mut(&name).unwrap();
    assert_eq!(member.phase, MemberPhase::Started);
    member.phase = MemberPhase::Pending;
    let recovery = world.recover();
    assert_eq!(subjects(&recovery, |kind| matches!(kind, DifferenceKind::MemberPhase { .. })), ["c1/etcd-0"]);
    let etcd = world.documents.clusters[&World::reference()].status.clone().unwrap().etcd.unwrap();
    assert_eq!(etcd.members[&name].phase, MemberPhase::Started);
}

#[test]
fn numbers_that_no_driver_assigns_are_not_adopted() {
    let mut world = World::settled(1, 1);
    let name: HypervisorName = "hv-0".parse().unwrap();
    let issued = world.documents.hypervisors[&name].status.clone().unwrap().issued;
    for (term, generation) in [(u64::MAX, 1), (1 << 60, 1), (1, u64::MAX)] {
        let applied = Applied { term, generation, digest: "forged".to_owned() };
        world.machines.get_mut(&name).unwrap().applied = Some(applied);
        let recovery = world.recover();
        assert_eq!(recovery.differences.len(), 1, "{:?}", recovery.differences);
        assert_eq!(recovery.differences[0].kind.remedy(), Remedy::NeedsAttention);
        assert_eq!(recovery.documents.hypervisors[&name].status.clone().unwrap().issued, issued);
    }
}

#[test]
fn the_next_leader_has_a_later_term_than_any_that_machines_know() {
    let mut world = World::settled(1, 1);
    let name: HypervisorName = "hv-1".parse().unwrap();
    world.machines.get_mut(&name).unwrap().term = 7;
    let recovery = world.recover();
    assert_eq!(recovery.differences.len(), 1);
    assert_eq!(recovery.differences[0].kind, DifferenceKind::LaterTerm { told: 7, known: 1 });
    assert_eq!(keelway_planner::term_of_documents(&recovery.documents), 7);
    assert_eq!(world.pass(), BTreeSet::new());
}

#[test]
fn all_of_a_backup_is_taken_if_there_are_no_documents() {
    let world = World::settled(1, 1);
    let completed = complete_from_backup(&Documents::default(), &world.documents);
    assert!(completed.documents == world.documents && completed.restored.is_empty());
}

#[test]
fn a_backup_restores_what_the_documents_name_and_nothing_that_was_deleted() {
    let mut world = World::settled(2, 1);
    let backup = world.documents.clone();
    world.settle(1, 1);
    let (current, digests) = (world.documents.clone(), world.digests());
    let lost = current.secrets.keys().find(|name| name.name == "etcd-ca").unwrap().clone();
    let (removed, kept) = ("kube-apiserver-1", "kube-apiserver-0");
    let has = |documents: &Documents, name: &str| documents.secrets.keys().any(|secret| secret.name == name);
    assert!(has(&backup, removed) && has(&current, kept));
    world.documents.secrets.remove(&lost);
    let completed = complete_from_backup(&world.documents, &backup);
    let restored: Vec<&str> = completed.restored.iter().map(|one| one.subject.as_str()).collect();
    assert_eq!(restored, [format!("Secret {}/etcd-ca", lost.namespace)]);
    assert!(completed.documents == current, "components and Secrets that were removed since stay removed");
    world.documents = completed.documents;
    assert_eq!(world.recover().differences, []);
    assert_eq!(world.pass(), BTreeSet::new());
    assert_eq!(world.digests(), digests);
}

#[test]
fn a_backup_restores_a_cluster_that_machines_hold() {
    let mut world = World::settled(2, 1);
    world.documents.classes.insert("small".to_owned(), ClusterClass::new("small", ClusterClassSpec::default()));
    world.documents.clusters.values_mut().next().unwrap().spec.class_name = Some("small".to_owned());
    let (backup, digests) = (world.documents.clone(), world.digests());
    let id = world.pod("etcd-0").cluster;
    world.documents.classes.remove("small");
    world.documents.remove_cluster(&World::reference(), &id);
    let without = world.documents.clone();
    let recovery = recover(&without, &world.held(), &BTreeMap::new(), &Time(Timestamp::UNIX_EPOCH));
    let completed = complete_clusters(&without, &backup, &recovery).unwrap();
    assert_eq!(completed.restored.len(), 1);
    world.documents = completed.documents;
    assert!(world.documents.classes.contains_key("small"));
    assert_eq!(attention(&world.recover()), [""; 0]);
    world.pass();
    assert_eq!(world.digests(), digests);

    // A cluster that was deleted after the backup stays deleted.
    world.delete();
    let deleted = recover(&world.documents, &world.held(), &BTreeMap::new(), &Time(Timestamp::UNIX_EPOCH));
    assert!(complete_clusters(&world.documents, &backup, &deleted).is_none());
}

#[test]
fn components_that_were_requested_after_the_backup_stay() {
    let mut world = World::settled(1, 1);
    let backup = world.documents.clone();
    world.settle(2, 2);
    let digests = world.digests();
    world.documents = backup;
    let mut recovery = world.recover();
    keep_replicas(&mut recovery, |_| true);
    let raised = subjects(&recovery, |kind| matches!(kind, DifferenceKind::MoreReplicas { .. }));
    assert_eq!(raised, ["c1"; 4], "cluster-controllers and gateways follow API servers and ingresses");
    world.documents = recovery.documents;
    for _ in 0..4 {
        world.pass();
    }
    assert!(digests.keys().all(|pod| world.digests().contains_key(pod)));
    let mut unchanged = world.recover();
    keep_replicas(&mut unchanged, |_| true);
    assert_eq!(unchanged.differences, []);
}
