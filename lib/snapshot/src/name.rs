//! The name of a snapshot.

use std::{fmt, str::FromStr};

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// When a snapshot was taken, and the revision of its database, as `20261127T115200Z-48213`. Names sort by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotName {
    /// When it was taken, in whole seconds.
    at: Timestamp,
    /// The revision.
    revision: u64,
}

/// A text is not the name of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a snapshot, such as 20261127T115200Z-48213")]
pub struct SnapshotNameError(String);

const FORMAT: &str = "%Y%m%dT%H%M%SZ";

impl SnapshotName {
    /// Returns the name of a snapshot that was taken at this time.
    #[must_use]
    pub fn of(at: Timestamp, revision: u64) -> Self {
        Self { at: Timestamp::from_second(at.as_second()).unwrap_or(at), revision }
    }

    /// Returns when the snapshot was taken.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns the revision of its database.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.at.strftime(FORMAT), self.revision)
    }
}

impl FromStr for SnapshotName {
    type Err = SnapshotNameError;

    fn from_str(text: &str) -> Result<Self, SnapshotNameError> {
        let parsed = || {
            let (at, revision) = text.split_once('-')?;
            let at = DateTime::strptime(FORMAT, at).ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp();
            Some(Self { at, revision: revision.parse().ok()? })
        };
        // Two texts never name the same snapshot.
        parsed().filter(|name| name.to_string() == text).ok_or_else(|| SnapshotNameError(text.to_owned()))
    }
}
