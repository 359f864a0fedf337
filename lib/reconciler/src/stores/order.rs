//! Executes an order to a store. It decides only whether the order has taken effect already, as after a crash or through another driver.

use std::collections::BTreeSet;

use keelway_api::{machine::ObservedValue, name::ComponentName};
use keelway_etcd_client::{EtcdAlarm, EtcdClient, EtcdError};
use keelway_planner::{MemberAlarm, MemberId, MemberList, StoreObservation, StoreOrder};

use super::{
    Members,
    observation::{observe, working_voters},
};

/// An order could not be executed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreOrderError {
    #[error("no etcd member confirms the member list: a majority of the members must work")]
    NoList,
    #[error("no etcd member has the ID {0}")]
    NoMember(MemberId),
    #[error("no etcd member responds that can execute it")]
    NobodyResponds,
    #[error(transparent)]
    Request(#[from] EtcdError),
}

/// Executes an order, unless it has already taken effect.
pub(crate) async fn execute(members: &Members, order: &StoreOrder) -> Result<(), StoreOrderError> {
    let store = observe(members).await;
    let list = store.list.as_ref().ok_or(StoreOrderError::NoList)?;
    if has_taken_effect(order, &store, list)? {
        return Ok(());
    }
    let through = executor(order, &store).ok_or(StoreOrderError::NobodyResponds)?;
    let Some(Ok(client)) = members.get(through) else { return Err(StoreOrderError::NobodyResponds) };
    Ok(send(client, order).await?)
}

fn has_taken_effect(order: &StoreOrder, store: &StoreObservation, list: &MemberList) -> Result<bool, StoreOrderError> {
    Ok(match order {
        StoreOrder::AddLearner { peer_urls, .. } => {
            let urls: BTreeSet<String> = peer_urls.iter().cloned().collect();
            list.values().any(|member| member.peer_urls == urls)
        }
        StoreOrder::Promote { id, .. } => !list.get(id).ok_or(StoreOrderError::NoMember(*id))?.is_learner,
        StoreOrder::MoveLeader { from, .. } => store.leader().is_some_and(|leader| leader != *from),
        StoreOrder::Remove { id, .. } => !list.contains_key(id),
        StoreOrder::Disarm { id, alarm } => !store.alarms().contains(&(*id, *alarm)),
        // etcd responds whether it was compacted, and an agent whether there is data.
        StoreOrder::Compact { .. } | StoreOrder::Restore { .. } => false,
        StoreOrder::Defragment { id, size, .. } => {
            let mut reports = store.members.values().filter_map(ObservedValue::known);
            reports.any(|report| report.id == *id && report.database.size < *size)
        }
    })
}

/// Returns the member that executes an order: a certain one, or the leader, or another voter that knows the leader.
fn executor<'a>(order: &StoreOrder, store: &'a StoreObservation) -> Option<&'a ComponentName> {
    let voters = working_voters(store);
    let of = |id: &MemberId| voters.iter().find(|(_, report)| report.id == *id).map(|(name, _)| *name);
    match order {
        StoreOrder::MoveLeader { from, .. } => of(from),
        StoreOrder::Defragment { id, .. } => store
            .members
            .iter()
            .find(|(_, seen)| seen.known().is_some_and(|report| report.id == *id))
            .map(|(name, _)| name),
        StoreOrder::Remove { id, .. } => voters.iter().find(|(_, report)| report.id != *id).map(|(name, _)| *name),
        // It needs a machine, and no member.
        StoreOrder::Restore { .. } => None,
        StoreOrder::AddLearner { .. }
        | StoreOrder::Promote { .. }
        | StoreOrder::Disarm { .. }
        | StoreOrder::Compact { .. } => voters.first().map(|(name, _)| *name),
    }
}

async fn send(client: &EtcdClient, order: &StoreOrder) -> Result<(), EtcdError> {
    match order {
        StoreOrder::AddLearner { peer_urls, .. } => client.add_learner(peer_urls.clone()).await.map(drop),
        StoreOrder::Promote { id, .. } => client.promote(id.0).await,
        StoreOrder::MoveLeader { to, .. } => client.move_leader(to.0).await,
        StoreOrder::Remove { id, .. } => client.remove(id.0).await,
        StoreOrder::Disarm { id, alarm } => client.disarm(id.0, etcd_alarm(*alarm)).await,
        StoreOrder::Compact { revision } => compact(client, *revision).await,
        StoreOrder::Defragment { .. } => client.defragment().await,
        StoreOrder::Restore { .. } => Ok(()),
    }
}

/// A store that was compacted up to the revision or a later one needs no compaction.
async fn compact(client: &EtcdClient, revision: u64) -> Result<(), EtcdError> {
    match client.compact(i64::try_from(revision).unwrap_or(i64::MAX)).await {
        Err(error) if error.is_compacted() => Ok(()),
        done => done,
    }
}

fn etcd_alarm(alarm: MemberAlarm) -> EtcdAlarm {
    match alarm {
        MemberAlarm::NoSpace => EtcdAlarm::NoSpace,
        MemberAlarm::Corrupt => EtcdAlarm::Corrupt,
    }
}

#[cfg(test)]
mod tests;
