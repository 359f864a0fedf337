//! A store in a directory, with one file for each document. Users and other programs can edit the files at any time.
//!
//! ```text
//!  hypervisors/NAME.yaml
//!  clusters/NAMESPACE/NAME.yaml
//!  components/NAMESPACE/NAME.yaml
//!  secrets/NAMESPACE/NAME.yaml
//!  lock                               the process that has the store open
//!  left-for                           the new store of the documents, during a pivot
//! ```
//!
//! A change takes effect once its file is valid. An invalid file is refused, and the document stays as it was. If the manager must write a
//! document whose file is refused, it first renames that file to `NAME.yaml.refused`. The manager owns status: if a user replaces a Cluster or a
//! Hypervisor, its status is kept.

mod copy;
mod edit;
mod files;
mod lock;
mod watcher;

use std::{
    collections::BTreeMap,
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use keelway_api::{
    Documents,
    document::{DocumentChange, DocumentName},
    fault::Faults,
};
use keelway_reconciler::{ChangingDocuments, Store, StoreError};
use tokio::{sync::watch, task::block_in_place};

pub use copy::{CopyError, copy_documents};
pub use edit::{EditError, EditOutcome};
use files::{ContentHash, FileSelection, ReplaceOutcome, StoreFiles};
use lock::DirectoryLock;
pub use lock::DirectoryLockError;
use watcher::DirectoryWatch;

use crate::{
    DocumentSource,
    accept::{AcceptedDocuments, ChangedFiles, StatusOwner, accept},
    document_paths::path_of,
};

/// Why a directory cannot be opened as a store.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process has the directory open, or the lock failed.
    #[error(transparent)]
    Lock(#[from] DirectoryLockError),
    /// A pivot of the documents to another store was interrupted.
    #[error("the documents of {} are moving to {target}; finish the move with keelway pivot --from dir:{} --to {target}", path.display(), path.display())]
    Left {
        /// The path of the directory.
        path: PathBuf,
        /// The store that the documents moved to.
        target: String,
    },
    /// The directory cannot be created, read or watched.
    #[error("could not use {}", path.display())]
    Io {
        /// The path that failed.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

/// Why the documents of a directory cannot be loaded or saved.
#[derive(Debug, thiserror::Error)]
pub enum UnsoundDocuments {
    /// A file was never valid, and its content decides which installation the machines obey. Nothing is done until it is repaired.
    #[error("some files are invalid")]
    Faults(#[source] Faults),
    /// A file changed since it was read. The caller must load again.
    #[error("{0} was modified by another program")]
    Changed(PathBuf),
}

/// Documents in files. Needs a runtime with several threads.
#[derive(Debug)]
pub struct DirectoryStore {
    files: StoreFiles,
    watch: DirectoryWatch,
    held: Mutex<DirectoryState>,
    published: watch::Sender<Arc<Documents>>,
    _lock: DirectoryLock,
}

#[derive(Debug, Default)]
struct DirectoryState {
    /// The hash of each file as it was last read or written, by path within the directory. Refused files are not included.
    files: BTreeMap<PathBuf, ContentHash>,
    /// The documents in effect; none before the first valid read.
    world: Option<Arc<Documents>>,
    /// The documents that the reconciler loaded or saved last.
    loaded: Arc<Documents>,
    /// Files that have no effect, each with its faults.
    refused: BTreeMap<PathBuf, Faults>,
}

type BoxedDirectoryError = Box<dyn Error + Send + Sync>;

impl DirectoryStore {
    /// Opens a directory to write into it, and creates it if it does not exist. Only one process can have it open.
    ///
    /// # Errors
    /// Another process has it open, a pivot of its documents was interrupted, or it cannot be created, read or watched.
    pub fn open(root: &Path) -> Result<Self, DirectoryError> {
        let directory = Self::open_to_leave(root)?;
        let left = directory.read_left_for();
        match left.map_err(|cause| DirectoryError::Io { path: root.to_owned(), cause })? {
            Some(target) => Err(DirectoryError::Left { path: root.to_owned(), target }),
            None => Ok(directory),
        }
    }

    /// Opens a directory as [`Self::open`] does, also if a pivot of its documents was interrupted.
    ///
    /// # Errors
    /// Another process has it open, or it cannot be created, read or watched.
    pub fn open_to_leave(root: &Path) -> Result<Self, DirectoryError> {
        let fail = |cause| DirectoryError::Io { path: root.to_owned(), cause };
        let files = StoreFiles::open(root).map_err(fail)?;
        let lock = DirectoryLock::take(root)?;
        files.clear().map_err(fail)?;
        let watch = DirectoryWatch::start(root).map_err(fail)?;
        Ok(Self { files, watch, held: Mutex::default(), published: watch::Sender::default(), _lock: lock })
    }

    /// Returns the files that have no effect, each with its faults.
    #[must_use]
    pub fn refused(&self) -> BTreeMap<PathBuf, Faults> {
        self.held().refused.clone()
    }

    pub(crate) fn root(&self) -> &Path {
        self.files.root()
    }

    /// Returns the store that the documents are moving to, during a pivot.
    pub(crate) fn read_left_for(&self) -> io::Result<Option<String>> {
        self.files.read_left_for()
    }

    /// Records durably where the documents are moving to; `None` when the pivot is complete.
    pub(crate) fn write_left_for(&self, target: Option<&str>) -> io::Result<()> {
        self.files.write_left_for(target)
    }

    /// Removes files, whatever they contain.
    pub(crate) fn remove_files(&self, paths: impl Iterator<Item = PathBuf>) -> io::Result<()> {
        paths.into_iter().try_for_each(|path| self.files.remove(&path))
    }

    fn held(&self) -> MutexGuard<'_, DirectoryState> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_changes(&self) -> Result<Arc<Documents>, BoxedDirectoryError> {
        let mut held = self.held();
        let mut which = self.watch.take();
        if held.world.is_none() {
            held.files.clear();
            which = FileSelection::All;
        }
        if let FileSelection::These(paths) = &mut which {
            // A refused document may be valid now, because another one changed.
            paths.extend(held.refused.keys().cloned());
        }
        let found = match self.files.read(&which, &held.files) {
            Ok(found) => found,
            Err(error) => {
                self.watch.requeue(which);
                return Err(error.into());
            }
        };
        if found.is_empty()
            && let Some(world) = &held.world
        {
            return Ok(world.clone());
        }
        let AcceptedDocuments { documents, refused, rewrite } =
            accept(held.world.as_deref(), &found, StatusOwner::Reader);
        held.note(found, refused);
        let Some(documents) = documents else { return Err(held.unsound().into()) };
        let documents = Arc::new(documents);
        self.publish(&mut held, documents.clone());
        for name in rewrite {
            self.write(&mut held, &name, documents.text_of(&name).as_deref())?;
        }
        Ok(documents)
    }

    /// Writes what a pass changed. Fails if a document that the pass changed has changed in the store since the pass loaded it.
    fn write_documents(&self, documents: &Documents) -> Result<(), BoxedDirectoryError> {
        let mut held = self.held();
        let (loaded, world) = (held.loaded.clone(), held.world.clone().unwrap_or_default());
        let changes = documents.changes_since(&loaded);
        if let Some(other) = changes.iter().map(DocumentChange::name).find(|name| world.get(name) != loaded.get(name)) {
            self.watch.wake();
            return Err(UnsoundDocuments::Changed(path_of(other)).into());
        }
        self.make(&mut held, &world, &changes, documents)?;
        held.loaded = Arc::new(documents.clone());
        Ok(())
    }

    /// Writes changes, first into files. If it fails, the changes that were written are in effect.
    fn make(
        &self,
        held: &mut DirectoryState,
        world: &Documents,
        changes: &[DocumentChange],
        to: &Documents,
    ) -> Result<(), BoxedDirectoryError> {
        let mut reached = Documents::clone(world);
        let made = changes.iter().try_for_each(|change| {
            let text = change.outcome(&reached, to).map(|document| document.as_ref().text());
            self.write(held, change.name(), text.as_deref())?;
            reached.make(change, to);
            Ok(())
        });
        self.publish(held, Arc::new(reached));
        made
    }

    /// Puts these documents into effect.
    fn publish(&self, held: &mut DirectoryState, documents: Arc<Documents>) {
        held.world = Some(documents.clone());
        self.published.send_replace(documents);
    }

    /// Returns a receiver for the documents in effect. It is notified of each change.
    #[must_use]
    pub fn documents(&self) -> watch::Receiver<Arc<Documents>> {
        self.published.subscribe()
    }

    /// Writes or removes one file. Fails if another program changed it.
    fn write(
        &self,
        held: &mut DirectoryState,
        name: &DocumentName,
        text: Option<&str>,
    ) -> Result<(), BoxedDirectoryError> {
        let path = path_of(name);
        let bytes = text.map(str::as_bytes);
        if held.refused.remove(&path).is_some()
            && let Some(aside) = self.files.set_aside(&path)?
        {
            tracing::warn!(file = %path.display(), kept = %aside.display(), "moved a refused file aside, and restored the document in effect");
        }
        if self.files.replace(&path, held.files.get(&path).copied(), bytes)? == ReplaceOutcome::No {
            self.watch.again(&path);
            return Err(UnsoundDocuments::Changed(path).into());
        }
        match bytes {
            Some(bytes) => held.files.insert(path, ContentHash::of(bytes)),
            None => held.files.remove(&path),
        };
        Ok(())
    }
}

impl DirectoryState {
    /// Records what was found. A refused file counts as not read, so that it is checked again.
    fn note(&mut self, found: ChangedFiles, refused: BTreeMap<PathBuf, Faults>) {
        for path in self.refused.keys().filter(|path| !refused.contains_key(*path)) {
            tracing::info!(file = %path.display(), "the file is accepted");
        }
        for (path, faults) in &refused {
            if self.refused.get(path) != Some(faults) {
                tracing::error!(file = %path.display(), "the file is refused: {faults}");
            }
        }
        for (path, bytes) in found {
            match bytes.filter(|_| !refused.contains_key(&path)) {
                Some(bytes) => self.files.insert(path, ContentHash::of(&bytes)),
                None => self.files.remove(&path),
            };
        }
        self.refused = refused;
    }

    fn unsound(&self) -> UnsoundDocuments {
        UnsoundDocuments::Faults(Faults(self.refused.values().flat_map(|faults| faults.0.iter().cloned()).collect()))
    }
}

#[async_trait]
impl Store for DirectoryStore {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        block_in_place(|| {
            let documents = self.read_changes()?;
            self.held().loaded = documents.clone();
            Ok(documents)
        })
        .map_err(|cause| StoreError { operation: "load", cause })
    }

    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        block_in_place(|| self.write_documents(documents)).map_err(|cause| StoreError { operation: "save", cause })
    }
}

impl DocumentSource for DirectoryStore {
    fn documents(&self) -> Arc<Documents> {
        self.published.borrow().clone()
    }

    fn refused(&self) -> usize {
        self.held().refused.len()
    }
}

#[async_trait]
impl ChangingDocuments for DirectoryStore {
    async fn changed(&self) {
        self.watch.changed().await;
    }
}
