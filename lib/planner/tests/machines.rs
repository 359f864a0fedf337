//! Owners of machines, their capacity, and stores whose machine lost its data.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Documents, Time,
    cluster::MemberPhase,
    documents::SecretName,
    hypervisor::{Applied, HypervisorRole, LOST_ANNOTATION},
    jiff::{SignedDuration, Timestamp},
    machine::{
        Amount, ConfigFormat, DataState, Disk, FormatRange, MachineState, ObservedValue, SandboxState, Start,
        SystemFacts, UnreachableReason,
    },
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
};
use keelway_planner::{
    CertificateSeen, ComponentHealth, HIGHEST_NUMBER, MachineRefusal, MintRequest, PassObservation, Plan, Waiting,
    check_config, identify, invariants, machine_config, machine_configs, note_issued, plan, refuse, wait_for_clock,
};

use crate::model::{empty, mint};

const CLUSTER: &str = "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c1, namespace: default}\nspec:\n  \
                       version: 1.37.0\n  etcd: {replicas: 3}\n  ingress: {replicas: 0}\n";

/// Three private machines, and one cluster of three members.
struct World {
    documents: Documents,
    seen: PassObservation,
}

impl World {
    fn new() -> Self {
        let machine = |number: u8| {
            format!(
                "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-{number}}}\nspec:\n  role: \
                 Private\n  endpoint: {{unix: {{path: /run/{number}.sock}}}}\n  addresses: {{private: [10.0.0.{number}]}}\n"
            )
        };
        let text: String = std::iter::once(CLUSTER.to_owned()).chain((1..=3).map(machine)).collect();
        let mut documents = Documents::read(text.as_bytes()).unwrap();
        let mut number = 0;
        identify(&mut documents, || {
            number += 1;
            format!("a{number:015x}")
        })
        .unwrap();
        let machines = documents.hypervisors.keys().map(|name| (name.clone(), ObservedValue::Known(empty()))).collect();
        Self { documents, seen: PassObservation { machines, ..PassObservation::default() } }
    }

    fn machine(&mut self, name: &str) -> &mut MachineState {
        match &mut **self.seen.machines.get_mut(&name.parse::<HypervisorName>().unwrap()).unwrap() {
            ObservedValue::Known(state) => state,
            ObservedValue::Unreachable { why, .. } => unreachable!("{why}"),
        }
    }

    /// A plan that breaks no invariant, with its keys minted.
    fn plan(&self) -> Plan {
        let mut plan = plan(self.documents.clone(), &self.seen, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(invariants::check(&self.documents, &plan.documents, &self.seen), []);
        mint(&mut plan, &mut BTreeMap::new());
        plan
    }

    /// A plan of documents that were changed by hand, without a check of invariants.
    fn plan_unchecked(&self) -> Plan {
        plan(self.documents.clone(), &self.seen, Timestamp::UNIX_EPOCH).unwrap()
    }

    /// Saves a plan, and marks the data directories on each machine as its config orders.
    fn pass(&mut self) -> Plan {
        let mut plan = self.plan();
        let configs = machine_configs(&plan.documents, &self.seen).unwrap();
        note_issued(&mut plan.documents, &configs);
        self.documents = plan.documents.clone();
        for (name, config) in configs {
            let applied = Applied { term: config.term, generation: config.generation, digest: config.digest() };
            let state = self.machine(name.as_str());
            state.owner = Some(config.installation.clone());
            state.applied = Some(applied);
            for (pod, wanted) in &config.pods {
                for data in &wanted.data {
                    state.data.entry(format!("{pod}/{data}")).or_default().marked |= wanted.start == Start::Never;
                }
            }
        }
        plan
    }

    fn starts(&self) -> BTreeMap<PodName, Start> {
        let configs = machine_configs(&self.documents, &self.seen).unwrap();
        configs.into_values().flat_map(|config| config.pods).map(|(name, pod)| (name, pod.start)).collect()
    }

    fn members(&self) -> Vec<PodName> {
        let of_etcd = self.documents.components.keys().filter(|pod| pod.component.as_str().starts_with("etcd-"));
        of_etcd.cloned().collect()
    }

    fn phases(&self) -> BTreeSet<MemberPhase> {
        let status = self.documents.clusters.values().next().unwrap().status.clone().unwrap();
        status.etcd.unwrap().members.into_values().map(|member| member.phase).collect()
    }

    fn identify(&mut self) {
        let mut number = self.documents.clusters.len();
        identify(&mut self.documents, || {
            number += 1;
            format!("b{number:015x}")
        })
        .unwrap();
    }

    /// The machine holds what the documents record again.
    fn machine_is_sound(&mut self, name: &str) {
        let applied = self.machine_applied(name);
        self.seen.refused.clear();
        let issued = self.documents.hypervisors[&name.parse().unwrap()].status.clone().unwrap().issued;
        assert_ne!(applied, issued);
        *self.seen.machines.get_mut(&name.parse().unwrap()).unwrap() =
            ObservedValue::Known(MachineState { applied: issued, ..empty() }).into();
    }

    fn machine_applied(&self, name: &str) -> Option<Applied> {
        let document = &self.documents.hypervisors[&name.parse::<HypervisorName>().unwrap()];
        let issued = document.status.as_ref().and_then(|status| status.issued.clone());
        issued.map(|issued| Applied { generation: u64::MAX, ..issued })
    }

    fn refuse(&mut self) -> Vec<MachineRefusal> {
        refuse(&self.documents, &mut self.seen);
        self.seen.refused.values().cloned().collect()
    }
}

#[test]
fn a_first_start_comes_after_its_mark_was_written_down() {
    let mut world = World::new();
    let _ = world.pass();
    assert_eq!(world.phases(), [MemberPhase::Pending].into());
    let waits = world.starts();
    let members = world.members();
    let wait = |pod: &PodName| if members.contains(pod) { Start::Never } else { Start::Later };
    assert!(waits.len() > members.len() && waits.iter().all(|(pod, start)| *start == wait(pod)), "{waits:?}");

    // The driver can stop at any time: a new observation loses nothing.
    for _ in 0..2 {
        let _ = world.pass();
        assert_eq!(world.phases(), [MemberPhase::Marked].into());
        assert!(world.members().iter().all(|member| world.starts()[member] == Start::OnMarkedData));
    }
    let members = world.members();
    for member in &members {
        world.seen.health.insert(member.clone(), ComponentHealth::Healthy);
    }
    for name in ["hv-1", "hv-2", "hv-3"] {
        world.machine(name).data.values_mut().for_each(|data| data.used = true);
    }
    // No client has stored anything yet.
    let _ = world.pass();
    assert_eq!(world.phases(), [MemberPhase::Marked].into());

    let servers = world.documents.components.keys().filter(|pod| pod.component.as_str().starts_with("kube-apiserver"));
    let server = servers.min().unwrap().clone();
    world.seen.health.insert(server.clone(), ComponentHealth::Healthy);
    let _ = world.pass();
    assert_eq!(world.phases(), [MemberPhase::Started].into());
    assert!(members.iter().all(|member| world.starts()[member] == Start::OnUsedData));
}

#[test]
fn a_member_that_comes_late_is_at_work_once_the_store_served() {
    let mut world = World::new();
    let _ = (world.pass(), world.pass());
    let members = world.members();
    let server = world.documents.components.keys().find(|pod| pod.component.as_str().starts_with("kube-apiserver"));
    let server = server.unwrap().clone();
    let (last, first) = members.split_last().unwrap();
    for pod in first.iter().chain([&server]) {
        world.seen.health.insert(pod.clone(), ComponentHealth::Healthy);
    }
    for name in ["hv-1", "hv-2", "hv-3"] {
        world.machine(name).data.values_mut().for_each(|data| data.used = true);
    }
    let _ = world.pass();
    assert_eq!(world.phases(), [MemberPhase::Marked, MemberPhase::Started].into());
    assert_eq!(world.starts()[last], Start::OnMarkedData);

    // An API server that is not ready now was ready before.
    world.seen.health.remove(&server);
    world.seen.health.insert(last.clone(), ComponentHealth::Healthy);
    let _ = world.pass();
    assert_eq!(world.phases(), [MemberPhase::Started].into());
}

#[test]
fn a_lost_member_is_reported_with_a_remedy_and_others_continue() {
    let mut world = World::new();
    let _ = (world.pass(), world.pass());
    let lost = world.members()[0].clone();
    let machine = world.documents.components[&lost].spec.hypervisor.clone();
    *world.machine(machine.as_str()) = empty();
    let plan = world.pass();
    let told: Vec<String> = plan.waiting.iter().map(ToString::to_string).collect();
    let of_data: Vec<&String> = told.iter().filter(|text| text.contains("no member starts empty")).collect();
    assert_eq!(of_data.len(), 1, "{told:?}");
    assert!(
        of_data[0].contains(machine.as_str()) && of_data[0].contains("the other members continue"),
        "{}",
        of_data[0]
    );
    assert!(world.members().iter().all(|member| world.starts()[member] == Start::OnMarkedData));

    // Its directory was emptied, but not removed, after it was observed to be working.
    let put_back = DataState { marked: true, used: false };
    world.machine(machine.as_str()).data.insert(format!("{lost}/data"), put_back);
    let told =
        |plan: Plan| plan.waiting.iter().any(|waiting| waiting.blocker.to_string().contains("no member starts empty"));
    assert!(!told(world.pass()));
    let status = world.documents.clusters.values_mut().next().unwrap().status.as_mut().unwrap();
    status.etcd.as_mut().unwrap().members.values_mut().for_each(|member| member.phase = MemberPhase::Started);
    assert!(told(world.pass()));
}

/// The cluster's Secret with this name.
fn secret<'a>(world: &'a mut World, name: &str) -> &'a mut keelway_api::Secret {
    let (_, secret) = world.documents.secrets.iter_mut().find(|(of, _)| of.name == name).unwrap();
    secret
}

