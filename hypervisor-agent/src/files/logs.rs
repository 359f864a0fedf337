//! The logs of one pod, as the runtime writes them.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

use super::{FileError, Files, folder::Folder};
use crate::layout::{self, LOG_DIRECTORY};
use keelway_api::name::PodName;
use serde::{Deserialize, Serialize};

/// The log of one run of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Log {
    /// The container's name in the pod.
    pub container: String,
    /// Which try at this container it is.
    pub attempt: u32,
}

impl Log {
    fn of_name(name: &str) -> Option<Self> {
        let (container, attempt) = name.strip_suffix(".log")?.rsplit_once('-')?;
        Some(Self { container: container.to_owned(), attempt: attempt.parse().ok()? })
    }

    fn name(&self) -> String {
        layout::log_name(&self.container, self.attempt)
    }
}

/// The directory that a pod's logs are in.
#[derive(Debug)]
pub struct Logs(Folder);

impl Files<'_> {
    /// The logs of a pod; `None` where it has none on this machine.
    pub fn logs(self, pod: &PodName) -> Result<Option<Logs>, FileError> {
        let opened = Folder::under(self.root, LOG_DIRECTORY)
            .and_then(|logs| logs.child(pod.cluster.as_str())?.child(pod.component.as_str()));
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Logs).map(Some).map_err(FileError::read(&layout::log_directory(pod))),
        }
    }
}

impl Logs {
    /// The logs that are there, those of one container together and the newest last.
    pub fn list(&self) -> io::Result<Vec<Log>> {
        let names = self.0.names()?;
        let mut logs: Vec<Log> = names.iter().filter_map(|name| Log::of_name(name.to_str().ok()?)).collect();
        logs.sort();
        Ok(logs)
    }

    /// Opens a log; `None` where it is gone.
    pub fn open(&self, log: &Log) -> io::Result<Option<File>> {
        match self.0.open_regular(log.name()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other,
        }
    }

    /// A descriptor that has something to read whenever a log was written to, made, renamed or removed.
    pub fn watch(&self) -> io::Result<OwnedFd> {
        let notices = init(CreateFlags::CLOEXEC)?;
        let changes = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        // The directory itself, whatever has its name by now.
        let path = format!("/proc/self/fd/{}", self.0.as_fd().as_raw_fd());
        add_watch(&notices, path, changes | WatchFlags::ONLYDIR)?;
        Ok(notices)
    }
}
