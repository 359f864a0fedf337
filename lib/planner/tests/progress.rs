//! The condition `Progressing` of a cluster.

mod store_health;

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    ByteString, Cluster, Condition, Documents, Time,
    cluster::KeelwayStatus,
    documents::SecretName,
    jiff::{SignedDuration, Timestamp},
    machine::{Figures, MachineState, ObservedValue, SandboxState},
    name::{HypervisorName, PodName},
    release::KEELWAY,
};
use keelway_planner::{
    CertificateSeen, ComponentHealth, FirstBindings, MintRequest, PassObservation, Plan, StoreObservation, configure,
    invariants, plan, plan_progress,
};

use crate::model::{apply, hypervisors, identified, mint};

const CLUSTER: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default, generation: 7}
spec: {version: 1.37.0, etcd: {replicas: 3}, controlPlane: {replicas: 2}}
";

/// The number of consecutive passes without a change that count as settled. Machines may work in the meantime.
const QUIET: u32 = 4;

struct World {
    documents: Documents,
    machines: BTreeMap<HypervisorName, MachineState>,
    silent: BTreeSet<HypervisorName>,
    certificates: BTreeMap<(SecretName, String), CertificateSeen>,
    store: Option<StoreObservation>,
    now: Timestamp,
}

impl World {
    fn new(machines: &[&str]) -> Self {
        let text: String = std::iter::once(CLUSTER.to_owned()).chain(hypervisors(machines)).collect();
        let (documents, machines) = identified(&text);
        Self {
            documents,
            machines,
            silent: BTreeSet::new(),
            certificates: BTreeMap::new(),
            store: None,
            now: Timestamp::UNIX_EPOCH,
        }
    }

    /// A settled cluster.
    fn settled() -> Self {
        let mut world = Self::new(&["Private", "Private", "Private", "Public"]);
        for _ in 0..20 {
            world.pass();
        }
        assert_eq!(world.progressing(), ("False", "Settled", "it matches its document"));
        world
    }

    fn cluster(&mut self) -> &mut Cluster {
        self.documents.clusters.values_mut().next().unwrap()
    }

    fn condition(&self, kind: &str) -> Option<&Condition> {
        let status = self.documents.clusters.values().next().unwrap().status.as_ref().unwrap();
        status.conditions.iter().find(|condition| condition.type_ == kind)
    }

    fn progressing(&self) -> (&str, &str, &str) {
        let found = self.condition("Progressing").unwrap();
        assert_eq!(found.observed_generation, Some(7));
        (&found.status, &found.reason, &found.message)
    }

    fn observe(&self) -> PassObservation {
        let machine = |(name, state): (&HypervisorName, &MachineState)| {
            let silent = self.silent.contains(name);
            (
                name.clone(),
                if silent { ObservedValue::unreachable("it is silent") } else { ObservedValue::Known(state.clone()) },
            )
        };
        let runs = |pod: &&PodName| {
            self.machines.values().any(|state| state.sandboxes.iter().any(|sandbox| sandbox.pod == **pod))
        };
        let well = self.documents.components.keys().filter(runs);
        let id = self.documents.clusters.values().next().unwrap().id().unwrap();
        PassObservation {
            machines: self.machines.iter().map(machine).collect(),
            health: well.map(|pod| (pod.clone(), ComponentHealth::Healthy)).collect(),
            bindings: [(id.clone(), ObservedValue::Known(FirstBindings::Cluster.digest()))].into(),
            certificates: self.certificates.clone(),
            restores: BTreeMap::new(),
            stores: self.store.clone().map(|store| (id.clone(), store)).into_iter().collect(),
            ..PassObservation::default()
        }
    }

    fn pass(&mut self) {
        let _ = self.planned();
    }

