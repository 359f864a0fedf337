//! A checker of plans, with one function for each invariant of ARCHITECTURE.md that concerns plans.
//!
//! The checker follows the rules alone. It shares only the documents with the code that it checks.

mod rebuild_check;
mod rotation_check;
mod skew_check;
mod sleep_check;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{
    ByteString, Cluster, Component, Documents, Hypervisor, Secret, Shared,
    cluster::{EtcdMember, EtcdStatus, MemberPhase},
    documents::SecretName,
    hypervisor::HypervisorRole,
    machine::{Amount, MachineConfig, Pod, PortFacts, ServerAdmin, Start},
    membership::{MembershipChange, MembershipChangeKind, MembershipReason},
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    role::{API, Role},
    store_observation::{DatabaseSize, MemberAlarm, MemberId, MemberList, MemberReport, StoreObservation},
    store_rebuild::RebuildPhase,
};

pub use crate::violation::Violation;
use crate::{
    ComponentHealth, PassObservation, Plan, StoreOrder, WaitKind, WaitSubject, Waiting, check_config,
    component_set::are_colocated, machine_configs,
};
use skew_check::versions_keep_their_skew;

/// The documents before and after a plan, and the observation that the plan used.
struct PlanTransition<'a> {
    before: &'a Documents,
    after: &'a Documents,
    seen: &'a PassObservation,
    /// The configs for the machines. Empty: the documents are invalid.
    configs: BTreeMap<HypervisorName, MachineConfig>,
}

type Invariant = fn(&PlanTransition) -> Vec<String>;

const INVARIANTS: [(&str, Invariant); 33] = [
    ("a port of a machine belongs to one component", ports_are_given_once),
    ("a port is assigned from the machine's range, and is not in use", new_ports_are_free),
    ("a cluster has one ingress port, reserved on all public machines", ingress_ports_are_reserved),
    ("a user id belongs to one role of one cluster", users_are_apart),
    ("a placed component never moves", placed_components_stay),
    ("a role runs on its kind of machine", roles_are_on_their_kind),
    ("a gateway is beside the ingress of its number", gateways_are_beside_ingresses),
    ("etcd members share a machine only if no other machine has room", members_are_apart),
    ("the first members of a store are recorded once", first_members_stay),
    ("a member of a store keeps its id and never goes back", members_never_go_back),
    ("a store has one change of its members at a time, which ends when the member list shows it", changes_take_turns),
    ("the members of a store change only while a majority reports the member list", changes_have_a_list),
    ("a member stops and loses its data only after its store removed it", removed_members_stop),
    ("a store is rebuilt step by step, and only after its quorum was lost", rebuild_check::rebuilds_take_steps),
    (
        "a member becomes the only one of its store on copied data, while no API server and no other member runs",
        rebuild_check::forced_starts_are_alone,
    ),
    ("the name of a member is never used again", members_have_new_names),
    ("a client of the API server waits until one was ready, and never again", controllers_start_once),
    ("no component is newer than its version skew allows", versions_keep_their_skew),
    ("a member starts on data that was marked for it", members_start_on_their_data),
    ("nothing is placed on a machine that does not respond, or does not accept components", placements_answer),
    ("nothing is placed on a machine without room for it", placements_have_room),
    (
        "a deleted cluster is in no machine config, except for a store still in use, or while the cluster is paused",
        deleted_clusters_leave,
    ),
    (
        "a component is removed only with its cluster or as surplus; a member of a created store only after its store removed it",
        components_stay,
    ),
    ("replicas of a role are replaced one at a time, while the others work", replicas_take_turns),
    ("an API server is removed only after no ingress sends it connections", servers_are_drained),
    ("a component stays in the documents until its machine was observed without it, or is lost", components_are_known),
    ("the documents of a deleted cluster are removed last", documents_go_last),
    ("Secrets are removed only with their cluster or component", secrets_stay),
    ("a cluster with a created store gets a new authority or key only by a rotation", keys_are_minted_once),
    (
        "a key is used once all that verify run with it, and is removed once none signs with it",
        rotation_check::keys_are_verified,
    ),
    ("a paused or frozen cluster is not changed", clusters_that_are_left_stay),
    ("a cluster falls asleep in order, and keeps its data and its components", sleep_check::clusters_sleep_in_order),
    ("no key is in a spec, a status or an argument list", keys_stay_in_secrets),
];

/// Returns every rule that the change from `before` to `after` breaks. The keys of `after` may be minted or not.
#[must_use]
pub fn check(before: &Documents, after: &Documents, seen: &PassObservation) -> Vec<Violation> {
    let configs = machine_configs(after, seen).unwrap_or_default();
    let step = PlanTransition { before, after, seen, configs };
    let found = |(invariant, broken_by): &(&'static str, Invariant)| {
        let invariant = *invariant;
        broken_by(&step).into_iter().map(move |what| Violation { invariant, what })
    };
    let of_configs = step.configs.iter().filter_map(|(name, config)| Some((name, step.seen.machine(name)?, config)));
    let of_configs = of_configs.flat_map(|(name, state, config)| {
        check_config(after, (name, state), config, |pod| config.pods.contains_key(pod))
    });
    INVARIANTS.iter().flat_map(found).chain(of_configs).collect()
}

/// Returns every missing or surplus replica for which the plan has no wait.
#[must_use]
pub fn check_replicas(plan: &Plan) -> Vec<Violation> {
    let invariant = "replicas are as many as specified, or the plan waits";
    // For a frozen cluster the plan has one wait, which names the cluster itself.
    let stands_still = |name: &ClusterRef| {
        let blocks = |waiting: &Waiting| waiting.delays == Some((name.clone(), WaitKind::Blocked));
        plan.waiting.iter().any(|waiting| blocks(waiting) && waiting.subject == WaitSubject::Cluster(name.clone()))
    };
    let mut found = Vec::new();
    for (name, cluster) in plan.documents.clusters.iter().filter(|(_, cluster)| cluster.is_changeable()) {
        let Some(id) = cluster.id().filter(|_| !lacks_keys(&plan.documents, cluster)) else { continue };
        for role in Role::ALL {
            let there = staying(&plan.documents, id, role);
            let explains = |waiting: &Waiting| waiting.subject.is_of_role(name, role);
            let wanted = if role == Role::Gateway && cluster.spec.has_vpn() {
                staying(&plan.documents, id, Role::Ingress)
            } else {
                cluster.spec.replicas(role) as usize
            };
            if there != wanted && !plan.waiting.iter().any(explains) && !stands_still(name) {
                found.push(format!("{name} has {there} of {wanted} {role}"));
            }
        }
    }
    found.into_iter().map(|what| Violation { invariant, what }).collect()
}

