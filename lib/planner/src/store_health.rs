//! Stores with members that are missing, far behind or corrupt, and stores without a majority. Their clusters report it.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Cluster, Documents, Time,
    cluster::MemberPhase,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    machine::ObservedValue,
    name::{ClusterId, ClusterRef, ComponentName, PodName},
    role::Role,
    store_observation::{ListedMember, MemberAlarm, MemberId, MemberList, MemberReport, StoreObservation},
};

use crate::{
    PassObservation, WaitBlocker, WaitSubject, Waiting, plan::Plan, store_start::members, text::listed,
    verdict::verdict,
};

/// The condition of a Cluster. It exists only while something is wrong with the members of its store.
pub(crate) const MEMBERS_HEALTHY: &str = "EtcdMembersHealthy";

/// How many entries of the log a member may lack. A member that lacks more receives a whole database instead of the entries
/// (`--snapshot-catchup-entries`, whose default is 5000).
pub(crate) const MOST_LAG: u64 = 5000;

/// Reports each store that was observed and has a fault, and waits for the end of the fault. No message contains an index, because every write
/// changes it. A member that does not respond is no fault of its own: its component is not ready, and it may work.
pub(crate) fn plan_store_health(plan: &mut Plan, seen: &PassObservation, now: &Time) {
    let names: Vec<ClusterRef> = plan.documents.clusters.keys().cloned().collect();
    for name in names {
        let Some(cluster) = plan.documents.clusters.get(&name) else { continue };
        let Some(id) = cluster.id().filter(|_| cluster.is_changeable()) else { continue };
        let planned = StoreFault::planned(plan, &name);
        let is_planned = planned.is_some();
        let observed = |store| StoreFault::of(&plan.documents, (id, cluster), store);
        let fault = match (planned, seen.stores.get(id)) {
            (Some(fault), _) => Some(fault),
            (None, Some(store)) => observed(store),
            (None, None) => continue,
        };
        let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        // A document that does not change stays shared.
        if fault.is_none() && !condition::has(conditions, MEMBERS_HEALTHY) {
            continue;
        }
        let says = fault.as_ref().map(StoreFault::verdict);
        // The plan already waits for the end of a fault that it planned for, or the members' own waits report more.
        if let Some(fault) = fault.filter(|_| !is_planned && !is_reported(plan, &name)) {
            plan.wait_in_progress(WaitSubject::Cluster(name.clone()), WaitBlocker::StoreFault(fault.to_string()));
        }
        let Some(cluster) = plan.documents.clusters.get_mut(&name) else { continue };
        let generation = cluster.metadata.generation;
        let conditions = &mut cluster.status.get_or_insert_default().conditions;
        condition::set_or_remove(conditions, MEMBERS_HEALTHY, says, generation, now);
    }
}

fn is_reported(plan: &Plan, cluster: &ClusterRef) -> bool {
    let of_store = |waiting: &Waiting| waiting.subject.is_of_role(cluster, Role::Etcd) && waiting.blocker.is_of_store();
    plan.waiting.iter().any(of_store)
}

/// What is wrong with the members of a store: the first that holds, the worst first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum StoreFault {
    #[error("{0}")]
    Rebuilding(String),
    #[error("{0}")]
    LostQuorum(String),
    #[error("a majority of its etcd members: {} {} not respond or report no leader", listed(.0.iter()), do_or_does(.0))]
    NoMajority(Vec<String>),
    #[error("{} to be replaced: the alarm CORRUPT is raised, and the store accepts no requests", listed(.0.iter()))]
    Corrupt(Vec<String>),
    #[error("{} to be in etcd's member list: the documents record it as a member", listed(.0.iter()))]
    Missing(Vec<String>),
    #[error("{} to leave etcd's member list: no component of the cluster runs it", listed(.0.iter()))]
    Unknown(Vec<String>),
    #[error("{} to receive the log: it is more than {MOST_LAG} entries behind the leader", listed(.0.iter()))]
    Lagging(Vec<String>),
}

fn do_or_does(names: &[String]) -> &'static str {
    if names.len() == 1 { "does" } else { "do" }
}

impl StoreFault {
    /// What the plan waits for because no majority works, or works yet.
    fn planned(plan: &Plan, cluster: &ClusterRef) -> Option<Self> {
        let subject = WaitSubject::Role(cluster.clone(), Role::Etcd);
        plan.waiting.iter().filter(|waiting| waiting.subject == subject).find_map(|waiting| {
            let blocker = &waiting.blocker;
            if matches!(blocker, WaitBlocker::Rebuild { .. }) {
                Some(Self::Rebuilding(blocker.to_string()))
            } else {
                matches!(blocker, WaitBlocker::LostQuorum { .. }).then(|| Self::LostQuorum(blocker.to_string()))
            }
        })
    }

