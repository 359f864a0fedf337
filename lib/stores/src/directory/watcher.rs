//! Reports which files may have changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::StreamExt;
use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::{sync::Notify, task::AbortHandle};

use super::files::FileSelection;
use crate::document_paths::{FOLDERS, is_document};

/// The size of the buffer for events, in bytes.
const BUFFER: usize = 16 << 10;

/// A watch on all folders of a store, including folders that are created later.
#[derive(Debug)]
pub(super) struct DirectoryWatch {
    seen: Arc<PendingChanges>,
    task: AbortHandle,
}

#[derive(Debug)]
struct PendingChanges {
    changed: Mutex<FileSelection>,
    woken: AtomicBool,
    notify: Notify,
}

impl Drop for DirectoryWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl DirectoryWatch {
    /// Starts the watch. Needs a runtime. At first, all files count as changed.
    pub(super) fn start(root: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mut folders = Folders { root: root.to_owned(), watches: inotify.watches(), paths: BTreeMap::new() };
        for folder in FOLDERS {
            folders.add(Path::new(folder))?;
        }
        let seen = Arc::new(PendingChanges {
            changed: Mutex::new(FileSelection::All),
            woken: AtomicBool::new(false),
            notify: Notify::new(),
        });
        let mut events = inotify.into_event_stream(vec![0; BUFFER])?;
        let of_task = seen.clone();
        let task = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => folders.record_event(&of_task, &event),
                    Err(error) => {
                        tracing::error!(%error, "the watch of the store failed; restart the manager");
                        return;
                    }
                }
            }
        });
        Ok(Self { seen, task: task.abort_handle() })
    }

    /// Returns when files may have changed that [`Self::take`] has not returned yet.
    pub(super) async fn changed(&self) {
        loop {
            let notified = self.seen.notify.notified();
            let is_woken = self.seen.woken.load(Ordering::Relaxed);
            if is_woken || *self.seen.lock() != FileSelection::These(BTreeSet::new()) {
                return;
            }
            notified.await;
        }
    }

    /// Returns the files that may have changed since the last call.
    pub(super) fn take(&self) -> FileSelection {
        self.seen.woken.store(false, Ordering::Relaxed);
        std::mem::replace(&mut *self.seen.lock(), FileSelection::These(BTreeSet::new()))
    }

    /// Adds files again that were taken and could not be read.
    pub(super) fn requeue(&self, which: FileSelection) {
        let mut changed = self.seen.lock();
        match (&mut *changed, which) {
            (FileSelection::All, _) => {}
            (all, FileSelection::All) => *all = FileSelection::All,
            (FileSelection::These(paths), FileSelection::These(more)) => paths.extend(more),
        }
    }

    /// Wakes [`Self::changed`] without a change of a file.
    pub(super) fn wake(&self) {
        self.seen.woken.store(true, Ordering::Relaxed);
        self.seen.notify.notify_waiters();
    }

    /// Reports a file as changed, so that it is read again.
    pub(super) fn again(&self, path: &Path) {
        self.seen.add(path.to_owned());
    }
}

impl PendingChanges {
    fn lock(&self) -> MutexGuard<'_, FileSelection> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, path: PathBuf) {
        if let FileSelection::These(paths) = &mut *self.lock() {
            paths.insert(path);
        }
        self.notify.notify_waiters();
    }

    fn add_all(&self) {
        *self.lock() = FileSelection::All;
        self.notify.notify_waiters();
    }
}

/// Maps watches to folders, by path within the store.
struct Folders {
    root: PathBuf,
    watches: Watches,
    paths: BTreeMap<WatchDescriptor, PathBuf>,
}

impl Folders {
    /// Watches a folder and all folders in it.
    fn add(&mut self, folder: &Path) -> io::Result<()> {
        let mask =
            WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::CREATE | WatchMask::DELETE | WatchMask::ONLYDIR;
        let path = self.root.join(folder);
        self.paths.insert(self.watches.add(&path, mask)?, folder.to_owned());
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                self.add(&folder.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    fn record_event(&mut self, seen: &PendingChanges, event: &Event<std::ffi::OsString>) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return seen.add_all();
        }
        if event.mask.contains(EventMask::IGNORED) {
            self.paths.remove(&event.wd);
            return;
        }
        let (Some(folder), Some(name)) = (self.paths.get(&event.wd), &event.name) else { return };
        let path = folder.join(name);
        if event.mask.contains(EventMask::ISDIR) {
            // Files may have been created in it before it was watched.
            if event.mask.intersects(EventMask::CREATE | EventMask::MOVED_TO)
                && let Err(error) = self.add(&path)
            {
                tracing::warn!(%error, folder = %path.display(), "cannot watch a directory");
            }
            return seen.add_all();
        }
        // A file that is still being written is read once it is closed.
        let is_whole = !event.mask.contains(EventMask::CREATE) || is_link(&self.root.join(&path));
        if is_document(&path) && is_whole {
            seen.add(path);
        }
    }
}

/// Returns whether the path is a symbolic or hard link. Creating a link causes no event when it is closed.
fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.file_type().is_symlink() || found.nlink() > 1)
}