    /// One pass, and its effect on the machines.
    fn planned(&mut self) -> Plan {
        let seen = self.observe();
        let mut plan = plan(self.documents.clone(), &seen, self.now).unwrap();
        mint(&mut plan, &mut self.certificates);
        assert_eq!(invariants::check(&self.documents, &plan.documents, &seen), []);
        let mut configs = Vec::new();
        configure(&mut plan, &seen, |name, config| configs.push((name.clone(), config))).unwrap();
        plan_progress(&mut plan, &seen, self.now);
        self.documents = plan.documents.clone();
        for (name, config) in &configs {
            let machine = self.machines.get_mut(name).unwrap();
            apply(machine, config);
            // If nothing is wanted on the machine any more, nothing is left there.
            if config.pods.is_empty() && config.others.is_empty() {
                machine.files.clear();
                machine.data.clear();
            }
        }
        plan
    }

    /// Repeats passes until the documents stay unchanged, and returns the conditions in between.
    fn settle(&mut self) -> Vec<String> {
        let (mut told, mut quiet) = (Vec::new(), 0);
        for _ in 0..60 {
            let before = self.documents.clone();
            self.pass();
            let (status, reason, message) = self.progressing();
            let says = format!("{status} {reason}: {message}");
            if told.last() != Some(&says) {
                told.push(says);
            }
            quiet = if self.documents == before { quiet + 1 } else { 0 };
            if quiet == QUIET {
                return told;
            }
        }
        unreachable!("it never settles: {told:?}");
    }
}

#[test]
fn a_creation_names_what_it_waits_for() {
    let mut world = World::new(&["Private", "Private", "Private", "Public"]);
    world.pass();
    let first = "waits for cluster-controller-0, cluster-controller-1, etcd-0, etcd-1, etcd-2, gateway-0 and 7 more";
    assert_eq!(world.progressing(), ("True", "Starting", first));
    let told = world.settle();
    assert_eq!(told.last().unwrap(), "False Settled: it matches its document");
    assert!(told.iter().rev().skip(1).all(|told| told.starts_with("True ")), "{told:?}");
}

#[test]
fn a_roll_out_is_under_way_until_the_last_turn() {
    let mut world = World::settled();
    let since = world.condition("Progressing").unwrap().last_transition_time.clone();
    world.now = "2026-01-01T00:00:00Z".parse().unwrap();
    world.cluster().spec.control_plane.kube_api_server.extra_args = [("v".to_owned(), "3".to_owned())].into();
    let told = world.settle();
    assert_eq!(told.first().unwrap(), "True Changing: waits for kube-apiserver-1");
    assert_eq!(told.last().unwrap(), "False Settled: it matches its document");
    assert_ne!(world.condition("Progressing").unwrap().last_transition_time, since);
}

#[test]
fn a_wait_that_keelway_did_not_begin_is_blocked() {
    let mut world = World::settled();
    world.silent.insert("hv-0".parse().unwrap());
    world.settle();
    let (status, reason, message) = world.progressing();
    assert_eq!((status, reason), ("False", "Blocked"));
    assert!(message.ends_with(" waits for its machine to respond"), "{message}");
    world.silent.clear();
}

#[test]
fn a_cluster_without_a_place_is_blocked() {
    let mut world = World::new(&["Private"]);
    world.settle();
    let (status, reason, message) = world.progressing();
    assert_eq!((status, reason), ("False", "Blocked"));
    assert!(message.starts_with("c1/"), "{message}");
}

#[test]
fn a_deletion_names_the_machines_that_it_waits_for() {
    let mut world = World::settled();
    world.silent.insert("hv-3".parse().unwrap());
    world.cluster().metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    world.pass();
    let all = "waits for its components to leave hv-0, hv-1, hv-2, hv-3";
    assert_eq!(world.progressing(), ("True", "Deleting", all));
    for _ in 0..5 {
        world.pass();
    }
    assert_eq!(world.progressing(), ("False", "Blocked", "c1 waits for its components to leave hv-3"));
    world.silent.clear();
    world.pass();
    world.pass();
    assert!(world.documents.clusters.is_empty());
}

