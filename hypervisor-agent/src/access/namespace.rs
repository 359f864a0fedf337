//! Work inside a network namespace.

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, mpsc},
    thread,
};

use rustix::{
    fs::{CWD, Mode, OFlags, fstat, openat},
    io::Errno,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tokio::sync::oneshot;

/// A network namespace.
#[derive(Debug, Clone)]
pub(super) enum Network {
    /// The one that this process is in.
    Own,
    /// Another one, with who works there.
    Other(Arc<Delegate>),
}

/// Work that is told whether it is done in the namespace.
type Work = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A thread that went into a namespace and serves nobody else. It ends with this.
pub(super) struct Delegate(mpsc::Sender<Work>);

impl Network {
    /// The namespace of a descriptor of `/proc/PID/ns/net`.
    pub(super) fn of(namespace: OwnedFd) -> io::Result<Self> {
        let own = openat(CWD, "/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let (own, other) = (fstat(&own)?, fstat(&namespace)?);
        Ok(if (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino) {
            Self::Own
        } else {
            Self::Other(Arc::new(Delegate::send(namespace)?))
        })
    }

    /// Runs blocking work in the namespace.
    pub(super) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        match self {
            Self::Own => tokio::task::spawn_blocking(work).await.map_err(io::Error::other),
            Self::Other(delegate) => delegate.run(work).await,
        }
    }

    /// The same for work that does not block: at once where that is possible.
    pub(super) async fn make<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        match self {
            Self::Own => Ok(work()),
            Self::Other(delegate) => delegate.run(work).await,
        }
    }
}

impl Delegate {
    fn send(namespace: OwnedFd) -> io::Result<Self> {
        let (works, received) = mpsc::channel::<Work>();
        thread::Builder::new().name("keelway-netns".to_owned()).spawn(move || {
            let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
            drop(namespace);
            for work in received {
                work(entered);
            }
        })?;
        Ok(Self(works))
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let gone = || io::Error::other("the thread in the namespace ended early");
        let (done, result) = oneshot::channel();
        let work = move |entered: Result<(), Errno>| {
            // Nobody listens any more where the caller was dropped.
            let _ = done.send(entered.map(|()| work()));
        };
        self.0.send(Box::new(work)).map_err(|_| gone())?;
        Ok(result.await.map_err(|_| gone())??)
    }
}

impl fmt::Debug for Delegate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delegate(..)")
    }
}
