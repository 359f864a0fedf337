//! Stores that run out of space. Their clusters report it before the store refuses writes, and while it does.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Time,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    machine::DatabaseRoom,
    name::{ClusterId, ClusterRef, PodName},
    quantity::Memory,
    role::Role,
    store_observation::MemberAlarm,
};

use crate::{
    PassObservation, WaitBlocker, WaitSubject, Waiting, plan::Plan, store_queries::has_store, text::listed,
    verdict::verdict,
};

/// The condition of a Cluster. It exists only while a store lacks space.
pub(crate) const HAS_ROOM: &str = "EtcdHasRoom";

/// Reports each cluster whose store is near its quota or refuses writes. No message contains the size of the database, because the size
/// changes with every write.
pub(crate) fn plan_room(plan: &mut Plan, seen: &PassObservation, now: &Time) {
    let names: Vec<ClusterRef> = plan.documents.clusters.keys().cloned().collect();
    for name in names {
        let Some(cluster) = plan.documents.clusters.get(&name) else { continue };
        let Some(id) = cluster.id().filter(|_| cluster.is_awake()) else { continue };
        let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let is_told = condition::has(conditions, HAS_ROOM);
        let quota = cluster.spec.etcd.quota();
        let subject = WaitSubject::Role(name.clone(), Role::Etcd);
        let is_observed = seen.stores.contains_key(id) || cluster.spec.paused || !has_store(cluster);
        let asks = |waiting: &Waiting| waiting.subject == subject && waiting.blocker == WaitBlocker::FilledQuota;
        let is_filled = plan.waiting.iter().any(asks);
        let says = match StoreRoom::of(plan, seen, (id, quota)).room_status((quota, is_told), is_filled) {
            RoomStatus::Nothing => continue,
            // A document that does not change stays shared.
            RoomStatus::HasRoom if !is_told => continue,
            RoomStatus::HasRoom => None,
            RoomStatus::Verdict(verdict) => Some(verdict),
        };
        if says.is_some() && !is_observed {
            // The next pass observes the store, because the condition is reported, and decides whether space can be freed.
            plan.wait_in_progress(subject, WaitBlocker::MemberList);
        }
        let Some(cluster) = plan.documents.clusters.get_mut(&name) else { continue };
        let generation = cluster.metadata.generation;
        let conditions = &mut cluster.status.get_or_insert_default().conditions;
        condition::set_or_remove(conditions, HAS_ROOM, says, generation, now);
    }
}

enum RoomStatus {
    /// The last report stays, because not all members were observed.
    Nothing,
    HasRoom,
    Verdict(ConditionValue),
}

/// The members of a store, each with the room in its database. None: the member was not observed.
struct StoreRoom(Vec<(String, Option<DatabaseRoom>)>);

impl StoreRoom {
    fn of(plan: &Plan, seen: &PassObservation, (id, quota): (&ClusterId, Memory)) -> Self {
        let components = plan.documents.components_of(id);
        let members = components.filter(|(_, component)| component.spec.role == Role::Etcd && !component.is_stopping());
        let has_alarm = |pod: &PodName| {
            let report = seen.stores.get(id).and_then(|store| store.report(&pod.component));
            report.is_some_and(|report| report.alarms.contains(&MemberAlarm::NoSpace))
        };
        let room = |(pod, machine): (&PodName, _)| {
            if has_alarm(pod) {
                return Some(DatabaseRoom::NoSpace);
            }
            let state = seen.machines.get(machine).and_then(|seen| seen.known())?;
            state.figures.get(pod)?.database_room(quota)
        };
        Self(
            members
                .map(|(pod, component)| (pod.component.to_string(), room((pod, &component.spec.hypervisor))))
                .collect(),
        )
    }

    /// A store that was near its quota has room again below three quarters of it. The gap avoids a new report each time that the size crosses
    /// one threshold. If the data in use fills the quota, a person makes room.
    fn room_status(&self, (quota, is_told): (Memory, bool), is_filled: bool) -> RoomStatus {
        let near = if is_told { DatabaseRoom::Less } else { DatabaseRoom::NearQuota };
        let (full, nearly) = (self.members_at_least(DatabaseRoom::NoSpace), self.members_at_least(near));
        if !full.is_empty() {
            let remedy = if is_filled {
                format!(
                    "; the data in use fills the quota of {quota}: increase spec.etcd.quota, or delete objects, and Keelway disarms the alarm"
                )
            } else {
                String::new()
            };
            let message = format!(
                "{}: the alarm NOSPACE is raised, and the API server accepts no writes but deletions until it is disarmed{remedy}",
                listed(full.iter().copied())
            );
            return RoomStatus::Verdict(verdict(ConditionStatus::False, ConditionReason::NoSpace, message));
        }
        if !nearly.is_empty() {
            let message =
                format!("{}: most of the quota of {quota} is used (spec.etcd.quota)", listed(nearly.iter().copied()));
            return RoomStatus::Verdict(verdict(ConditionStatus::False, ConditionReason::NearQuota, message));
        }
        if self.0.iter().all(|(_, room)| room.is_some()) { RoomStatus::HasRoom } else { RoomStatus::Nothing }
    }

    fn members_at_least(&self, mark: DatabaseRoom) -> Vec<&String> {
        let short = self.0.iter().filter(|(_, room)| room.is_some_and(|room| room >= mark));
        short.map(|(name, _)| name).collect()
    }
}
