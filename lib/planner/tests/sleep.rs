//! Clusters that fall asleep, sleep and wake up. Machines may be away, and a driver may die after any save.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    ByteString, Cluster, Condition, Documents, Time,
    cluster::EtcdStatus,
    component::ComponentSpec,
    documents::SecretName,
    jiff::{SignedDuration, Timestamp},
    machine::{MachineConfig, MachineState, ObservedValue},
    name::{HypervisorName, PodName},
    restore::RestoreSpec,
    role::Role,
    rotation::RotationRequest,
    sleep::SleepPhase,
};
use keelway_planner::{
    CertificateSeen, ComponentHealth, Decision, FirstBindings, MintRequest, PassObservation, Plan, Probe, configure,
    invariants, next_snapshot, plan, plan_progress, probes,
};

use crate::model::{apply, hypervisors, identified, mint};

const CLUSTER: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default, generation: 7}
spec: {version: 1.37.0, etcd: {replicas: 3, snapshots: {schedule: '0 * * * *', sink: {directory: {path: /var/backups}}}}, controlPlane: {replicas: 2}, ingress: {replicas: 2}}
";
const FLEET: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default, generation: 7}
spec: {version: 1.37.0, fleet: {}, ingress: {replicas: 2}}
";

struct World {
    documents: Documents,
    machines: BTreeMap<HypervisorName, MachineState>,
    silent: BTreeSet<HypervisorName>,
    /// Components that run and do not respond.
    hanging: BTreeSet<PodName>,
    certificates: BTreeMap<(SecretName, String), CertificateSeen>,
    configs: BTreeMap<HypervisorName, MachineConfig>,
    bindings: FirstBindings,
    now: Timestamp,
}

impl World {
    fn settled(cluster: &str, bindings: FirstBindings) -> Self {
        let machines = ["Private", "Private", "Private", "Public", "Public"];
        let text: String = std::iter::once(cluster.to_owned()).chain(hypervisors(&machines)).collect();
        let (documents, machines) = identified(&text);
        let mut world = Self {
            documents,
            machines,
            silent: BTreeSet::new(),
            hanging: BTreeSet::new(),
            certificates: BTreeMap::new(),
            configs: BTreeMap::new(),
            bindings,
            now: Timestamp::UNIX_EPOCH,
        };
        world.settle();
        assert!(world.cluster().is_initialized());
        world
    }

    fn cluster(&self) -> &Cluster {
        self.documents.clusters.values().next().unwrap()
    }

    fn set_asleep(&mut self, asleep: bool) {
        self.documents.clusters.values_mut().next().unwrap().spec.asleep = asleep;
    }

    fn store(&self) -> EtcdStatus {
        self.cluster().status.clone().unwrap().etcd.unwrap()
    }

    fn condition(&self, kind: &str) -> Option<&Condition> {
        let status = self.cluster().status.as_ref().unwrap();
        status.conditions.iter().find(|condition| condition.type_ == kind)
    }

    fn reason(&self, kind: &str) -> Option<(&str, &str)> {
        self.condition(kind).map(|found| (found.status.as_str(), found.reason.as_str()))
    }

    fn running(&self) -> BTreeSet<Role> {
        let pods = self.machines.values().flat_map(|state| &state.sandboxes).map(|sandbox| &sandbox.pod);
        pods.map(|pod| self.documents.components[pod].spec.role).collect()
    }

    fn specs(&self) -> Vec<(PodName, ComponentSpec)> {
        self.documents.components.iter().map(|(pod, component)| (pod.clone(), component.spec.clone())).collect()
    }

    fn data(&self) -> Vec<String> {
        let used = |state: &MachineState| {
            state.data.iter().filter(|(_, data)| data.marked && data.used).map(|(name, _)| name.clone()).collect()
        };
        self.machines.values().flat_map(|state| -> Vec<String> { used(state) }).collect()
    }

