//! What a machine has of CPU, memory and disk.

use core::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An amount of CPU and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Amount {
    /// The CPU in thousandths of a core.
    pub cpu_millis: u64,
    /// The memory in bytes.
    pub memory_bytes: u64,
}

impl Amount {
    /// Returns the amount that is available for components: all but a tenth of a core and 256 MiB, which are for the machine's system
    /// and its runtime.
    #[must_use]
    pub fn allocatable(self) -> Self {
        self.less(Self { cpu_millis: 100, memory_bytes: 256 << 20 })
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    /// Returns the difference, which is never negative.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            cpu_millis: self.cpu_millis.saturating_sub(other.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }

    /// Whether the other fits into this.
    #[must_use]
    pub fn holds(self, other: Self) -> bool {
        self.cpu_millis >= other.cpu_millis && self.memory_bytes >= other.memory_bytes
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}m CPU and {} MiB", self.cpu_millis, self.memory_bytes >> 20)
    }
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Disk {
    /// The size in bytes.
    pub capacity_bytes: u64,
    /// The free space for root in bytes.
    pub available_bytes: u64,
}

impl Disk {
    /// Whether two observations of a disk are about equal: the free space differs by less than a twentieth of the disk.
    #[must_use]
    pub fn are_about_equal(one: Option<Self>, other: Option<Self>) -> bool {
        let (Some(one), Some(other)) = (one, other) else { return one == other };
        // Amounts are written in KiB.
        one.capacity_bytes >> 10 == other.capacity_bytes >> 10
            && one.available_bytes.abs_diff(other.available_bytes) < one.capacity_bytes / 20
    }
}
