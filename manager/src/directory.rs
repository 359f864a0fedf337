//! A store that is a directory: one file a document, edited by hand or by programs while it is in use.
//!
//! ```text
//!  hypervisors/NAME.yaml
//!  clusters/NAMESPACE/NAME.yaml
//!  components/NAMESPACE/NAME.yaml
//!  secrets/NAMESPACE/NAME.yaml
//!  lock                               who writes
//!  left-for                           where all of it went, while it leaves
//! ```
//!
//! What a person writes takes effect once it is sound: a file that is not is refused, and the document stays as it was. Where that
//! document has to be written, the refused file goes to `NAME.yaml.refused`. Status is the manager's: of a Cluster or a Hypervisor
//! that somebody wrote anew, only the rest counts.

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

pub use edit::{EditError, EditOutcome};
use files::{ContentHash, FileSelection, ReplaceOutcome, StoreFiles};
use lock::DirectoryLock;
pub use lock::DirectoryLockError;
use watcher::DirectoryWatch;

use crate::{
    accept::{AcceptedDocuments, ChangedFiles, StatusOwner, accept},
    document_paths::path_of,
    metrics::DocumentSource,
};

/// Why a directory is no store.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Somebody else writes into it.
    #[error(transparent)]
    Lock(#[from] DirectoryLockError),
    /// Its documents went elsewhere, and not all of them have left.
    #[error("the documents of {} have gone to {target}: finish that with keelway pivot --from dir:{} --to {target}", path.display(), path.display())]
    Left {
        /// The directory.
        path: PathBuf,
        /// Where they are.
        target: String,
    },
    /// It cannot be made, read or watched.
    #[error("could not use {}", path.display())]
    Io {
        /// What of it.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
}

/// Why documents of a directory are not what a pass can work on.
#[derive(Debug, thiserror::Error)]
pub enum UnsoundDocuments {
    /// Files that were never sound: what they stand for is not known, so nothing is done.
    #[error("files cannot be used")]
    Faults(#[source] Faults),
    /// Somebody changed a file since it was read. Read again.
    #[error("{0} was changed by somebody else meanwhile")]
    Changed(PathBuf),
}

/// Documents in files. Needs a runtime of several threads.
#[derive(Debug)]
pub struct DirectoryStore {
    files: StoreFiles,
    watch: DirectoryWatch,
    held: Mutex<DirectoryState>,
    told: watch::Sender<Arc<Documents>>,
    _lock: DirectoryLock,
}

#[derive(Debug, Default)]
struct DirectoryState {
    /// By path within the directory: the file as it was read or written last, but for those that are refused.
    files: BTreeMap<PathBuf, ContentHash>,
    /// The documents that count; none before a first sound look.
    world: Option<Arc<Documents>>,
    /// What the pass knows of them, which is what it changes.
    loaded: Arc<Documents>,
    /// Files that are not what counts, and why.
    refused: BTreeMap<PathBuf, Faults>,
}

type BoxedDirectoryError = Box<dyn Error + Send + Sync>;

impl DirectoryStore {
    /// Opens a directory to write into it, and makes it where there is none. Nobody else may have it open.
    ///
    /// # Errors
    /// Somebody else has it open, its documents went elsewhere, or it cannot be made, read or watched.
    pub fn open(root: &Path) -> Result<Self, DirectoryError> {
        let directory = Self::open_to_leave(root)?;
        let left = directory.read_left_for();
        match left.map_err(|cause| DirectoryError::Io { path: root.to_owned(), cause })? {
            Some(target) => Err(DirectoryError::Left { path: root.to_owned(), target }),
            None => Ok(directory),
        }
    }

    /// The same, also where its documents are about to go elsewhere.
    ///
    /// # Errors
    /// Somebody else has it open, or it cannot be made, read or watched.
    pub fn open_to_leave(root: &Path) -> Result<Self, DirectoryError> {
        let fail = |cause| DirectoryError::Io { path: root.to_owned(), cause };
        let files = StoreFiles::open(root).map_err(fail)?;
        let lock = DirectoryLock::take(root)?;
        files.clear().map_err(fail)?;
        let watch = DirectoryWatch::start(root).map_err(fail)?;
        Ok(Self { files, watch, held: Mutex::default(), told: watch::Sender::default(), _lock: lock })
    }

    /// Files that do not count, each with why.
    #[must_use]
    pub fn refused(&self) -> BTreeMap<PathBuf, Faults> {
        self.held().refused.clone()
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        self.files.root()
    }

    /// Where its documents have gone, while they leave.
    pub(crate) fn read_left_for(&self) -> io::Result<Option<String>> {
        self.files.read_left_for()
    }

    /// Notes where its documents have gone, durably; `None` once they have left.
    pub(crate) fn write_left_for(&self, target: Option<&str>) -> io::Result<()> {
        self.files.write_left_for(target)
    }

    /// Takes files away, whatever is in them.
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
            // What did not fit may fit by now.
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
        let AcceptedDocuments { documents, refused, rewrite: put_back } =
            accept(held.world.as_deref(), &found, StatusOwner::Reader);
        held.note(found, refused);
        let Some(documents) = documents else { return Err(held.unsound().into()) };
        let documents = Arc::new(documents);
        self.publish(&mut held, documents.clone());
        for name in put_back {
            self.write(&mut held, &name, documents.text_of(&name).as_deref())?;
        }
        Ok(documents)
    }

    /// What was asked for since the pass loaded is not written over.
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

    /// Makes changes to the world that counts, in files first. As far as it comes is what counts then.
    fn make(
        &self,
        held: &mut DirectoryState,
        world: &Documents,
        changes: &[DocumentChange],
        to: &Documents,
    ) -> Result<(), BoxedDirectoryError> {
        let mut reached = Documents::clone(world);
        let made = changes.iter().try_for_each(|change| {
            let text = change.outcome(to).map(|document| document.as_ref().text());
            self.write(held, change.name(), text.as_deref())?;
            reached.make(change, to);
            Ok(())
        });
        self.publish(held, Arc::new(reached));
        made
    }

    /// From now on these documents count.
    fn publish(&self, held: &mut DirectoryState, documents: Arc<Documents>) {
        held.world = Some(documents.clone());
        self.told.send_replace(documents);
    }

    /// The documents that count, each time they are others.
    #[must_use]
    pub fn documents(&self) -> watch::Receiver<Arc<Documents>> {
        self.told.subscribe()
    }

    /// Brings one file to a text, or takes it away, unless somebody else wrote into it.
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
            tracing::warn!(file = %path.display(), kept = %aside.display(), "a file that was refused makes room for what counts");
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
    /// Writes down what was found: what is refused counts as not read, so that it is looked at again.
    fn note(&mut self, found: ChangedFiles, refused: BTreeMap<PathBuf, Faults>) {
        for path in self.refused.keys().filter(|path| !refused.contains_key(*path)) {
            tracing::info!(file = %path.display(), "the file is taken");
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
        self.told.borrow().clone()
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