    fn observe(&self) -> PassObservation {
        let machine = |(name, state): (&HypervisorName, &MachineState)| {
            let silent = self.silent.contains(name);
            let seen =
                if silent { ObservedValue::unreachable("it is silent") } else { ObservedValue::Known(state.clone()) };
            (name.clone(), seen)
        };
        let answering = self.machines.iter().filter(|(name, _)| !self.silent.contains(*name));
        let running: BTreeSet<&PodName> =
            answering.flat_map(|(_, state)| &state.sandboxes).map(|sandbox| &sandbox.pod).collect();
        let asked = probes(&self.documents).unwrap();
        let forwards = |pod: &PodName| self.machines.values().any(|state| state.servers.contains_key(pod));
        let is_ingress = |pod: &PodName| self.documents.components[pod].spec.role == Role::Ingress;
        // An ingress answers either by itself, or through an API server.
        let answers = |probe: &Probe| {
            !is_ingress(&probe.component) || forwards(&probe.component) == (probe.path != "/keelway-asleep")
        };
        let health = |probe: &Probe| {
            let pod = &probe.component;
            if !running.contains(pod) || self.hanging.contains(pod) {
                ComponentHealth::NoAnswer("connection refused".to_owned())
            } else if answers(probe) {
                ComponentHealth::Healthy
            } else if forwards(pod) {
                ComponentHealth::NoAnswer("the connection was closed".to_owned())
            } else {
                ComponentHealth::Unhealthy("503".to_owned())
            }
        };
        let id = self.cluster().id().unwrap();
        PassObservation {
            machines: self.machines.iter().map(machine).collect(),
            health: asked.iter().map(|probe| (probe.component.clone(), health(probe))).collect(),
            bindings: [(id.clone(), ObservedValue::Known(self.bindings.digest()))].into(),
            certificates: self.certificates.clone(),
            ..PassObservation::default()
        }
    }

    /// A pass up to the save.
    fn save(&mut self) -> Plan {
        let seen = self.observe();
        let mut plan = plan(self.documents.clone(), &seen, self.now).unwrap();
        mint(&mut plan, &mut self.certificates);
        self.certificates.retain(|(secret, _), _| plan.documents.secrets.contains_key(secret));
        assert_eq!(invariants::check(&self.documents, &plan.documents, &seen), []);
        assert_eq!(invariants::check_replicas(&plan), []);
        self.configs.clear();
        configure(&mut plan, &seen, |name, config| drop(self.configs.insert(name.clone(), config))).unwrap();
        plan_progress(&mut plan, &seen, self.now);
        self.documents = plan.documents.clone();
        plan
    }

    fn pass(&mut self) -> Plan {
        let plan = self.save();
        for (name, config) in &self.configs {
            let machine = self.machines.get_mut(name).unwrap();
            apply(machine, config);
            if config.pods.is_empty() && config.others.is_empty() {
                machine.files.clear();
                machine.data.clear();
            }
        }
        plan
    }

    /// Returns the phases, with what ran before each.
    fn settle(&mut self) -> Vec<Option<SleepPhase>> {
        let (mut phases, mut quiet) = (Vec::new(), 0);
        for _ in 0..60 {
            let before = self.documents.clone();
            let _ = self.pass();
            phases.push(self.cluster().sleep_phase());
            quiet = if self.documents == before { quiet + 1 } else { 0 };
            if quiet > 3 {
                phases.dedup();
                return phases;
            }
        }
        panic!("it does not settle: {:?}", self.condition("Progressing"));
    }

    fn ingress(&self, number: u32) -> PodName {
        PodName {
            cluster: self.cluster().id().unwrap().clone(),
            component: format!("ingress-{number}").parse().unwrap(),
        }
    }

    fn number_of_members(&self) -> usize {
        let running = self.machines.values().flat_map(|state| &state.sandboxes);
        running.filter(|sandbox| self.documents.components[&sandbox.pod].spec.role == Role::Etcd).count()
    }