/// Returns every order to a store that is not part of the recorded change, or that may end the majority of the voters.
#[must_use]
pub fn check_stores(plan: &Plan, seen: &PassObservation) -> Vec<Violation> {
    let clusters = plan.documents.clusters.iter();
    let of_cluster = |(name, cluster): (&ClusterRef, &Shared<Cluster>)| {
        let id = cluster.id()?;
        let (order, store) = (plan.stores.get(id)?, etcd(cluster));
        if let StoreOrder::Restore { pod, .. } = order {
            return restore_fault(&pod.component, store).map(|fault| format!("{name}: `{order}` {fault}"));
        }
        let seen = seen.stores.get(id).and_then(|seen| Some((seen, seen.list.as_ref()?)));
        let broken =
            store.zip(seen).map_or(Some("has no member list"), |(store, seen)| order_fault(order, store, seen));
        Some(format!("{name}: `{order}` {}", broken?))
    };
    let invariant = "an order to a store is part of its recorded change and keeps a majority of the voters";
    clusters.filter_map(of_cluster).map(|what| Violation { invariant, what }).collect()
}

/// A member is made from a snapshot only while its store is rebuilt from it, and no member of the store may start.
fn restore_fault(component: &ComponentName, store: Option<&EtcdStatus>) -> Option<&'static str> {
    let rebuild = store.and_then(|store| store.rebuild.as_ref());
    let is_prepared = rebuild.is_some_and(|rebuild| {
        rebuild.member == *component && rebuild.phase == RebuildPhase::Preparing && rebuild.forced_pod.is_none()
    });
    (!is_prepared).then_some("outside of a rebuild that prepares its data")
}

fn order_fault(
    order: &StoreOrder,
    store: &EtcdStatus,
    (seen, list): (&StoreObservation, &MemberList),
) -> Option<&'static str> {
    const READY_PERCENT: u64 = 90;
    let reports = || seen.members.values().filter_map(|report| report.known());
    let is_healthy = |id: &MemberId| reports().any(|report| report.id == *id && report.leader.is_some());
    let voters: Vec<&MemberId> = list.iter().filter(|(_, listed)| !listed.is_learner).map(|(id, _)| id).collect();
    let healthy = |except: Option<&MemberId>| voters.iter().filter(|id| Some(**id) != except && is_healthy(id)).count();
    let belongs = |kind: MembershipChangeKind, component: &ComponentName| {
        store.change.as_ref().is_some_and(|change| (change.kind, &change.component) == (kind, component))
    };
    let newest = reports().filter(|report| !report.is_learner).map(|report| report.raft_index).max();
    match order {
        StoreOrder::AddLearner { component, .. } => {
            let is_calm = healthy(None) == voters.len() && voters.len() == list.len();
            (!belongs(MembershipChangeKind::Add, component) || !is_calm).then_some("while a member is down or learns")
        }
        StoreOrder::Promote { component, id } => {
            let index = reports().find(|report| report.id == *id).map(|report| report.raft_index);
            let is_ready = index.zip(newest).is_some_and(|(own, newest)| own * 100 >= newest * READY_PERCENT);
            let is_safe = (healthy(None) + 1) * 2 > voters.len() + 1;
            (!belongs(MembershipChangeKind::Add, component) || !is_ready || !is_safe).then_some("too early")
        }
        StoreOrder::MoveLeader { to, .. } => (!is_healthy(to)).then_some("to a member that is down"),
        StoreOrder::Remove { component, id, .. } => {
            let is_learner = list.get(id).is_some_and(|listed| listed.is_learner);
            let is_safe = is_learner || (voters.len() > 1 && healthy(Some(id)) * 2 > voters.len() - 1);
            let leads = voters.contains(&id) && seen.leader() == Some(*id);
            (!belongs(MembershipChangeKind::Remove, component) || !is_safe || leads)
                .then_some("while it is needed for a majority")
        }
        StoreOrder::Compact { .. } | StoreOrder::Disarm { .. } | StoreOrder::Defragment { .. } => {
            space_fault(order, store, (seen, list))
        }
        StoreOrder::Restore { .. } => None,
    }
}

fn space_fault(
    order: &StoreOrder,
    store: &EtcdStatus,
    (seen, list): (&StoreObservation, &MemberList),
) -> Option<&'static str> {
    let report =
        |id: &MemberId| seen.members.values().filter_map(|report| report.known()).find(|found| found.id == *id);
    let voters: Vec<&MemberId> = list.iter().filter(|(_, listed)| !listed.is_learner).map(|(id, _)| id).collect();
    match order {
        StoreOrder::Compact { revision } => {
            let recorded = store.space.as_ref().and_then(|space| space.last_compaction.as_ref());
            (recorded.map(|last| last.revision) != Some(*revision)).then_some("is not recorded")
        }
        StoreOrder::Disarm { id, alarm: MemberAlarm::Corrupt } => {
            list.contains_key(id).then_some("while its member may serve corrupt data")
        }
        StoreOrder::Disarm { id, alarm: MemberAlarm::NoSpace } => {
            let is_full = |database: DatabaseSize| database.quota.is_some_and(|quota| database.size >= quota);
            (list.contains_key(id) && report(id).is_none_or(|report| is_full(report.database)))
                .then_some("while its database has no room")
        }
        StoreOrder::Defragment { id, .. } => {
            let beside =
                |other: &&&MemberId| **other != id && report(other).is_some_and(|found| found.leader.is_some());
            let is_alone = voters.len() == 1;
            let is_safe = is_alone || voters.iter().filter(beside).count() * 2 > voters.len();
            (!is_safe || (seen.leader() == Some(*id) && !is_alone)).then_some("while its member is needed")
        }
        StoreOrder::AddLearner { .. }
        | StoreOrder::Promote { .. }
        | StoreOrder::MoveLeader { .. }
        | StoreOrder::Remove { .. }
        | StoreOrder::Restore { .. } => None,
    }
}