/// The machines hold all components that are placed on them.
fn hold_what_is_placed(world: &mut World) {
    for pod in world.documents.components.keys().cloned().collect::<Vec<_>>() {
        let machine = world.documents.components[&pod].spec.hypervisor.clone();
        let directory = keelway_api::machine::FileState { user: 0, group: 0, mode: 0o750, sha256: None };
        world.machine(machine.as_str()).files.insert(pod.to_string(), directory);
    }
}

#[test]
fn a_bundle_that_is_missing_follows_from_the_keyring() {
    let mut world = World::new();
    let _ = (world.pass(), world.pass());
    let before = secret(&mut world, "etcd-ca").data.clone().unwrap();
    secret(&mut world, "etcd-ca").data.as_mut().unwrap().remove("bundle.crt");
    let plan = world.pass();
    let restored = secret(&mut world, "etcd-ca").data.clone().unwrap();
    assert_eq!(restored["bundle.crt"], before["active.crt"]);
    assert!(plan.decisions.iter().any(|decision| decision.to_string().contains("bundle.crt")), "{:?}", plan.decisions);
    assert_eq!(world.starts().keys().filter(|pod| pod.component.as_str().starts_with("etcd-")).count(), 3);
}

#[test]
fn a_component_that_cannot_be_built_stays_as_it_runs() {
    let mut world = World::new();
    let _ = (world.pass(), world.pass());
    hold_what_is_placed(&mut world);
    secret(&mut world, "service-account").data.as_mut().unwrap().remove("bundle.pub");
    let mut plan = world.plan_unchecked();
    keelway_planner::configure(&mut plan, &world.seen, |name, config| {
        let state = world.seen.machines[name].known().unwrap();
        let (missing, kept): (Vec<_>, _) = world
            .documents
            .components
            .iter()
            .filter(|(_, component)| component.spec.hypervisor == *name)
            .partition(|(pod, _)| !config.pods.contains_key(*pod) && !config.others.contains(&pod.cluster));
        assert!(missing.is_empty() && !kept.is_empty() && state.holds(kept[0].0), "{name} would remove {missing:?}");
    })
    .unwrap();
    let waits = plan.waiting.iter().find(|waiting| waiting.blocker.to_string().contains("bundle.pub")).unwrap();
    assert_eq!(waits.subject.to_string(), "c1/kube-apiserver-0");
    assert!(matches!(waits.delays, Some((_, keelway_planner::WaitKind::Blocked))), "{waits:?}");
}

#[test]
fn the_data_of_a_member_is_removed_by_a_recorded_order() {
    let mut world = World::new();
    let _ = (world.pass(), world.pass());
    assert!(machine_configs(&world.documents, &world.seen).unwrap().values().all(|config| config.removals.is_empty()));
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    hold_what_is_placed(&mut world);
    let _ = world.pass();
    let members = world.documents.clusters.values().next().unwrap().status.clone().unwrap().etcd.unwrap().members;
    let configs = machine_configs(&world.documents, &world.seen).unwrap();
    for pod in world.members() {
        let ordered = &configs[&world.documents.components[&pod].spec.hypervisor].removals[&pod];
        assert_eq!((&ordered.member, ordered.reason.as_str()), (&members[&pod.component].id, "ClusterDeleted"));
    }
    assert_eq!(configs.values().map(|config| config.removals.len()).sum::<usize>(), 3);
}

