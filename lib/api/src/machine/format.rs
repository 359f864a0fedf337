//! The formats of configs.
//!
//! The format of a config determines the fields that its reader must understand. A driver sends each machine the newest format that both know.

use core::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The format of a [`MachineConfig`](super::MachineConfig).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConfigFormat {
    /// That of v0.1.0, which has no number on the wire: the agent computes revisions, and there are no removals of data.
    #[default]
    One,
    /// The driver computes revisions, and orders removals of data.
    Two,
}

impl ConfigFormat {
    /// The newest one.
    pub const NEWEST: Self = Self::Two;

    /// The number in configs and in [`FormatRange`].
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }

    /// The format of this number. None: it is of a newer release than this.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        [Self::One, Self::Two].into_iter().find(|format| format.number() == number)
    }

    /// The newest format that this release and a machine understand.
    #[must_use]
    pub fn understood_by(machine: FormatRange) -> Option<Self> {
        FormatRange::OWN.newest_in_both(machine).and_then(Self::of_number)
    }
}

/// The formats that a machine understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FormatRange {
    /// The oldest one.
    pub first: u32,
    /// The newest one.
    pub last: u32,
}

impl FormatRange {
    /// Those of this release.
    pub const OWN: Self = Self { first: 1, last: 2 };
    /// Those of v0.1.0, which does not report any.
    pub const OF_V0_1_0: Self = Self { first: 1, last: 1 };

    fn newest_in_both(self, other: Self) -> Option<u32> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (first <= last).then_some(last)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn is_of_v0_1_0(&self) -> bool {
        *self == Self::OF_V0_1_0
    }
}

/// A machine that reports no formats is one of v0.1.0.
impl Default for FormatRange {
    fn default() -> Self {
        Self::OF_V0_1_0
    }
}

impl fmt::Display for FormatRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last { write!(f, "format {first}") } else { write!(f, "formats {first} to {last}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_format_that_both_understand_is_chosen() {
        let chosen = |first, last| ConfigFormat::understood_by(FormatRange { first, last });
        assert_eq!(chosen(1, 1), Some(ConfigFormat::One));
        assert_eq!(chosen(1, 2), Some(ConfigFormat::Two));
        assert_eq!(chosen(2, 9), Some(ConfigFormat::Two));
        assert_eq!(chosen(3, 4), None);
        assert_eq!(chosen(2, 1), None);
        assert_eq!(FormatRange::OWN.last, ConfigFormat::NEWEST.number());
    }
}