fn staying(documents: &Documents, id: &ClusterId, role: Role) -> usize {
    let of_role = documents.components_of(id).filter(|(_, component)| component.spec.role == role);
    of_role.filter(|(_, component)| !component.is_leaving()).count()
}

impl<'a> PlanTransition<'a> {
    fn new_components(&self) -> impl Iterator<Item = (&'a PodName, &'a Component)> {
        let before = self.before;
        let new = self.after.components.iter().filter(move |(pod, _)| !before.components.contains_key(*pod));
        new.map(|(pod, component)| (pod, &**component))
    }

    fn machine(&self, component: &Component) -> Option<&'a Hypervisor> {
        self.after.hypervisors.get(&component.spec.hypervisor).map(|machine| &**machine)
    }

    /// Why a port may not be assigned to a component on a machine. None: it may.
    fn unfit(&self, name: &HypervisorName, machine: &Hypervisor, port: u16, is_named: bool) -> Option<&'static str> {
        let range = machine.spec.port_range;
        let unknown = PortFacts::default();
        let facts = self.seen.machine(name).map_or(&unknown, |state| &state.ports);
        if is_named && facts.unprivileged_from.is_some_and(|from| port < from) {
            Some("for root only")
        } else if !is_named && !(range.from..=range.to).contains(&port) {
            Some("outside of portRange")
        } else if facts.ephemeral.is_some_and(|(from, to)| (from..=to).contains(&port)) {
            Some("in the ephemeral range")
        } else if facts.listening.contains(&port) {
            Some("in use")
        } else {
            None
        }
    }

    /// Ports that components had before the plan or have after it.
    fn held(&self, name: &HypervisorName) -> BTreeSet<u16> {
        let all = self.before.components.values().chain(self.after.components.values());
        let here = all.filter(|component| component.spec.hypervisor == *name);
        here.flat_map(|component| component.spec.ports.values().copied()).collect()
    }

    /// Whether the machine of the component is marked as lost.
    fn is_lost(&self, component: &Component) -> bool {
        self.before.hypervisors.get(&component.spec.hypervisor).is_some_and(|machine| machine.is_lost())
    }

    /// Whether nothing is expected of the component any more: its machine is lost and was not observed.
    fn is_given_up(&self, component: &Component) -> bool {
        self.seen.machine(&component.spec.hypervisor).is_none() && self.is_lost(component)
    }

    /// Whether the cluster is paused or frozen.
    fn is_left(&self, cluster: &Cluster) -> bool {
        cluster.spec.paused || cluster.id().is_some_and(|id| self.seen.frozen_clusters(self.after).contains_key(id))
    }

    /// Whether the component runs, or may run because its machine was not observed.
    fn runs(&self, pod: &PodName, component: &Component) -> bool {
        let state = self.seen.machine(&component.spec.hypervisor);
        state.is_none_or(|state| state.sandboxes.iter().any(|sandbox| sandbox.pod == *pod))
    }
}

fn ports_are_given_once(step: &PlanTransition) -> Vec<String> {
    let mut owners = BTreeMap::new();
    let mut found = Vec::new();
    for (pod, component) in &step.after.components {
        for port in component.spec.ports.values() {
            if let Some(other) = owners.insert((&component.spec.hypervisor, port), pod) {
                found.push(format!("{port} of {} has {other} and {pod}", component.spec.hypervisor));
            }
        }
    }
    found
}

fn new_ports_are_free(step: &PlanTransition) -> Vec<String> {
    let mut found = Vec::new();
    for (pod, component) in &step.after.components {
        let Some(machine) = step.machine(component) else { continue };
        let before = step.before.components.get(pod);
        let had = |name: &str| before.is_some_and(|before| before.spec.ports.contains_key(name));
        for (_, port) in component.spec.ports.iter().filter(|(name, _)| !had(name)) {
            let cluster = step.after.clusters.get(&component.spec.cluster);
            let is_named = cluster.is_some_and(|cluster| cluster.spec.ingress.port == Some(*port));
            if let Some(why) = step.unfit(&component.spec.hypervisor, machine, *port, is_named) {
                found.push(format!("{pod} has {port} of {}, which is {why}", component.spec.hypervisor));
            }
        }
    }
    found
}

fn ingress_port(cluster: &Cluster) -> Option<u16> {
    cluster.status.as_ref()?.ingress_port
}

fn ingress_ports_are_reserved(step: &PlanTransition) -> Vec<String> {
    let mut found = Vec::new();
    let mut owners: BTreeMap<u16, &ClusterRef> = BTreeMap::new();
    for (name, cluster) in &step.after.clusters {
        let before = step.before.clusters.get(name).and_then(|cluster| ingress_port(cluster));
        let Some(port) = ingress_port(cluster) else {
            found.extend(before.map(|port| format!("{name} lost {port}")));
            continue;
        };
        found.extend(owners.insert(port, name).map(|other| format!("{other} and {name} both have {port}")));
        found.extend(before.filter(|before| *before != port).map(|before| format!("{name} changed from {before}")));
        if before.is_none() {
            found.extend(
                unfit_on_public(step, port, cluster.spec.ingress.port == Some(port))
                    .map(|(machine, why)| format!("{port} of {name} on {machine}: {why}")),
            );
        }
    }
    for (pod, component) in &step.after.components {
        let public = step.machine(component).is_some_and(|machine| machine.spec.role == HypervisorRole::Public);
        let own = step.after.clusters.get(&component.spec.cluster).and_then(|cluster| ingress_port(cluster));
        if component.spec.role == Role::Ingress && component.spec.ports.get(API).copied() != own {
            found.push(format!("{pod} does not have its cluster's port"));
        }
        let taken = component.spec.ports.values().filter(|port| public && Some(**port) != own);
        found.extend(taken.filter_map(|port| Some(format!("{pod} has {port} of {}", owners.get(port)?))));
    }
    found
}

fn unfit_on_public<'a>(
    step: &PlanTransition<'a>,
    port: u16,
    is_named: bool,
) -> impl Iterator<Item = (&'a HypervisorName, &'static str)> {
    let public = step.after.hypervisors.iter().filter(|(_, machine)| machine.spec.role == HypervisorRole::Public);
    public.filter_map(move |(name, machine)| Some((name, step.unfit(name, machine, port, is_named)?)))
}