#[test]
fn nothing_is_placed_on_a_machine_of_another_installation() {
    let mut world = World::new();
    let owner = "00000000000000ee".parse().unwrap();
    world.machine("hv-1").owner = Some(owner);
    assert!(matches!(world.refuse().as_slice(), [MachineRefusal::AnotherInstallation { .. }]));
    let plan = world.plan();
    assert!(plan.documents.components.values().all(|component| component.spec.hypervisor.as_str() != "hv-1"));
    assert!(plan.waiting.iter().any(|waiting| waiting.blocker.to_string().contains("adopt --from 00000000000000ee")));
}

#[test]
fn nothing_is_placed_on_a_machine_of_a_kubelet() {
    let mut world = World::new();
    world.machine("hv-2").kubelet_pods = 3;
    assert_eq!(world.refuse(), [MachineRefusal::Kubelet { pods: 3 }]);
    let plan = world.plan();
    assert!(plan.documents.components.values().all(|component| component.spec.hypervisor.as_str() != "hv-2"));
}

#[test]
fn a_machine_without_a_common_format_gets_nothing_and_others_continue() {
    for (formats, older) in [((3, 4), "upgrade keelway and the manager"), ((0, 0), "upgrade keelway-hypervisor-agent")]
    {
        let mut world = World::new();
        let formats = FormatRange { first: formats.0, last: formats.1 };
        world.machine("hv-2").formats = formats;
        assert_eq!(world.refuse(), [MachineRefusal::UnknownFormats { formats }]);
        let plan = world.plan();
        let (waiting, condition) = told(&plan, "hv-2", "Ready");
        assert!(waiting.contains(&format!("supports {formats} of configs")), "{waiting}");
        assert!(waiting.contains("formats 1 to 2") && waiting.contains(older), "{waiting}");
        assert_eq!(condition, "False UnsupportedAgent");
        let configs = machine_configs(&plan.documents, &world.seen).unwrap();
        assert_eq!(configs.keys().map(HypervisorName::as_str).collect::<Vec<_>>(), ["hv-1", "hv-3"]);
    }
}

/// Such an agent would remove all data that its config does not name.
#[test]
fn an_agent_of_v0_1_0_gets_its_own_format_and_keeps_data_that_no_order_names() {
    let mut world = World::new();
    let _ = (world.pass(), world.pass());
    let newest = fences(&world);
    world.machine("hv-1").formats = FormatRange::OF_V0_1_0;
    assert_eq!(fences(&world), newest, "what it holds is the same in both formats");
    let config =
        |world: &World| machine_configs(&world.documents, &world.seen).unwrap()[&"hv-1".parse().unwrap()].clone();
    let before = config(&world);
    assert_eq!((before.format, before.others.len()), (ConfigFormat::One, 0));

    let member = world.members().into_iter().find(|pod| before.pods.contains_key(pod)).unwrap();
    let left = PodName { component: "etcd-9".parse().unwrap(), ..member.clone() };
    world.machine("hv-1").data.insert(format!("{left}/data"), DataState { marked: true, used: true });
    assert_eq!(config(&world).others, [left.cluster.clone()].into());
    world.machine("hv-1").formats = FormatRange::OWN;
    let after = config(&world);
    assert_eq!((after.format, after.others.len()), (ConfigFormat::NEWEST, 0), "a newer one keeps it by itself");
}