#[test]
fn nothing_is_done_about_a_paused_cluster() {
    let mut world = World::settled();
    world.cluster().spec.paused = true;
    world.settle();
    assert_eq!(world.progressing(), ("Unknown", "Paused", "it is paused"));
    let told = world.condition("Paused").unwrap();
    assert_eq!((told.status.as_str(), told.reason.as_str()), ("True", "Paused"));

    // What passes would do otherwise: change replicas, replace pods, renew certificates.
    let (runs, before) = (world.machines.clone(), world.documents.clone());
    let spec = &mut world.cluster().spec;
    spec.control_plane.replicas = 1;
    spec.control_plane.kube_scheduler.replicas = Some(3);
    spec.control_plane.kube_api_server.extra_args = [("v".to_owned(), "3".to_owned())].into();
    for found in world.certificates.values_mut() {
        found.renew_at = Timestamp::UNIX_EPOCH;
    }
    let plan = world.planned();
    assert_eq!((plan.decisions, plan.bindings, plan.waiting), (vec![], vec![], vec![]));
    assert!(plan.mint.is_empty());
    world.settle();
    assert_eq!(world.documents.components, before.components);
    assert!(world.documents.secrets == before.secrets, "a key changed");
    assert!(runs.iter().all(|(name, state)| state.sandboxes == world.machines[name].sandboxes));
    let told = world.condition("Paused").unwrap();
    assert_eq!(told.reason, "CertificatesDue");
    assert!(told.message.contains("certificates are due: driver/client, driver/etcd-client"), "{}", told.message);

    // After the cluster is resumed, passes do all of this.
    world.cluster().spec.paused = false;
    assert!(!world.planned().mint.is_empty());
    world.settle();
    assert_eq!(world.progressing(), ("False", "Settled", "it matches its document"));
    assert_eq!(world.condition("Paused"), None);
    let of_role =
        |name: &str| world.documents.components.keys().filter(|pod| pod.component.as_str().starts_with(name)).count();
    assert_eq!((of_role("kube-apiserver-"), of_role("kube-scheduler-")), (1, 3));
    assert!(world.machines.values().any(|state| !runs.values().any(|old| old.sandboxes == state.sandboxes)));
}

#[test]
fn a_paused_cluster_is_not_deleted() {
    let mut world = World::settled();
    world.cluster().spec.paused = true;
    world.cluster().metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let runs: Vec<_> = world.machines.values().map(|state| state.sandboxes.clone()).collect();
    world.settle();
    let message = "c1 waits for spec.paused to be false: a paused cluster is not deleted";
    assert_eq!(world.progressing(), ("False", "Blocked", message));
    assert_eq!(runs, world.machines.values().map(|state| state.sandboxes.clone()).collect::<Vec<_>>());
    world.cluster().spec.paused = false;
    for _ in 0..5 {
        if !world.documents.clusters.is_empty() {
            world.pass();
        }
    }
    assert!(world.documents.clusters.is_empty());
}

#[test]
fn one_that_is_paused_from_the_start_is_not_begun() {
    let mut world = World::new(&["Private", "Public"]);
    world.cluster().spec.paused = true;
    world.settle();
    assert!(world.documents.components.is_empty() && world.documents.secrets.is_empty());
}

