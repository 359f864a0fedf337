//! A model of etcd's membership in memory, for tests: quorum, learners, promotion, leadership, ids, databases and alarms, as etcd 3.7 has them.

mod database;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};

use database::ModelDatabase;
use keelway_api::{
    machine::ObservedValue,
    name::ComponentName,
    store_observation::{ListedMember, MemberAlarm, MemberId, MemberList, MemberReport, StoreObservation},
};

use crate::{StoreOrder, etcd_ids};

/// What the members of a store agreed on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreModel {
    cluster_id: u64,
    list: MemberList,
    removed: BTreeSet<MemberId>,
    /// The index of the last committed entry of each member.
    indices: BTreeMap<MemberId, u64>,
    leader: Option<MemberId>,
    term: u64,
    added: u64,
    databases: BTreeMap<MemberId, ModelDatabase>,
    /// The data of all members, without history.
    data: u64,
    revision: u64,
    compacted: u64,
    alarms: BTreeSet<(MemberId, MemberAlarm)>,
    /// The member whose database is being rewritten.
    defragmenting: Option<MemberId>,
}

/// Why etcd refuses a request or a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreRefusal {
    /// No majority of the voters works.
    #[error("etcdserver: no leader")]
    NoLeader,
    /// A voter is down.
    #[error("etcdserver: unhealthy cluster")]
    Unhealthy,
    /// A member has these peer URLs.
    #[error("etcdserver: Peer URLs already exists")]
    PeerUrlsExist,
    /// There is a learner already.
    #[error("etcdserver: too many learner members in cluster")]
    TooManyLearners,
    /// The learner lags.
    #[error("etcdserver: can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    /// The store was compacted up to that revision.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The list does not have the member.
    #[error("etcdserver: member not found")]
    NotFound,
    /// The member was removed.
    #[error("the member has been permanently removed from the cluster")]
    Removed,
    /// The member list differs from `--initial-cluster`.
    #[error("error validating peerURLs: member count is unequal")]
    OtherMembers,
    /// A member with this name started before.
    #[error("member has already been bootstrapped")]
    Bootstrapped,
}

impl StoreModel {
    /// A new store of its first members.
    #[must_use]
    pub fn new(initial_cluster: &BTreeMap<ComponentName, Vec<String>>, token: &str) -> Self {
        let member = |(name, urls): (&ComponentName, &Vec<String>)| {
            let listed =
                ListedMember { name: name.to_string(), peer_urls: urls.iter().cloned().collect(), is_learner: false };
            (MemberId(etcd_ids::member(urls, token)), listed)
        };
        let list: MemberList = initial_cluster.iter().map(member).collect();
        let cluster_id = etcd_ids::cluster(list.keys().map(|id| id.0));
        let indices = list.keys().map(|id| (*id, 1)).collect();
        let databases = list.keys().map(|id| (*id, ModelDatabase::default())).collect();
        Self { cluster_id, list, indices, databases, revision: 1, ..Self::default() }
    }

    /// The member list.
    #[must_use]
    pub fn list(&self) -> &MemberList {
        &self.list
    }