#[test]
fn stale_documents_plan_nothing_anywhere() {
    let mut world = World::new();
    let _ = world.pass();
    let before = world.documents.clone();
    let _ = world.pass();
    assert_eq!(world.refuse(), [], "the newest documents are no stale ones");

    let after = std::mem::replace(&mut world.documents, before.clone());
    assert!(world.refuse().iter().any(|refused| matches!(refused, MachineRefusal::Stale { .. })));
    let plan = plan(world.documents.clone(), &world.seen, Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(plan.documents, before);
    assert!(plan.decisions.is_empty() && plan.mint.is_empty() && plan.bindings.is_empty());
    assert!(machine_configs(&plan.documents, &world.seen).unwrap().is_empty());
    assert_ne!(after, before);
}

fn reference(name: &str) -> ClusterRef {
    ClusterRef { namespace: "default".to_owned(), name: name.to_owned() }
}

/// One cluster on hv-1 alone, and one on the other machines. hv-1 holds a later config than the documents record.
fn one_stale_machine() -> World {
    let mut world = World::new();
    let alone = |world: &mut World, open: fn(&str) -> bool| {
        for (name, machine) in world.documents.hypervisors.iter_mut() {
            machine.spec.unschedulable = !open(name.as_str());
        }
    };
    let single = |name: &str| CLUSTER.replace("c1", name).replace("replicas: 3", "replicas: 1");
    world.documents.clusters = Documents::read(single("c1").as_bytes()).unwrap().clusters;
    world.identify();
    alone(&mut world, |name| name == "hv-1");
    let _ = (world.pass(), world.pass());
    world.documents.clusters.extend(Documents::read(single("c2").as_bytes()).unwrap().clusters);
    world.identify();
    alone(&mut world, |name| name != "hv-1");
    let _ = (world.pass(), world.pass());
    alone(&mut world, |_| true);
    world.machine("hv-1").applied.as_mut().unwrap().generation = u64::MAX;
    assert!(matches!(world.refuse().as_slice(), [MachineRefusal::Stale { .. }]));
    world
}

#[test]
fn a_machine_that_holds_later_configs_stops_itself_and_its_clusters_alone() {
    let mut world = one_stale_machine();
    for cluster in world.documents.clusters.values_mut() {
        cluster.spec.control_plane.kube_scheduler.replicas = Some(2);
    }
    let plan = world.plan();
    assert_eq!(invariants::check_replicas(&plan), []);
    let schedulers = |name: &str| {
        let id = plan.documents.clusters[&reference(name)].id().unwrap().clone();
        let of_it = plan.documents.components_of(&id);
        of_it.filter(|(pod, _)| pod.component.as_str().starts_with("kube-scheduler")).count()
    };
    assert_eq!((schedulers("c1"), schedulers("c2")), (1, 2));
    assert!(plan.waiting.iter().any(|waiting| waiting.to_string().starts_with("c1 waits for manual action on hv-1")));
    let (waiting, condition) = told(&plan, "hv-1", "Ready");
    assert!(waiting.contains("Keelway changes neither this machine") && waiting.contains("lost=true"), "{waiting}");
    assert_eq!(condition, "False StaleDocuments");
    let configs = machine_configs(&plan.documents, &world.seen).unwrap();
    let given: Vec<&str> = configs.keys().map(HypervisorName::as_str).collect();
    assert_eq!(given, ["hv-2", "hv-3"]);
}

/// The number and digest of each config.
fn fences(world: &World) -> BTreeMap<HypervisorName, Applied> {
    let configs = machine_configs(&world.documents, &world.seen).unwrap();
    let fence = |(name, config): (HypervisorName, keelway_api::machine::MachineConfig)| {
        (name, Applied { term: config.term, generation: config.generation, digest: config.digest() })
    };
    configs.into_iter().map(fence).collect()
}

#[test]
fn the_machines_of_a_frozen_cluster_get_no_new_config_of_it() {
    let mut world = World::new();
    for _ in 0..4 {
        let _ = world.pass();
    }
    let before = fences(&world);
    assert_eq!(before.len(), 3);
    world.machine("hv-1").applied.as_mut().unwrap().generation += 1;
    assert_eq!(world.refuse().len(), 1);
    let plan = world.plan_unchecked();
    world.documents = plan.documents;
    let now = fences(&world);
    assert_eq!(now.keys().map(HypervisorName::as_str).collect::<Vec<_>>(), ["hv-2", "hv-3"]);
    assert!(now.iter().all(|(name, fence)| before[name] == *fence), "{before:?} {now:?}");
}

#[test]
fn a_deleted_cluster_on_a_machine_that_holds_later_configs_is_left() {
    let mut world = one_stale_machine();
    for cluster in world.documents.clusters.values_mut() {
        cluster.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    }
    let before = world.documents.clone();
    let plan = world.plan();
    let stays = |name: &str| plan.documents.clusters.contains_key(&reference(name));
    assert!(stays("c1"));
    let of_it = |documents: &Documents| {
        let id = before.clusters[&reference("c1")].id().unwrap().clone();
        documents.components_of(&id).count()
    };
    assert_eq!(of_it(&plan.documents), of_it(&before));
}

#[test]
fn a_machine_with_later_configs_can_be_declared_lost() {
    let mut world = one_stale_machine();
    let name: HypervisorName = "hv-1".parse().unwrap();
    let deleted = Some(Time(Timestamp::UNIX_EPOCH));
    world.documents.hypervisors.get_mut(&name).unwrap().metadata.deletion_timestamp = deleted.clone();
    world.documents.clusters.get_mut(&reference("c1")).unwrap().metadata.deletion_timestamp = deleted;
    let applied = world.machine_applied("hv-1");
    for _ in 0..3 {
        world.documents = world.plan().documents;
    }
    assert!(world.documents.hypervisors.contains_key(&name), "it may come back with what it holds");

    let machine = world.documents.hypervisors.get_mut(&name).unwrap();
    machine.metadata.annotations.get_or_insert_default().insert(LOST_ANNOTATION.to_owned(), "true".to_owned());
    world.seen.refused.clear();
    *world.seen.machines.get_mut(&name).unwrap() = ObservedValue::Known(MachineState { applied, ..empty() }).into();
    assert_eq!(world.refuse(), [], "it is as if it did not answer");
    for _ in 0..4 {
        world.documents = world.plan_unchecked().documents;
    }
    assert!(!world.documents.clusters.contains_key(&reference("c1")));
    assert!(!world.documents.hypervisors.contains_key(&name));
}

#[test]
fn nothing_is_done_if_most_machines_hold_later_configs() {
    let mut world = one_stale_machine();
    assert!(!world.seen.stale());
    world.machine("hv-2").applied.as_mut().unwrap().generation += 7;
    assert_eq!(world.refuse().len(), 2);
    assert!(world.seen.stale());
    let plan = world.plan_unchecked();
    assert_eq!(plan.documents, world.documents);
    assert!(machine_configs(&plan.documents, &world.seen).unwrap().is_empty());
}

#[test]
fn an_expired_authority_is_reported_on_its_cluster_and_signs_nothing() {
    let mut world = one_stale_machine();
    world.machine_is_sound("hv-1");
    let [one, other] = ["c1", "c2"].map(|name| world.documents.clusters[&reference(name)].id().unwrap().clone());
    let seen = |end: i64| CertificateSeen {
        common_name: "etcd".to_owned(),
        organizations: Vec::new(),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        renew_at: Timestamp::UNIX_EPOCH,
        not_before: Timestamp::UNIX_EPOCH,
        not_after: Timestamp::from_second(end).unwrap(),
        key_id: None,
        authority_key_id: None,
    };
    for (id, end) in [(&one, 0), (&other, 3600)] {
        world.seen.certificates.insert((SecretName::of(id, "etcd-ca"), "active".to_owned()), seen(end));
    }
    let plan = world.plan_unchecked();
    // The other certificates were not observed, so all of them are due.
    let by_etcd = |id: &ClusterId| {
        let of_it = |wanted: &&MintRequest| matches!(wanted, MintRequest::Certificate { authority, .. } if *authority == SecretName::of(id, "etcd-ca"));
        plan.mint.iter().filter(of_it).count()
    };
    assert_eq!(by_etcd(&one), 0);
    assert!(by_etcd(&other) > 0, "the others go on");
    let condition = |name: &str| {
        let status = plan.documents.clusters[&reference(name)].status.clone().unwrap();
        let found = status.conditions.into_iter().find(|found| found.type_ == "AuthoritiesValid");
        found.map(|found| (found.reason, found.message))
    };
    let (reason, message) = condition("c1").unwrap();
    assert_eq!(reason, "AuthorityEnded");
    assert!(message.contains("etcd-ca expired at 1970-01-01T00:00:00Z"), "{message}");
    assert_eq!(condition("c2"), None);
    assert!(plan.waiting.iter().any(|waiting| waiting.to_string().starts_with("c1 waits for an authority")));
    assert_eq!(plan.due, Some(Timestamp::from_second(3600).unwrap()), "the next one to end is looked for");
}

#[test]
fn two_documents_of_one_machine_are_detected_by_its_agent() {
    let mut world = World::new();
    let _ = world.pass();
    for name in ["hv-1", "hv-3"] {
        world.machine(name).agent_id = Some("one".to_owned());
    }
    world.machine("hv-2").agent_id = Some("another".to_owned());
    assert_eq!(world.refuse(), [MachineRefusal::SameMachine { other: "hv-1".parse().unwrap() }]);
    assert_eq!(world.seen.refused.keys().map(HypervisorName::as_str).collect::<Vec<_>>(), ["hv-3"]);
    assert!(!world.seen.stale());
    assert!(machine_configs(&world.documents, &world.seen).unwrap().contains_key(&"hv-1".parse().unwrap()));
}

#[test]
fn nothing_is_minted_by_a_clock_that_differs_from_most() {
    let world = World::new();
    let wanted = || world.plan_unchecked();
    let hours = |all: &[i64]| all.iter().map(|hours| SignedDuration::from_hours(*hours)).collect::<Vec<_>>();
    for sound in [vec![], vec![0, 0, 1], vec![0]] {
        let mut plan = wanted();
        wait_for_clock(&mut plan, |_| hours(&sound));
        assert_eq!((plan.mint.len(), plan.waiting.len()), (wanted().mint.len(), wanted().waiting.len()), "{sound:?}");
    }
    let mut plan = wanted();
    assert!(!plan.mint.is_empty());
    wait_for_clock(&mut plan, |documents| {
        assert_eq!(documents.hypervisors.len(), 3);
        hours(&[1, 1, 0])
    });
    assert_eq!(plan.mint.len(), 0);
    let waits = |waiting: &&Waiting| {
        waiting.subject.to_string() == "c1" && waiting.blocker.to_string().contains("60 minutes behind")
    };
    assert_eq!(plan.waiting.iter().filter(waits).count(), 1, "{:?}", plan.waiting);

    // The clocks are not requested if nothing is to be minted.
    wait_for_clock(&mut plan, |_| unreachable!("nothing is to be minted"));
}

#[test]
fn the_same_number_with_other_content_is_of_two_writers() {
    let mut world = World::new();
    let _ = world.pass();
    world.machine("hv-3").applied.as_mut().unwrap().digest = "other".to_owned();
    assert!(matches!(world.refuse().as_slice(), [MachineRefusal::TwoWriters { .. }]));
}

/// The numbers of the configs of a driver with this term.
fn numbers(world: &World, term: u64) -> BTreeSet<(u64, u64)> {
    let configs = machine_configs(&world.documents, &world.seen).unwrap();
    let known: BTreeSet<_> = world.documents.clusters.values().filter_map(|cluster| cluster.id().cloned()).collect();
    let number = |(name, config): (HypervisorName, keelway_api::machine::MachineConfig)| {
        let state = world.seen.machines[&name].known()?;
        let document = &world.documents.hypervisors[&name];
        let digests = config.pods.iter().map(|(name, pod)| (name.clone(), pod.content_digest())).collect();
        let is_known = |id: &ClusterId| known.contains(id);
        let (config, _) = machine_config(document, state, is_known, is_known, (&digests, &config.removals), term)?;
        Some((config.term, config.generation))
    };
    configs.into_iter().filter_map(number).collect()
}

#[test]
fn a_new_leader_keeps_the_numbers_of_configs_that_machines_hold() {
    let mut world = World::new();
    for _ in 0..3 {
        let _ = world.pass();
    }
    let held = numbers(&world, 1);
    assert!(held.iter().all(|(term, _)| *term == 1));
    assert_eq!(numbers(&world, 7), held, "a settled world stays as it is whoever leads");

    // A config that was recorded and not accepted would be refused as one of an earlier leader.
    world.machine("hv-2").applied = None;
    let (first, later): (BTreeSet<_>, BTreeSet<_>) = numbers(&world, 7).into_iter().partition(|(term, _)| *term == 1);
    assert_eq!((first, later.len()), (held.clone(), 1));
    let (_, highest) = held.last().unwrap();
    assert_eq!(later, [(7, highest + 1)].into());
}

#[test]
fn a_term_that_a_machine_knows_counts_for_that_machine() {
    let mut world = World::new();
    // A leader sent its term to one machine, and no config.
    world.machine("hv-3").term = 5;
    assert_eq!(world.refuse(), []);
    let _ = world.pass();
    let held = ["hv-1", "hv-2", "hv-3"].map(|name| world.machine(name).applied.clone().unwrap().term);
    assert_eq!(held, [1, 1, 5]);
}

#[test]
fn a_machine_that_claims_a_term_that_no_leader_has_is_refused_alone() {
    for claims in [1 << 63, u64::MAX] {
        let mut world = World::new();
        world.machine("hv-3").term = claims;
        assert_eq!(world.refuse(), [MachineRefusal::NoSuchTerm { term: claims }]);
        let plan = world.plan();
        let (waiting, condition) = told(&plan, "hv-3", "Ready");
        assert!(
            waiting.contains("no driver can have this term") && waiting.contains("its agent is reinstalled"),
            "{waiting}"
        );
        assert_eq!(condition, "False ObeysAnotherLeader");
        assert_eq!(machine_configs(&plan.documents, &world.seen).unwrap().len(), 2, "the others go on");
    }
}

#[test]
fn the_number_after_the_highest_one_is_never_used() {
    let mut world = World::new();
    let _ = world.pass();
    let last = Applied { term: 1, generation: HIGHEST_NUMBER, digest: "other".to_owned() };
    for document in world.documents.hypervisors.values_mut().take(1) {
        document.status.get_or_insert_default().issued = Some(last.clone());
    }
    assert_eq!(machine_configs(&world.documents, &world.seen).unwrap().len(), 2);
    assert_eq!(world.refuse(), [MachineRefusal::NoNumberLeft { issued: last }]);
    let (waiting, condition) = told(&world.plan_unchecked(), "hv-1", "Ready");
    assert!(waiting.contains("restore status.issued"), "{waiting}");
    assert_eq!(condition, "False NoNumberLeft");
}

#[test]
fn an_interrupted_pass_is_not_stale() {
    let mut world = World::new();
    let _ = world.pass();
    // Saved and not applied.
    world.machine("hv-1").applied = None;
    assert_eq!(world.refuse(), []);
}

#[test]
fn a_full_machine_gets_nothing_and_the_report_has_figures() {
    let mut world = World::new();
    for name in ["hv-1", "hv-2", "hv-3"] {
        world.machine(name).capacity = Some(Amount { cpu_millis: 210, memory_bytes: 1 << 30 });
    }
    let plan = world.plan();
    // One member fits on each machine, and nothing else.
    assert_eq!(plan.documents.components.len(), 3);
    let told: Vec<String> = plan.waiting.iter().map(ToString::to_string).collect();
    let server = told.iter().find(|text| text.contains("kube-apiserver-0")).unwrap();
    assert!(server.contains("160m CPU and 528 MiB left"), "{server}");
    assert!(server.contains("hv-1 has 10m CPU and 640 MiB"), "{server}");
    let status = plan.documents.hypervisors.values().next().unwrap().status.clone().unwrap();
    assert_eq!(status.capacity.unwrap().cpu, "210m");
    assert_eq!(status.allocatable.unwrap().memory, "786432Ki");
}

#[test]
fn values_that_change_constantly_are_saved_every_five_minutes() {
    let mut world = World::new();
    let disk = |left: u64| Some(Disk { capacity_bytes: 40 << 30, available_bytes: left << 30 });
    let system = |agent: &str| {
        let [kernel_version, os_image, architecture] = ["6.12", "Debian", "amd64"].map(str::to_owned);
        Some(SystemFacts { kernel_version, os_image, architecture, agent_version: Some(agent.to_owned()) })
    };
    let mut told = |left, agent, minute: i64| {
        let machine = world.machine("hv-1");
        (machine.disk, machine.system) = (disk(left), system(agent));
        let now = Timestamp::from_second(60 * minute).unwrap();
        world.documents = plan(world.documents.clone(), &world.seen, now).unwrap().documents;
        let machine = world.documents.hypervisors.values().next().unwrap().clone();
        let machine = machine.into_inner();
        let status = machine.status.unwrap();
        let heard = status.last_heartbeat_time.unwrap().0.as_second() / 60;
        assert_eq!(machine.metadata.creation_timestamp.unwrap().0.as_second(), 0);
        (status.disk.unwrap().available, status.node_info.unwrap().agent_version.unwrap(), heard)
    };
    let gib = |count: u64| format!("{}Ki", count << 20);
    assert_eq!(told(30, "1.0.0", 0), (gib(30), "1.0.0".to_owned(), 0));
    assert_eq!(told(20, "1.0.0", 4), (gib(30), "1.0.0".to_owned(), 0), "written anew too soon");
    assert_eq!(told(20, "1.0.0", 5), (gib(20), "1.0.0".to_owned(), 5));
    assert_eq!(told(10, "1.1.0", 6), (gib(10), "1.1.0".to_owned(), 6));
}

/// Clusters with one ingress each on machines that have eight ports in common. Returns what is waited for.
fn crowd(clusters: usize) -> Vec<String> {
    let machine = |name: &str, role: &str, address: u8, ports: &str| {
        let public = if role == "Public" { format!("198.18.0.{address}") } else { String::new() };
        format!(
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: {name}}}\nspec:\n  role: {role}\n  \
             endpoint: {{unix: {{path: /run/{address}.sock}}}}\n  addresses: {{private: [10.0.0.{address}], public: \
             [{public}]}}\n  portRange: {ports}\n"
        )
    };
    let cluster = |number: usize| {
        format!(
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: c{number}, namespace: \
             default}}\nspec: {{version: 1.37.0, vpn: {{enabled: false}}}}\n"
        )
    };
    let mut text = machine("out-1", "Public", 1, "{from: 20000, to: 20009}");
    text += &machine("out-2", "Public", 2, "{from: 20002, to: 20011}");
    text += &machine("in-1", "Private", 3, "{from: 20000, to: 20047}");
    text.extend((0..clusters).map(cluster));
    let mut documents = Documents::read(text.as_bytes()).unwrap();
    let mut number = 0;
    identify(&mut documents, || {
        number += 1;
        format!("a{number:015x}")
    })
    .unwrap();
    let machines = documents.hypervisors.keys().map(|name| (name.clone(), ObservedValue::Known(empty()))).collect();
    let seen = PassObservation { machines, ..PassObservation::default() };
    let plan = plan(documents, &seen, Timestamp::UNIX_EPOCH).unwrap();
    let has_a_place =
        |text: &String| ["for its start", "for an API server to be ready"].iter().any(|on| text.ends_with(on));
    plan.waiting.iter().map(ToString::to_string).filter(|text| !has_a_place(text)).collect()
}

