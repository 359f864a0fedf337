//! A store of which no majority works, as observed.

use alloc::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Documents,
    cluster::{EtcdMember, EtcdStatus},
    name::ComponentName,
    store_observation::{MemberId, MemberReport, StoreObservation},
};

use crate::membership::{StoreContext, store};

/// The voters that the documents record, by whether they respond.
pub(super) struct QuorumLoss<'a> {
    pub(super) responding: BTreeMap<ComponentName, &'a MemberReport>,
    pub(super) silent: BTreeSet<ComponentName>,
}

impl<'a> QuorumLoss<'a> {
    /// Gate 1. None: a majority may work. During an election, a majority responds.
    pub(super) fn observe(documents: &Documents, at: StoreContext<'a>) -> Option<Self> {
        let seen: &'a StoreObservation = at.seen.stores.get(at.id)?;
        let store = store(documents, at)?;
        let mut reports = seen.members.values().filter_map(|report| report.known());
        if seen.list.is_some() || reports.any(|report| report.leader.is_some()) {
            return None;
        }
        let mut loss = Self { responding: BTreeMap::new(), silent: BTreeSet::new() };
        for (name, member) in voters(store) {
            match report(seen, store, (name, member)) {
                Some(report) if report.is_learner => {}
                Some(report) => {
                    loss.responding.insert(name.clone(), report);
                }
                None => {
                    loss.silent.insert(name.clone());
                }
            }
        }
        let is_lost = !loss.responding.is_empty() && !loss.is_majority(loss.responding.len());
        is_lost.then_some(loss)
    }

    /// Whether this number of voters is a majority.
    pub(super) fn is_majority(&self, number: usize) -> bool {
        number * 2 > self.responding.len() + self.silent.len()
    }
}

/// The members that may vote. One that is being added is a learner.
pub(super) fn voters(store: &EtcdStatus) -> impl Iterator<Item = (&ComponentName, &EtcdMember)> {
    let is_added = |name: &ComponentName| store.change.as_ref().is_some_and(|change| change.adds(name));
    store.staying_members().filter(move |(name, _)| !is_added(name))
}

/// What a member of this store reports. A report of another store does not count.
fn report<'a>(
    seen: &'a StoreObservation,
    store: &EtcdStatus,
    (name, member): (&ComponentName, &EtcdMember),
) -> Option<&'a MemberReport> {
    let id = member.id.parse::<MemberId>().ok()?;
    let cluster = store.cluster_id.as_ref().and_then(|id| id.parse::<MemberId>().ok());
    let is_own = |report: &&MemberReport| report.id == id && cluster.is_none_or(|id| id == report.cluster_id);
    seen.report(name).filter(is_own)
}