fn users_are_apart(step: &PlanTransition) -> Vec<String> {
    let mut owner_of: BTreeMap<u32, (&ClusterId, Role)> = BTreeMap::new();
    let mut user_of: BTreeMap<(&ClusterId, Role), u32> = BTreeMap::new();
    let mut found = Vec::new();
    for (pod, component) in &step.after.components {
        let (user, owner) = (component.spec.user, (&pod.cluster, component.spec.role));
        if *owner_of.entry(user).or_insert(owner) != owner {
            found.push(format!("{pod} has {user} of another role or cluster"));
        }
        if *user_of.entry(owner).or_insert(user) != user {
            found.push(format!("{pod} has {user}, others of its role do not"));
        }
        if user == 0 {
            found.push(format!("{pod} is root"));
        }
    }
    found
}

fn placed_components_stay(step: &PlanTransition) -> Vec<String> {
    let both = step.before.components.iter().filter_map(|(pod, old)| Some((pod, old, step.after.components.get(pod)?)));
    let moved = both.filter(|(_, old, new)| {
        let place = |component: &Component| {
            let spec = &component.spec;
            (spec.hypervisor.clone(), spec.user, spec.role, spec.index, spec.cluster.clone())
        };
        let has_lost = |(name, port): (&String, &u16)| new.spec.ports.get(name) != Some(port);
        place(old) != place(new) || old.spec.ports.iter().any(has_lost)
    });
    moved.map(|(pod, ..)| pod.to_string()).collect()
}

fn roles_are_on_their_kind(step: &PlanTransition) -> Vec<String> {
    let wrong = |(pod, component): (&PodName, &Component)| {
        let kind = step.machine(component).map(|machine| machine.spec.role);
        (kind != Some(component.spec.role.row().runs_on)).then(|| format!("{pod} on {}", component.spec.hypervisor))
    };
    step.new_components().filter_map(wrong).collect()
}

fn gateways_are_beside_ingresses(step: &PlanTransition) -> Vec<String> {
    // From stale documents nothing is planned, so a manual change of them is not corrected.
    if step.seen.stale() {
        return Vec::new();
    }
    let gateways = step.after.components.iter();
    let gateways = gateways.filter(|(_, component)| component.spec.role == Role::Gateway && !component.is_stopping());
    let alone = gateways.filter(|(pod, gateway)| {
        let cluster = step.after.clusters.get(&gateway.spec.cluster);
        let mut ingresses = step.after.components_of(&pod.cluster).map(|(_, component)| &component.spec);
        let beside = ingresses.any(|spec| {
            (spec.role, spec.index) == (Role::Ingress, gateway.spec.index) && spec.hypervisor == gateway.spec.hypervisor
        });
        // If a person removes a gateway of a paused or frozen cluster, it is not restored.
        let is_restored =
            |cluster: &Cluster| !cluster.deleted() && !step.is_left(cluster) && !lacks_keys(step.after, cluster);
        !beside && cluster.is_some_and(|cluster| is_restored(cluster))
    });
    alone.map(|(pod, _)| pod.to_string()).collect()
}

fn members_are_apart(step: &PlanTransition) -> Vec<String> {
    let mut found = Vec::new();
    for (pod, member) in step.new_components().filter(|(_, component)| component.spec.role == Role::Etcd) {
        let holds = |name: &HypervisorName| {
            let members = step.after.components_of(&pod.cluster).filter(|(_, other)| other.spec.role == Role::Etcd);
            members.filter(|(_, other)| other.spec.hypervisor == *name).count()
        };
        if holds(&member.spec.hypervisor) < 2 {
            continue;
        }
        let free = step.after.hypervisors.iter().find(|(name, machine)| {
            let open = !machine.spec.unschedulable && !machine.spec.drain;
            let right = machine.spec.role == HypervisorRole::Private && open && accepts_work(step, name);
            right && holds(name) == 0 && has_room(step, name, machine, Role::Etcd.row().ports.len())
        });
        found.extend(free.map(|(free, _)| format!("{pod} on {} and not on {free}", member.spec.hypervisor)));
    }
    found
}

fn has_room(step: &PlanTransition, name: &HypervisorName, machine: &Hypervisor, ports: usize) -> bool {
    // A component that leaves in this step still uses its share.
    let left = step.before.components.iter().filter(|(pod, _)| !step.after.components.contains_key(pod));
    let all = step.after.components.iter().chain(left).map(|(_, component)| component);
    let here = all.filter(|component| component.spec.hypervisor == *name);
    let used = here.fold(Role::Etcd.row().requests, |sum, component| sum.and(component.spec.role.row().requests));
    let capacity = step.seen.machine(name).and_then(|state| state.capacity);
    if capacity.is_some_and(|capacity| !capacity.allocatable().holds(used)) {
        return false;
    }
    let held = step.held(name);
    let range = machine.spec.port_range;
    let free = |port: &u16| !held.contains(port) && step.unfit(name, machine, *port, false).is_none();
    (range.from..=range.to).filter(free).nth(ports - 1).is_some()
}

fn first_members_stay(step: &PlanTransition) -> Vec<String> {
    let store = |cluster: &Cluster| {
        let store = cluster.status.as_ref()?.etcd.clone()?;
        Some((store.born_at, store.initial_cluster))
    };
    // A store that is restored has another id from then on. If the restored data is lost, members report the id of theirs.
    let id = |cluster: &Cluster| etcd(cluster).and_then(|store| store.cluster_id.clone());
    let is_restored = |cluster: &Cluster| {
        let rebuild = etcd(cluster).and_then(|store| store.rebuild.as_ref());
        rebuild.is_some_and(|rebuild| rebuild.phase == RebuildPhase::Preparing)
    };
    let is_withdrawn = |old: &Cluster, new: &Cluster| {
        etcd(old).zip(etcd(new)).is_some_and(|(old, new)| rebuild_check::withdraws_a_restore(old, new))
            && id(new).is_none()
    };
    let both = step.before.clusters.iter().filter_map(|(name, old)| Some((name, old, step.after.clusters.get(name)?)));
    let changed = both.filter(|(_, old, new)| {
        store(old).is_some_and(|before| {
            store(new) != Some(before) || (id(old) != id(new) && !is_restored(old) && !is_withdrawn(old, new))
        })
    });
    changed.map(|(name, ..)| name.to_string()).collect()
}