/// If documents of a paused cluster are deleted, no pass creates them again.
#[test]
fn removed_documents_of_a_paused_cluster_stop_nothing() {
    let mut world = World::settled();
    world.cluster().spec.paused = true;
    world.settle();
    let (runs, secrets) = (world.machines.clone(), world.documents.secrets.clone());
    let is_as_before = |world: &World| {
        runs.iter().all(|(name, before)| {
            let now = &world.machines[name];
            (&now.sandboxes, &now.containers, &now.servers) == (&before.sandboxes, &before.containers, &before.servers)
        })
    };
    for name in ["front-proxy-ca", "etcd-0", "service-account"] {
        world.documents.secrets.retain(|secret, _| secret.name != name);
        assert!(world.planned().mint.is_empty());
        world.settle();
        assert!(is_as_before(&world), "{name} was taken away");
    }
    world.documents.components.retain(|pod, _| pod.component.as_str() != "kube-scheduler-0");
    world.settle();
    assert!(is_as_before(&world), "a Component was taken away");

    // After the cluster is resumed, certificates and controllers are created again. An authority is not: a person restores it.
    world.cluster().spec.paused = false;
    world.settle();
    assert_eq!((world.progressing().0, world.progressing().1), ("False", "Blocked"));
    assert!(is_as_before(&world), "a cluster without its authority was changed");
    for name in secrets.keys().filter(|name| ["front-proxy-ca", "service-account"].contains(&name.name.as_str())) {
        world.documents.secrets.insert(name.clone(), secrets[name].clone());
    }
    world.settle();
    assert_eq!(world.progressing(), ("False", "Settled", "it matches its document"));
    assert!(world.documents.secrets.keys().eq(secrets.keys()));
    let of_store = |pod: &&PodName| pod.component.as_str().starts_with("etcd-");
    assert_eq!(world.documents.components.keys().filter(of_store).count(), 3);
    let running = world.machines.values().flat_map(|state| &state.sandboxes).map(|sandbox| &sandbox.pod);
    assert_eq!(running.collect::<BTreeSet<_>>(), world.documents.components.keys().collect());
}

/// Only the documents request what is on a machine. If they lack a key, nothing is removed from the machine.
#[test]
fn a_paused_cluster_that_is_deleted_loses_nothing_with_its_keys() {
    let mut world = World::settled();
    world.cluster().spec.paused = true;
    world.cluster().metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let runs: Vec<_> = world.machines.values().map(|state| state.sandboxes.clone()).collect();
    world.documents.secrets.retain(|secret, _| secret.name != "etcd-0");
    world.settle();
    assert_eq!(runs, world.machines.values().map(|state| state.sandboxes.clone()).collect::<Vec<_>>());
    world.cluster().spec.paused = false;
    for _ in 0..5 {
        if !world.documents.clusters.is_empty() {
            world.pass();
        }
    }
    assert!(world.documents.clusters.is_empty());
}

const MINTED_ONCE: [&str; 6] =
    ["encryption", "etcd-ca", "front-proxy-ca", "infrastructure-ca", "kubernetes-ca", "service-account"];

impl World {
    fn secret(&self, name: &str) -> SecretName {
        self.documents.secrets.keys().find(|secret| secret.name == name).unwrap().clone()
    }

    fn minted(&mut self) -> BTreeMap<String, String> {
        self.cluster().status.as_ref().unwrap().minted.clone()
    }

    /// Passes change nothing that runs and mint no other keys until `name` is restored.
    fn is_blocked_until(&mut self, (name, why): (&str, &str), before: &Documents, what: &str) {
        let runs = self.machines.clone();
        for _ in 0..4 {
            let plan = self.planned();
            assert_eq!(plan.mint, [], "{name} {what}");
            assert_eq!(plan.decisions, [], "{name} {what}");
        }
        let ran = |(one, other): (&MachineState, &MachineState)| {
            (&one.sandboxes, &one.containers, &one.servers) == (&other.sandboxes, &other.containers, &other.servers)
        };
        assert!(runs.values().zip(self.machines.values()).all(ran), "{name} {what}: something was replaced");
        let (status, reason, message) = self.progressing();
        assert_eq!((status, reason), ("False", "Blocked"), "{name} {what}");
        assert!(message.contains(&format!("/{name}, which {why}")), "{message}");
        assert!(
            message.contains(": restore it from a backup, or use the documents that the last pass wrote"),
            "{message}"
        );
        let secret = before.secrets.keys().find(|secret| secret.name == name).unwrap();
        self.documents.secrets.insert(secret.clone(), before.secrets[secret].clone());
        self.settle();
        assert_eq!(self.progressing(), ("False", "Settled", "it matches its document"), "{name} {what}");
        assert!(self.documents.secrets == before.secrets, "{name} {what}");
        assert!(runs.values().zip(self.machines.values()).all(ran), "{name} {what}: something was replaced later");
    }
}

