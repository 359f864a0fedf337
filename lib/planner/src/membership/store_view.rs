//! The members of a store as the member list, the documents and their own reports show them together.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use keelway_api::{
    Documents,
    cluster::EtcdStatus,
    membership::MembershipReason,
    name::{ComponentName, HypervisorName},
    role::Role,
    store_observation::{ListedMember, MemberAlarm, MemberId, MemberList, MemberReport, StoreObservation},
};

use super::{StoreContext, is_unused, peer_urls, pod, reason_to_leave, store};
use crate::{UnclearCorruption, component_set::of_role};

/// The id of an alarm that concerns no certain member.
const NO_MEMBER: MemberId = MemberId(0);

/// A voter that the documents record.
pub(crate) struct VoterView {
    pub(crate) id: MemberId,
    /// Whether it reports a leader.
    pub(crate) is_healthy: bool,
    /// Why it has to leave.
    pub(crate) leaves: Option<MembershipReason>,
    pub(crate) machine: Option<HypervisorName>,
    pub(crate) index: u32,
    /// The index of its last committed entry, if it responds.
    pub(crate) raft_index: Option<u64>,
}

pub(crate) struct StoreView<'a> {
    seen: &'a StoreObservation,
    list: &'a MemberList,
    /// The voters that the documents record.
    pub(crate) voters: BTreeMap<ComponentName, VoterView>,
    /// A component that the list has and the documents do not record as a member, as after the loss of their newest copy.
    pub(crate) forgotten: Option<ComponentName>,
    /// Members that no component of the documents runs, with their names.
    pub(crate) unknown: Vec<(MemberId, String)>,
    /// All alarms that are raised.
    pub(crate) alarms: BTreeSet<(MemberId, MemberAlarm)>,
}

impl<'a> StoreView<'a> {
    pub(crate) fn of(
        documents: &Documents,
        at: StoreContext<'_>,
        (seen, list): (&'a StoreObservation, &'a MemberList),
    ) -> Self {
        let mut view =
            Self { seen, list, voters: BTreeMap::new(), forgotten: None, unknown: Vec::new(), alarms: seen.alarms() };
        let joining = store(documents, at).and_then(|store| store.change.as_ref()).map(|change| &change.peer_urls);
        let unrecorded: Vec<_> = unrecorded_components(documents, at).collect();
        for (id, listed) in list {
            let Some(name) = recorded(documents, at, *id) else {
                let is_joining = joining.is_some_and(|urls| has_urls(listed, urls));
                match unrecorded.iter().find(|(_, urls)| has_urls(listed, urls)) {
                    _ if is_joining => {}
                    Some((name, _)) => view.forgotten = Some((*name).clone()),
                    None => view.unknown.push((*id, listed.name.clone())),
                }
                continue;
            };
            if !listed.is_learner {
                let corrupt = view.is_corrupt(*id).then_some(MembershipReason::DataCorrupt);
                let leaves = reason_to_leave(documents, at, name).or(corrupt);
                let mut voter = voter(documents, at, (seen, name, *id), leaves);
                voter.is_healthy &= corrupt.is_none();
                view.voters.insert(name.clone(), voter);
            }
        }
        view
    }

    /// A member of the list with these peer URLs, whether or not the documents record it.
    pub(crate) fn listed_at(&self, urls: &[String]) -> Option<(MemberId, &'a ListedMember)> {
        self.list.iter().find(|(_, listed)| has_urls(listed, urls)).map(|(id, listed)| (*id, listed))
    }

