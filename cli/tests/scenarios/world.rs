//! Worlds as the initial state of scenarios: the real planner, minter and machine model, with machines in memory.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Cluster, Component, ComponentHealth, Documents, Hypervisor, Observation, Time,
    jiff::{SignedDuration, Timestamp},
    machine::{ContainerPhase, DataState, ObservedValue, PortFacts, ServerAdmin, ServerState, UnreachableReason},
    membership::MembershipReason,
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    role::{EGRESS, Role},
    rotation::{RotatedKey, RotationPhase},
    sleep::SleepPhase,
    store_observation::MemberId,
    store_rebuild::RebuildPhase,
};
use keelway_machine::{action::Action, converge::model::MachineModel};
use keelway_planner::{FirstBindings, StoreOrder, changes_members, identify, machine_configs, store_model::StoreModel};
use keelway_reconciler::{Minter, PkiMinter, PlanPreview, preview_offline};
use rand::{SeedableRng, rngs::StdRng};

/// 2026-01-01T00:00:00Z.
const BEGINNING: i64 = 1_767_225_600;
/// More passes than any change needs.
const MOST_PASSES: usize = 40;

/// Documents, machines, and faults that change how the machines are observed.
#[derive(Clone)]
pub(super) struct World {
    pub(super) documents: Documents,
    pub(super) machines: BTreeMap<HypervisorName, MachineModel>,
    pub(super) now: Timestamp,
    /// Machines that do not respond, with the reason.
    silent: BTreeMap<HypervisorName, (UnreachableReason, String)>,
    /// Components that run and are not healthy.
    ill: BTreeSet<PodName>,
    /// Ports that processes of others use.
    strangers: BTreeMap<HypervisorName, BTreeSet<u16>>,
    /// Clusters whose bindings exist.
    bound: BTreeSet<String>,
    /// The store of each cluster whose members have started.
    pub(super) stores: BTreeMap<ClusterId, StoreModel>,
    /// Clusters with a store that is near its quota.
    nearly_full: BTreeSet<ClusterId>,
    /// The seed for keys and ids.
    seed: u64,
}

/// Returns the container of a component that listens on the port of this name.
fn container_of(component: &Component, port: &str) -> &'static str {
    if port == EGRESS { EGRESS } else { component.spec.role.row().name }
}

/// The components of one role of a cluster.
fn of_role<'a>(documents: &'a Documents, id: &'a ClusterId, role: Role) -> impl Iterator<Item = &'a PodName> {
    documents.components_of(id).filter(move |(_, component)| component.spec.role == role).map(|(pod, _)| pod)
}

/// Limits which of its actions each machine executes.
pub(super) type Reach = fn(&HypervisorName, Vec<Action>) -> Vec<Action>;

impl World {
    /// Reads documents, assigns ids, and creates empty machines.
    pub(super) fn new(text: &str) -> Self {
        let mut documents = Documents::read(text.as_bytes()).unwrap();
        let mut number = 0;
        identify(&mut documents, || {
            number += 1;
            format!("c{number:015x}")
        })
        .unwrap();
        let machines = documents.hypervisors.keys().map(|name| (name.clone(), MachineModel::empty())).collect();
        Self {
            documents,
            machines,
            now: Timestamp::from_second(BEGINNING).unwrap(),
            silent: BTreeMap::new(),
            ill: BTreeSet::new(),
            strangers: BTreeMap::new(),
            bound: BTreeSet::new(),
            stores: BTreeMap::new(),
            nearly_full: BTreeSet::new(),
            seed: 1,
        }
    }

    /// Adds new documents, and their machines.
    pub(super) fn read(&mut self, text: &str) {
        let new = Documents::read(text.as_bytes()).unwrap();
        for (name, document) in new.hypervisors {
            self.machines.entry(name.clone()).or_insert_with(MachineModel::empty);
            self.documents.hypervisors.get_or_insert_with(name, || document);
        }
        self.documents.classes.extend(new.classes);
        self.documents.clusters.extend(new.clusters);
        let mut number = 0xc0;
        identify(&mut self.documents, || {
            number += 1;
            format!("c{number:015x}")
        })
        .unwrap();
    }