    fn machine_of(&self, pod: &PodName) -> HypervisorName {
        self.documents.components[pod].spec.hypervisor.clone()
    }

    /// Replaces the certificates of the ingresses, which restarts them.
    fn renew(&mut self) {
        for number in [0, 1] {
            let pod = self.ingress(number);
            let secret = SecretName::of(&pod.cluster, pod.component.as_str());
            let renewed = ByteString(b"renewed".to_vec());
            self.documents.put_secret_values(&secret, [("server.crt".to_owned(), renewed)]);
        }
    }

    /// The ingresses that a pass replaces, and those that wait for their turn.
    fn replaced(&mut self) -> (Vec<PodName>, Vec<String>) {
        let digests = |world: &Self| -> BTreeSet<(PodName, String)> {
            let sandboxes = world.machines.values().flat_map(|state| &state.sandboxes);
            sandboxes.map(|sandbox| (sandbox.pod.clone(), sandbox.digest.clone())).collect()
        };
        let before = digests(self);
        let plan = self.pass();
        let replaced = digests(self).difference(&before).map(|(pod, _)| pod.clone()).collect();
        let turns = plan.waiting.iter().filter(|waiting| waiting.blocker.is_turn());
        (replaced, turns.map(ToString::to_string).collect())
    }

    fn asleep() -> Self {
        let mut world = Self::settled(CLUSTER, FirstBindings::Cluster);
        world.set_asleep(true);
        world.settle();
        assert_eq!(world.cluster().sleep_phase(), Some(SleepPhase::Asleep));
        world
    }
}

#[test]
fn a_cluster_falls_asleep_from_its_controllers_to_its_store_and_keeps_its_data() {
    let mut world = World::settled(CLUSTER, FirstBindings::Cluster);
    let (specs, data, store) = (world.specs(), world.data(), world.store());
    assert_eq!(world.running().len(), 7);
    world.set_asleep(true);
    let first = world.pass();
    assert!(matches!(first.decisions[..], [Decision::Sleep { .. }]), "{:?}", first.decisions);
    let phases = world.settle();
    let expected = [
        SleepPhase::StoppingControllers,
        SleepPhase::Answering,
        SleepPhase::StoppingServers,
        SleepPhase::StoppingStore,
        SleepPhase::Asleep,
    ];
    assert!(phases.iter().flatten().eq(&expected[5 - phases.len()..]), "{phases:?}");
    assert_eq!(world.running(), [Role::Ingress].into());
    assert_eq!((world.specs(), world.data(), world.store()), (specs, data, store));
    assert_eq!(world.reason("Asleep"), Some(("True", "Asleep")));
    assert_eq!(world.reason("Available"), Some(("False", "Asleep")));
    assert_eq!(world.reason("Degraded"), Some(("False", "Asleep")));
    assert_eq!(world.reason("Progressing"), Some(("False", "Settled")));
    let plan = world.pass();
    assert!(plan.waiting.is_empty() && plan.mint.is_empty() && plan.decisions.is_empty(), "{plan:?}");
    assert_eq!(probes(&world.documents).unwrap().len(), 2, "the ingresses");
    assert_eq!(next_snapshot(world.cluster()), None);
}

#[test]
fn a_cluster_wakes_with_its_store_first_and_without_a_trace() {
    let mut world = World::settled(CLUSTER, FirstBindings::Cluster);
    let before = world.documents.clone();
    world.set_asleep(true);
    world.settle();
    world.set_asleep(false);
    let (mut running, mut members) = (Vec::new(), 0);
    while world.cluster().is_sleeping() {
        let _ = world.pass();
        running.push((world.cluster().sleep_phase(), world.running().contains(&Role::KubeApiserver)));
        let more = world.number_of_members();
        assert!(more <= members + 1, "members that start together wait for each other");
        members = more;
    }
    running.dedup();
    let expected = [(Some(SleepPhase::StartingStore), false), (Some(SleepPhase::StartingServers), true), (None, true)];
    assert_eq!(running, expected);
    world.settle();
    assert_eq!(world.running().len(), 7);
    assert_eq!(world.reason("Asleep"), None);
    assert_eq!(world.reason("Available"), Some(("True", "Serving")));
    let place = |documents: &Documents| {
        documents
            .components
            .iter()
            .map(|(pod, found)| (pod.clone(), found.spec.clone(), found.stage()))
            .collect::<Vec<_>>()
    };
    assert_eq!(place(&before), place(&world.documents));
    assert_eq!(before.secrets, world.documents.secrets, "nothing of the sleep is left");
    assert_eq!(before.clusters.values().next().unwrap().status.clone().unwrap().etcd.unwrap(), world.store());
}

