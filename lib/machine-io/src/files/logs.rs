//! The logs of one pod, as the runtime writes them.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
};

use keelway_machine::layout::{self, LOG_DIRECTORY};
use keelway_machine::log::Log;
use rustix::{
    fs::inotify::{CreateFlags, WatchFlags, add_watch, init},
    io::Errno,
};

use keelway_api::name::PodName;

use super::{MachineFileError, MachineFiles, folder::Folder};

/// The directory of a pod's logs.
#[derive(Debug)]
pub struct PodLogs(Folder);

impl MachineFiles<'_> {
    /// Returns the logs of a pod, or `None` if it has none on this machine.
    pub fn logs(self, pod: &PodName) -> Result<Option<PodLogs>, MachineFileError> {
        let opened = Folder::open_in_root(self.root, LOG_DIRECTORY)
            .and_then(|logs| logs.child(pod.cluster.as_str())?.child(pod.component.as_str()));
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(PodLogs).map(Some).map_err(MachineFileError::read(&layout::log_directory(pod))),
        }
    }
}

impl PodLogs {
    /// Returns the logs in the directory, grouped by container, the newest last.
    pub fn list(&self) -> io::Result<Vec<Log>> {
        let names = self.0.names()?;
        let mut logs: Vec<Log> = names.iter().filter_map(|name| Log::of_file(name.to_str().ok()?)).collect();
        logs.sort();
        Ok(logs)
    }

    /// Opens a log, or returns `None` if it is gone.
    pub fn open(&self, log: &Log) -> io::Result<Option<File>> {
        match self.0.open_regular(log.file_name()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other,
        }
    }

    /// Opens a log and its rotated files, the newest first. In this order, a file that is rotated meanwhile is not missed. A file that is found twice
    /// counts once.
    pub(crate) fn open_all(&self, log: &Log) -> io::Result<Vec<File>> {
        let name = log.file_name();
        let mut files = Vec::new();
        let mut seen = BTreeSet::new();
        files.extend(self.open(log)?.filter(|file| is_new(file, &mut seen)));
        for number in 1.. {
            match self.0.open_regular(rotated(&name, number)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                found => files.extend(found?.filter(|file| is_new(file, &mut seen))),
            }
        }
        Ok(files)
    }

    /// Returns whether a log is larger than this many bytes, or was rotated and not reopened.
    pub fn is_due(&self, log: &Log, most: u64) -> io::Result<bool> {
        match self.0.stat(log.file_name()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.has(&rotated(&log.file_name(), 1)),
            found => Ok(u64::try_from(found?.st_size).is_ok_and(|size| size > most)),
        }
    }

    /// Renames a log to number 1 of its rotated files, and renumbers those. `kept` is the number of files to keep, including the new log.
    pub fn rotate(&self, log: &Log, kept: u32) -> io::Result<()> {
        let name = log.file_name();
        if !self.has(&name)? {
            return Ok(());
        }
        let last = kept.saturating_sub(1).max(1);
        let mut over = last;
        while self.has(&rotated(&name, over))? {
            self.0.unlink(rotated(&name, over))?;
            over += 1;
        }
        for number in (1..last).rev() {
            match self.0.move_to(rotated(&name, number), &self.0, &rotated(&name, number + 1)) {
                Err(Errno::NOENT) => {}
                moved => moved?,
            }
        }
        Ok(self.0.move_to(name.as_str(), &self.0, &rotated(&name, 1))?)
    }

    /// Renames a log back that the runtime did not reopen.
    pub fn rotate_back(&self, log: &Log) -> io::Result<()> {
        let name = log.file_name();
        if self.has(&name)? {
            return Ok(());
        }
        match self.0.move_to(rotated(&name, 1), &self.0, &name) {
            Err(Errno::NOENT) => Ok(()),
            moved => Ok(moved?),
        }
    }

    fn has(&self, name: &str) -> io::Result<bool> {
        match self.0.stat(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Returns a descriptor that becomes readable when a log is written, created, renamed or removed.
    pub fn watch(&self) -> io::Result<OwnedFd> {
        let notices = init(CreateFlags::CLOEXEC)?;
        let changes = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        // The path leads to this directory itself, even if another one has its name now.
        let path = format!("/proc/self/fd/{}", self.0.as_fd().as_raw_fd());
        add_watch(&notices, path, changes | WatchFlags::ONLYDIR)?;
        Ok(notices)
    }
}

/// Returns the name of a rotated file of a log: 1 is the newest.
fn rotated(name: &str, number: u32) -> String {
    format!("{name}.{number}")
}

fn is_new(file: &File, seen: &mut BTreeSet<u64>) -> bool {
    file.metadata().is_ok_and(|found| seen.insert(found.ino()))
}

/// Removes a log and its rotated files.
pub(super) fn remove(folder: &Folder, name: &str) -> io::Result<()> {
    let beginning = format!("{name}.");
    for found in folder.names()? {
        let is_its = found.to_str().is_ok_and(|found| found == name || found.starts_with(&beginning));
        match is_its.then(|| folder.unlink(&found)) {
            None | Some(Err(Errno::NOENT)) => {}
            Some(removed) => removed?,
        }
    }
    Ok(())
}