    /// Returns the observation of a pass at this time.
    pub(super) fn look(&self) -> Observation {
        let mut seen = Observation::at(Time(self.now));
        for (name, machine) in &self.machines {
            seen.hypervisors.insert(name.clone(), self.machine_seen(name, machine));
        }
        for (pod, component) in &self.documents.components {
            let health = self.health(pod, component);
            seen.health.entry(pod.cluster.clone()).or_default().insert(pod.component.clone(), health);
        }
        for cluster in self.documents.clusters.values().filter(|cluster| !cluster.deleted()) {
            let Some(id) = cluster.id() else { continue };
            let mut servers = self.documents.components_of(id);
            let is_up = servers.any(|(pod, server)| {
                server.spec.role == Role::KubeApiserver && self.health(pod, server) == ComponentHealth::Healthy
            });
            let told = match (is_up, self.bound.contains(id.as_str())) {
                (false, _) => ObservedValue::unreachable("its API is not ready"),
                (true, true) => ObservedValue::Known(FirstBindings::of(&cluster.spec).digest()),
                (true, false) => ObservedValue::Known(String::new()),
            };
            seen.bindings.insert(id.clone(), told);
            let members = || of_role(&self.documents, id, Role::Etcd).map(|pod| pod.component.clone());
            let is_asked = |store: &&StoreModel| {
                let recorded = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
                let lacks_one = recorded.is_some_and(|etcd| etcd.staying_members().count() > store.list().len());
                let is_wrong = lacks_one || store.alarms().next().is_some();
                is_wrong || self.nearly_full.contains(id) || changes_members(&self.documents, cluster)
            };
            let store = self.stores.get(id).filter(is_asked);
            seen.stores.extend(store.map(|store| (id.clone(), store.observe(members(), &self.members(id)))));
        }
        seen
    }

    /// The members of a store that work, by component.
    fn members(&self, id: &ClusterId) -> BTreeMap<ComponentName, MemberId> {
        let store = self.stores.get(id).unwrap();
        let works = |pod: &&PodName| {
            let component = &self.documents.components[*pod];
            self.health(pod, component) == ComponentHealth::Healthy
        };
        let named = |pod: &PodName| {
            let found = store.list().iter().find(|(_, listed)| listed.name == pod.component.as_str());
            Some((pod.component.clone(), *found?.0))
        };
        of_role(&self.documents, id, Role::Etcd).filter(works).filter_map(named).collect()
    }

    /// Starts members, executes the orders of a plan, and lets the members catch up.
    fn change_stores(&mut self, orders: &BTreeMap<ClusterId, StoreOrder>) {
        for cluster in self.documents.clusters.values() {
            let (Some(id), Some(status)) = (cluster.id(), &cluster.status) else { continue };
            let Some(etcd) = &status.etcd else { continue };
            let new = || StoreModel::new(&etcd.initial_cluster, id.as_str());
            let store = self.stores.entry(id.clone()).or_insert_with(new);
            for (name, start) in
                etcd.members.iter().filter_map(|(name, member)| Some((name, member.started_with.as_ref()?)))
            {
                let pod = PodName { cluster: id.clone(), component: name.clone() };
                let runs = self.machines.values().any(|machine| machine.state.runs(&pod));
                let urls = start.initial_cluster[name].iter().cloned().collect();
                // A member that has started before keeps its id.
                let _ = runs.then(|| store.start(name.as_str(), &urls, &start.initial_cluster));
            }
        }
        self.force_members();
        for id in self.stores.keys().cloned().collect::<Vec<_>>() {
            let up = self.members(&id).into_values().collect();
            let store = self.stores.get_mut(&id).unwrap();
            if let Some(order) = orders.get(&id) {
                store.execute(order, &up).unwrap();
            }
            store.tick(&up, &BTreeSet::new());
        }
    }