    /// The leader.
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        self.leader
    }

    /// Whether the store has removed a member.
    #[must_use]
    pub fn has_removed(&self, id: MemberId) -> bool {
        self.removed.contains(&id)
    }

    /// Whether the voters among these members are a majority.
    #[must_use]
    pub fn has_majority(&self, up: &BTreeSet<MemberId>) -> bool {
        let voters = self.voters();
        voters.iter().filter(|id| up.contains(id)).count() > voters.len() / 2
    }

    /// Starts a member for the first time, with these arguments. A restart needs no arguments: the data has the id.
    ///
    /// # Errors
    /// etcd exits with the refusal.
    pub fn start(
        &mut self,
        name: &str,
        urls: &BTreeSet<String>,
        initial_cluster: &BTreeMap<ComponentName, Vec<String>>,
    ) -> Result<MemberId, StoreRefusal> {
        let given: BTreeSet<&String> = initial_cluster.values().flatten().collect();
        let listed: BTreeSet<&String> = self.list.values().flat_map(|listed| &listed.peer_urls).collect();
        if given != listed {
            return Err(StoreRefusal::OtherMembers);
        }
        let found = self.list.iter_mut().find(|(_, listed)| listed.peer_urls == *urls);
        let (id, listed) = found.ok_or(StoreRefusal::NotFound)?;
        if listed.name == name {
            return Err(StoreRefusal::Bootstrapped);
        }
        listed.name = name.to_string();
        Ok(*id)
    }

    /// Lets time pass: members that are up and do not lag catch up, and a majority elects a leader.
    pub fn tick(&mut self, up: &BTreeSet<MemberId>, lagging: &BTreeSet<MemberId>) {
        self.end_defragmentation();
        if !self.has_majority(up) {
            self.leader = None;
            return;
        }
        let voters = self.voters();
        let newest = self.indices.values().max().copied().unwrap_or_default() + 10;
        let catches_up = |id: &MemberId| self.list.contains_key(id) && (voters.contains(id) || !lagging.contains(id));
        for id in up.iter().copied().filter(catches_up).collect::<Vec<_>>() {
            self.indices.insert(id, newest);
        }
        if !self.leader.is_some_and(|leader| up.contains(&leader) && voters.contains(&leader)) {
            self.leader = voters.into_iter().find(|id| up.contains(id));
            self.term += 1;
        }
    }

    /// Starts a member with data and `--force-new-cluster`: it continues alone, with what it knows to be committed.
    pub fn force(&mut self, id: MemberId) {
        self.removed.extend(self.list.keys().filter(|other| **other != id));
        self.list.retain(|other, _| *other == id);
        self.indices.retain(|other, _| *other == id);
        self.leader = None;
    }

    /// The index of the last entry that a member knows to be committed.
    #[must_use]
    pub fn index(&self, id: MemberId) -> Option<u64> {
        self.indices.get(&id).copied()
    }

    /// Executes an order, as etcd does.
    ///
    /// # Errors
    /// etcd's refusal.
    pub fn execute(&mut self, order: &StoreOrder, up: &BTreeSet<MemberId>) -> Result<(), StoreRefusal> {
        if !self.has_majority(up) || self.leader.is_none() {
            return Err(StoreRefusal::NoLeader);
        }
        match order {
            StoreOrder::AddLearner { peer_urls, .. } => self.add(peer_urls, up),
            StoreOrder::Promote { id, .. } => self.promote(*id),
            StoreOrder::MoveLeader { from, to } => {
                self.move_leader((*from, *to), up);
                Ok(())
            }
            StoreOrder::Remove { id, .. } => self.remove(*id, up),
            StoreOrder::Disarm { id, alarm } => {
                self.alarms.remove(&(*id, *alarm));
                Ok(())
            }
            StoreOrder::Compact { revision } => self.compact(*revision),
            StoreOrder::Defragment { id, .. } => self.begin_defragmentation(*id),
            StoreOrder::Restore { .. } => Ok(()),
        }
    }

    fn add(&mut self, urls: &[String], up: &BTreeSet<MemberId>) -> Result<(), StoreRefusal> {
        let peer_urls: BTreeSet<String> = urls.iter().cloned().collect();
        if self.list.values().any(|listed| listed.peer_urls == peer_urls) {
            return Err(StoreRefusal::PeerUrlsExist);
        }
        if self.list.values().any(|listed| listed.is_learner) {
            return Err(StoreRefusal::TooManyLearners);
        }
        let voters = self.voters();
        let connected = voters.iter().filter(|id| up.contains(id)).count();
        if voters.len() > 1 && connected <= voters.len().div_ceil(2) {
            return Err(StoreRefusal::Unhealthy);
        }
        // The real id is a hash of the URLs and the time.
        self.added += 1;
        let id = MemberId(etcd_ids::member(urls, &self.added.to_string()));
        self.list.insert(id, ListedMember { name: String::new(), peer_urls, is_learner: true });
        self.indices.insert(id, 0);
        // The leader sends its file as it is.
        let copied = self.leader.and_then(|leader| self.databases.get(&leader)).copied().unwrap_or_default();
        self.databases.insert(id, copied);
        Ok(())
    }

    fn promote(&mut self, id: MemberId) -> Result<(), StoreRefusal> {
        let newest = self.leader.and_then(|leader| self.indices.get(&leader)).copied().unwrap_or_default();
        let own = self.indices.get(&id).copied().unwrap_or_default();
        let listed = self.list.get_mut(&id).ok_or(StoreRefusal::NotFound)?;
        if own * 10 < newest * 9 {
            return Err(StoreRefusal::LearnerNotReady);
        }
        listed.is_learner = false;
        Ok(())
    }

    fn move_leader(&mut self, (from, to): (MemberId, MemberId), up: &BTreeSet<MemberId>) {
        if self.leader == Some(from) && self.voters().contains(&to) && up.contains(&to) {
            self.leader = Some(to);
            self.term += 1;
        }
    }

    fn remove(&mut self, id: MemberId, up: &BTreeSet<MemberId>) -> Result<(), StoreRefusal> {
        let listed = self.list.get(&id).ok_or(StoreRefusal::NotFound)?;
        let voters = self.voters();
        let active = voters.iter().filter(|voter| up.contains(voter)).count();
        if !listed.is_learner && up.contains(&id) && active.saturating_sub(1) < 1 + (voters.len() - 1) / 2 {
            return Err(StoreRefusal::Unhealthy);
        }
        self.list.remove(&id);
        self.indices.remove(&id);
        self.databases.remove(&id);
        self.removed.insert(id);
        if self.leader == Some(id) {
            self.leader = None;
        }
        Ok(())
    }

    fn voters(&self) -> Vec<MemberId> {
        self.list.iter().filter(|(_, listed)| !listed.is_learner).map(|(id, _)| *id).collect()
    }

    /// What a pass observes. `reached` are the members that respond, with their components; `asked` are all components.
    #[must_use]
    pub fn observe(
        &self,
        asked: impl IntoIterator<Item = ComponentName>,
        reached: &BTreeMap<ComponentName, MemberId>,
    ) -> StoreObservation {
        let up = reached.values().copied().collect();
        let works = self.has_majority(&up) && self.leader.is_some();
        let list = works.then(|| self.list.clone());
        let report = |component: ComponentName| {
            let report = reached.get(&component).filter(|id| !self.removed.contains(id)).map(|id| self.report(*id));
            let unreachable = || ObservedValue::unreachable("connection refused");
            (component, report.map_or_else(unreachable, ObservedValue::Known))
        };
        let members: BTreeMap<_, _> = asked.into_iter().map(report).collect();
        let responding: BTreeSet<MemberId> =
            members.values().filter_map(ObservedValue::known).map(|report: &MemberReport| report.id).collect();
        let mut other_alarms: BTreeMap<MemberId, BTreeSet<MemberAlarm>> = BTreeMap::new();
        for (id, alarm) in self.alarms.iter().filter(|(id, _)| !responding.is_empty() && !responding.contains(id)) {
            other_alarms.entry(*id).or_default().insert(*alarm);
        }
        StoreObservation { list, members, other_alarms }
    }

    fn report(&self, id: MemberId) -> MemberReport {
        let index = self.indices.get(&id).copied().unwrap_or_default();
        MemberReport {
            id,
            cluster_id: MemberId(self.cluster_id),
            leader: self.leader,
            term: self.term,
            raft_index: index,
            applied_index: index,
            revision: self.revision,
            is_learner: self.list.get(&id).is_some_and(|listed| listed.is_learner),
            version: "3.7.0".to_string(),
            database: self.databases.get(&id).copied().unwrap_or_default().report(),
            alarms: self.alarms.iter().filter(|(of, _)| *of == id).map(|(_, alarm)| *alarm).collect(),
            errors: Vec::new(),
        }
    }
}