#[test]
fn the_ingresses_answer_503_with_a_reason_and_have_no_servers() {
    let world = World::asleep();
    let pods = world.configs.values().flat_map(|config| &config.pods);
    let ingresses: Vec<_> = pods.filter(|(name, _)| name.component.as_str().starts_with("ingress")).collect();
    assert_eq!(ingresses.len(), 2);
    for (name, pod) in ingresses {
        let files: Vec<&str> = pod.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(files, ["haproxy.cfg", "server.crt", "server.key"]);
        assert!(pod.servers.is_none());
        let config = std::str::from_utf8(&pod.files[0].content).unwrap();
        let line = config.lines().find(|line| line.contains("Retry-After")).unwrap();
        assert!(line.contains("content-type application/json hdr Retry-After 1 string '{"), "{line}");
        let body: serde_json::Value = serde_json::from_str(line.split('\'').nth(1).unwrap()).unwrap();
        assert_eq!(
            (&body["kind"], &body["reason"], &body["code"]),
            (&"Status".into(), &"ServiceUnavailable".into(), &503.into())
        );
        assert!(!config.contains("backend ") && !config.contains("verify"), "{config}");
        let own = SecretName::of(&name.cluster, name.component.as_str());
        let subject = &world.certificates[&(own, "server".to_owned())];
        assert!(subject.dns_names.contains(&"kubernetes.default.svc".to_owned()));
        assert!(subject.addresses.iter().any(|address| address.to_string().starts_with("198.18.")));
    }
}

#[test]
fn a_driver_may_die_after_any_save_and_a_person_may_change_their_mind() {
    for lost in 0..6 {
        for turn in 1..7 {
            let mut world = World::settled(CLUSTER, FirstBindings::Cluster);
            let specs = world.specs();
            world.set_asleep(true);
            for number in 0..turn {
                let _ = if number == lost { world.save() } else { world.pass() };
            }
            world.set_asleep(false);
            for number in 0..turn {
                let _ = if number == lost { world.save() } else { world.pass() };
            }
            world.set_asleep(true);
            world.settle();
            assert_eq!(world.running(), [Role::Ingress].into(), "{lost} {turn}");
            world.set_asleep(false);
            world.settle();
            assert_eq!((world.running().len(), world.specs()), (7, specs), "{lost} {turn}");
        }
    }
}

#[test]
fn a_machine_that_is_away_is_not_replaced_in_its_sleep() {
    let mut world = World::asleep();
    let member = world.documents.components.iter().find(|(_, found)| found.spec.role == Role::Etcd).unwrap();
    world.silent = [member.1.spec.hypervisor.clone()].into();
    let _ = world.pass();
    world.now = world.now.checked_add(SignedDuration::from_hours(48)).unwrap();
    let specs = world.specs();
    for _ in 0..5 {
        let plan = world.pass();
        assert!(plan.stores.is_empty() && plan.decisions.is_empty());
    }
    assert!(world.store().members.values().all(|member| member.unavailable_since.is_none()));
    world.silent.clear();
    world.set_asleep(false);
    world.settle();
    assert_eq!((world.running().len(), world.specs()), (7, specs));
}