    /// Makes each member that runs with `--force-new-cluster` the only one of its store.
    fn force_members(&mut self) {
        for cluster in self.documents.clusters.values() {
            let (Some(id), Some(status)) = (cluster.id(), &cluster.status) else { continue };
            let Some((etcd, rebuild)) = status.etcd.as_ref().and_then(|etcd| Some((etcd, etcd.rebuild.as_ref()?)))
            else {
                continue;
            };
            let pod = PodName { cluster: id.clone(), component: rebuild.member.clone() };
            let runs = self.machines.values().any(|machine| machine.state.runs(&pod));
            if runs && rebuild.phase == RebuildPhase::Starting {
                let member = etcd.members[&rebuild.member].id.parse().unwrap();
                self.stores.get_mut(id).unwrap().force(member);
            }
        }
    }

    fn machine_seen(
        &self,
        name: &HypervisorName,
        machine: &MachineModel,
    ) -> ObservedValue<keelway_api::machine::MachineState> {
        if let Some((silent, why)) = self.silent.get(name) {
            return ObservedValue::Unreachable { silent: *silent, why: why.clone() };
        }
        let mut state = machine.state.clone();
        let here = self.documents.components.iter().filter(|(_, component)| component.spec.hypervisor == *name);
        let ours = here.flat_map(|(pod, component)| {
            let ports = component.spec.ports.iter();
            ports.filter(|(port, _)| state.runs_container(pod, container_of(component, port))).map(|(_, port)| port)
        });
        let strangers = self.strangers.get(name).into_iter().flatten();
        let listening = ours.chain(strangers).copied().collect();
        state.ports = PortFacts { ephemeral: Some((32768, 60999)), unprivileged_from: Some(1024), listening };
        ObservedValue::Known(state)
    }

    fn health(&self, pod: &PodName, component: &Component) -> ComponentHealth {
        let machine = self.machines.get(&component.spec.hypervisor);
        let runs = machine.is_some_and(|machine| machine.state.runs_container(pod, component.spec.role.row().name));
        if self.silent.get(&component.spec.hypervisor).is_some_and(|(silent, _)| *silent == UnreachableReason::Asked) {
            ComponentHealth::Unhealthy("no route to host".to_owned())
        } else if !runs {
            ComponentHealth::Unhealthy("connection refused".to_owned())
        } else if self.ill.contains(pod) {
            ComponentHealth::Unhealthy("/readyz answers 500".to_owned())
        } else {
            ComponentHealth::Healthy
        }
    }

    /// Returns the plan of the next pass.
    pub(super) fn preview(&self) -> PlanPreview {
        let mut minter = PkiMinter::new(StdRng::seed_from_u64(self.seed));
        assert_eq!(minter.id().len(), 16);
        preview_offline(&self.documents, self.look(), &mut minter).unwrap()
    }

    /// Runs one pass. Returns whether nothing was left to do.
    pub(super) fn pass(&mut self) -> bool {
        self.pass_that_reaches(|_, actions| actions)
    }

    /// Runs a pass that ends early: its documents are saved, and only some of the actions are executed.
    pub(super) fn pass_that_reaches(&mut self, reach: Reach) -> bool {
        let preview = self.preview();
        self.seed += 1;
        let settled = preview.settled();
        let seen = keelway_planner::PassObservation::of(self.look(), BTreeMap::new());
        self.bound.extend(preview.plan.bindings.iter().map(|id| id.as_str().to_owned()));
        let configs = machine_configs(&preview.plan.documents, &seen).unwrap();
        let orders = preview.plan.stores.clone();
        self.documents = preview.plan.documents;
        for (name, actions) in preview.machines {
            let machine = self.machines.get_mut(&name).unwrap();
            machine.execute(&reach(&name, actions.unwrap()));
            let pods = configs.get(&name).into_iter().flat_map(|config| &config.pods);
            for (pod, wanted) in pods {
                let runs = machine.state.runs(pod);
                for data in wanted.data.iter().filter(|_| runs) {
                    let found: &mut DataState = machine.state.data.entry(format!("{pod}/{data}")).or_default();
                    found.used = true;
                }
                if let Some(servers) = wanted.servers.as_ref().filter(|_| runs) {
                    let serves =
                        |address| ServerState { address, admin: ServerAdmin::Serves, sessions: 0, ready: false };
                    let started = servers.addresses.iter().map(|(name, at)| (name.clone(), serves(*at))).collect();
                    machine.state.servers.entry(pod.clone()).or_insert(started);
                }
            }
            let running: BTreeSet<PodName> = machine.state.sandboxes.iter().map(|found| found.pod.clone()).collect();
            machine.state.servers.retain(|pod, _| running.contains(pod));
        }
        self.change_stores(&orders);
        settled
    }