fn members_never_go_back(step: &PlanTransition) -> Vec<String> {
    let member = |documents: &Documents, cluster: &ClusterRef, name: &ComponentName| {
        documents.clusters.get(cluster)?.status.as_ref()?.etcd.as_ref()?.members.get(name).cloned()
    };
    let members = step.before.components.iter().filter(|(pod, _)| step.after.components.contains_key(pod));
    let back = members.filter(|(pod, component)| {
        let of = |documents| member(documents, &component.spec.cluster, &pod.component);
        let (Some(old), new) = (of(step.before), of(step.after)) else { return false };
        new.is_none_or(|new| new.id != old.id || new.phase < old.phase)
    });
    back.map(|(pod, _)| pod.to_string()).collect()
}

fn etcd(cluster: &Cluster) -> Option<&EtcdStatus> {
    cluster.status.as_ref()?.etcd.as_ref()
}

/// Whether a store has removed a member, or never had it.
fn is_removed_member(cluster: &Cluster, pod: &PodName) -> bool {
    etcd(cluster).is_none_or(|store| {
        let name = &pod.component;
        let is_first = store.initial_cluster.contains_key(name);
        store.members.get(name).map_or(!is_first || store.next_index.is_some(), EtcdMember::is_removed)
    })
}

/// The stores before and after a plan, with the member list of which the plan knew.
fn stores<'a>(
    step: &PlanTransition<'a>,
) -> impl Iterator<Item = (&'a ClusterRef, &'a EtcdStatus, &'a EtcdStatus, Option<&'a MemberList>)> {
    let (before, after, seen) = (step.before, step.after, step.seen);
    let living = after.clusters.iter().filter(|(_, cluster)| !cluster.deleted());
    living.filter_map(move |(name, cluster)| {
        let list = seen.stores.get(cluster.id()?).and_then(|store| store.list.as_ref());
        Some((name, etcd(before.clusters.get(name)?)?, etcd(cluster)?, list))
    })
}

fn lists(list: &MemberList, id: &str) -> bool {
    id.parse().is_ok_and(|id: MemberId| list.contains_key(&id))
}

/// Whether the member list shows that a change is over: it took effect, or it was given up before it did.
fn is_over(store: &EtcdStatus, change: &MembershipChange, list: &MemberList) -> bool {
    let listed = list.values().find(|listed| listed.peer_urls.iter().eq(&change.peer_urls));
    match change.kind {
        MembershipChangeKind::Add => listed.is_none_or(|listed| !listed.is_learner),
        MembershipChangeKind::Remove => {
            store.members.get(&change.component).is_none_or(|member| !lists(list, &member.id))
        }
    }
}

fn changes_take_turns(step: &PlanTransition) -> Vec<String> {
    let broken = stores(step).filter(|(name, before, after, list)| {
        // A rebuild keeps it, and a rebuilt store has other members.
        let is_rebuilt = before.rebuilt != after.rebuilt;
        let Some(change) = before.change.as_ref().filter(|_| !is_rebuilt) else { return false };
        let continues = after.change.as_ref().is_some_and(|now| now.component == change.component);
        !continues && !list.is_some_and(|list| is_over(before, change, list)) && !is_withdrawn(step, name, change)
    });
    broken.map(|(name, ..)| name.to_string()).collect()
}

/// Whether a removal without a loss was withdrawn because a majority would end with it.
fn is_withdrawn(step: &PlanTransition, cluster: &ClusterRef, change: &MembershipChange) -> bool {
    let seen = step.after.clusters.get(cluster).and_then(|cluster| step.seen.stores.get(cluster.id()?));
    let Some((seen, list)) = seen.and_then(|seen| Some((seen, seen.list.as_ref()?))) else { return false };
    let voters = list.values().filter(|listed| !listed.is_learner).count();
    let others = seen.members.iter().filter(|(name, _)| **name != change.component);
    let is_voter =
        |report: &&MemberReport| report.leader.is_some() && !report.is_learner && list.contains_key(&report.id);
    let healthy = others.filter_map(|(_, report)| report.known()).filter(is_voter).count();
    let has_returned = change.reason != MembershipReason::DataCorrupt
        && seen.report(&change.component).is_some_and(|report| report.leader.is_some());
    let may_be_withdrawn = !change.reason.is_loss() || has_returned;
    change.kind == MembershipChangeKind::Remove && may_be_withdrawn && healthy * 2 <= voters.saturating_sub(1)
}

fn changes_have_a_list(step: &PlanTransition) -> Vec<String> {
    let is_blind = |(_, before, after, list): &(&ClusterRef, &EtcdStatus, &EtcdStatus, Option<&MemberList>)| {
        // A rebuilt store has other members.
        list.is_none() && before.change != after.change && before.rebuilt == after.rebuilt
    };
    let blind = stores(step).filter(is_blind);
    blind.map(|(name, ..)| name.to_string()).collect()
}

fn removed_members_stop(step: &PlanTransition) -> Vec<String> {
    let mut found = Vec::new();
    for (cluster, before, after, list) in stores(step) {
        for (name, member) in &after.members {
            let was_ordered = before.members.get(name).is_some_and(|before| before.removal.is_some());
            let is_listed = list.is_none_or(|list| lists(list, &member.id));
            let is_retired = rebuild_check::retires(step, cluster, (before, after), name);
            if member.removal.is_some() && !was_ordered && is_listed && !is_retired {
                found.push(format!("{cluster}: the data of {name}"));
            }
        }
    }
    let stopping = step.after.components.iter().filter(|(pod, component)| {
        let was_stopping = step.before.components.get(*pod).is_none_or(|before| before.is_stopping());
        component.spec.role == Role::Etcd && component.is_stopping() && !was_stopping
    });
    let early = stopping.filter(|(pod, component)| {
        let cluster = step.after.clusters.get(&component.spec.cluster).filter(|cluster| !cluster.deleted());
        cluster.is_some_and(|cluster| etcd(cluster).is_some() && !is_removed_member(cluster, pod))
    });
    found.extend(early.map(|(pod, _)| pod.to_string()));
    found
}

