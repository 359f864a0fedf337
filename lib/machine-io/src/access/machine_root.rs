//! The root directory and the network namespace of a process.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, Mode, OFlags, openat},
    net::sockopt::socket_peercred,
    process::{PidfdFlags, pidfd_open},
};
use tokio::net::UnixStream;

use super::{AccessError, namespace::NetworkNamespace};

/// A machine's root directory and network, held open.
#[derive(Debug)]
pub struct MachineRoot {
    root: OwnedFd,
    /// The network of the process behind the socket.
    pub(super) network: NetworkNamespace,
    /// The process that both belong to. Mounts below its root disappear when it ends.
    process: Option<OwnedFd>,
}

impl MachineRoot {
    /// Returns the root with the network of this process.
    #[must_use]
    pub fn of_root(root: OwnedFd) -> Self {
        Self { root, network: NetworkNamespace::Own, process: None }
    }

    /// Finds the root and the network of the process behind a socket.
    pub async fn of_socket(path: &Path) -> Result<Self, AccessError> {
        let socket =
            UnixStream::connect(path).await.map_err(|source| AccessError::Connect { path: path.to_owned(), source })?;
        let peer = |errno: rustix::io::Errno| AccessError::Peer { path: path.to_owned(), source: errno.into() };
        let pid = socket_peercred(&socket).map_err(peer)?.pid;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(peer)?;
        let of_process = |what: &str| format!("/proc/{}/{what}", pid.as_raw_pid());
        let root = open(&of_process("root"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
        let namespace = open(&of_process("ns/net"), OFlags::RDONLY | OFlags::CLOEXEC)?;
        let network = NetworkNamespace::of(namespace).map_err(|source| AccessError::Enter { source })?;
        // The pid is the listener's while the connection is open. What was opened through the pid is the listener's if that process still runs.
        if has_event(socket.as_fd(), PollFlags::HUP) || has_event(process.as_fd(), PollFlags::IN) {
            return Err(AccessError::Ended { path: path.to_owned() });
        }
        Ok(Self { root, network, process: Some(process) })
    }

    /// Returns the root directory.
    #[must_use]
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Returns whether the process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.process.as_ref().is_some_and(|process| has_event(process.as_fd(), PollFlags::IN))
    }
}

fn open(path: &str, flags: OFlags) -> Result<OwnedFd, AccessError> {
    openat(CWD, path, flags, Mode::empty())
        .map_err(|errno| AccessError::Open { what: path.to_owned(), source: errno.into() })
}

/// Returns whether an event is pending on a descriptor. A pidfd becomes readable when its process ends.
fn has_event(descriptor: BorrowedFd<'_>, event: PollFlags) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(descriptor, event)];
    let found = loop {
        match poll(&mut polled, Some(&now)).map_err(io::Error::from) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other,
        }
    };
    found.is_ok_and(|_| polled[0].revents().intersects(event))
}
