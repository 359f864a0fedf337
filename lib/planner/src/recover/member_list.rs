//! Aligns the members of a store in the documents with the member list of a majority, and with what the members report.

use alloc::{
    collections::BTreeSet,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    cluster::{EtcdMember, EtcdStatus, RemovalReason},
    membership::{MemberStart, MembershipChange, MembershipChangeKind, MembershipReason},
    name::{ComponentName, HypervisorName},
    store_observation::{ListedMember, MemberId, MemberList, StoreObservation},
};

use super::store::{HeldMember, index_of};

/// What differed between the documents and the member list.
#[derive(Default)]
pub(super) struct MemberAlignment {
    pub(super) added: Vec<ComponentName>,
    pub(super) removed: BTreeSet<ComponentName>,
    /// Members that no document and no machine that responds names.
    pub(super) unknown: Vec<(MemberId, String)>,
}

/// Whether members that work report the id of this store. A store whose id is not recorded takes the one that they report.
pub(super) fn is_same_store(store: &EtcdStatus, seen: &StoreObservation) -> bool {
    let recorded = store.cluster_id.as_ref().and_then(|id| id.parse::<MemberId>().ok());
    let reported = seen.members.values().filter_map(|report| Some(report.known()?.cluster_id));
    reported.into_iter().all(|id| recorded.is_none_or(|recorded| recorded == id))
}

/// Aligns the members with the list. `machine_of` returns the machine of a component.
pub(super) fn align(
    store: &mut EtcdStatus,
    members: &[HeldMember],
    (seen, list): (&StoreObservation, &MemberList),
    machine_of: impl Fn(&ComponentName) -> Option<HypervisorName>,
) -> MemberAlignment {
    let mut found = MemberAlignment::default();
    if store.cluster_id.is_none() {
        let reported = seen.members.values().find_map(|report| Some(report.known()?.cluster_id));
        store.cluster_id = reported.map(|id| id.to_string());
    }
    for (id, listed) in list {
        if store.staying_members().any(|(_, member)| member.id.parse() == Ok(*id)) {
            continue;
        }
        match members.iter().find(|member| is_listed_as(member, seen, (*id, listed))) {
            Some(member) => {
                store.members.insert(member.name().clone(), added(member, *id));
                found.added.push(member.name().clone());
            }
            // The next pass records a member that a recorded change is adding, and that has not started.
            None if store.change.as_ref().is_some_and(|change| adds(change, listed)) => {}
            None => found.unknown.push((*id, listed.name.clone())),
        }
    }
    remove_unlisted(store, members, list, machine_of, &mut found);
    align_change(store, list);
    found
}

/// Adds the members that report an id themselves, for a store without a member list. Which members left is not known then.
pub(super) fn add_reported(
    store: &mut EtcdStatus,
    members: &[HeldMember],
    seen: &StoreObservation,
) -> Vec<ComponentName> {
    let mut names = Vec::new();
    for member in members.iter().filter(|member| !member.is_recorded(store)).collect::<Vec<_>>() {
        let Some(report) = seen.report(member.name()) else { continue };
        if store.members.contains_key(member.name()) {
            continue;
        }
        store.members.insert(member.name().clone(), added(member, report.id));
        names.push(member.name().clone());
    }
    names
}

fn is_listed_as(member: &HeldMember, seen: &StoreObservation, (id, listed): (MemberId, &ListedMember)) -> bool {
    if let Some(report) = seen.report(member.name()) {
        return report.id == id;
    }
    let urls: BTreeSet<String> = member.peer_urls().iter().cloned().collect();
    !urls.is_empty() && urls == listed.peer_urls
}

fn added(member: &HeldMember, id: MemberId) -> EtcdMember {
    let start = (!member.is_first).then(|| MemberStart { initial_cluster: member.initial_cluster.clone() });
    EtcdMember { phase: member.phase, started_with: start, ..EtcdMember::pending(id.to_string()) }
}

/// Orders the removal of members that the list lacks, as a pass does. etcd never accepts them again.
fn remove_unlisted(
    store: &mut EtcdStatus,
    members: &[HeldMember],
    list: &MemberList,
    machine_of: impl Fn(&ComponentName) -> Option<HypervisorName>,
    found: &mut MemberAlignment,
) {
    let is_listed = |member: &EtcdMember| member.id.parse::<MemberId>().is_ok_and(|id| list.contains_key(&id));
    let recorded = store.staying_members().filter(|(_, member)| !is_listed(member)).map(|(name, _)| name.clone());
    let held = members.iter().filter(|member| !store.members.contains_key(member.name()));
    let over: BTreeSet<ComponentName> = recorded.chain(held.map(|member| member.name().clone())).collect();
    for name in over {
        let held = members.iter().find(|member| *member.name() == name);
        let machine = held.map(|member| member.held.machine.clone()).or_else(|| machine_of(&name));
        match machine {
            None => drop(store.members.remove(&name)),
            Some(machine) => {
                // A member that was never recorded has no id that is known. No member has the id 0.
                let member = store.members.entry(name.clone()).or_insert_with(|| EtcdMember::pending("0".to_string()));
                member.removal = Some(RemovalReason::MemberRemoved);
                member.removed_from = Some(machine);
                member.unavailable_since = None;
            }
        }
        found.removed.insert(name);
    }
}

/// Records the change that is in progress: a learner is still being added. An addition whose member is not listed has ended, or never began.
fn align_change(store: &mut EtcdStatus, list: &MemberList) {
    let listed = |name: &ComponentName| {
        let id = store.members.get(name)?.id.parse::<MemberId>().ok()?;
        list.get(&id)
    };
    let is_over = |change: &MembershipChange| match change.kind {
        MembershipChangeKind::Add if list.values().any(|listed| adds(change, listed)) => false,
        MembershipChangeKind::Add => listed(&change.component).is_none_or(|member| !member.is_learner),
        // The next pass decides it anew, because the documents are older than the store.
        MembershipChangeKind::Remove => true,
    };
    let is_over = store.change.as_ref().is_some_and(is_over);
    let learner = store.staying_members().map(|(name, _)| name);
    let learner = learner.filter_map(|name| Some((name.clone(), listed(name)?))).find(|(_, member)| member.is_learner);
    let addition = learner.map(|(component, listed)| MembershipChange {
        kind: MembershipChangeKind::Add,
        component,
        reason: MembershipReason::Replicas,
        peer_urls: listed.peer_urls.iter().cloned().collect(),
        api_servers_wait_since: None,
    });
    if is_over {
        store.change = None;
    }
    if store.change.is_none() {
        store.change = addition;
    }
}

/// Whether this is the member that a change adds.
fn adds(change: &MembershipChange, listed: &ListedMember) -> bool {
    let urls: BTreeSet<String> = change.peer_urls.iter().cloned().collect();
    change.kind == MembershipChangeKind::Add && !urls.is_empty() && urls == listed.peer_urls
}

/// Reserves these names, if the members changed since the creation of the store: a name is never used again.
pub(super) fn reserve_names<'a>(store: &mut EtcdStatus, names: impl Iterator<Item = &'a ComponentName>) {
    let is_added = |member: &EtcdMember| member.started_with.is_some() || member.is_removed();
    if store.next_index.is_none() && !store.members.values().any(is_added) {
        return;
    }
    let known = store.members.keys().chain(store.initial_cluster.keys()).map(index_of).max();
    let last = names.map(index_of).max().max(known);
    store.next_index = Some(store.next_index.unwrap_or_default().max(last.map_or(0, |last| last + 1)));
}