fn members_have_new_names(step: &PlanTransition) -> Vec<String> {
    let new = step.new_components().filter(|(pod, component)| {
        let store = step.before.clusters.get(&component.spec.cluster).and_then(|cluster| etcd(cluster));
        let is_used = |store: &EtcdStatus| {
            store.initial_cluster.contains_key(&pod.component)
                || store.members.contains_key(&pod.component)
                || component.spec.index < store.next_index.unwrap_or_default()
        };
        component.spec.role == Role::Etcd && store.is_some_and(is_used)
    });
    new.map(|(pod, _)| pod.to_string()).collect()
}

fn controllers_start_once(step: &PlanTransition) -> Vec<String> {
    let initialized = |documents: &Documents, cluster: &ClusterRef| {
        let status = documents.clusters.get(cluster).and_then(|cluster| cluster.status.as_ref());
        status.and_then(|status| status.initialization.as_ref()).is_some_and(|found| found.control_plane_initialized)
    };
    let back =
        step.after.clusters.keys().filter(|name| initialized(step.before, name) && !initialized(step.after, name));
    let configs = machine_configs(step.after, step.seen).unwrap_or_default();
    let pods = configs.values().flat_map(|config| &config.pods);
    let wrong = pods.filter(|(name, pod)| {
        let Some(component) = step.after.components.get(name) else { return false };
        let waits = pod.start.waits();
        match component.spec.role {
            Role::KubeControllerManager | Role::KubeScheduler | Role::ClusterController | Role::FleetController => {
                waits == initialized(step.after, &component.spec.cluster)
            }
            Role::Etcd | Role::KubeApiserver | Role::Ingress | Role::Gateway => false,
        }
    });
    back.map(ToString::to_string).chain(wrong.map(|(name, _)| name.to_string())).collect()
}

/// Checks the configs for the machines.
fn members_start_on_their_data(step: &PlanTransition) -> Vec<String> {
    let pods = step.configs.iter().flat_map(|(machine, config)| config.pods.iter().map(move |pod| (machine, pod)));
    let members = pods.filter(|(_, (pod, _))| pod.component.as_str().starts_with("etcd-"));
    let loose = members.filter(|(machine, (name, pod))| {
        let marked = step.seen.machine(machine).is_some_and(|state| state.data_of(name, "data").marked);
        let known = step.before.components.get(name).and_then(|component| {
            let store = step.before.clusters.get(&component.spec.cluster)?.status.as_ref()?.etcd.as_ref()?;
            Some(store.members.get(&name.component)?.phase)
        });
        let first = known.is_none_or(|phase| phase == MemberPhase::Pending);
        let stays_down = pod.start.waits() || pod.start.stops();
        pod.start == Start::Always || (first && !marked && !stays_down)
    });
    loose.map(|(machine, (pod, _))| format!("{pod} on {machine}")).collect()
}

/// Whether a machine responds and has free disk space.
fn accepts_work(step: &PlanTransition, name: &HypervisorName) -> bool {
    step.seen.machine(name).is_some_and(|state| !state.disk_pressure)
}

fn placements_answer(step: &PlanTransition) -> Vec<String> {
    let silent = step.new_components().filter(|(_, component)| {
        let closed = step.machine(component).is_some_and(|machine| machine.spec.unschedulable || machine.spec.drain);
        closed || !accepts_work(step, &component.spec.hypervisor)
    });
    silent.map(|(pod, component)| format!("{pod} on {}", component.spec.hypervisor)).collect()
}

fn placements_have_room(step: &PlanTransition) -> Vec<String> {
    let machines: BTreeSet<&HypervisorName> =
        step.new_components().map(|(_, component)| &component.spec.hypervisor).collect();
    let mut found = Vec::new();
    for name in machines {
        let Some(capacity) = step.seen.machine(name).and_then(|state| state.capacity) else { continue };
        let here = step.after.components.values().filter(|component| component.spec.hypervisor == *name);
        let used = here.fold(Amount::default(), |sum, component| sum.and(component.spec.role.row().requests));
        if !capacity.allocatable().holds(used) {
            found.push(format!("{name} has {} and is given {used}", capacity.allocatable()));
        }
    }
    found
}

fn deleted_clusters_leave(step: &PlanTransition) -> Vec<String> {
    let pods = step.configs.values().flat_map(|config| config.pods.keys());
    pods.filter(|pod| {
        let Some(component) = step.after.components.get(pod) else { return true };
        let cluster = step.after.clusters.get(&component.spec.cluster);
        let deleted = cluster.is_none_or(|cluster| cluster.deleted() && !step.is_left(cluster));
        let asked = step
            .after
            .components_of(&pod.cluster)
            .any(|(server, other)| other.spec.role == Role::KubeApiserver && step.runs(server, other));
        deleted && !(component.spec.role == Role::Etcd && asked)
    })
    .map(ToString::to_string)
    .collect()
}

fn components_stay(step: &PlanTransition) -> Vec<String> {
    let gone = step.before.components.iter().filter(|(pod, _)| !step.after.components.contains_key(pod));
    gone.filter(|(pod, component)| {
        let Some(cluster) = step.before.clusters.get(&component.spec.cluster) else { return true };
        let born = cluster.status.as_ref().is_some_and(|status| status.etcd.is_some());
        let of_role = step.after.components_of(cluster.id().unwrap_or(&component.spec.cluster_id));
        let stay = of_role.filter(|(_, other)| other.spec.role == component.spec.role && !other.is_leaving()).count();
        let surplus = stay >= cluster.spec.replicas(component.spec.role) as usize;
        let ingress_goes = !step
            .after
            .components_of(&component.spec.cluster_id)
            .filter(|(_, other)| other.spec.role == Role::Ingress && !other.is_leaving())
            .any(|(_, other)| are_colocated(&other.spec, &component.spec));
        let may_go = match component.spec.role {
            Role::Etcd if born => is_removed_member(cluster, pod),
            Role::Gateway => ingress_goes || !cluster.spec.has_vpn(),
            Role::Etcd
            | Role::KubeApiserver
            | Role::KubeControllerManager
            | Role::KubeScheduler
            | Role::ClusterController
            | Role::FleetController
            | Role::Ingress => surplus,
        };
        !cluster.deleted() && !may_go
    })
    .map(|(pod, _)| pod.to_string())
    .collect()
}

