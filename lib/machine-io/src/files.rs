//! Keelway's files on a machine, reached through a descriptor of the machine's root and never through a path of this process.

use keelway_machine::{
    layout::{self, FILE_MODE, LOG_DIRECTORY, MachineDirectory},
    leader::Leader,
};

mod capacity;
mod cgroup;
mod copy;
mod digests;
mod error;
mod folder;
mod logs;
mod observed_files;
mod remove;
#[cfg(test)]
mod tests;
mod top_directories;

use std::{
    fs::File,
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use keelway_api::{
    hypervisor::Applied,
    machine::{DATA_MARK, PodFile, STATE_DIRECTORY, data_mark},
    name::{ClusterId, InstallationId, PodName},
};
use serde::Serialize;

pub use capacity::Inventory;
pub use digests::Digests;
pub use error::MachineFileError;
pub use logs::PodLogs;
pub use observed_files::ObservedFiles;

use folder::{Attributes, Folder};

/// The machine's own records, in the order of their removal. The owner is last, because a machine without it obeys no installation. The description
/// of the config is removed before the config: alone, it would look like a config that was lost.
const RECORDS: [&str; 7] =
    [layout::EVENTS, layout::FETCHED, layout::TAKEN, layout::CONFIG, layout::APPLIED, layout::LEADER, layout::OWNER];

/// The files of one machine. All methods block.
#[derive(Debug, Clone, Copy)]
pub struct MachineFiles<'a> {
    root: BorrowedFd<'a>,
}

impl<'a> MachineFiles<'a> {
    /// Returns the files of the machine with this root directory.
    #[must_use]
    pub fn new(root: BorrowedFd<'a>) -> Self {
        Self { root }
    }

    /// Records the installation that the machine obeys.
    pub fn write_owner(self, installation: &InstallationId) -> Result<(), MachineFileError> {
        self.write_record(layout::OWNER, format!("{installation}\n").as_bytes())
    }

    /// Records the config that was applied.
    pub fn record_applied(self, applied: &Applied) -> Result<(), MachineFileError> {
        self.write_json(layout::APPLIED, applied)
    }

    /// Records the newest leader.
    pub fn record_leader(self, leader: &Leader) -> Result<(), MachineFileError> {
        self.write_json(layout::LEADER, leader)
    }

    /// Stores the config in effect. It contains keys.
    pub fn write_config(self, config: &[u8]) -> Result<(), MachineFileError> {
        self.write_record(layout::CONFIG, config)
    }

    /// Returns the stored config, if there is one.
    pub fn read_config(self) -> Result<Option<Vec<u8>>, MachineFileError> {
        self.read_below(layout::CONFIG)
    }

    /// Records the part of the config that every release can read.
    pub fn write_taken(self, taken: &impl Serialize) -> Result<(), MachineFileError> {
        self.write_json(layout::TAKEN, taken)
    }

    /// Returns the record of [`Self::write_taken`], if there is one.
    pub fn read_taken(self) -> Result<Option<Vec<u8>>, MachineFileError> {
        self.read_below(layout::TAKEN)
    }

    /// Records which images were fetched.
    pub(crate) fn write_fetched(self, fetched: &impl Serialize) -> Result<(), MachineFileError> {
        self.write_json(layout::FETCHED, fetched)
    }

    /// Returns the record of [`Self::write_fetched`], if there is one.
    pub(crate) fn read_fetched(self) -> Result<Option<Vec<u8>>, MachineFileError> {
        self.read_below(layout::FETCHED)
    }

    /// Returns the stored events of the machine, if there are any.
    pub fn read_events(self) -> Result<Option<Vec<u8>>, MachineFileError> {
        self.read_below(layout::EVENTS)
    }

    /// Appends lines to the stored events, or replaces the events with these lines. A loss of power can lose them: nothing relies on events.
    pub fn write_events(self, lines: &[u8], anew: bool) -> Result<(), MachineFileError> {
        Folder::open_in_root(self.root, STATE_DIRECTORY)
            .and_then(|state| state.append(layout::EVENTS, lines, anew))
            .map_err(MachineFileError::write(layout::EVENTS))
    }

