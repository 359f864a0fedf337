//! How space in a store's databases was freed, as `status.etcd` records it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Time, name::ComponentName};

/// How Keelway freed space in the databases of a store. It is recorded before each request to etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreSpace {
    /// The last compaction. Keelway compacts a store only when it has run out of space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_compaction: Option<LastCompaction>,
    /// The last defragmentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_defragmentation: Option<LastDefragmentation>,
}

/// The last compaction of a store that Keelway ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LastCompaction {
    /// The revision up to which the store was compacted.
    pub revision: u64,
    /// When it was ordered.
    pub time: Time,
}

/// The last defragmentation of a member's database that Keelway ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LastDefragmentation {
    /// The component that runs the member.
    pub component: ComponentName,
    /// When it was ordered.
    pub time: Time,
}
