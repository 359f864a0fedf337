//! A store that is rebuilt from one member: what a person requests, and what `status.etcd` records.
//!
//! One member starts alone, all other members of before are retired, and members are then added as usual.

use core::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Time, name::ComponentName, restore::RestoreSource};

/// Whether Keelway rebuilds a store by itself after a majority of its members was lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EtcdRecovery {
    /// Only if `spec.etcd.recoverQuorum` requests it.
    #[default]
    Manual,
    /// As soon as the members that do not respond cannot have a majority elsewhere: enough of them are known to be lost.
    Automatic,
}

impl EtcdRecovery {
    /// Returns whether this is the default, which documents do not contain.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        *self == Self::Manual
    }
}

/// A request to rebuild a store from its remaining members. It applies to the loss of quorum that was recorded before the
/// request, and to no later one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QuorumRecovery {
    /// When it was requested.
    pub requested_at: Time,
    /// The members that are gone for good. Their machines are off, or were wiped.
    pub lost: Vec<ComponentName>,
}

/// A rebuild of a store that is in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreRebuild {
    /// The number of this rebuild: 1 for the first one of the store.
    pub number: u32,
    /// Where the data comes from.
    pub source: RebuildSource,
    /// The member that starts alone.
    pub member: ComponentName,
    /// The current step.
    pub phase: RebuildPhase,
    /// When it began.
    pub since: Time,
    /// The digest of the pod that runs with `--force-new-cluster`. No API server starts while such a pod runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced_pod: Option<String>,
}

/// Where the data of a rebuilt store comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum RebuildSource {
    /// The data of a remaining member, after a majority of the members was lost.
    #[serde(rename_all = "camelCase")]
    Survivor {
        /// The members that were lost.
        lost: Vec<ComponentName>,
    },
    /// A snapshot.
    #[serde(rename_all = "camelCase")]
    Snapshot {
        /// Its name.
        name: String,
        /// When the restore was requested.
        requested_at: Time,
        /// The cluster that it is of, if it is of another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<RestoreSource>,
    },
}

/// The step of a rebuild. It never returns to an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum RebuildPhase {
    /// The API servers and the members stop. Their data stays.
    Stopping,
    /// The data of the one member is prepared.
    Preparing,
    /// The one member starts alone.
    Starting,
    /// The one member starts again, without the argument by which it became the only one.
    Restarting,
    /// The one member serves, and API servers start.
    Serving,
}

/// The last rebuild of a store that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RebuiltStore {
    /// The number of the rebuild.
    pub number: u32,
    /// Where the data came from.
    pub source: RebuildSource,
    /// The member that started alone.
    pub member: ComponentName,
    /// When an API server served its data.
    pub at: Time,
}

impl fmt::Display for RebuiltStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            RebuildSource::Survivor { lost } => {
                let lost = lost.iter().map(ComponentName::as_str).collect::<Vec<_>>().join(", ");
                let member = &self.member;
                write!(
                    f,
                    "the store was rebuilt from the data of {member}, because {lost} were lost: writes that {member} did not know to be \
                     committed are missing"
                )
            }
            RebuildSource::Snapshot { name, cluster: None, .. } => {
                write!(f, "the store was restored from the snapshot {name}: what was written after it is gone")
            }
            RebuildSource::Snapshot { name, cluster: Some(source), .. } => {
                write!(f, "the store was made from the snapshot {name} of the cluster {}", source.name)
            }
        }
    }
}
