//! One request that changes a store.

use alloc::{string::String, vec::Vec};
use core::fmt;

use keelway_api::{
    membership::MembershipReason,
    name::{ComponentName, PodName},
    store_observation::{MemberAlarm, MemberId},
};

/// One order to a store. A plan has at most one for each cluster.
///
/// It is executed after the documents are saved, through a voter that is healthy. It can be repeated: the executor first reads the member list,
/// and does nothing if the order has already taken effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOrder {
    /// Add a learner. It has taken effect if the list has a member with these peer URLs.
    AddLearner {
        /// The component that is to run the member.
        component: ComponentName,
        /// The URLs at which its peers reach it.
        peer_urls: Vec<String>,
    },
    /// Make a learner that has caught up a voter. It has taken effect if the list has it as a voter.
    Promote {
        /// The component that runs the member.
        component: ComponentName,
        /// The member.
        id: MemberId,
    },
    /// Transfer the leadership to another voter, which caught up. It has taken effect if `from` does not lead.
    MoveLeader {
        /// The leader.
        from: MemberId,
        /// The voter that is to lead.
        to: MemberId,
    },
    /// Remove a member. It has taken effect if the list does not have it.
    Remove {
        /// The component that runs the member.
        component: ComponentName,
        /// The member.
        id: MemberId,
        /// Why it is removed.
        reason: MembershipReason,
    },
    /// Disarm an alarm whose cause is gone. It has taken effect if no member reports the alarm.
    Disarm {
        /// The member that raised it.
        id: MemberId,
        /// The alarm.
        alarm: MemberAlarm,
    },
    /// Remove from all databases what was overwritten or deleted before a revision. It has taken effect if etcd responds that it compacted the
    /// store up to that revision or a later one.
    Compact {
        /// The revision.
        revision: u64,
    },
    /// Make the data of the only member from a snapshot, on its machine. It has taken effect if the data directory of the member has data. No
    /// member of the store runs.
    Restore {
        /// The pod of the member.
        pod: PodName,
        /// The name of the snapshot.
        snapshot: String,
    },
    /// Defragment the database of a member, which serves nothing meanwhile. It has taken effect if the file is smaller than `size`.
    Defragment {
        /// The component that runs the member.
        component: ComponentName,
        /// The member.
        id: MemberId,
        /// The size of its database file.
        size: u64,
    },
}

impl fmt::Display for StoreOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddLearner { component, peer_urls } => {
                write!(f, "add {component} as a learner at {}", peer_urls.join(", "))
            }
            Self::Promote { component, id } => write!(f, "promote {component} ({id}), which has caught up"),
            Self::MoveLeader { from, to } => write!(f, "move the leader from {from} to {to}"),
            Self::Remove { component, id, reason } => {
                write!(f, "remove the member {component} ({id}): {}", text_of_removal(*reason))
            }
            Self::Disarm { id, alarm } => write!(f, "disarm the alarm {alarm} of {id}"),
            Self::Restore { pod, snapshot } => {
                write!(f, "make the data of {} from the snapshot {snapshot}", pod.component)
            }
            Self::Compact { revision } => write!(f, "compact the store up to the revision {revision}"),
            Self::Defragment { component, id, .. } => write!(f, "defragment {component} ({id})"),
        }
    }
}

/// Why a member is removed, for people.
pub(crate) fn text_of_removal(reason: MembershipReason) -> &'static str {
    match reason {
        MembershipReason::Replicas => "the store has more members than spec.etcd.replicas",
        MembershipReason::MachineDrained => "its machine is drained",
        MembershipReason::MachineLost => "its machine is lost",
        MembershipReason::Unreachable => "its machine has been unreachable for spec.etcd.replaceAfter",
        MembershipReason::DataLost => "its data is gone",
        MembershipReason::DataCorrupt => "etcd raised the alarm CORRUPT",
    }
}

/// Why a member is added, for people.
pub(crate) fn text_of_addition(reason: MembershipReason) -> &'static str {
    match reason {
        MembershipReason::Replicas => "the store has fewer members than spec.etcd.replicas",
        MembershipReason::MachineDrained => "it replaces a member whose machine is drained",
        MembershipReason::MachineLost => "it replaces a member whose machine is lost",
        MembershipReason::Unreachable => "it replaces a member whose machine is unreachable",
        MembershipReason::DataLost => "it replaces a member whose data is gone",
        MembershipReason::DataCorrupt => "it replaces a member whose data is corrupt",
    }
}
