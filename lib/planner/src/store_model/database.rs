//! The databases of a model store: data, history, free pages, and the alarms `NOSPACE` and `CORRUPT`.

use keelway_api::store_observation::{DatabaseSize, MemberAlarm, MemberId};

use super::{StoreModel, StoreRefusal};
use crate::StoreOrder;

/// A hundredth of the quota of each database.
const PERCENT: u64 = 40 << 20;
const QUOTA: u64 = 100 * PERCENT;

/// The database of a member.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ModelDatabase {
    size: u64,
    in_use: u64,
}

impl ModelDatabase {
    pub(super) fn report(self) -> DatabaseSize {
        DatabaseSize { size: self.size, in_use: self.in_use, quota: Some(QUOTA) }
    }
}

impl StoreModel {
    /// Whether a member is being defragmented.
    #[must_use]
    pub fn defragmenting(&self) -> Option<MemberId> {
        self.defragmenting
    }

    /// The alarms that are raised.
    pub fn alarms(&self) -> impl Iterator<Item = (MemberId, MemberAlarm)> {
        self.alarms.iter().copied()
    }

    /// The share of the quota that data has, without history, in percent.
    #[must_use]
    pub fn data_percent(&self) -> u64 {
        self.data / PERCENT
    }

    /// The size of a member's database file.
    #[must_use]
    pub fn database_size(&self, id: MemberId) -> u64 {
        self.databases.get(&id).copied().unwrap_or_default().size
    }

    /// Whether the database of a member reached nine tenths of its quota.
    #[must_use]
    pub fn is_full(&self, id: MemberId) -> bool {
        self.databases.get(&id).is_some_and(|database| database.size >= 90 * PERCENT)
    }

    /// Writes data, of which a part replaces earlier data, in percent of the quota. A store with an alarm refuses writes, and a member that reaches its
    /// quota raises it.
    pub fn write(&mut self, new: u64, replaced: u64) {
        if self.leader.is_none() || !self.alarms.is_empty() {
            return;
        }
        let (new, replaced) = (PERCENT * new, PERCENT * replaced);
        self.data += new;
        self.revision += 1;
        for database in self.databases.values_mut() {
            database.in_use = (database.in_use + new + replaced).min(QUOTA);
            database.size = database.size.max(database.in_use);
        }
        self.raise_for_full();
    }

    /// Deletes data, in percent of the quota. A store without space accepts it.
    pub fn delete(&mut self, percent: u64) {
        if self.leader.is_some() && !self.alarms.iter().any(|(_, alarm)| *alarm == MemberAlarm::Corrupt) {
            self.data = self.data.saturating_sub(PERCENT * percent);
            self.revision += 1;
        }
    }

    /// Raises the alarm `CORRUPT` for a member; 0 for no certain one.
    pub fn corrupt(&mut self, id: MemberId) {
        self.alarms.insert((id, MemberAlarm::Corrupt));
    }

    /// kube-apiserver compacts every five minutes, unless the store refuses its write.
    pub fn compact_as_clients_do(&mut self) {
        if self.alarms.is_empty() {
            let _ = self.compact(self.revision);
        }
    }

    /// The rule that an order about space breaks. None: it breaks none.
    #[must_use]
    pub fn broken_space_rule(&self, order: &StoreOrder) -> Option<&'static str> {
        let voters = self.list.values().filter(|listed| !listed.is_learner).count();
        match order {
            StoreOrder::Defragment { id, .. } if self.defragmenting.is_some_and(|other| other != *id) => {
                Some("one member of a store is defragmented at a time")
            }
            StoreOrder::Defragment { id, .. } if voters > 1 && self.leader == Some(*id) => {
                Some("the leader moves before its member is defragmented")
            }
            StoreOrder::Disarm { id, alarm: MemberAlarm::NoSpace } if self.is_full(*id) => {
                Some("an alarm is disarmed once its member has room")
            }
            StoreOrder::Disarm { id, alarm: MemberAlarm::Corrupt } if self.list.contains_key(id) => {
                Some("an alarm of a corrupt member is disarmed once the store has removed the member")
            }
            StoreOrder::AddLearner { .. }
            | StoreOrder::Promote { .. }
            | StoreOrder::MoveLeader { .. }
            | StoreOrder::Remove { .. }
            | StoreOrder::Compact { .. }
            | StoreOrder::Defragment { .. }
            | StoreOrder::Disarm { .. }
            | StoreOrder::Restore { .. } => None,
        }
    }

    pub(super) fn compact(&mut self, revision: u64) -> Result<(), StoreRefusal> {
        if revision <= self.compacted {
            return Err(StoreRefusal::Compacted);
        }
        self.compacted = revision;
        for database in self.databases.values_mut() {
            database.in_use = self.data;
        }
        Ok(())
    }

    pub(super) fn begin_defragmentation(&mut self, id: MemberId) -> Result<(), StoreRefusal> {
        if !self.list.contains_key(&id) {
            return Err(StoreRefusal::NotFound);
        }
        self.defragmenting = Some(id);
        Ok(())
    }

    pub(super) fn end_defragmentation(&mut self) {
        if let Some(database) = self.defragmenting.take().and_then(|id| self.databases.get_mut(&id)) {
            database.size = database.in_use;
        }
    }

    fn raise_for_full(&mut self) {
        let full = self.databases.iter().filter(|(_, database)| database.size >= QUOTA).map(|(id, _)| *id);
        self.alarms.extend(full.map(|id| (id, MemberAlarm::NoSpace)));
    }
}