#[test]
fn a_cluster_falls_asleep_and_wakes_although_a_machine_is_away() {
    let mut world = World::settled(CLUSTER, FirstBindings::Cluster);
    let member = world.documents.components.iter().find(|(_, found)| found.spec.role == Role::Etcd).unwrap();
    let machine = member.1.spec.hypervisor.clone();
    world.silent = [machine.clone()].into();
    let _ = world.pass();
    world.set_asleep(true);
    world.settle();
    assert_eq!(world.cluster().sleep_phase(), Some(SleepPhase::Asleep));
    assert!(!world.machines[&machine].sandboxes.is_empty(), "its components run until it returns");
    world.silent.clear();
    world.settle();
    assert_eq!(world.running(), [Role::Ingress].into());
    world.silent = [machine].into();
    world.set_asleep(false);
    for _ in 0..6 {
        let _ = world.pass();
    }
    assert_eq!(world.cluster().sleep_phase(), None, "two of three members are a majority");
}

/// A lost quorum is repaired only while the cluster is awake.
#[test]
fn a_cluster_wakes_although_its_quorum_was_lost_in_its_sleep() {
    let mut world = World::asleep();
    let members = world.documents.components.values().filter(|found| found.spec.role == Role::Etcd);
    world.silent = members.map(|member| member.spec.hypervisor.clone()).take(2).collect();
    world.set_asleep(false);
    let _ = world.pass();
    assert_eq!(world.cluster().sleep_phase(), Some(SleepPhase::StartingStore), "they may respond to the next pass");
    for _ in 0..3 {
        let _ = world.pass();
    }
    assert_eq!(world.cluster().sleep_phase(), None);
}

#[test]
fn requests_that_a_sleeping_cluster_cannot_carry_out_wait_with_a_reason() {
    let mut world = World::asleep();
    let member = world.documents.components.iter().find(|(_, found)| found.spec.role == Role::Etcd).unwrap();
    let machine = member.1.spec.hypervisor.clone();
    world.documents.hypervisors.get_mut(&machine).unwrap().spec.drain = true;
    let cluster = world.documents.clusters.values_mut().next().unwrap();
    cluster.spec.etcd.restore = Some(RestoreSpec {
        snapshot: "20261127T115200Z-48213".to_owned(),
        requested_at: Time(world.now),
        cluster: None,
    });
    let requested_at = Time(world.now);
    cluster.spec.rotations.service_account_key =
        Some(RotationRequest { requested_at, complete: false, immediate: true });
    "1.37.1".clone_into(&mut cluster.spec.version);
    cluster.spec.ingress.replicas = 1;
    let plan = world.pass();
    let waits: Vec<String> = plan.waiting.iter().map(ToString::to_string).collect();
    let moves = "its cluster to wake up, because components of a cluster that sleeps do not move: run `keelway cluster wake --name c1` (spec.asleep)";
    assert!(waits.iter().any(|wait| wait.contains("etcd-") && wait.ends_with(moves)), "{waits:?}");
    assert!(waits.iter().any(|wait| wait.contains("before spec.etcd.restore is carried out")), "{waits:?}");
    let rotates =
        "c1 waits for the cluster to wake up, before its keys are rotated: run `keelway cluster wake --name c1`";
    assert!(waits.iter().any(|wait| wait.starts_with(rotates)), "{waits:?}");
    let follows =
        "before its components follow spec.version 1.37.1, the number of replicas of ingress (1 instead of 2)";
    assert!(waits.iter().any(|wait| wait.contains(follows)), "{waits:?}");
    assert_eq!(world.reason("Progressing"), Some(("False", "Blocked")));
    assert_eq!(world.running(), [Role::Ingress].into());
}

