use std::io;

/// Why something on a machine's file system could not be done.
#[derive(Debug, thiserror::Error)]
pub enum MachineFileError {
    /// A directory could not be made or given its owner and mode.
    #[error("cannot make the directory {path}")]
    Make {
        /// Which one.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file could not be written. What was there before is still there.
    #[error("cannot write {path}")]
    Write {
        /// Which one.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file or directory could not be read.
    #[error("cannot read {path}")]
    Read {
        /// Which one.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file or directory could not be removed, or not all of it.
    #[error("cannot remove {path}")]
    Remove {
        /// Which one.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl MachineFileError {
    pub(crate) fn make(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Make { path, source }
    }

    pub(crate) fn write(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Write { path, source }
    }

    pub(crate) fn read(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Read { path, source }
    }

    pub(crate) fn remove(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Remove { path, source }
    }
}
