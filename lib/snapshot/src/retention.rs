//! Which snapshots are deleted.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::SnapshotName;

/// How many snapshots of a cluster are kept, and for how long. The newest one is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The number of snapshots.
    pub keep: u32,
    /// The greatest age. None: the age does not matter.
    pub max_age: Option<SignedDuration>,
}

/// Why a snapshot is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// At least this number of snapshots are newer.
    Newer(u32),
    /// It is older than this.
    Older(SignedDuration),
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer(1) => f.write_str("a newer snapshot exists"),
            Self::Newer(count) => write!(f, "{count} newer snapshots exist"),
            Self::Older(age) => write!(f, "it is older than {} h", age.as_hours()),
        }
    }
}

impl Retention {
    /// Returns the snapshots to delete, the oldest first, each with the reason.
    #[must_use]
    pub fn expired(&self, snapshots: &[SnapshotName], now: Timestamp) -> Vec<(SnapshotName, Expiry)> {
        let mut newest_first = snapshots.to_vec();
        newest_first.sort_unstable();
        newest_first.dedup();
        newest_first.reverse();
        let keep = self.keep.max(1);
        let reason = |(newer, name): (usize, &SnapshotName)| {
            let too_many = newer >= usize::try_from(keep).unwrap_or(usize::MAX);
            let old = self.max_age.filter(|age| newer > 0 && now.duration_since(name.at()) > *age);
            too_many.then_some(Expiry::Newer(keep)).or(old.map(Expiry::Older))
        };
        let expired = newest_first.iter().enumerate();
        let mut expired: Vec<_> = expired.filter_map(|found| Some((*found.1, reason(found)?))).collect();
        expired.reverse();
        expired
    }
}