/// The first member cannot start. After some time, the others start without it.
#[test]
fn a_member_that_cannot_start_does_not_keep_the_others_from_it() {
    let mut world = World::asleep();
    let members = world.documents.components.iter().filter(|(_, found)| found.spec.role == Role::Etcd);
    let first = members.map(|(pod, _)| pod.clone()).next().unwrap();
    let machine = world.machine_of(&first);
    world.set_asleep(false);
    for seconds in [0, 1, 30, 31, 32] {
        world.now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
        let _ = world.pass();
        world.machines.get_mut(&machine).unwrap().sandboxes.retain(|sandbox| sandbox.pod != first);
        assert_eq!(world.number_of_members(), if seconds < 30 { 0 } else { 2 });
    }
    assert!(world.cluster().sleep_phase() != Some(SleepPhase::StartingStore), "a majority is healthy");
}

#[test]
fn a_cluster_falls_asleep_although_an_ingress_leaves_it() {
    let mut world = World::settled(CLUSTER, FirstBindings::Cluster);
    world.documents.clusters.values_mut().next().unwrap().spec.ingress.replicas = 1;
    let is_stopping = |world: &World| world.documents.components.values().any(|component| component.is_stopping());
    let begins = (0..10).any(|_| {
        let _ = world.pass();
        is_stopping(&world)
    });
    assert!(begins);
    world.set_asleep(true);
    world.settle();
    assert_eq!(world.cluster().sleep_phase(), Some(SleepPhase::Asleep));
}

#[test]
fn a_cluster_is_deleted_in_its_sleep() {
    let mut world = World::asleep();
    let now = Time(world.now);
    world.documents.clusters.values_mut().next().unwrap().metadata.deletion_timestamp = Some(now);
    for _ in 0..6 {
        if world.documents.clusters.is_empty() {
            break;
        }
        let seen = world.observe();
        let mut plan = plan(world.documents.clone(), &seen, world.now).unwrap();
        assert_eq!(invariants::check(&world.documents, &plan.documents, &seen), []);
        world.configs.clear();
        configure(&mut plan, &seen, |name, config| drop(world.configs.insert(name.clone(), config))).unwrap();
        world.documents = plan.documents.clone();
        for (name, config) in &world.configs {
            let machine = world.machines.get_mut(name).unwrap();
            apply(machine, config);
            machine.files.clear();
        }
    }
    assert!(world.documents.clusters.is_empty() && world.documents.components.is_empty());
    assert!(world.machines.values().all(|machine| machine.sandboxes.is_empty()));
}

#[test]
fn certificates_that_ended_in_its_sleep_are_renewed_before_anything_starts() {
    let mut world = World::asleep();
    let now = world.now.checked_add(SignedDuration::from_hours(24)).unwrap();
    world.now = now;
    let own: Vec<_> = world.documents.components.keys().map(|pod| pod.component.to_string()).collect();
    for ((secret, _), found) in &mut world.certificates {
        if own.contains(&secret.name) {
            found.renew_at = now;
        }
    }
    let renewed = |plan: &Plan| -> BTreeSet<String> {
        let requests = plan.mint.iter().filter(|request| matches!(request, MintRequest::Certificate { .. }));
        requests.map(|request| request.secret().name.clone()).collect()
    };
    let asleep = world.save();
    assert_eq!(renewed(&asleep), ["ingress-0", "ingress-1"].map(str::to_owned).into());
    world.set_asleep(false);
    let waking = world.save();
    assert_eq!(world.cluster().sleep_phase(), Some(SleepPhase::StartingStore));
    assert!(renewed(&waking).is_superset(&["etcd-0", "kube-apiserver-0", "gateway-0"].map(str::to_owned).into()));
}

#[test]
fn ingresses_with_renewed_certificates_restart_one_at_a_time_in_sleep() {
    let mut world = World::asleep();
    let [first, second] = [0, 1].map(|number| world.ingress(number));
    let waits = |why: &str| vec![format!("c1/ingress-1 waits for its turn to be replaced: {why}")];
    world.renew();
    assert_eq!(world.replaced(), (vec![first.clone()], waits("ingress-0 is replaced first")));
    world.hanging = [first].into();
    for _ in 0..3 {
        assert_eq!(world.replaced(), (vec![], waits("ingress-0 must be ready first")));
    }
    world.hanging.clear();
    assert_eq!(world.replaced(), (vec![second], vec![]), "in the pass that finds the first one ready");
    assert_eq!(world.replaced(), (vec![], vec![]));
}

