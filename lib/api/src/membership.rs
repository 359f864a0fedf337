//! The change of a store's members that is in progress, as `status.etcd` records it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Time, name::ComponentName};

/// A change of a store's members. A store has at most one at a time. It is recorded before the first request to etcd, so that any driver can
/// continue it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MembershipChange {
    /// What the change does.
    pub kind: MembershipChangeKind,
    /// The component that is added or removed.
    pub component: ComponentName,
    /// Why the members change.
    pub reason: MembershipReason,
    /// The URLs at which the peers of an added member reach it. etcd lists the member under them before it has a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_urls: Vec<String>,
    /// Since when API servers that are to be replaced wait for the change, so that each is replaced once. They wait for at most five minutes. It is
    /// absent if they do not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_servers_wait_since: Option<Time>,
}

impl MembershipChange {
    /// Returns whether the component is being added.
    #[must_use]
    pub fn adds(&self, component: &ComponentName) -> bool {
        self.kind == MembershipChangeKind::Add && self.component == *component
    }
}

impl MembershipReason {
    /// Returns whether the member cannot serve any more, so that nothing waits for it.
    #[must_use]
    pub fn is_loss(self) -> bool {
        match self {
            Self::MachineLost | Self::Unreachable | Self::DataLost | Self::DataCorrupt => true,
            Self::Replicas | Self::MachineDrained => false,
        }
    }
}

/// What a change of a store's members does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MembershipChangeKind {
    /// A member is added as a learner, and promoted once it has caught up.
    Add,
    /// A member is removed. Its machine stops it and removes its data afterwards.
    Remove,
}

/// Why the members of a store change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum MembershipReason {
    /// `spec.etcd.replicas` differs from the number of members.
    Replicas,
    /// The machine of a member is drained.
    MachineDrained,
    /// The machine of a member is annotated with `keelway.dev/lost`.
    MachineLost,
    /// A member has not responded for `spec.etcd.replaceAfter`.
    Unreachable,
    /// The data of a member is gone.
    DataLost,
    /// etcd raised the alarm `CORRUPT`: the data of a member differs from that of the others.
    DataCorrupt,
}

/// The arguments of a member's first start. They stay as they are when the members of the store change, so that no such change restarts the
/// member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemberStart {
    /// The members that it starts with, itself included, by name, each with its peer URLs.
    pub initial_cluster: BTreeMap<ComponentName, Vec<String>>,
}