#[test]
fn a_full_range_of_ports_is_reported() {
    assert_eq!(crowd(8), [""; 0]);
    let told = crowd(9);
    let ingress = told.iter().find(|text| text.starts_with("c8/ingress waits")).unwrap();
    assert!(ingress.contains("all of 20002-20009, their common range, are in use"), "{ingress}");
    let store = told.iter().find(|text| text.starts_with("c8/etcd-0 waits")).unwrap();
    assert!(store.contains("widen spec.portRange of one (no free ports on in-1)"), "{store}");
}

#[test]
fn a_cordoned_machine_gets_nothing() {
    let mut world = World::new();
    world.documents.hypervisors.values_mut().next().unwrap().spec.unschedulable = true;
    let plan = world.plan();
    assert_eq!(plan.documents.components.values().filter(|c| c.spec.hypervisor.as_str() == "hv-1").count(), 0);
    world.documents.hypervisors.values_mut().for_each(|machine| machine.spec.unschedulable = true);
    let plan = world.plan();
    assert!(plan.documents.components.is_empty());
    assert!(
        plan.waiting.iter().any(|waiting| waiting.blocker.to_string().contains("uncordon one")),
        "{:?}",
        plan.waiting
    );
}

/// What a machine waits for, and the status and reason of its condition.
fn told(plan: &Plan, machine: &str, condition: &str) -> (String, String) {
    let waiting = plan.waiting.iter().find(|waiting| waiting.subject.to_string() == machine).unwrap();
    let status = plan.documents.hypervisors[&machine.parse().unwrap()].status.clone().unwrap();
    let found = status.conditions.iter().find(|found| found.type_ == condition).unwrap();
    (waiting.to_string(), format!("{} {}", found.status, found.reason))
}

