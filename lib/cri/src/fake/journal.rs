//! The calls that the fake received.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
};

/// A call that the fake received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// The CRI method.
    pub method: &'static str,
    /// The pod, `pod/container` or image that the call concerns, by name if it is known. Empty for none.
    pub object: String,
    /// Whether the method is of the kind that changes something.
    pub change: bool,
}

#[derive(Debug, Default)]
pub(super) struct CallJournal {
    calls: Vec<RecordedCall>,
    changes: usize,
    file: Option<File>,
}

impl CallJournal {
    pub(super) fn write_to(&mut self, path: &Path) -> io::Result<()> {
        self.file = Some(OpenOptions::new().create(true).append(true).open(path)?);
        Ok(())
    }

    pub(super) fn calls(&self) -> &[RecordedCall] {
        &self.calls
    }

    pub(super) fn changes(&self) -> usize {
        self.changes
    }

    pub(super) fn record_query(&mut self, method: &'static str, object: String) {
        self.calls.push(RecordedCall { method, object, change: false });
    }

    /// Records a call that changes something, and returns its number, from 1.
    pub(super) fn record_change(&mut self, method: &'static str, object: String) -> usize {
        if let Some(file) = &mut self.file
            && let Err(error) = writeln!(file, "{method} {object}")
        {
            tracing::error!(%error, "a call could not be noted");
        }
        self.calls.push(RecordedCall { method, object, change: true });
        self.changes += 1;
        self.changes
    }
}