/// A second authority would cut off every worker and kubeconfig of the cluster for good.
#[test]
fn an_existing_cluster_gets_no_second_authority() {
    let mut world = World::settled();
    assert!(world.minted().keys().eq(MINTED_ONCE));
    let before = world.documents.clone();
    for name in MINTED_ONCE {
        let secret = world.secret(name);
        world.documents.secrets.remove(&secret);
        world.is_blocked_until((name, "is missing"), &before, "was taken away");
        let data = world.documents.secrets.get_mut(&secret).unwrap().data.as_mut().unwrap();
        let keys: Vec<_> = data.keys().cloned().collect();
        data.extend(keys.into_iter().map(|key| (key, ByteString(b"of another one".to_vec()))));
        world.is_blocked_until((name, "holds a different key"), &before, "is another one");
    }
}

/// The existing authorities are its own. If one of them is missing, none of the others counts as its own.
#[test]
fn a_cluster_of_a_release_that_wrote_nothing_down_has_its_authorities_already() {
    let mut world = World::settled();
    let before = world.documents.clone();
    for name in MINTED_ONCE {
        world.cluster().status.as_mut().unwrap().minted.clear();
        let secret = world.secret(name);
        world.documents.secrets.remove(&secret);
        world.is_blocked_until((name, "is missing"), &before, "was taken away");
        let known = before.clusters.values().next().unwrap().status.as_ref().unwrap().minted.clone();
        assert_eq!(world.minted(), known, "what is there is written down");
    }
}

/// A save may be interrupted between any two Secrets. At that point the cluster is not created yet.
#[test]
fn a_cluster_that_never_had_an_authority_gets_one() {
    let mut world = World::new(&["Private", "Private", "Private", "Public"]);
    let begun = world.documents.clone();
    world.pass();
    let (kept, secret) = (world.documents.clone(), world.secret("etcd-ca"));
    let mut cut = begun;
    cut.secrets.insert(secret.clone(), kept.secrets[&secret].clone());
    world.documents = cut;
    world.settle();
    assert_eq!(world.progressing(), ("False", "Settled", "it matches its document"));
    assert!(world.documents.secrets[&secret] == kept.secrets[&secret]);
    assert!(world.minted().keys().eq(MINTED_ONCE));
}

/// The clock of a manager was ahead, and is correct now.
#[test]
fn a_certificate_that_holds_later_only_is_minted_anew() {
    let mut world = World::settled();
    world.now = "2026-01-01T00:00:00Z".parse().unwrap();
    world.settle();
    let minutes = |minutes| world.now + SignedDuration::from_mins(minutes);
    let (five, six) = (minutes(5), minutes(6));
    let leaf = (world.secret("etcd-0"), "server".to_owned());
    let minted = |world: &mut World| -> Vec<String> { world.planned().mint.iter().map(ToString::to_string).collect() };
    world.certificates.get_mut(&leaf).unwrap().not_before = five;
    assert_eq!(minted(&mut world), [""; 0], "machines' clocks may be behind by as much");
    world.certificates.get_mut(&leaf).unwrap().not_before = six;
    assert_eq!(minted(&mut world), ["issue certificate etcd-0/server"]);
    assert_eq!(minted(&mut world), [""; 0]);

    // A new certificate would not be valid earlier than its authority.
    let authority = CertificateSeen { not_before: six, ..world.certificates[&leaf].clone() };
    world.certificates.insert((world.secret("etcd-ca"), "active".to_owned()), authority);
    world.certificates.get_mut(&leaf).unwrap().not_before = six;
    assert_eq!(minted(&mut world), [""; 0]);
}