#[test]
fn a_machine_with_a_full_disk_gets_nothing_and_is_reported() {
    let mut world = World::new();
    world.machine("hv-1").disk_pressure = true;
    let plan = world.plan();
    assert!(plan.documents.components.values().all(|component| component.spec.hypervisor.as_str() != "hv-1"));
    let (waiting, condition) = told(&plan, "hv-1", "DiskPressure");
    assert!(
        waiting.starts_with("hv-1 waits for room on its disk: less than 128 MiB are left in /var/lib"),
        "{waiting}"
    );
    assert_eq!(condition, "True DiskFull");

    world.machine("hv-2").disk_pressure = true;
    world.machine("hv-3").disk_pressure = true;
    let plan = world.plan();
    assert!(plan.documents.components.is_empty());
    let full = "or free disk space on one (hv-1, hv-2, hv-3 full)";
    assert!(plan.waiting.iter().any(|waiting| waiting.blocker.to_string().contains(full)), "{:?}", plan.waiting);

    for name in ["hv-1", "hv-2", "hv-3"] {
        world.machine(name).disk_pressure = false;
    }
    world.documents = plan.documents;
    let plan = world.plan();
    assert_eq!(plan.documents.components.len(), 6);
    assert!(!plan.documents.write().contains("DiskPressure"));
}

