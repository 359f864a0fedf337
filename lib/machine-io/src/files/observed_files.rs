//! Observes Keelway's files on a machine.

use std::{
    collections::BTreeMap,
    io::{self, Read},
};

use keelway_api::{
    hypervisor::Applied,
    machine::{DATA_MARK, DataState, ETCD_DATABASE, FileState, STATE_DIRECTORY, data_mark},
    name::{ClusterId, ComponentName, InstallationId, PodName},
};
use keelway_machine::{
    layout::{APPLIED, FILES, LEADER, OWNER},
    leader::Leader,
};
use rustix::fs::{FileType, Stat};

use super::{
    MachineFileError, MachineFiles,
    digests::{DigestReader, Digests},
    folder::{Folder, UNFINISHED},
};

/// The records and files of a machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ObservedFiles {
    /// The installation that the machine obeys.
    pub owner: Option<InstallationId>,
    /// The config that was applied last.
    pub applied: Option<Applied>,
    /// The newest leader that a driver announced.
    pub leader: Option<Leader>,
    /// Files and directories, by path relative to [`STATE_DIRECTORY`]. The directory itself has the empty path.
    pub files: BTreeMap<String, FileState>,
    /// Data directories, by path relative to [`STATE_DIRECTORY`].
    pub data: BTreeMap<String, DataState>,
    /// The sizes of etcd members' databases, in bytes, by path relative to [`STATE_DIRECTORY`].
    pub databases: BTreeMap<String, u64>,
}

impl MachineFiles<'_> {
    /// Observes the machine's records, each pod's files with their content, and its data directories from outside. Files that have not changed are
    /// not read again.
    pub fn observe(self, digests: &Digests) -> Result<ObservedFiles, MachineFileError> {
        let state = match Folder::open_in_root(self.root, STATE_DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(ObservedFiles::default());
            }
            found => found.map_err(MachineFileError::read(STATE_DIRECTORY))?,
        };
        let mut found = records(&state)?;
        let mut reader = digests.reader();
        look_at_all(&state, &mut found, &mut reader).map_err(MachineFileError::read(STATE_DIRECTORY))?;
        digests.store(reader);
        Ok(found)
    }
}

impl MachineFiles<'_> {
    /// Observes only the machine's records.
    pub fn records(self) -> Result<ObservedFiles, MachineFileError> {
        match Folder::open_in_root(self.root, STATE_DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ObservedFiles::default()),
            found => records(&found.map_err(MachineFileError::read(STATE_DIRECTORY))?),
        }
    }
}

fn records(state: &Folder) -> Result<ObservedFiles, MachineFileError> {
    Ok(ObservedFiles {
        owner: record(state, OWNER, |text| text.trim_end().parse().map_err(io::Error::other))?,
        applied: record(state, APPLIED, |text| Ok(serde_json::from_str(text)?))?,
        leader: record(state, LEADER, |text| Ok(serde_json::from_str(text)?))?,
        ..ObservedFiles::default()
    })
}

fn record<T>(
    state: &Folder,
    name: &str,
    parse: impl FnOnce(&str) -> io::Result<T>,
) -> Result<Option<T>, MachineFileError> {
    let text = state.read(name);
    text.and_then(|text| text.as_deref().map(parse).transpose()).map_err(MachineFileError::read(name))
}

fn look_at_all(state: &Folder, found: &mut ObservedFiles, reader: &mut DigestReader) -> io::Result<()> {
    let files = &mut found.files;
    files.insert(String::new(), file_state(&state.own_stat()?, None));
    for (cluster, cluster_path) in directories(state, "", (files, reader), is::<ClusterId>)? {
        for (pod, path) in directories(&cluster, &cluster_path, (files, reader), is::<ComponentName>)? {
            for (folder, name) in directories(&pod, &path, (files, reader), |_| true)? {
                if name.ends_with(&format!("/{FILES}")) {
                    look_below(folder, name, (files, reader))?;
                } else if let Some(pod) = pod_of(&path) {
                    found.data.insert(name, look_at_data(&folder, &pod)?);
                }
            }
            let database = size_of(pod, ETCD_DATABASE).map(|bytes| (format!("{path}/{ETCD_DATABASE}"), bytes));
            found.databases.extend(database);
        }
    }
    Ok(())
}

/// Returns the size of a regular file of a pod, or `None` if there is no such file.
fn size_of(pod: Folder, path: &str) -> Option<u64> {
    let (folder, name) = pod.parent_of(path).ok()?;
    let found = folder.stat(name).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    is_file.then(|| u64::try_from(found.st_size).ok()).flatten()
}

fn pod_of(path: &str) -> Option<PodName> {
    let (cluster, component) = path.split_once('/')?;
    Some(PodName { cluster: cluster.parse().ok()?, component: component.parse().ok()? })
}

/// A component can write anything into its data directory. Only the mark is read, and names only up to the second one.
fn look_at_data(folder: &Folder, pod: &PodName) -> io::Result<DataState> {
    let mark = match folder.open_regular(DATA_MARK) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        found => found?,
    };
    let wanted = data_mark(pod);
    let mut content = Vec::new();
    if let Some(mark) = mark {
        mark.take(wanted.len() as u64 + 1).read_to_end(&mut content)?;
    }
    Ok(DataState { marked: content == wanted.as_bytes(), used: folder.has_other_than(&[DATA_MARK, UNFINISHED])? })
}

fn is<T: std::str::FromStr>(name: &str) -> bool {
    name.parse::<T>().is_ok()
}

/// Observes a directory of a pod's files, with everything below.
fn look_below(
    folder: Folder,
    path: String,
    (files, reader): (&mut BTreeMap<String, FileState>, &mut DigestReader),
) -> io::Result<()> {
    let mut left = vec![(folder, path)];
    while let Some((folder, path)) = left.pop() {
        left.extend(directories(&folder, &path, (files, reader), |_| true)?);
    }
    Ok(())
}

/// Observes the entries of a directory whose names count, and returns the directories among them.
fn directories(
    folder: &Folder,
    path: &str,
    (files, reader): (&mut BTreeMap<String, FileState>, &mut DigestReader),
    counts: impl Fn(&str) -> bool,
) -> io::Result<Vec<(Folder, String)>> {
    let mut found = Vec::new();
    for name in folder.names()? {
        // Keelway's names are valid text. Other names were created by hand and are ignored.
        let Some(name) = name.to_str().ok().filter(|name| counts(name)) else {
            continue;
        };
        let below = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        match look_at(folder, name, (&below, reader)) {
            // The entry was removed after the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            seen => {
                let (state, child) = seen?;
                files.insert(below.clone(), state);
                found.extend(child.map(|child| (child, below)));
            }
        }
    }
    Ok(found)
}

/// Returns the state of an entry, and the opened directory if it is one.
fn look_at(
    folder: &Folder,
    name: &str,
    (path, reader): (&str, &mut DigestReader),
) -> io::Result<(FileState, Option<Folder>)> {
    let stat = folder.stat(name)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Directory {
        return Ok((file_state(&stat, None), Some(folder.child(name)?)));
    }
    let digest =
        if kind == FileType::RegularFile { reader.digest(path, (folder, name), &stat)? } else { String::new() };
    Ok((file_state(&stat, Some(digest)), None))
}

fn file_state(stat: &Stat, sha256: Option<String>) -> FileState {
    FileState { user: stat.st_uid, group: stat.st_gid, mode: stat.st_mode & 0o7777, sha256 }
}