#[test]
fn certificates_of_replicas_do_not_end_in_one_second() {
    let world = World::new(&["Private", "Private", "Private", "Public"]);
    let asked = || plan(world.documents.clone(), &world.observe(), world.now).unwrap().mint;
    let mut lives: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for request in asked() {
        let MintRequest::Certificate { secret, ttl, .. } = request else { continue };
        lives.entry(secret.name).or_default().insert(ttl.seconds());
    }
    let year = 8760 * 3600;
    let all: Vec<u64> = lives.values().flatten().copied().collect();
    assert!(all.iter().all(|life| (year * 2 / 3..=year).contains(life)), "{lives:?}");
    assert!(lives.values().all(|lives| lives.len() == 1), "a replica's are renewed together: {lives:?}");
    for one in ["etcd", "kube-apiserver"] {
        let of_role: Vec<_> = lives.iter().filter(|(name, _)| name.starts_with(one)).map(|(_, lives)| lives).collect();
        assert!(of_role.iter().collect::<BTreeSet<_>>().len() == of_role.len(), "{lives:?}");
    }
    assert_eq!(asked(), asked());
}

/// On a busy machine checks time out while members work. No member is stopped for that.
#[test]
fn a_member_that_times_out_does_not_count_as_broken() {
    let mut world = World::settled();
    world.cluster().spec.images.registry = Some("registry.example.com".to_owned());
    let replaced = |health: fn(String) -> ComponentHealth| {
        let mut seen = world.observe();
        seen.health.values_mut().for_each(|found| *found = health("it says nothing".to_owned()));
        let mut plan = plan(world.documents.clone(), &seen, world.now).unwrap();
        let is_member = |pod: &PodName| pod.component.as_str().starts_with("etcd-");
        let mut free = 0;
        configure(&mut plan, &seen, |_, config| {
            free += config.pods.iter().filter(|(name, pod)| is_member(name) && !pod.hold).count();
        })
        .unwrap();
        free
    };
    assert_eq!((replaced(ComponentHealth::NoAnswer), replaced(ComponentHealth::Unhealthy)), (0, 1));
}

const GIBIBYTE: u64 = 1 << 30;

impl World {
    /// Sets the size of each member's database, in hundredths of its quota of 4Gi.
    fn databases(&mut self, percent: [u64; 3]) {
        for (number, percent) in percent.into_iter().enumerate() {
            let figures =
                Figures { database_bytes: Some((4 * GIBIBYTE * percent).div_ceil(100)), ..Figures::default() };
            self.member(number, Some(figures));
        }
    }

    fn member(&mut self, number: usize, figures: Option<Figures>) {
        let pod = self.documents.components.keys().find(|pod| pod.component.as_str() == format!("etcd-{number}"));
        let pod = pod.unwrap().clone();
        let machine = self.documents.components[&pod].spec.hypervisor.clone();
        let told = &mut self.machines.get_mut(&machine).unwrap().figures;
        match figures {
            Some(figures) => drop(told.insert(pod, figures)),
            None => drop(told.remove(&pod)),
        }
    }

    fn machine_of(&self, component: &str) -> HypervisorName {
        let found = self.documents.components.iter().find(|(pod, _)| pod.component.as_str() == component);
        found.unwrap().1.spec.hypervisor.clone()
    }

    fn room(&mut self) -> Option<(String, String)> {
        self.pass();
        self.condition("EtcdHasRoom").map(|found| {
            assert_eq!(found.status, "False");
            (found.reason.clone(), found.message.clone())
        })
    }
}

fn near(members: &str) -> (String, String) {
    ("NearQuota".to_owned(), format!("{members}: most of the quota of 4Gi is used (spec.etcd.quota)"))
}

#[test]
fn a_store_near_its_quota_is_reported_and_its_size_is_not_stored() {
    let mut world = World::settled();
    world.databases([10, 20, 79]);
    assert_eq!(world.room(), None);
    world.databases([10, 20, 80]);
    assert_eq!(world.room(), Some(near("etcd-2")));
    let before = world.documents.clone();
    world.databases([11, 21, 99]);
    assert_eq!(world.room(), Some(near("etcd-2")));
    assert_eq!(world.documents, before, "nothing is written while it stays so");
    world.databases([11, 21, 76]);
    assert_eq!(world.room(), Some(near("etcd-2")), "it does not come and go");
    world.databases([11, 21, 74]);
    assert_eq!(world.room(), None);
    world.databases([11, 21, 76]);
    assert_eq!(world.room(), None);
}