/// Otherwise its certificate could end before the other machine returns.
#[test]
fn an_ingress_in_sleep_restarts_although_the_machine_of_the_other_one_is_away() {
    let mut world = World::asleep();
    let [first, second] = [0, 1].map(|number| world.ingress(number));
    world.silent = [world.machine_of(&second)].into();
    world.renew();
    assert_eq!(world.replaced(), (vec![first], vec![]));
    world.silent.clear();
    assert_eq!(world.replaced(), (vec![second], vec![]));
}

/// Both forward to API servers that are stopped, so neither answers.
#[test]
fn ingresses_that_return_in_sleep_begin_to_answer_at_once() {
    let mut world = World::settled(CLUSTER, FirstBindings::Cluster);
    let ingresses = [0, 1].map(|number| world.ingress(number));
    world.silent = ingresses.iter().map(|pod| world.machine_of(pod)).collect();
    let _ = world.pass();
    world.set_asleep(true);
    world.settle();
    assert_eq!(world.cluster().sleep_phase(), Some(SleepPhase::Asleep));
    world.silent.clear();
    assert_eq!(world.replaced().0, ingresses);
}

#[test]
fn a_fleet_sleeps_in_the_same_way() {
    let mut world = World::settled(FLEET, FirstBindings::Fleet);
    assert!(world.running().contains(&Role::FleetController));
    world.set_asleep(true);
    world.settle();
    assert_eq!(world.running(), [Role::Ingress].into());
    world.set_asleep(false);
    world.settle();
    assert!(world.running().contains(&Role::FleetController) && !world.cluster().is_sleeping());
}

#[test]
fn the_checker_finds_a_step_that_is_left_out() {
    const RULE: &str = "a cluster falls asleep in order, and keeps its data and its components";
    let world = World::settled(CLUSTER, FirstBindings::Cluster);
    let seen = world.observe();
    let with_phase = |phase: SleepPhase| {
        let mut documents = world.documents.clone();
        let cluster = documents.clusters.values_mut().next().unwrap();
        cluster.spec.asleep = true;
        let sleep = keelway_api::sleep::SleepStatus { phase, since: Time(world.now), started_members: BTreeSet::new() };
        cluster.status.as_mut().unwrap().sleep = Some(sleep);
        documents
    };
    let broken = |before: SleepPhase, after: SleepPhase| {
        let found = invariants::check(&with_phase(before), &with_phase(after), &seen);
        found.into_iter().filter(|found| found.invariant == RULE).map(|found| found.what).collect::<Vec<_>>()
    };
    let early = [
        (SleepPhase::StoppingControllers, SleepPhase::StoppingServers, "a step was left out"),
        (SleepPhase::StoppingControllers, SleepPhase::Asleep, "a step was left out"),
        (SleepPhase::Answering, SleepPhase::StoppingServers, "still sends connections to API servers that stop"),
        (SleepPhase::StartingServers, SleepPhase::StoppingServers, "still sends connections to API servers that stop"),
        (SleepPhase::StoppingServers, SleepPhase::StoppingStore, "its etcd stops before kube-apiserver-0"),
        (SleepPhase::StoppingStore, SleepPhase::Asleep, "it is asleep, and etcd-0 runs"),
    ];
    for (before, after, why) in early {
        let found = broken(before, after);
        assert!(found.iter().any(|what| what.ends_with(why)), "{before:?} {after:?}: {found:?}");
    }
    let (before, mut after) =
        (with_phase(SleepPhase::StoppingControllers), with_phase(SleepPhase::StoppingControllers));
    after.components.values_mut().next().unwrap().spec.ports.clear();
    let found = invariants::check(&before, &after, &seen);
    assert!(found.iter().any(|found| found.what.ends_with("its components change in its sleep")), "{found:?}");
}