    /// Runs passes until the next one orders this of a store.
    pub(super) fn pass_until_ordered(&mut self, order: &str) {
        for _ in 0..MOST_PASSES {
            if self.preview().plan.stores.values().any(|found| found.to_string().starts_with(order)) {
                return;
            }
            self.pass();
        }
        panic!("it is not ordered: {:?}", self.preview().plan.waiting);
    }

    /// Runs passes until the rebuild of the store of c1 has reached a phase, or is over.
    pub(super) fn pass_until_phase(&mut self, wanted: Option<RebuildPhase>) {
        for _ in 0..MOST_PASSES {
            self.pass();
            let etcd = self.cluster("c1").status.as_ref().and_then(|status| status.etcd.as_ref()).unwrap();
            if etcd.rebuild.as_ref().map(|rebuild| rebuild.phase) == wanted {
                return;
            }
        }
        panic!("it does not reach {wanted:?}: {:?}", self.preview().plan.waiting);
    }

    /// Runs passes until the rotation of a key of c1 has reached a phase.
    pub(super) fn pass_until_rotation(&mut self, key: RotatedKey, wanted: RotationPhase) {
        for _ in 0..MOST_PASSES {
            self.pass();
            if self.cluster("c1").rotation(key).is_some_and(|rotation| rotation.phase == wanted) {
                return;
            }
        }
        panic!("it does not reach {wanted}: {:?}", self.preview().plan.waiting);
    }

    /// Runs passes until c1 sleeps.
    pub(super) fn pass_until_asleep(&mut self) {
        for _ in 0..MOST_PASSES {
            if self.cluster("c1").sleep_phase() == Some(SleepPhase::Asleep) {
                return;
            }
            self.pass();
        }
        panic!("it does not sleep: {:?}", self.preview().plan.waiting);
    }

    /// Runs passes until nothing is left to do.
    pub(super) fn settle(mut self) -> Self {
        for _ in 0..MOST_PASSES {
            if self.pass() {
                return self;
            }
        }
        panic!("it does not settle: {:?}", self.preview().plan.waiting);
    }

    /// Returns the store of a cluster.
    pub(super) fn store(&mut self, cluster: &str) -> &mut StoreModel {
        let id = self.cluster(cluster).id().unwrap().clone();
        self.stores.get_mut(&id).unwrap()
    }

    /// Returns etcd's id of a member, such as `c1/etcd-0`.
    pub(super) fn member(&mut self, name: &str) -> MemberId {
        let (cluster, component) = name.split_once('/').unwrap();
        let listed = self.store(cluster).list().iter().find(|(_, listed)| listed.name == component);
        *listed.unwrap().0
    }

    /// Removes a member of etcd, as `etcdctl member remove` does.
    pub(super) fn remove_as_another_client(&mut self, name: &str) {
        let id = self.member(name);
        let (cluster, component) = name.split_once('/').unwrap();
        let reason = MembershipReason::Replicas;
        let order = StoreOrder::Remove { component: component.parse().unwrap(), id, reason };
        let store = self.store(cluster);
        let up = store.list().keys().copied().collect();
        store.execute(&order, &up).unwrap();
        store.tick(&up, &BTreeSet::new());
    }

