//! API servers that still use a member that leaves its store.

use alloc::collections::BTreeMap;

use keelway_api::{
    Cluster, Time,
    jiff::SignedDuration,
    membership::MembershipChangeKind,
    name::{ClusterId, ComponentName},
};

use super::{StoreContext, change_store, store};
use crate::{ComponentRef, StoreOrder, WaitBlocker, WaitKind, WaitSubject, Waiting, plan::Plan};

/// The first API server of each cluster that runs with the member that leaves, by cluster.
pub type OutdatedServers = BTreeMap<ClusterId, ComponentName>;

/// Whether a removal waits until API servers have stopped using the member. One that is lost serves none of their requests.
pub(crate) fn is_awaited(cluster: &Cluster) -> bool {
    let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
    let change = store.and_then(|store| store.change.as_ref());
    change.is_some_and(|change| change.kind == MembershipChangeKind::Remove && !change.reason.is_loss())
}

/// How long API servers wait for a change. A learner may never catch up, and what else changes must reach API servers.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// Returns the member after whose change API servers are replaced: one that is being added, or that is lost, so that another one is added after it. An
/// API server would be replaced twice otherwise. It serves with the members that it has.
pub(crate) fn changed_before_servers(cluster: &Cluster) -> Option<&ComponentName> {
    // A rebuild starts them before it ends, and drops or continues the change afterwards.
    let store = cluster.status.as_ref()?.etcd.as_ref().filter(|store| store.rebuild.is_none())?;
    let change = store.change.as_ref()?;
    let waits = change.api_servers_wait_since.is_some() && !cluster.has_immediate_rotation();
    waits.then_some(&change.component)
}

/// Ends the wait of API servers once it has lasted too long.
pub(super) fn end_wait(plan: &mut Plan, at: StoreContext<'_>) {
    let change = store(&plan.documents, at).and_then(|store| store.change.as_ref());
    let Some(Time(since)) = change.and_then(|change| change.api_servers_wait_since.clone()) else { return };
    let end = since.checked_add(LONGEST_WAIT).unwrap_or(at.now);
    if end > at.now {
        plan.due = Some(plan.due.map_or(end, |due| due.min(end)));
        return;
    }
    change_store(plan, at, |store| {
        if let Some(change) = &mut store.change {
            change.api_servers_wait_since = None;
        }
    });
}

impl Plan {
    /// Gate 7: withholds each order that would end the service of a member that API servers still use. Call it after
    /// [`crate::Configs`] decided which API servers are to be replaced, and before the orders are executed.
    pub fn hold_store_orders(&mut self, outdated: &OutdatedServers) {
        for (id, server) in outdated {
            let Some(StoreOrder::Remove { component, .. }) = self.stores.get(id) else { continue };
            let component = component.clone();
            self.stores.remove(id);
            let cluster = self.documents.clusters.iter().find(|(_, cluster)| cluster.id() == Some(id));
            let Some(cluster) = cluster.map(|(name, _)| name.clone()) else { continue };
            let subject = WaitSubject::Component(ComponentRef { cluster, component });
            let is_order = |waiting: &Waiting| matches!(waiting.blocker, WaitBlocker::StoreOrder(_));
            let is_own = |waiting: &Waiting| waiting.subject == subject && is_order(waiting);
            self.waiting.retain(|waiting| !is_own(waiting));
            let blocker = WaitBlocker::ServerOfMember(server.clone());
            self.waiting.push(Waiting::of_cluster(subject, WaitKind::InProgress, blocker));
        }
    }
}