fn servers_are_drained(step: &PlanTransition) -> Vec<String> {
    let of_role = |role: Role| step.before.components.iter().filter(move |(_, component)| component.spec.role == role);
    let goes_on = |pod: &PodName| step.after.components.get(pod).is_some_and(|component| !component.is_stopping());
    let gone = of_role(Role::KubeApiserver).filter(|(pod, component)| !component.is_stopping() && !goes_on(pod));
    gone.filter(|(pod, component)| {
        let stays = step.after.clusters.get(&component.spec.cluster).is_some_and(|cluster| !cluster.deleted());
        let mut ingresses = of_role(Role::Ingress).filter(|(ingress, _)| ingress.cluster == pod.cluster);
        stays
            && ingresses.any(|(ingress, at)| {
                let Some(state) = step.seen.machine(&at.spec.hypervisor) else { return !step.is_lost(at) };
                let name = format!("kube-apiserver/{}", pod.component);
                let server = state.servers.get(ingress).and_then(|servers| servers.get(&name));
                server.is_some_and(|server| server.admin == ServerAdmin::Serves)
            })
    })
    .map(|(pod, _)| pod.to_string())
    .collect()
}

/// Checks the configs for the machines.
fn replicas_take_turns(step: &PlanTransition) -> Vec<String> {
    let well = |pod: &PodName| matches!(step.seen.health.get(pod), Some(ComponentHealth::Healthy));
    let mut found = Vec::new();
    for (name, cluster) in step.after.clusters.iter().filter(|(_, cluster)| cluster.is_awake()) {
        let Some(id) = cluster.id() else { continue };
        for role in [Role::Etcd, Role::KubeApiserver, Role::Ingress, Role::Gateway] {
            // One member runs, and the others are stopped.
            if role == Role::Etcd && etcd(cluster).is_some_and(|store| store.rebuild.is_some()) {
                continue;
            }
            let of_role = step.after.components_of(id).filter(|(_, component)| component.spec.role == role);
            let all: Vec<(&PodName, &Component)> = of_role.filter(|(_, component)| !component.is_stopping()).collect();
            let free: Vec<&PodName> = all
                .iter()
                .filter(|(pod, component)| {
                    let config = step.configs.get(&component.spec.hypervisor);
                    config.and_then(|config| config.pods.get(*pod)).is_some_and(|pod| !pod.hold)
                })
                .map(|(pod, _)| *pod)
                .collect();
            if all.len() > 1 && free.len() > 1 {
                found.push(format!("{name}: more than one of its {role}"));
            }
            let Some(pod) = free.first().filter(|_| all.len() > 1 && all.iter().any(|(pod, _)| well(pod))) else {
                continue;
            };
            let mut others = all.iter().map(|(other, _)| *other).filter(|other| other != pod);
            let enough = if role == Role::Etcd { others.all(well) } else { others.any(well) };
            if !enough {
                found.push(format!("{pod} while others are not well"));
            }
            let is_sent = || cluster.has_immediate_rotation() || others_are_sent_connections(step, id, pod);
            if role == Role::KubeApiserver && !is_sent() {
                found.push(format!("{pod} while an ingress sends connections to no other"));
            }
        }
    }
    found
}

/// Whether every haproxy that sends connections to an API server also sends some to another one.
fn others_are_sent_connections(step: &PlanTransition, id: &ClusterId, server: &PodName) -> bool {
    let ingresses = step.after.components_of(id).filter(|(_, component)| component.spec.role == Role::Ingress);
    let mut servers = ingresses.filter_map(|(ingress, component)| {
        let state = step.seen.machine(&component.spec.hypervisor)?;
        state.servers.get(ingress)
    });
    let own = format!("kube-apiserver/{}", server.component);
    servers.all(|servers| {
        let serving: Vec<&String> = servers.iter().filter(|(_, found)| found.serves()).map(|(name, _)| name).collect();
        serving != [&own]
    })
}

/// A paused or frozen cluster keeps its components with their stages, its store and its Secrets, and its running pods continue.
fn clusters_that_are_left_stay(step: &PlanTransition) -> Vec<String> {
    let mut found = Vec::new();
    for (name, cluster) in step.before.clusters.iter().filter(|(_, cluster)| step.is_left(cluster)) {
        let Some(id) = cluster.id() else { continue };
        let place = |(pod, component): (&PodName, &Component)| (pod.clone(), component.spec.clone(), component.stage());
        let parts = |of: &Documents| of.components_of(id).map(place).collect::<Vec<_>>();
        let store = |of: &Documents| of.clusters.get(name).and_then(|cluster| cluster.status.as_ref()?.etcd.clone());
        let is_same = parts(step.before) == parts(step.after)
            && store(step.before) == store(step.after)
            && step.before.secrets_of(id).eq(step.after.secrets_of(id));
        let pods = step.configs.iter().flat_map(|(machine, config)| config.pods.iter().map(move |pod| (machine, pod)));
        let is_replaced = |machine: &HypervisorName, name: &PodName, pod: &Pod| {
            let state = step.seen.machine(machine);
            !pod.hold && state.is_some_and(|state| state.is_interrupted(name, (pod, &pod.digests())))
        };
        let mut own = pods.filter(|(_, (pod, _))| pod.cluster == *id);
        let goes_on = own.all(|(machine, (name, pod))| !is_replaced(machine, name, pod));
        let ended = step.configs.iter().flat_map(|(machine, config)| {
            let running = step.seen.machine(machine).into_iter().flat_map(|state| &state.sandboxes);
            let of_it = running.map(|sandbox| &sandbox.pod).filter(|pod| pod.cluster == *id);
            of_it.filter(|pod| !config.pods.contains_key(*pod) && !config.others.contains(id))
        });
        if !is_same || !goes_on || ended.count() > 0 {
            found.push(name.to_string());
        }
    }
    found
}