#[test]
fn a_larger_quota_is_room() {
    let mut world = World::settled();
    world.databases([90, 90, 90]);
    assert_eq!(world.room(), Some(near("etcd-0, etcd-1, etcd-2")));
    world.cluster().spec.etcd.quota = Some("8Gi".parse().unwrap());
    assert_eq!(world.room(), None);
}

#[test]
fn a_store_without_space_is_reported_until_its_alarm_is_disarmed() {
    let mut world = World::settled();
    world.databases([90, 90, 90]);
    let full = Figures { database_bytes: Some(GIBIBYTE), no_space: true, ..Figures::default() };
    world.member(1, Some(full));
    let (reason, message) = world.room().unwrap();
    assert_eq!(reason, "NoSpace");
    assert!(message.starts_with("etcd-1: the alarm NOSPACE is raised"), "{message}");
    assert_eq!(world.progressing().1, "Changing", "the next pass observes the store");
    // They were defragmented, and the alarm is still raised.
    world.databases([1, 1, 1]);
    world.member(1, Some(full));
    assert_eq!(world.room().unwrap().0, "NoSpace");
    world.databases([1, 1, 1]);
    assert_eq!(world.room(), None);
}

#[test]
fn the_condition_of_a_store_stays_while_a_member_is_unreachable() {
    let mut world = World::settled();
    world.databases([90, 90, 90]);
    assert_eq!(world.room(), Some(near("etcd-0, etcd-1, etcd-2")));
    world.databases([1, 1, 1]);
    world.member(2, None);
    assert_eq!(world.room(), Some(near("etcd-0, etcd-1, etcd-2")));
    world.member(2, Some(Figures { database_bytes: Some(GIBIBYTE), ..Figures::default() }));
    assert_eq!(world.room(), None);
}

/// A pass over all documents ignores waves. A cluster reaches the release when the last component of the previous release is replaced.
#[test]
fn a_release_of_keelway_is_reached_once_every_component_is_replaced() {
    let mut world = World::settled();
    let keelway = KeelwayStatus { version: "v0.0.9".to_owned(), previous_version: None };
    world.cluster().status.get_or_insert_default().keelway = Some(keelway);
    let is_earlier = |sandbox: &SandboxState| sandbox.digest == "earlier";
    let own = ["kube-apiserver-", "gateway-", "cluster-controller-"];
    for sandbox in world.machines.values_mut().flat_map(|state| &mut state.sandboxes) {
        if own.iter().any(|own| sandbox.pod.component.as_str().starts_with(own)) {
            sandbox.digest = "earlier".to_owned();
        }
    }

    let plan = world.planned();
    let decisions: Vec<_> = plan.decisions.iter().map(ToString::to_string).collect();
    assert_eq!(decisions, [format!("replace Keelway's components of c1: from v0.0.9 to {KEELWAY}")]);
    let keelway = world.cluster().status.as_ref().and_then(|status| status.keelway.clone()).unwrap();
    assert_eq!((keelway.version.as_str(), keelway.previous_version.as_deref()), (KEELWAY, Some("v0.0.9")));
    let mut earlier = Vec::new();
    while world.condition("KeelwayUpToDate").is_some() {
        assert_eq!(world.progressing().0, "True");
        earlier.push(world.machines.values().flat_map(|state| &state.sandboxes).filter(|one| is_earlier(one)).count());
        assert!(earlier.len() < 20, "it never gets there: {earlier:?}");
        world.pass();
    }
    assert_eq!(earlier.last(), Some(&0));
    assert!(earlier.contains(&1), "one API server at a time: {earlier:?}");
    assert_eq!(world.progressing(), ("False", "Settled", "it matches its document"));
}
