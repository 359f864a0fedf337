//! What the etcd members of a cluster report of themselves and of each other.

use core::{fmt, str::FromStr};
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    machine::ObservedValue,
    name::{ComponentName, NameError},
};

/// The id that etcd assigned to a member: hexadecimal digits without leading zeros, as etcd prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct MemberId(pub u64);

/// What the members of one store report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreObservation {
    /// The member list, as a majority of the voters confirmed it (a linearizable `MemberList`). Absent: no member returned one, because no
    /// majority works, or none can be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<MemberList>,
    /// What each member reports of itself, by component.
    #[serde(default)]
    pub members: BTreeMap<ComponentName, ObservedValue<MemberReport>>,
    /// The alarms of members that did not respond themselves, as other members report them. An alarm outlives the removal of its member, and
    /// rejects requests until it is disarmed. The id 0: the alarm concerns no certain member.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub other_alarms: BTreeMap<MemberId, BTreeSet<MemberAlarm>>,
}

/// The members of a store, by id.
pub type MemberList = BTreeMap<MemberId, ListedMember>;

/// A member in the member list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListedMember {
    /// Its name. A member that was added and has never started has an empty one.
    #[serde(default)]
    pub name: String,
    /// The URLs at which its peers reach it.
    pub peer_urls: BTreeSet<String>,
    /// Whether it receives the log without a vote.
    #[serde(default)]
    pub is_learner: bool,
}

/// What a member reports of itself (`Maintenance.Status`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemberReport {
    /// Its id.
    pub id: MemberId,
    /// The id of its store.
    pub cluster_id: MemberId,
    /// The leader, as the member knows it. Absent: it knows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<MemberId>,
    /// The Raft term.
    pub term: u64,
    /// The index of its last committed entry.
    pub raft_index: u64,
    /// The index of its last applied entry.
    pub applied_index: u64,
    /// The revision of its keys. Each write adds one.
    #[serde(default)]
    pub revision: u64,
    /// Whether it receives the log without a vote.
    #[serde(default)]
    pub is_learner: bool,
    /// The release of etcd that it runs.
    pub version: String,
    /// The size of its database.
    pub database: DatabaseSize,
    /// The alarms of this member.
    #[serde(default)]
    pub alarms: BTreeSet<MemberAlarm>,
    /// The errors that it reports, for people.
    #[serde(default)]
    pub errors: Vec<String>,
}

/// The size of a member's database file, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatabaseSize {
    /// The size of the file.
    pub size: u64,
    /// The part of it that holds data. Defragmentation frees the rest.
    pub in_use: u64,
    /// The size at which etcd refuses writes. Absent: the member does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
}

/// An alarm of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum MemberAlarm {
    /// Its database reached its quota: the store refuses writes.
    NoSpace,
    /// Its data differs from that of other members.
    Corrupt,
}

impl StoreObservation {
    /// The report of a member. None: the member did not respond.
    #[must_use]
    pub fn report(&self, component: &ComponentName) -> Option<&MemberReport> {
        self.members.get(component)?.known()
    }

    /// All alarms that are raised, with the ids of the members that raised them.
    #[must_use]
    pub fn alarms(&self) -> BTreeSet<(MemberId, MemberAlarm)> {
        let reports = self.members.values().filter_map(ObservedValue::known).map(|report| (report.id, &report.alarms));
        let others = self.other_alarms.iter().map(|(id, alarms)| (*id, alarms));
        reports.chain(others).flat_map(|(id, alarms)| alarms.iter().map(move |alarm| (id, *alarm))).collect()
    }

    /// The leader that members of the list agree on. None: they report none, or two, as during an election.
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        let leaders: BTreeSet<MemberId> =
            self.members.values().filter_map(ObservedValue::known).filter_map(|report| report.leader).collect();
        leaders.first().copied().filter(|_| leaders.len() == 1)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl FromStr for MemberId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let error =
            || NameError { value: text.to_owned(), expected: "an id of an etcd member: up to 16 hexadecimal digits" };
        u64::from_str_radix(text, 16).map(Self).map_err(|_| error())
    }
}

impl TryFrom<String> for MemberId {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<MemberId> for String {
    fn from(id: MemberId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for MemberAlarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSpace => "NOSPACE",
            Self::Corrupt => "CORRUPT",
        })
    }
}
