//! The store of a command line: documents in memory, and a file that is written before every effect that depends on them.

use std::{
    fs,
    io::{BufWriter, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use anyhow::Context;
use async_trait::async_trait;
use keelway_api::Documents;
use keelway_reconciler::{Store, StoreError};
use keelway_stores::pivot::PivotStore;

/// The file that holds documents until they are on stdout is named with this prefix, the process id and [`SUFFIX`].
pub(crate) const PREFIX: &str = "reconcile-";
pub(crate) const SUFFIX: &str = ".yaml";

/// Documents in memory, saved to a file of mode 0600 before every effect that depends on them.
pub(crate) struct Pipe {
    documents: Mutex<Arc<Documents>>,
    file: PathBuf,
    end: PipeOutput,
    quiet: bool,
}

/// What happens to the file at the end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PipeOutput {
    /// The file is removed once the documents are on stdout.
    Stdout,
    /// The file belongs to the user, and stays.
    InPlace,
}

impl Pipe {
    /// Creates a store of documents that go to stdout. Nothing is written before the first save.
    pub(crate) fn new(documents: Documents, directory: &Path, quiet: bool) -> Self {
        let file = directory.join(format!("{PREFIX}{}{SUFFIX}", std::process::id()));
        Self { documents: Mutex::new(Arc::new(documents)), file, end: PipeOutput::Stdout, quiet }
    }

    /// Creates a store that saves to the user's own file.
    pub(crate) fn in_place(documents: Documents, file: PathBuf) -> Self {
        Self { documents: Mutex::new(Arc::new(documents)), file, end: PipeOutput::InPlace, quiet: true }
    }

    /// Returns the documents of the last save, or those that were read.
    pub(crate) fn documents(&self) -> Arc<Documents> {
        self.documents.lock().map(|documents| Arc::clone(&documents)).unwrap_or_default()
    }

    /// Returns whether the file exists: it does after the first save.
    pub(crate) fn saved(&self) -> bool {
        self.file.exists()
    }

    /// Removes the file, unless it is the user's own. Call this once the documents are on stdout.
    pub(crate) fn done(&self) {
        if self.end == PipeOutput::Stdout {
            let _ = fs::remove_file(&self.file);
        }
    }

    fn store(&self, documents: &Documents) -> anyhow::Result<()> {
        let first = !self.file.exists();
        write_durably(&self.file, &self.file.with_extension("next"), documents)?;
        if first && !self.quiet {
            let _ = writeln!(std::io::stderr(), "documents are kept in {} until they are written", self.file.display());
        }
        if let Ok(mut held) = self.documents.lock() {
            *held = Arc::new(documents.clone());
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Pipe {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        Ok(self.documents())
    }

    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        tracing::debug!("saves");
        let kept = self.store(documents).map_err(|error| StoreError { operation: "save", cause: error.into() });
        if kept.is_ok() {
            tracing::debug!("saved");
        }
        kept
    }
}

/// Documents that move to stdout are saved to the file before they are removed from their source.
#[async_trait]
impl PivotStore for Pipe {
    fn title(&self) -> String {
        format!("- ({})", self.file.display())
    }
}

/// Replaces a file atomically by way of `next`: readers see the old or the new text, also after a crash.
pub(crate) fn write_durably(file: &Path, next: &Path, documents: &Documents) -> anyhow::Result<()> {
    let directory = file.parent().context("the file has no directory")?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("could not create {}", directory.display()))?;
    let write = || -> std::io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut handle = BufWriter::new(options.write(true).create(true).truncate(true).mode(0o600).open(next)?);
        documents.pieces().try_for_each(|piece| handle.write_all(piece.as_bytes()))?;
        handle.into_inner()?.sync_all()?;
        fs::rename(next, file)?;
        fs::File::open(directory)?.sync_all()
    };
    write().with_context(|| format!("could not write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use keelway_reconciler::testing;

    use super::*;

    #[tokio::test]
    async fn it_is_a_store() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("documents.yaml");
        let open = || {
            let text = fs::read(&file).unwrap_or_default();
            Pipe::in_place(Documents::read(&text).unwrap(), file.clone())
        };
        testing::check_store(open).await;
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "there are keys in it");
    }
}