    /// Fills the file of a store's members. Most of the file is free.
    pub(super) fn fragment(&mut self, cluster: &str) {
        let id = self.cluster(cluster).id().unwrap().clone();
        self.nearly_full.insert(id);
        let store = self.store(cluster);
        store.write(5, 80);
        store.compact_as_clients_do();
    }

    pub(super) fn cluster(&mut self, name: &str) -> &mut Cluster {
        let name = ClusterRef { namespace: "default".to_owned(), name: name.to_owned() };
        self.documents.clusters.get_mut(&name).unwrap()
    }

    pub(super) fn hypervisor(&mut self, name: &str) -> &mut Hypervisor {
        self.documents.hypervisors.get_mut(&name.parse().unwrap()).unwrap()
    }

    pub(super) fn machine(&mut self, name: &str) -> &mut MachineModel {
        self.machines.get_mut(&name.parse().unwrap()).unwrap()
    }

    /// Returns the pod of a component, such as `c1/etcd-0`.
    pub(super) fn pod(&self, name: &str) -> PodName {
        let (cluster, component) = name.split_once('/').unwrap();
        let found = self
            .documents
            .components
            .iter()
            .find(|(pod, document)| document.spec.cluster.name == cluster && pod.component.as_str() == component);
        found.unwrap().0.clone()
    }

    /// Returns the name of the machine that holds a component.
    pub(super) fn place_of(&self, name: &str) -> String {
        self.documents.components[&self.pod(name)].spec.hypervisor.to_string()
    }

    pub(super) fn silence(&mut self, machine: &str, silent: UnreachableReason, why: &str) {
        self.silent.insert(machine.parse().unwrap(), (silent, why.to_owned()));
    }

    pub(super) fn make_ill(&mut self, component: &str) {
        let pod = self.pod(component);
        self.ill.insert(pod);
    }

    pub(super) fn occupy(&mut self, machine: &str, port: u16) {
        self.strangers.entry(machine.parse().unwrap()).or_default().insert(port);
    }

    /// Makes the main container of a component exit.
    pub(super) fn end(&mut self, component: &str, code: i32) {
        let name = self.documents.components[&self.pod(component)].spec.role.row().name;
        self.end_container(component, name, code);
    }

    /// Makes one container of a component exit.
    pub(super) fn end_container(&mut self, component: &str, name: &str, code: i32) {
        let (pod, place) = (self.pod(component), self.place_of(component));
        let state = &mut self.machine(&place).state;
        let sandbox = state.sandboxes.iter().find(|sandbox| sandbox.pod == pod).unwrap().id.clone();
        let mut containers = state.containers.iter_mut();
        let container = containers.find(|found| found.sandbox == sandbox && found.name == name).unwrap();
        container.phase = ContainerPhase::Exited { code };
    }

    /// Changes the API servers to those of a release without egress.
    pub(super) fn take_egress(&mut self, cluster: &str) {
        let of_cluster = self.documents.components.iter_mut();
        let servers = of_cluster.filter(|(_, found)| found.spec.role == Role::KubeApiserver);
        for (pod, component) in servers.filter(|(_, found)| found.spec.cluster.name == cluster) {
            component.spec.ports.remove(EGRESS).unwrap();
            let state = &mut self.machines.get_mut(&component.spec.hypervisor).unwrap().state;
            let sandbox = state.sandboxes.iter_mut().find(|sandbox| sandbox.pod == *pod).unwrap();
            "of the last release".clone_into(&mut sandbox.digest);
            state.containers.retain(|found| found.sandbox != sandbox.id || found.name != EGRESS);
            state.files.retain(|path, _| !path.starts_with(&format!("{pod}/")) || !path.contains(EGRESS));
            state.data.remove(&format!("{pod}/{EGRESS}"));
        }
    }

    pub(super) fn wait(&mut self, hours: i64) {
        self.now += SignedDuration::from_hours(hours);
    }

    /// Removes everything from a machine.
    pub(super) fn empty(&mut self, machine: &str) {
        *self.machine(machine) = MachineModel::empty();
    }
}