#[test]
fn addresses_that_no_interface_has_are_reported() {
    let mut world = World::new();
    let set = |world: &mut World, addresses: &[&str]| {
        world.machine("hv-1").addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    };
    let message = |world: &World| {
        let status = world.plan().documents.hypervisors[&"hv-1".parse().unwrap()].status.clone().unwrap();
        let found = status.conditions.into_iter().find(|found| found.type_ == "AddressesFound");
        found.map(|found| format!("{} {}: {}", found.status, found.reason, found.message))
    };
    let name = "hv-1".parse().unwrap();
    let private = world.documents.hypervisors[&name].spec.addresses.private[0].clone();
    let spec = &mut world.documents.hypervisors.get_mut(&name).unwrap().spec;
    (spec.role, spec.addresses.public) = (HypervisorRole::Public, vec!["203.0.113.7".to_owned()]);
    assert_eq!(message(&world), None, "the machine reports no addresses");
    set(&mut world, &["127.0.0.1", &private]);
    let absent = "False AddressNotFound: no interface of the machine has 203.0.113.7 of spec.addresses.public";
    assert_eq!(message(&world).as_deref(), Some(absent));

    world.documents.hypervisors.get_mut(&name).unwrap().spec.addresses.bind = vec![private.clone()];
    assert_eq!(message(&world), None, "ingresses listen on another address");
    set(&mut world, &["127.0.0.1"]);
    assert_eq!(message(&world).unwrap().matches(&private).count(), 2, "of both fields");
}

#[test]
fn a_silent_runtime_is_distinguished_from_a_silent_machine() {
    let mut world = World::new();
    let why = "no answer within 8 s".to_owned();
    world
        .seen
        .machines
        .insert("hv-1".parse().unwrap(), ObservedValue::Unreachable { silent: UnreachableReason::Runtime, why });
    world.seen.machines.insert("hv-2".parse().unwrap(), ObservedValue::unreachable("no route"));
    let plan = world.plan();
    let (waiting, condition) = told(&plan, "hv-1", "Ready");
    assert!(waiting.contains("which does not respond: restart it"), "{waiting}");
    assert!(waiting.ends_with("no answer within 8 s"), "{waiting}");
    assert_eq!(condition, "False RuntimeNotAnswering");
    let told = told(&plan, "hv-2", "Ready");
    assert_eq!(told, ("hv-2 waits for a response: no route".to_owned(), "False Unreachable".to_owned()));
    assert!(plan.documents.components.values().all(|component| component.spec.hypervisor.as_str() == "hv-3"));
}

#[test]
fn unknown_clusters_are_left_alone() {
    let mut world = World::new();
    let stranger = PodName { cluster: "00000000000000bb".parse().unwrap(), component: "etcd-0".parse().unwrap() };
    world.machine("hv-1").sandboxes.push(SandboxState {
        id: "s".to_owned(),
        pod: stranger.clone(),
        attempt: 0,
        digest: "d".to_owned(),
        ready: true,
    });
    let plan = world.plan();
    let configs = machine_configs(&plan.documents, &world.seen).unwrap();
    assert_eq!(configs[&"hv-1".parse().unwrap()].others, [stranger.cluster].into());
    let says = serde_json::to_string(&plan.documents.hypervisors.values().next().unwrap().status).unwrap();
    assert!(says.contains("left alone"), "{says}");
}

/// Deletes a Hypervisor, as a user does.
fn delete(world: &mut World, machine: &str) {
    let document = world.documents.hypervisors.get_mut(&machine.parse().unwrap()).unwrap();
    document.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
}

#[test]
fn a_deleted_machine_stays_while_components_are_on_it() {
    let mut world = World::new();
    let _ = (world.pass(), world.pass());
    delete(&mut world, "hv-1");
    let before = world.documents.components.len();
    world.documents.clusters.values_mut().for_each(|cluster| cluster.spec.control_plane.replicas = 3);
    let plan = world.pass();
    let (waiting, condition) = told(&plan, "hv-1", "Deleting");
    assert!(waiting.contains("c1/etcd-") && waiting.contains("keelway hypervisor drain hv-1"), "{waiting}");
    assert_eq!(condition, "True HoldsComponents");
    let on_it = |plan: &Plan| {
        let all = plan.documents.components.iter();
        all.filter(|(_, component)| component.spec.hypervisor.as_str() == "hv-1")
            .map(|(pod, _)| pod.clone())
            .collect::<BTreeSet<_>>()
    };
    assert!(plan.documents.components.len() > before, "more are placed elsewhere");
    let here = on_it(&plan);

    // The components were moved, but something of them is still on the machine.
    for pod in &here {
        world.documents.components.get_mut(pod).unwrap().spec.hypervisor = "hv-2".parse().unwrap();
    }
    let pod = here.first().unwrap().clone();
    world.machine("hv-1").sandboxes.push(SandboxState {
        id: "a".into(),
        pod,
        attempt: 0,
        digest: "d".into(),
        ready: true,
    });
    assert_eq!(told(&world.plan_unchecked(), "hv-1", "Deleting").1, "True HoldsComponents");
    world.machine("hv-1").sandboxes.clear();
    let plan = world.plan_unchecked();
    assert!(
        plan.decisions
            .iter()
            .any(|decision| decision.to_string() == "remove the document of hv-1: it holds no component")
    );
    assert_eq!(plan.documents.hypervisors.len(), 2);
}

