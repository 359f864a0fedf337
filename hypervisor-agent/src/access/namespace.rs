//! Work inside a network namespace.

use std::{io, os::fd::OwnedFd, sync::Arc, thread};

use rustix::{
    fs::{CWD, Mode, OFlags, fstat, openat},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tokio::sync::oneshot;

/// A network namespace.
#[derive(Debug, Clone)]
pub(super) enum Network {
    /// The one that this process is in.
    Own,
    /// Another one, held open.
    Other(Arc<OwnedFd>),
}

impl Network {
    /// The namespace of a descriptor of `/proc/PID/ns/net`.
    pub(super) fn of(namespace: OwnedFd) -> io::Result<Self> {
        let own = openat(CWD, "/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let (own, other) = (fstat(&own)?, fstat(&namespace)?);
        Ok(if (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino) {
            Self::Own
        } else {
            Self::Other(Arc::new(namespace))
        })
    }

    /// Runs blocking work in the namespace, in another one on a thread of its own. The thread ends with the work: one that went
    /// elsewhere must not serve anybody else.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let network = match self {
            Self::Own => return tokio::task::spawn_blocking(work).await.map_err(io::Error::other),
            other @ Self::Other(_) => other.clone(),
        };
        let (done, result) = oneshot::channel();
        thread::Builder::new().name("keelway-netns".to_owned()).spawn(move || {
            // Nobody listens any more where the caller was dropped.
            let _ = done.send(network.enter().map(|()| work()));
        })?;
        result.await.map_err(|_| io::Error::other("the thread in the namespace ended early"))?
    }

    /// The same for work that does not block: at once where that is possible.
    pub(super) async fn make<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        match self {
            Self::Own => Ok(work()),
            Self::Other(_) => self.run(work).await,
        }
    }

    fn enter(&self) -> io::Result<()> {
        match self {
            Self::Own => Ok(()),
            Self::Other(namespace) => {
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&**namespace), Some(LinkNameSpaceType::Network))?;
                Ok(())
            }
        }
    }
}
