//! A cluster whose store is a model of etcd, on machines that apply their configs at once.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Documents, Time,
    cluster::EtcdStatus,
    documents::SecretName,
    hypervisor::{Applied, LOST_ANNOTATION},
    jiff::{SignedDuration, Timestamp},
    machine::{MachineConfig, MachineState, ObservedValue, Pod, sha256_hex},
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    role::Role,
    store_observation::MemberId,
};
use keelway_planner::{
    CertificateSeen, ComponentHealth, FirstBindings, HeldConfig, HeldMachine, ObservedTrust, PassObservation, Plan,
    Recovery, RestorableSnapshot, SecretRewrite, StoreOrder, configure, follows_trust, invariants, plan, record_minted,
    recover, rewrites_secrets, store_model::StoreModel,
};

use crate::model::{apply, hypervisors, identified, mint, see_signers};

/// The events of one round.
#[derive(Debug, Clone)]
pub(super) struct Round {
    pub(super) replicas: u32,
    /// Machines that work and do not respond to the driver, as bits.
    pub(super) silent: u8,
    /// Machines that do not work, as bits.
    pub(super) dead: u8,
    pub(super) drained: u8,
    /// The time that passes.
    pub(super) minutes: i64,
    /// Whether learners receive nothing.
    pub(super) lags: bool,
    pub(super) fate: DriverFate,
    /// What clients write: new data and replaced data, in percent of the quota.
    pub(super) writes: (u64, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DriverFate {
    Lives,
    DiesBeforeTheSave,
    DiesAfterTheSave,
    LosesTheOrder,
}

/// All machines respond, and nothing lags.
pub(super) fn calm(replicas: u32) -> Round {
    Round { replicas, silent: 0, dead: 0, drained: 0, minutes: 1, lags: false, fate: DriverFate::Lives, writes: (0, 0) }
}

pub(super) struct World {
    pub(super) documents: Documents,
    pub(super) machines: BTreeMap<HypervisorName, MachineState>,
    certificates: BTreeMap<(SecretName, String), CertificateSeen>,
    pub(super) store: Option<StoreModel>,
    /// The config that each machine holds.
    pub(super) configs: BTreeMap<HypervisorName, MachineConfig>,
    /// The member of each data directory.
    data: BTreeMap<PodName, MemberId>,
    pub(super) lost: BTreeSet<usize>,
    /// The pods that started with `--force-new-cluster`, by their digests.
    pub(super) forced: BTreeSet<(PodName, String)>,
    /// Whether machines that were lost have returned, with what ran on them.
    pub(super) returned: bool,
    /// What the driver finds of the snapshot that a restore names.
    pub(super) snapshot: Result<RestorableSnapshot, String>,
    /// The data that was made from it, until its member starts.
    restored: Option<(PodName, StoreModel)>,
    /// The store of the members of before, since a restored one started.
    pub(super) before_restore: Option<StoreModel>,
    /// What the cluster records of the Secrets that were written again.
    pub(super) rewrite: SecretRewrite,
    /// What each worker reports.
    pub(super) workers: Vec<ObservedTrust>,
    /// A worker that is ready, and does not follow.
    pub(super) stuck_worker: Option<String>,
    /// When the previous generation of each authority ends.
    pub(super) previous_ends: Timestamp,
    /// Whether each pass records the digests of keys.
    pub(super) records_keys: bool,
    pub(super) now: Timestamp,
    pub(super) orders: Vec<StoreOrder>,
}

const MACHINES: [&str; 7] = ["Private", "Private", "Private", "Private", "Private", "Private", "Public"];

fn is_set(bits: u8, number: usize) -> bool {
    number < 8 && (bits >> number) & 1 == 1
}

impl World {
    fn new(replicas: u32, is_fleet: bool) -> Self {
        let fleet = if is_fleet { ", fleet: {}" } else { "" };
        let cluster = format!(
            "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: c1, namespace: default}}\n\
             spec: {{version: 1.37.0, etcd: {{replicas: {replicas}}}, controlPlane: {{replicas: 2}}{fleet}}}\n"
        );
        let text: String = std::iter::once(cluster).chain(hypervisors(&MACHINES)).collect();
        let (documents, machines) = identified(&text);
        Self {
            documents,
            machines,
            certificates: BTreeMap::new(),
            store: None,
            configs: BTreeMap::new(),
            data: BTreeMap::new(),
            lost: BTreeSet::new(),
            forced: BTreeSet::new(),
            returned: false,
            snapshot: Ok(RestorableSnapshot { kubernetes: "1.37.0".to_owned(), etcd: "3.7.0".to_owned(), revision: 7 }),
            restored: None,
            before_restore: None,
            rewrite: SecretRewrite::default(),
            workers: Vec::new(),
            stuck_worker: None,
            previous_ends: Timestamp::MAX,
            records_keys: false,
            now: Timestamp::UNIX_EPOCH,
            orders: Vec::new(),
        }
    }

    pub(super) fn settled(replicas: u32) -> Self {
        Self::new(replicas, false).settles(replicas)
    }

    pub(super) fn settled_fleet(replicas: u32) -> Self {
        Self::new(replicas, true).settles(replicas)
    }

    fn settles(mut self, replicas: u32) -> Self {
        let world = &mut self;
        for _ in 0..8 {
            let _ = world.pass(&calm(replicas));
        }
        let plan = world.pass(&calm(replicas));
        assert_eq!((plan.decisions, plan.waiting), (vec![], vec![]));
        self
    }

    pub(super) fn id(&self) -> ClusterId {
        self.documents.clusters.values().next().unwrap().id().unwrap().clone()
    }

    pub(super) fn status(&self) -> EtcdStatus {
        let cluster = self.documents.clusters.values().next().unwrap();
        cluster.status.as_ref().unwrap().etcd.clone().unwrap()
    }

    pub(super) fn members(&self) -> BTreeMap<ComponentName, HypervisorName> {
        let components = self.documents.components.iter().filter(|(_, component)| component.spec.role == Role::Etcd);
        components.map(|(pod, component)| (pod.component.clone(), component.spec.hypervisor.clone())).collect()
    }

    /// A machine is gone for good, and a person says so.
    pub(super) fn lose(&mut self, number: usize) {
        self.lost.insert(number);
        let machine = self.documents.hypervisors.values_mut().nth(number).unwrap();
        let annotations = machine.metadata.annotations.get_or_insert_default();
        annotations.insert(LOST_ANNOTATION.to_owned(), "true".to_owned());
    }

    pub(super) fn number_of(&self, machine: &HypervisorName) -> usize {
        self.machines.keys().position(|name| name == machine).unwrap()
    }

    pub(super) fn has_api_server(&self, number: usize) -> bool {
        let servers = self.documents.components.values();
        let mut servers = servers.filter(|component| component.spec.role == Role::KubeApiserver);
        servers.any(|component| self.number_of(&component.spec.hypervisor) == number)
    }

    fn ask(&mut self, round: &Round) {
        let cluster = ClusterRef { namespace: "default".to_owned(), name: "c1".to_owned() };
        self.documents.clusters.get_mut(&cluster).unwrap().spec.etcd.replicas = round.replicas;
        for (number, machine) in self.documents.hypervisors.values_mut().enumerate() {
            machine.spec.drain = is_set(round.drained, number);
            machine.spec.unschedulable = machine.spec.drain;
        }
        self.now += SignedDuration::from_mins(round.minutes);
    }

    fn works(&self, round: &Round, number: usize) -> bool {
        !is_set(round.dead, number) && !self.lost.contains(&number)
    }

    fn responds(&self, round: &Round, number: usize) -> bool {
        self.works(round, number) && !is_set(round.silent, number)
    }

    fn runs(&self, pod: &PodName, machine: &HypervisorName) -> bool {
        self.machines[machine].sandboxes.iter().any(|sandbox| sandbox.pod == *pod)
    }

    /// Members whose process works, with the component, on machines for which `is_up` returns true.
    fn up(&self, is_up: impl Fn(usize) -> bool) -> BTreeMap<ComponentName, MemberId> {
        let store = self.store.as_ref();
        let of_machine = |(number, (name, state)): (usize, (&HypervisorName, &MachineState))| {
            let running = state.sandboxes.iter().map(|sandbox| sandbox.pod.clone()).collect::<Vec<_>>();
            let running = running.into_iter().filter(|_| is_up(number)).filter(|pod| self.runs(pod, name));
            running.filter_map(|pod| Some((pod.component.clone(), *self.data.get(&pod)?))).collect::<Vec<_>>()
        };
        let all = self.machines.iter().enumerate().flat_map(of_machine);
        all.filter(|(_, id)| store.is_some_and(|store| !store.has_removed(*id))).collect()
    }

    pub(super) fn observe(&self, round: &Round) -> PassObservation {
        let machine = |(number, (name, state)): (usize, (&HypervisorName, &MachineState))| {
            let unreachable = || ObservedValue::unreachable("it is silent");
            let seen = if self.responds(round, number) { ObservedValue::Known(state.clone()) } else { unreachable() };
            (name.clone(), seen)
        };
        let id = self.id();
        let works = self.up(|number| self.works(round, number)).into_values().collect();
        let has_majority = self.store.as_ref().is_some_and(|store| store.has_majority(&works));
        let reached = self.up(|number| self.responds(round, number));
        let health = self.documents.components.iter().map(|(pod, component)| {
            let number = self.number_of(&component.spec.hypervisor);
            let runs = self.responds(round, number) && self.runs(pod, &component.spec.hypervisor);
            let is_member = component.spec.role == Role::Etcd;
            let is_well = runs && (!is_member || (has_majority && reached.contains_key(&pod.component)));
            let ill = || ComponentHealth::Unhealthy("it is ill".to_owned());
            (pod.clone(), if is_well { ComponentHealth::Healthy } else { ill() })
        });
        let asked = self.members().into_keys();
        let store = self.store.as_ref().map(|store| {
            let mut seen = store.observe(asked, &reached);
            // A list needs a majority that works and one member that is reached.
            let has_list = store.has_majority(&works) && store.leader().is_some() && !reached.is_empty();
            seen.list = has_list.then(|| store.list().clone());
            (id.clone(), seen)
        });
        PassObservation {
            machines: self.machines.iter().enumerate().map(machine).collect(),
            health: health.collect(),
            bindings: [(id.clone(), ObservedValue::Known(FirstBindings::of_id(&self.documents, &id).digest()))].into(),
            certificates: self.certificates.clone(),
            restores: self.snapshots(),
            stores: store.into_iter().collect(),
            rewrites: self.rewrites(),
            trust: self.reports(),
            ..PassObservation::default()
        }
    }

    fn rewrites(&self) -> BTreeMap<ClusterId, ObservedValue<SecretRewrite>> {
        let cluster = self.documents.clusters.values().next().unwrap();
        let seen = || (self.id(), ObservedValue::Known(self.rewrite.clone()));
        rewrites_secrets(cluster).then(seen).into_iter().collect()
    }

    fn reports(&self) -> BTreeMap<ClusterId, ObservedValue<Vec<ObservedTrust>>> {
        let cluster = self.documents.clusters.values().next().unwrap();
        let seen = || (self.id(), ObservedValue::Known(self.workers.clone()));
        follows_trust(cluster).then(seen).into_iter().collect()
    }

    /// Workers that are ready follow what a cluster-controller publishes, and agents what a fleet-controller publishes.
    fn follow_authorities(&mut self) {
        let machines = self.machines.keys().filter_map(|name| self.configs.get(name));
        let pods = machines.flat_map(|config| &config.pods);
        let publishes = |pod: &&Pod| {
            let path = pod.files.first().map(|file| file.path.as_str());
            path.is_some_and(|path| path == "cluster-controller.json" || path == "fleet-controller.json")
        };
        let Some(pod) = pods.map(|(_, pod)| pod).find(publishes) else { return };
        let file = |path: &str| pod.files.iter().find(|file| file.path == path).map(|file| file.content.clone());
        let (bundle, config) = (file("ca.crt").unwrap(), pod.files[0].content.clone());
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        for worker in
            self.workers.iter_mut().filter(|worker| worker.is_ready && self.stuck_worker.as_ref() != Some(&worker.name))
        {
            worker.trusted = Some(sha256_hex(&bundle));
            if let Some(issuer) = config["issuer"].as_str() {
                let digits: Vec<String> = issuer.bytes().map(|byte| format!("{byte:02x}")).collect();
                worker.issuers = Some(digits.concat());
            }
        }
    }

    /// The second page of Secrets is the last one.
    fn rewrite_page(&mut self, key: &str) {
        let written = if self.rewrite.key == key { self.rewrite.rewritten } else { 0 };
        self.rewrite = SecretRewrite { key: key.to_owned(), rewritten: written + 500, is_complete: written > 0 };
    }

    /// What the driver reads before a restore begins.
    fn snapshots(&self) -> BTreeMap<ClusterId, Result<RestorableSnapshot, String>> {
        let cluster = self.documents.clusters.values().next().unwrap();
        cluster.pending_restore().map(|_| (self.id(), self.snapshot.clone())).into_iter().collect()
    }

    /// The machine makes the data of a member. No member and no API server may run.
    fn restore(&mut self, pod: &PodName, round: &Round) {
        let machine = self.members()[&pod.component].clone();
        if !self.responds(round, self.number_of(&machine)) {
            return;
        }
        let status = self.status();
        let initial = &status.members[&pod.component].started_with.as_ref().unwrap().initial_cluster;
        let token = format!("{}-{}", pod.cluster, status.rebuild.unwrap().number);
        let store = StoreModel::new(initial, &token);
        let data = self.machines.get_mut(&machine).unwrap().data.get_mut(&format!("{pod}/data")).unwrap();
        assert!(data.marked && !data.used, "the data directory of {pod}");
        data.used = true;
        self.data.insert(pod.clone(), *store.list().keys().next().unwrap());
        self.restored = Some((pod.clone(), store));
    }

    /// Decides without any effect.
    pub(super) fn decide(&mut self, round: &Round) -> (Plan, PassObservation, BTreeMap<HypervisorName, MachineConfig>) {
        self.ask(round);
        see_signers(&self.documents, &mut self.certificates);
        for ((_, name), seen) in &mut self.certificates {
            if name == "previous" {
                seen.not_after = self.previous_ends;
            }
        }
        let seen = self.observe(round);
        let mut plan = plan(self.documents.clone(), &seen, self.now).unwrap();
        mint(&mut plan, &mut self.certificates);
        if self.records_keys {
            record_minted(&mut plan.documents);
        }
        let mut configs = BTreeMap::new();
        configure(&mut plan, &seen, |name, config| drop(configs.insert(name.clone(), config))).unwrap();
        (plan, seen, configs)
    }

    /// One pass, and its effects.
    pub(super) fn pass(&mut self, round: &Round) -> Plan {
        let (plan, seen, configs) = self.decide(round);
        assert_eq!(invariants::check(&self.documents, &plan.documents, &seen), []);
        assert_eq!(invariants::check_replicas(&plan), []);
        assert_eq!(invariants::check_stores(&plan, &seen), []);
        if round.fate != DriverFate::DiesBeforeTheSave {
            self.documents = plan.documents.clone();
        }
        if matches!(round.fate, DriverFate::Lives | DriverFate::LosesTheOrder) {
            for (name, config) in &configs {
                self.apply(name, config);
            }
        }
        if round.fate == DriverFate::Lives {
            plan.stores.values().for_each(|order| self.execute(order, round));
            plan.rewrites.values().for_each(|key| self.rewrite_page(key));
        }
        self.tick(round);
        self.follow_authorities();
        plan
    }

    fn execute(&mut self, order: &StoreOrder, round: &Round) {
        if let StoreOrder::Restore { pod, .. } = order {
            self.orders.push(order.clone());
            return self.restore(pod, round);
        }
        let up = self.up(|number| self.works(round, number)).into_values().collect();
        let Some(store) = &mut self.store else { return };
        let had_majority = store.has_majority(&up);
        assert_eq!(store.broken_space_rule(order), None, "{order}");
        if store.execute(order, &up).is_ok() {
            self.orders.push(order.clone());
            assert!(!had_majority || store.has_majority(&up), "{order} ended the majority");
        }
        assert!(store.list().values().filter(|listed| listed.is_learner).count() < 2);
    }

    fn tick(&mut self, round: &Round) {
        let up: BTreeSet<MemberId> = self.up(|number| self.works(round, number)).into_values().collect();
        if let Some(store) = &mut self.store {
            let lagging = if round.lags { up.clone() } else { BTreeSet::new() };
            store.tick(&up, &lagging);
            store.write(round.writes.0, round.writes.1);
        }
    }

    fn apply(&mut self, name: &HypervisorName, config: &MachineConfig) {
        let state = self.machines.get_mut(name).unwrap();
        apply(state, config);
        self.configs.insert(name.clone(), config.clone());
        for removal in config.removals.keys().filter(|pod| !config.pods.contains_key(*pod)) {
            state.data.retain(|path, _| !path.starts_with(&format!("{removal}/")));
            self.data.remove(removal);
        }
        let running: Vec<PodName> = state.sandboxes.iter().map(|sandbox| sandbox.pod.clone()).collect();
        for pod in running {
            if let Some((_, store)) = self.restored.take_if(|(restored, _)| *restored == pod) {
                self.before_restore = self.store.replace(store);
            }
            if let Some(wanted) = config.pods.get(&pod).filter(|_| pod.component.as_str().starts_with("etcd-")) {
                self.start(&pod, wanted);
                self.force(&pod, wanted);
            }
        }
    }

    /// A member that starts with `--force-new-cluster` becomes the only one of its store. A pod that is held runs with earlier arguments than its
    /// config has.
    fn force(&mut self, pod: &PodName, wanted: &Pod) {
        let digest = wanted.digest();
        let mut sandboxes = self.machines.values().flat_map(|state| &state.sandboxes);
        let runs = sandboxes.any(|sandbox| sandbox.pod == *pod && sandbox.digest == digest);
        let mut words = wanted.containers.iter().flat_map(|container| &container.command);
        let is_forced = runs && words.any(|word| word.starts_with("--force-new-cluster"));
        // Each rebuild has the same arguments.
        let number = self.status().rebuild.map_or(0, |rebuild| rebuild.number);
        if is_forced && self.forced.insert((pod.clone(), format!("{digest} of {number}"))) {
            self.check_forced(pod);
            let id = self.data[pod];
            self.store.as_mut().unwrap().force(id);
        }
    }

    /// What must hold when a member becomes the only one of its store.
    fn check_forced(&self, pod: &PodName) {
        let all = self.machines.iter().enumerate();
        let up = all
            .filter(|(number, _)| !self.returned && !self.lost.contains(number))
            .flat_map(|(_, (_, state))| &state.sandboxes);
        let others: Vec<&PodName> = up.map(|sandbox| &sandbox.pod).filter(|other| *other != pod).collect();
        let runs = |role: &str| others.iter().any(|other| other.component.as_str().starts_with(role));
        assert!(!runs("kube-apiserver-"), "an API server runs: {others:?}");
        assert!(!runs("etcd-"), "another member runs: {others:?}");
        let number = self.status().rebuild.unwrap().number;
        assert!(self.has_copy(pod.component.as_str(), number), "the data was not copied");
    }

    /// Whether a member has a copy of its data with this number.
    pub(super) fn has_copy(&self, member: &str, number: u32) -> bool {
        let copy = format!("{}/{member}/data.copy-{number}", self.id());
        self.machines.values().any(|state| state.data.get(&copy).is_some_and(|data| data.used))
    }

    /// Starts a member as etcd does: with data, it goes on with its id.
    fn start(&mut self, pod: &PodName, wanted: &Pod) {
        if self.data.contains_key(pod) {
            return;
        }
        let command = &wanted.containers.last().unwrap().command;
        let flag = |name: &str| command.iter().find_map(|word| word.strip_prefix(&format!("--{name}="))).unwrap();
        let mut initial: BTreeMap<ComponentName, Vec<String>> = BTreeMap::new();
        for (name, url) in flag("initial-cluster").split(',').map(|member| member.split_once('=').unwrap()) {
            initial.entry(name.parse().unwrap()).or_default().push(url.to_owned());
        }
        let own: BTreeSet<String> = initial[&pod.component].iter().cloned().collect();
        let id = if flag("initial-cluster-state") == "existing" {
            match self.store.as_mut().unwrap().start(pod.component.as_str(), &own, &initial) {
                Ok(id) => id,
                // Another member may have been removed since: etcd exits, and starts again.
                Err(_) => return,
            }
        } else {
            let store = self.store.get_or_insert_with(|| StoreModel::new(&initial, flag("initial-cluster-token")));
            let found = store.list().iter().find(|(_, listed)| listed.peer_urls == own);
            *found.unwrap_or_else(|| panic!("{pod} starts again without its data")).0
        };
        self.data.insert(pod.clone(), id);
    }

    /// Replaces the documents by older ones, and recovers them from the machines and, if `asks_store`, from the store.
    pub(super) fn recover(&mut self, backup: &Documents, asks_store: bool) -> Recovery {
        let held =
            self.machines.iter().map(|(name, state)| (name.clone(), ObservedValue::Known(self.held(name, state))));
        let held: BTreeMap<_, _> = held.collect();
        let now = Time(self.now);
        let mut recovery = recover(backup, &held, &BTreeMap::new(), &now);
        if asks_store && !recovery.unobserved_stores.is_empty() {
            self.documents = recovery.documents;
            let stores = self.observe(&calm(3)).stores;
            recovery = recover(backup, &held, &stores, &now);
            assert!(recovery.unobserved_stores.is_empty());
        }
        self.documents = recovery.documents.clone();
        recovery
    }

    fn held(&self, name: &HypervisorName, state: &MachineState) -> HeldMachine {
        let mut state = state.clone();
        let Some(config) = self.configs.get(name) else { return HeldMachine { state, config: HeldConfig::None } };
        state.owner = Some(config.installation.clone());
        state.applied = Some(Applied { term: config.term, generation: config.generation, digest: config.digest() });
        HeldMachine { state, config: HeldConfig::Known(config.clone()) }
    }

    /// Runs passes without faults, and checks that the members become those of the spec. Other components of a lost machine wait for it.
    pub(super) fn settle(&mut self, replicas: u32) {
        let calm = calm(replicas);
        let mut last = self.pass(&calm);
        for _ in 0..100 {
            last = self.pass(&calm);
            let mut waiting = last.waiting.iter().map(|waiting| waiting.subject.to_string());
            if last.decisions.is_empty() && !waiting.any(|subject| subject.starts_with("c1/etcd")) {
                self.check_settled(replicas);
                return;
            }
        }
        let up = self.up(|number| self.works(&calm, number)).into_values().collect();
        let has_majority = self.store.as_ref().unwrap().has_majority(&up);
        let text: Vec<String> = last.waiting.iter().map(ToString::to_string).collect();
        assert!(!has_majority, "{text:#?}\n{:#?}\n{:#?}", self.status(), self.store);
        assert!(last.stores.is_empty());
    }

    fn check_settled(&self, replicas: u32) {
        let store = self.store.as_ref().unwrap();
        let (members, list) = (self.members(), store.list());
        assert_eq!(list.len(), replicas as usize);
        assert!(list.values().all(|listed| !listed.is_learner));
        assert_eq!(store.alarms().next(), None, "no alarm is left");
        let names: BTreeSet<String> = list.values().map(|listed| listed.name.clone()).collect();
        assert_eq!(names, members.keys().map(ToString::to_string).collect());
        let responding = self.machines.iter().enumerate().filter(|(number, _)| !self.lost.contains(number));
        let data = responding.flat_map(|(_, (_, state))| state.pods_with_marked_data());
        // A component whose addition was withdrawn before it started leaves an empty directory.
        // A member that a store was rebuilt from has a copy of its data, too.
        let of_members: BTreeSet<PodName> = data.filter(|pod| self.data.contains_key(pod)).collect();
        assert_eq!(of_members.len(), members.len(), "no data of removed members is left");
        if let Some(servers) = self.servers_of_an_api_server() {
            assert_eq!(servers.split(',').count(), members.len());
        }
    }

    /// The component of the leader, and its machine.
    pub(super) fn leader(&self) -> (ComponentName, HypervisorName) {
        let leader = self.store.as_ref().unwrap().leader().unwrap().to_string();
        let (name, _) = self.status().members.into_iter().find(|(_, member)| member.id == leader).unwrap();
        let machine = self.members()[&name].clone();
        (name, machine)
    }

    /// The `--etcd-servers` of an API server.
    fn servers_of_an_api_server(&self) -> Option<String> {
        let configs = keelway_planner::machine_configs(&self.documents, &self.observe(&calm(3))).unwrap();
        let mut pods = configs.into_values().flat_map(|config| config.pods);
        let (_, pod) = pods.find(|(name, _)| name.component.as_str().starts_with("kube-apiserver-"))?;
        let command = &pod.containers.last()?.command;
        command.iter().find_map(|word| word.strip_prefix("--etcd-servers=")).map(ToOwned::to_owned)
    }

    /// The digest of each running pod.
    pub(super) fn digests(&self) -> BTreeMap<PodName, String> {
        let sandboxes = self.machines.values().flat_map(|state| &state.sandboxes);
        sandboxes.map(|sandbox| (sandbox.pod.clone(), sandbox.digest.clone())).collect()
    }
}