#[test]
fn a_deleted_cluster_waits_for_a_machine_until_that_is_lost() {
    let mut world = World::new();
    let _ = (world.pass(), world.pass());
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    for (name, state) in world.seen.machines.iter_mut() {
        let seen = if name.as_str() == "hv-1" {
            ObservedValue::unreachable("no route to host")
        } else {
            ObservedValue::Known(empty())
        };
        *state = seen.into();
    }
    // The first pass records that the machine does not respond.
    world.documents = world.plan_unchecked().documents;
    let plan = world.plan_unchecked();
    let status = plan.documents.clusters.values().next().unwrap().status.clone().unwrap();
    let deleting = status.conditions.iter().find(|found| found.type_ == "Deleting").unwrap();
    assert_eq!((deleting.status.as_str(), deleting.reason.as_str()), ("True", "MachinesNotAnswering"));
    assert!(deleting.message.contains("hv-1") && deleting.message.contains("keelway.dev/lost=true"), "{deleting:?}");

    let lost = world.documents.hypervisors.get_mut(&"hv-1".parse().unwrap()).unwrap();
    lost.metadata.annotations.get_or_insert_default().insert("keelway.dev/lost".to_owned(), "true".to_owned());
    let plan = world.plan_unchecked();
    assert!(plan.documents.clusters.is_empty() && plan.documents.components.is_empty(), "{:?}", plan.waiting);
    assert!(plan.waiting.is_empty(), "nobody waits for it: {:?}", plan.waiting);

    world.documents = plan.documents;
    delete(&mut world, "hv-1");
    assert_eq!(world.plan_unchecked().documents.hypervisors.len(), 2);
}

/// The machine may hold keys of the cluster's authorities.
#[test]
fn a_lost_machine_that_returns_is_cleaned_of_clusters_that_were_deleted_meanwhile() {
    let mut world = World::new();
    let _ = (world.pass(), world.pass());
    let id = world.documents.clusters.values().next().unwrap().id().unwrap().clone();
    let here = world.documents.components.iter().filter(|(_, one)| one.spec.hypervisor.as_str() == "hv-1");
    let here: Vec<PodName> = here.map(|(pod, _)| pod.clone()).collect();
    let member = here.iter().find(|pod| pod.component.as_str().starts_with("etcd-")).unwrap().clone();
    let mut left = empty();
    left.data.insert(format!("{member}/data"), DataState { marked: true, used: true });
    left.sandboxes.extend(here.iter().map(|pod| SandboxState {
        id: pod.component.to_string(),
        pod: pod.clone(),
        attempt: 0,
        digest: "d".into(),
        ready: true,
    }));
    world.documents.clusters.values_mut().next().unwrap().metadata.deletion_timestamp =
        Some(Time(Timestamp::UNIX_EPOCH));
    let lost = world.documents.hypervisors.get_mut(&"hv-1".parse().unwrap()).unwrap();
    lost.metadata.annotations.get_or_insert_default().insert(LOST_ANNOTATION.to_owned(), "true".to_owned());
    for (name, state) in world.seen.machines.iter_mut() {
        let is_lost = name.as_str() == "hv-1";
        let seen = if is_lost { ObservedValue::unreachable("no route") } else { ObservedValue::Known(empty()) };
        *state = seen.into();
    }
    world.documents = world.plan_unchecked().documents;
    let mut backup = world.documents.clone();
    world.documents = world.plan_unchecked().documents;
    assert!(world.documents.clusters.is_empty());
    let abandoned_in = |documents: &Documents| {
        let status = documents.hypervisors[&"hv-1".parse().unwrap()].status.clone().unwrap();
        status.abandoned.into_iter().map(|(id, abandoned)| (id, abandoned.cluster)).collect::<Vec<_>>()
    };
    let abandoned = |world: &World| abandoned_in(&world.documents);
    assert_eq!(abandoned(&world), [(id.clone(), "c1".to_owned())]);
    backup.clusters.values_mut().next().unwrap().metadata.deletion_timestamp = None;
    backup.hypervisors = world.documents.hypervisors.clone();
    let documents = std::mem::replace(&mut world.documents, backup);
    assert_eq!(abandoned_in(&world.plan_unchecked().documents), [], "it is in the documents again, from a backup");
    world.documents = documents;

    // The machine returns with everything that it had.
    world.seen.machines.insert("hv-1".parse().unwrap(), ObservedValue::Known(left.clone()));
    world.documents = world.plan_unchecked().documents;
    assert_eq!(abandoned(&world).len(), 1, "it is recorded until nothing is left");
    let config = machine_configs(&world.documents, &world.seen).unwrap().remove(&"hv-1".parse().unwrap()).unwrap();
    assert!(config.pods.is_empty() && config.others.is_empty(), "all of it goes: {:?}", config.others);
    assert!(config.removals.contains_key(&member), "{:?}", config.removals);
    let name = "hv-1".parse().unwrap();
    assert_eq!(check_config(&world.documents, (&name, &left), &config, |_| false), []);

    world.seen.machines.insert(name, ObservedValue::Known(empty()));
    world.documents = world.plan_unchecked().documents;
    assert_eq!(abandoned(&world), []);
}

/// A new cluster waits for agents that Keelway starts for the first time, so that it is spread over all machines. It waits for one attempt only.
#[test]
fn a_new_cluster_waits_once_for_agents_that_are_started() {
    let mut world = World::new();
    let name: HypervisorName = "hv-3".parse().unwrap();
    let endpoint = serde_json::json!({ "cri": { "address": "10.0.0.3:7444", "secretRef": { "name": "proxy" } } });
    world.documents.hypervisors.get_mut(&name).unwrap().spec.endpoint = serde_json::from_value(endpoint).unwrap();
    identify(&mut world.documents, || "00000000000000ff".to_owned()).unwrap();
    let why = "no agent runs on the machine".to_owned();
    let seen: ObservedValue<MachineState> = ObservedValue::Unreachable { silent: UnreachableReason::Agent, why };
    world.seen.machines.insert(name, seen);
    let plan = world.plan_unchecked();
    assert!(plan.documents.components.is_empty());
    let waits: Vec<String> = plan.waiting.iter().map(ToString::to_string).collect();
    assert!(waits.contains(&"c1 waits for the agents of hv-3, which Keelway starts first".to_owned()), "{waits:?}");
    // The attempt failed: the cluster does not wait for this machine any longer.
    world.documents = plan.documents;
    let later = world.plan_unchecked();
    let on: BTreeSet<String> = later.documents.components.values().map(|one| one.spec.hypervisor.to_string()).collect();
    assert_eq!(on, ["hv-1", "hv-2"].map(str::to_owned).into());
}