    pub(crate) fn listed(&self, id: MemberId) -> Option<&'a ListedMember> {
        self.list.get(&id)
    }

    /// Recorded members that the list lacks, if a healthy voter confirms that it is the list of this store. etcd never accepts them again.
    pub(crate) fn gone(&self, documents: &Documents, at: StoreContext<'_>) -> Vec<ComponentName> {
        let is_confirmed = self.voters.values().any(|voter| voter.is_healthy);
        let members = store(documents, at).filter(|_| is_confirmed).into_iter().flat_map(EtcdStatus::staying_members);
        let gone = members.filter(|(_, member)| member.id.parse().is_ok_and(|id| self.listed(id).is_none()));
        gone.map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn is_corrupt(&self, id: MemberId) -> bool {
        self.alarms.contains(&(id, MemberAlarm::Corrupt))
    }

    /// An alarm of a member that the store has removed. Nothing else ends it.
    pub(crate) fn alarm_of_removed(&self) -> Option<(MemberId, MemberAlarm)> {
        let is_removed = |id: &MemberId| *id != NO_MEMBER && !self.list.contains_key(id);
        self.alarms.iter().find(|(id, _)| is_removed(id)).copied()
    }

    /// Why no corrupt member can be replaced. None: no voter is corrupt, or etcd reported which, and at most half of the voters are.
    pub(crate) fn unclear_corruption(&self) -> Option<UnclearCorruption> {
        let voters = self.count_voters();
        let is_voter = |id: &MemberId| self.list.get(id).is_some_and(|listed| !listed.is_learner);
        let corrupt = self.list.keys().filter(|id| is_voter(id) && self.is_corrupt(**id)).count();
        match (self.is_corrupt(NO_MEMBER), corrupt) {
            (true, _) if voters > 1 => Some(UnclearCorruption::NoCertainMember),
            (false, 0) => None,
            _ if voters == 1 => Some(UnclearCorruption::OnlyMember),
            _ if corrupt * 2 <= voters => None,
            _ => Some(UnclearCorruption::MostMembers { corrupt, voters }),
        }
    }

    /// The number of voters in the list, with those that the documents do not record.
    pub(crate) fn count_voters(&self) -> usize {
        self.list.values().filter(|listed| !listed.is_learner).count()
    }

    /// The healthy voters besides one.
    pub(crate) fn count_healthy_besides(&self, component: &ComponentName) -> usize {
        self.voters.iter().filter(|(name, voter)| voter.is_healthy && *name != component).count()
    }

    pub(crate) fn first_ill(&self) -> Option<&ComponentName> {
        self.voters.iter().find(|(_, voter)| !voter.is_healthy).map(|(name, _)| name)
    }

    pub(crate) fn leader(&self) -> Option<MemberId> {
        self.seen.leader()
    }

    /// Whether the data of any member is corrupt.
    pub(crate) fn has_corruption(&self) -> bool {
        self.alarms.iter().any(|(_, alarm)| *alarm == MemberAlarm::Corrupt)
    }

    /// The healthy voter that is to lead in place of a component: one that stays, with the newest log.
    pub(crate) fn next_leader(&self, component: &ComponentName) -> Option<MemberId> {
        let rank = |voter: &&VoterView| (voter.leaves.is_none(), voter.raft_index, core::cmp::Reverse(voter.id));
        let others = self.voters.iter().filter(|(name, voter)| voter.is_healthy && *name != component);
        others.map(|(_, voter)| voter).max_by_key(rank).map(|voter| voter.id)
    }

    pub(crate) fn report(&self, component: &ComponentName) -> Option<&'a MemberReport> {
        self.seen.report(component)
    }

    /// The index of the last entry that the store committed, as far as voters report it.
    pub(crate) fn newest_index(&self) -> Option<u64> {
        self.voters.values().filter_map(|voter| voter.raft_index).max()
    }
}

/// Whether healthy voters are a majority.
pub(crate) fn is_majority(healthy: usize, voters: usize) -> bool {
    healthy > voters / 2
}

fn has_urls(listed: &ListedMember, urls: &[String]) -> bool {
    !urls.is_empty() && listed.peer_urls.len() == urls.len() && urls.iter().all(|url| listed.peer_urls.contains(url))
}

/// The components that are no members in the documents, with their peer URLs.
fn unrecorded_components<'a>(
    documents: &'a Documents,
    at: StoreContext<'a>,
) -> impl Iterator<Item = (&'a ComponentName, Vec<String>)> {
    let store = store(documents, at);
    let all = of_role(documents, at.id, Role::Etcd);
    let unused = all.filter(move |(pod, component)| store.is_some_and(|store| is_unused(store, pod, component)));
    unused.filter_map(move |(pod, component)| Some((&pod.component, peer_urls(at.world, &component.spec)?)))
}

/// The component that runs a member.
fn recorded<'a>(documents: &'a Documents, at: StoreContext<'_>, id: MemberId) -> Option<&'a ComponentName> {
    let members = &store(documents, at)?.members;
    members.iter().find(|(_, member)| member.id.parse() == Ok(id)).map(|(name, _)| name)
}

fn voter(
    documents: &Documents,
    at: StoreContext<'_>,
    (seen, name, id): (&StoreObservation, &ComponentName, MemberId),
    leaves: Option<MembershipReason>,
) -> VoterView {
    let component = documents.components.get(&pod(at.id, name));
    let store_id = store(documents, at).and_then(|store| store.cluster_id.as_ref()?.parse::<MemberId>().ok());
    let report =
        seen.report(name).filter(|report| report.id == id && store_id.is_none_or(|store| store == report.cluster_id));
    VoterView {
        id,
        is_healthy: report.is_some_and(|report| report.leader.is_some() && !report.is_learner),
        leaves,
        machine: component.map(|component| component.spec.hypervisor.clone()),
        index: component.map_or(u32::MAX, |component| component.spec.index),
        raft_index: report.map(|report| report.raft_index),
    }
}
