//! Runs work in a network namespace.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process::abort,
    sync::Arc,
};

use rustix::{
    fs::{CWD, Mode, OFlags, fstat, openat},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

/// A network namespace.
#[derive(Debug, Clone)]
pub(super) enum NetworkNamespace {
    /// The namespace of this process.
    Own,
    /// Another namespace.
    Other(Arc<NamespacePair>),
}

/// Descriptors of the other namespace and of this process' own.
#[derive(Debug)]
pub(super) struct NamespacePair {
    there: OwnedFd,
    back: OwnedFd,
}

/// Keeps the current thread in the other namespace until it is dropped. A namespace belongs to a thread, so other threads are not affected.
struct Visit<'a>(&'a NamespacePair);

impl NetworkNamespace {
    /// Returns the namespace of a descriptor of `/proc/PID/ns/net`.
    pub(super) fn of(there: OwnedFd) -> io::Result<Self> {
        let back = openat(CWD, "/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let (own, other) = (fstat(&back)?, fstat(&there)?);
        Ok(if (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino) {
            Self::Own
        } else {
            Self::Other(Arc::new(NamespacePair { there, back }))
        })
    }

    /// Runs blocking work in the namespace, on a thread of its own.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let network = self.clone();
        tokio::task::spawn_blocking(move || network.make(work)).await.map_err(io::Error::other)?
    }

    /// Runs work that does not block in the namespace, on the current thread. Two system calls cost less than another thread.
    pub(super) fn make<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let _visit = match self {
            Self::Own => None,
            Self::Other(way) => Some(Visit::begin(way)?),
        };
        Ok(work())
    }
}

impl<'a> Visit<'a> {
    fn begin(way: &'a NamespacePair) -> io::Result<Self> {
        move_into_link_name_space(way.there.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(Self(way))
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // A thread that cannot return would do all its later work in the wrong network.
        if move_into_link_name_space(self.0.back.as_fd(), Some(LinkNameSpaceType::Network)).is_err() {
            abort();
        }
    }
}