/// A component that runs without a document may still receive requests, and it holds keys.
fn components_are_known(step: &PlanTransition) -> Vec<String> {
    let gone = step.before.components.iter().filter(|(pod, _)| !step.after.components.contains_key(pod));
    gone.filter(|(pod, component)| {
        let stays = step.after.clusters.get(&component.spec.cluster).is_some_and(|cluster| !cluster.deleted());
        stays && step.runs(pod, component) && !step.is_given_up(component)
    })
    .map(|(pod, _)| pod.to_string())
    .collect()
}

fn documents_go_last(step: &PlanTransition) -> Vec<String> {
    let gone = step.before.clusters.iter().filter(|(name, _)| !step.after.clusters.contains_key(name));
    gone.filter(|(_, cluster)| {
        let Some(id) = cluster.id() else { return true };
        let mut components = step.before.components_of(id);
        !cluster.deleted()
            || components.any(|(pod, component)| step.runs(pod, component) && !step.is_given_up(component))
    })
    .map(|(name, _)| name.to_string())
    .collect()
}

fn secrets_stay(step: &PlanTransition) -> Vec<String> {
    let gone = step.before.secrets.keys().filter(|name| !step.after.secrets.contains_key(name));
    gone.filter(|name| {
        let of_cluster = |cluster: &Shared<Cluster>| cluster.id().is_some_and(|id| id.namespace() == name.namespace);
        let cluster_stays = step.after.clusters.values().any(of_cluster);
        let of_component =
            |pod: &&PodName| pod.cluster.namespace() == name.namespace && pod.component.as_str() == name.name;
        let component_went =
            step.before.components.keys().any(|pod| of_component(&pod) && !step.after.components.contains_key(pod));
        // An ingress has a certificate only while its cluster sleeps.
        let is_of_ingress = |(pod, component): (&PodName, &Shared<Component>)| {
            let cluster = step.after.clusters.get(&component.spec.cluster);
            let is_awake = cluster.is_some_and(|cluster| !cluster.is_sleeping());
            component.spec.role == Role::Ingress && of_component(&pod) && is_awake
        };
        cluster_stays && !component_went && !step.after.components.iter().any(is_of_ingress)
    })
    .map(|name| format!("{}/{}", name.namespace, name.name))
    .collect()
}

/// The Secrets that are minted once in a cluster's life.
const MINTED_ONCE: [&str; 6] =
    ["kubernetes-ca", "etcd-ca", "front-proxy-ca", "infrastructure-ca", "service-account", "encryption"];

/// The keys of a cluster whose store is created. None: the key is missing in the documents.
fn keys<'a>(documents: &'a Documents, cluster: &'a Cluster) -> impl Iterator<Item = Option<&'a Shared<Secret>>> {
    let born = cluster.status.as_ref().is_some_and(|status| status.etcd.is_some());
    let id = cluster.id().filter(|_| born && !cluster.deleted());
    id.into_iter().flat_map(|id| MINTED_ONCE.map(|name| documents.secrets.get(&SecretName::of(id, name))))
}

fn keys_are_minted_once(step: &PlanTransition) -> Vec<String> {
    let stay = step.before.clusters.iter().filter(|(name, _)| step.after.clusters.contains_key(*name));
    let is_same = |cluster: &Cluster| {
        let (before, after) = (keys(step.before, cluster), keys(step.after, cluster));
        before.zip(after).zip(MINTED_ONCE).all(|((before, after), name)| match (before, after) {
            (Some(before), Some(after)) => {
                without_bundle(before) == without_bundle(after) || rotation_check::is_step(name, before, after)
            }
            (before, after) => before.is_none() == after.is_none(),
        })
    };
    stay.filter(|(_, cluster)| !is_same(cluster)).map(|(name, _)| name.to_string()).collect()
}

/// The values of a Secret without its bundle, which is derived from them.
fn without_bundle(secret: &Secret) -> Vec<(&String, &ByteString)> {
    secret.data.iter().flatten().filter(|(key, _)| !key.starts_with("bundle.")).collect()
}

/// Whether a cluster lacks an authority or a key. Such a cluster is not reconciled until a person restores the key.
/// Before the members of its store are recorded, the record of what was minted shows that.
fn lacks_keys(documents: &Documents, cluster: &Cluster) -> bool {
    let mut recorded = cluster.status.iter().flat_map(|status| status.minted.keys());
    let is_missing =
        |name: &String| cluster.id().is_some_and(|id| !documents.secrets.contains_key(&SecretName::of(id, name)));
    keys(documents, cluster).any(|key| key.is_none()) || recorded.any(is_missing)
}

fn keys_stay_in_secrets(step: &PlanTransition) -> Vec<String> {
    let text = public_text(step);
    let mut found = Vec::new();
    for (name, secret) in &step.after.secrets {
        let public = |name: &str| name.rsplit_once('.').is_some_and(|(_, kind)| matches!(kind, "crt" | "pub"));
        let keys = secret.data.iter().flatten().filter(|(name, _)| !public(name));
        for (key, value) in keys {
            if forms(&value.0).iter().any(|form| text.contains(form.as_str())) {
                found.push(format!("{}/{} {key}", name.namespace, name.name));
            }
        }
    }
    found
}

/// Everything that people may read: documents without Secrets, and the commands of containers.
fn public_text(step: &PlanTransition) -> String {
    let documents = step.after;
    let mut texts: Vec<String> = Vec::new();
    texts.extend(documents.hypervisors.values().filter_map(|document| serde_json::to_string(document).ok()));
    texts.extend(documents.clusters.values().filter_map(|document| serde_json::to_string(document).ok()));
    texts.extend(documents.components.values().filter_map(|document| serde_json::to_string(document).ok()));
    let pods = step.configs.values().flat_map(|config| config.pods.values());
    texts.extend(pods.flat_map(|pod| &pod.containers).flat_map(|container| container.command.iter().cloned()));
    texts.join("\n")
}

/// The forms in which a key may appear in a text: as Base64, or each of its lines.
fn forms(key: &[u8]) -> Vec<String> {
    const SHORTEST_LINE: usize = 16;
    let text = core::str::from_utf8(key).unwrap_or_default();
    let lines = text.lines().filter(|line| line.len() >= SHORTEST_LINE && !line.starts_with("-----"));
    lines.map(ToString::to_string).chain((!key.is_empty()).then(|| STANDARD.encode(key))).collect()
}