    fn of(documents: &Documents, (id, cluster): (&ClusterId, &Cluster), store: &StoreObservation) -> Option<Self> {
        let some = |names: Vec<String>| Some(names).filter(|names| !names.is_empty());
        let Some(list) = &store.list else {
            // If no member responds, they may all be behind a network that does not reach us.
            let is_shown =
                store.members.values().filter_map(ObservedValue::known).any(|report| report.leader.is_none());
            return some(silent(store)).filter(|_| is_shown).map(Self::NoMajority);
        };
        let corrupt = || some(corrupt(documents, (id, cluster), store)).map(Self::Corrupt);
        let missing = || some(missing(documents, (id, cluster), list)).map(Self::Missing);
        let unknown = || some(unknown(documents, (id, cluster), list)).map(Self::Unknown);
        let lagging = || some(lagging(store)).map(Self::Lagging);
        corrupt().or_else(missing).or_else(unknown).or_else(lagging)
    }

    fn verdict(&self) -> ConditionValue {
        let reason = match self {
            Self::Rebuilding(_) => ConditionReason::StoreRebuilding,
            Self::LostQuorum(_) | Self::NoMajority(_) => ConditionReason::NoMajority,
            Self::Corrupt(_) => ConditionReason::MemberCorrupt,
            Self::Missing(_) => ConditionReason::MemberMissing,
            Self::Unknown(_) => ConditionReason::MemberUnknown,
            Self::Lagging(_) => ConditionReason::MemberLagging,
        };
        verdict(ConditionStatus::False, reason, format!("waits for {self}"))
    }
}

/// Returns the members that do not respond or know no leader.
fn silent(store: &StoreObservation) -> Vec<String> {
    let is_silent = |report: Option<&MemberReport>| report.is_none_or(|report| report.leader.is_none());
    store.members.iter().filter(|(_, seen)| is_silent(seen.known())).map(|(name, _)| name.to_string()).collect()
}

/// Returns the members that raised the alarm, or `a member` if etcd does not know which one differs, or removed it since.
fn corrupt(documents: &Documents, (id, cluster): (&ClusterId, &Cluster), store: &StoreObservation) -> Vec<String> {
    let component = |member: MemberId| {
        let recorded = members(cluster).into_iter().flatten().find(|(_, found)| found.id.parse() == Ok(member));
        let name = recorded.map(|(name, _)| name).filter(|name| {
            let pod = PodName { cluster: id.clone(), component: (*name).clone() };
            documents.components.contains_key(&pod)
        });
        name.map_or_else(|| "a member".to_string(), ToString::to_string)
    };
    let raised = store.alarms().into_iter().filter(|(_, alarm)| *alarm == MemberAlarm::Corrupt);
    raised.map(|(member, _)| component(member)).collect()
}

/// Returns the members that have worked and that the list lacks.
fn missing(documents: &Documents, (id, cluster): (&ClusterId, &Cluster), list: &MemberList) -> Vec<String> {
    let stays = |name: &ComponentName| {
        let pod = PodName { cluster: id.clone(), component: name.clone() };
        documents.components.get(&pod).is_some_and(|component| !component.is_leaving() && !component.is_stopping())
    };
    let is_listed = |id: &str| id.parse().is_ok_and(|id: MemberId| list.contains_key(&id));
    let recorded = members(cluster).into_iter().flatten();
    let worked = recorded.filter(|(name, member)| member.phase == MemberPhase::Started && stays(name));
    worked.filter(|(_, member)| !is_listed(&member.id)).map(|(name, _)| name.to_string()).collect()
}

/// Returns the listed members that have started under a name that no component of the cluster has. A member that was added has no name yet.
fn unknown(documents: &Documents, (id, cluster): (&ClusterId, &Cluster), list: &MemberList) -> Vec<String> {
    let has_component = |member: &ListedMember| {
        documents.components_of(id).any(|(pod, _)| pod.component.as_str() == member.name)
            || members(cluster).into_iter().flatten().any(|(name, _)| name.as_str() == member.name)
    };
    let named = list.values().filter(|member| !member.name.is_empty() && !has_component(member));
    named.map(|member| member.name.clone()).collect()
}

/// Returns the voters that lack too many entries of the log.
fn lagging(store: &StoreObservation) -> Vec<String> {
    let is_voter = |name: &&ComponentName| store.report(name).is_some_and(|report| !report.is_learner);
    let lags = |name: &&ComponentName| lag(store, name).is_some_and(|entries| entries > MOST_LAG);
    store.members.keys().filter(is_voter).filter(lags).map(ToString::to_string).collect()
}

/// Returns how many committed entries a member has not applied. None: it does not respond.
#[must_use]
pub fn lag(store: &StoreObservation, member: &ComponentName) -> Option<u64> {
    let committed = store.members.values().filter_map(ObservedValue::known).map(|report| report.raft_index).max()?;
    Some(committed.saturating_sub(store.report(member)?.applied_index))
}