    /// Returns the content of a pod's file, or `None` if it does not exist.
    pub fn read_file(self, pod: &PodName, file: &str) -> Result<Option<Vec<u8>>, MachineFileError> {
        self.read_below(&layout::file_path(pod, file))
    }

    fn read_below(self, path: &str) -> Result<Option<Vec<u8>>, MachineFileError> {
        let read = || {
            let (parent, name) = Folder::open_in_root(self.root, STATE_DIRECTORY)?.parent_of(path)?;
            parent.read_bytes(name)
        };
        match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map_err(MachineFileError::read(path)),
        }
    }

    /// Opens a path to a socket of a pod. The descriptor always refers to this socket, also if another one replaces it.
    pub fn open_socket(self, pod: &PodName, path: &str) -> Result<OwnedFd, MachineFileError> {
        let path = format!("{}/{path}", layout::pod_directory(pod));
        let open = || {
            let (parent, name) = Folder::open_in_root(self.root, STATE_DIRECTORY)?.parent_of(&path)?;
            parent.open_socket(name)
        };
        open().map_err(MachineFileError::read(&path))
    }

    fn write_json(self, name: &str, record: &impl Serialize) -> Result<(), MachineFileError> {
        let failed = |error: serde_json::Error| MachineFileError::Write { path: name.to_owned(), source: error.into() };
        self.write_record(name, &serde_json::to_vec(record).map_err(failed)?)
    }

    fn write_record(self, name: &str, content: &[u8]) -> Result<(), MachineFileError> {
        let write = || {
            let state = top_directories::make(self.root, STATE_DIRECTORY)?;
            top_directories::replace_record(&state, name, content)
        };
        write().map_err(MachineFileError::write(name))
    }

    /// Creates a directory in an existing one, or corrects its owner and mode.
    pub fn make_directory(self, directory: &MachineDirectory) -> Result<(), MachineFileError> {
        let make = || {
            let (parent, name) = top_directories::make(self.root, STATE_DIRECTORY)?.parent_of(&directory.path)?;
            parent.make(name, directory.into())
        };
        make().map_err(MachineFileError::make(&directory.path))
    }

    /// Writes a pod's mark into an existing data directory. The mark belongs to root, and the component ignores it.
    pub fn mark_data(self, pod: &PodName, path: &str) -> Result<(), MachineFileError> {
        let mark = format!("{path}/{DATA_MARK}");
        Folder::open_in_root(self.root, STATE_DIRECTORY)
            .and_then(|state| {
                let data = state.descend(path)?;
                top_directories::replace_record(&data, DATA_MARK, data_mark(pod).as_bytes())
            })
            .map_err(MachineFileError::write(&mark))
    }

    /// Copies a data directory to a directory beside it, which appears once it is complete and on disk. No process may write to the original.
    pub fn copy_data(self, from: &str, to: &str) -> Result<(), MachineFileError> {
        let copy = || {
            let (parent, name) = Folder::open_in_root(self.root, STATE_DIRECTORY)?.parent_of(from)?;
            let (_, copy) = split(to);
            copy::directory(&parent, name, copy)
        };
        copy().map_err(MachineFileError::write(to))
    }

    /// Writes a file of a pod atomically: a reader sees the old content or the new. The directory must exist.
    pub fn write_file(self, pod: &PodName, user: u32, file: &PodFile) -> Result<(), MachineFileError> {
        let path = layout::file_path(pod, &file.path);
        let write = || {
            let (parent, name) = Folder::open_in_root(self.root, STATE_DIRECTORY)?.parent_of(&path)?;
            parent.replace(name, &file.content, Attributes::of_user(user, FILE_MODE))
        };
        write().map_err(MachineFileError::write(&path))
    }

    /// Creates a file of a user in an existing directory, for writing. The path is relative to [`STATE_DIRECTORY`].
    pub(crate) fn create_file(self, path: &str, user: u32) -> Result<File, MachineFileError> {
        let create = || {
            let (parent, name) = Folder::open_in_root(self.root, STATE_DIRECTORY)?.parent_of(path)?;
            parent.create_empty(name, Attributes::of_user(user, FILE_MODE))
        };
        create().map_err(MachineFileError::write(path))
    }

    /// Moves a directory from one directory to another in one step. The paths are relative to [`STATE_DIRECTORY`].
    pub(crate) fn move_directory(self, from: &str, to: &str, name: &str) -> Result<(), MachineFileError> {
        let place = || {
            let open = || Folder::open_in_root(self.root, STATE_DIRECTORY);
            let (from, to) = (open()?.descend(from)?, open()?.descend(to)?);
            from.move_to(name, &to, name)?;
            to.sync()?;
            from.sync()
        };
        place().map_err(MachineFileError::write(&format!("{to}/{name}")))
    }

    /// Returns the end of a log of a pod, as text of at most this length.
    pub(crate) fn log_end(self, pod: &PodName, name: &str, most: usize) -> Result<String, MachineFileError> {
        let path = format!("{}/{name}", layout::pod_directory(pod));
        let read = || {
            let (parent, name) = Folder::open_in_root(self.root, LOG_DIRECTORY)?.parent_of(&path)?;
            parent.read_bytes(name)
        };
        let content = read().map_err(MachineFileError::read(&path))?.unwrap_or_default();
        let end = content.get(content.len().saturating_sub(most)..).unwrap_or_default();
        Ok(String::from_utf8_lossy(end).trim().to_owned())
    }

    /// Removes a file, a link, or a directory with everything in it. The path is relative to [`STATE_DIRECTORY`].
    pub fn remove(self, path: &str) -> Result<(), MachineFileError> {
        self.remove_below(STATE_DIRECTORY, path)
    }

    fn remove_below(self, top: &str, path: &str) -> Result<(), MachineFileError> {
        let remove = || {
            let (parent, name) = Folder::open_in_root(self.root, top)?.parent_of(path)?;
            remove::tree(&parent, name)
        };
        match remove() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(MachineFileError::remove(&format!("{top}/{path}"))),
        }
    }

    /// Creates the directory for a pod's logs.
    pub fn make_log_directory(self, pod: &PodName) -> Result<(), MachineFileError> {
        let attributes = Attributes::of_root(0o700);
        let make = || {
            let logs = top_directories::make(self.root, LOG_DIRECTORY)?;
            logs.make(pod.cluster.as_str(), attributes)?;
            logs.child(pod.cluster.as_str())?.make(pod.component.as_str(), attributes)
        };
        make().map_err(MachineFileError::make(&layout::log_directory(pod)))
    }

    /// Removes one log of a pod, with its rotated files.
    pub fn remove_log(self, pod: &PodName, name: &str) -> Result<(), MachineFileError> {
        let path = format!("{}/{name}", layout::pod_directory(pod));
        let remove = || {
            let (parent, name) = Folder::open_in_root(self.root, LOG_DIRECTORY)?.parent_of(&path)?;
            logs::remove(&parent, name)
        };
        match remove() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(MachineFileError::remove(&format!("{LOG_DIRECTORY}/{path}"))),
        }
    }

    /// Removes a pod completely: its logs, then its files and data with its own directory.
    pub fn remove_pod(self, pod: &PodName) -> Result<(), MachineFileError> {
        let directory = layout::pod_directory(pod);
        self.remove_below(LOG_DIRECTORY, &directory)?;
        self.remove(&directory)
    }

    /// Removes what a cluster left on the machine, its directory last.
    pub fn forget_cluster(self, cluster: &ClusterId) -> Result<(), MachineFileError> {
        cgroup::remove_parents(self.root, cluster)
            .map_err(MachineFileError::remove(&format!("the cgroups of {cluster}")))?;
        self.remove_below(LOG_DIRECTORY, cluster.as_str())?;
        self.remove(cluster.as_str())
    }

    /// Removes the machine's own records, and the top directories that Keelway created if nothing else is in them.
    pub fn leave(self) -> Result<(), MachineFileError> {
        top_directories::leave(self.root, LOG_DIRECTORY, &[]).map_err(MachineFileError::remove(LOG_DIRECTORY))?;
        top_directories::leave(self.root, STATE_DIRECTORY, &RECORDS).map_err(MachineFileError::remove(STATE_DIRECTORY))
    }
}

/// Returns the parent of a path, which may be empty, and the path's last name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl From<&MachineDirectory> for Attributes {
    fn from(directory: &MachineDirectory) -> Self {
        Self { user: directory.user, group: directory.group, mode: directory.mode }
    }
}
