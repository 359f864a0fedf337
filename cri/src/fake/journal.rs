//! What was asked of the fake.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
};

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The method's name in CRI.
    pub method: &'static str,
    /// The pod, `pod/container` or image it was about, by name where that was known; empty for none.
    pub object: String,
    /// Whether it is of the kind that changes something.
    pub change: bool,
}

#[derive(Debug, Default)]
pub(super) struct Journal {
    calls: Vec<Call>,
    changes: usize,
    file: Option<File>,
}

impl Journal {
    pub(super) fn write_to(&mut self, path: &Path) -> io::Result<()> {
        self.file = Some(OpenOptions::new().create(true).append(true).open(path)?);
        Ok(())
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub(super) fn changes(&self) -> usize {
        self.changes
    }

    pub(super) fn look(&mut self, method: &'static str, object: String) {
        self.calls.push(Call { method, object, change: false });
    }

    /// Notes a call that changes something, and returns its number, from 1.
    pub(super) fn change(&mut self, method: &'static str, object: String) -> usize {
        if let Some(file) = &mut self.file
            && let Err(error) = writeln!(file, "{method} {object}")
        {
            tracing::error!(%error, "a call could not be noted");
        }
        self.calls.push(Call { method, object, change: true });
        self.changes += 1;
        self.changes
    }
}
