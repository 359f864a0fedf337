//! Logs of containers, and the selection of their lines.

use std::{os::fd::OwnedFd, sync::Arc};

use keelway_api::jiff::Timestamp;

use crate::layout;

/// The log of one run of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Log {
    /// The container's name in the pod.
    pub container: String,
    /// The attempt at this container, from 0.
    pub attempt: u32,
}

impl Log {
    /// Returns the log whose file has this name; none for other files.
    #[must_use]
    pub fn of_file(name: &str) -> Option<Self> {
        let (container, attempt) = name.strip_suffix(".log")?.rsplit_once('-')?;
        Some(Self { container: container.to_owned(), attempt: attempt.parse().ok()? })
    }

    /// Returns the name of the log's file.
    #[must_use]
    pub fn file_name(&self) -> String {
        layout::log_name(&self.container, self.attempt)
    }
}

/// Which lines of a log to return, and how.
#[derive(Debug, Clone, Default)]
pub struct LogOptions {
    /// Only the last this many lines. `None` for all.
    pub tail: Option<u64>,
    /// Only lines that were written at this time or later.
    pub since: Option<Timestamp>,
    /// Whether to prefix each line with the time at which it was written.
    pub timestamps: bool,
    /// Whether to continue with new lines, also those of a restarted container, until the container's logs are removed.
    pub follow: bool,
    /// Becomes readable, or is closed, when the reader has disconnected.
    pub reader_closed: Option<Arc<OwnedFd>>,
}
