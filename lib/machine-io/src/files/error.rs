use std::io;

/// An operation on a machine's file system failed.
#[derive(Debug, thiserror::Error)]
pub enum MachineFileError {
    /// A directory could not be created, or its owner and mode could not be set.
    #[error("cannot create the directory {path}")]
    Make {
        /// The path of the directory.
        path: String,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// A file could not be written. The earlier content is still there.
    #[error("cannot write {path}")]
    Write {
        /// The path of the file.
        path: String,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// A file or directory could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The path of the file or directory.
        path: String,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// A file or directory could not be removed completely.
    #[error("cannot remove {path}")]
    Remove {
        /// The path of the file or directory.
        path: String,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
}

impl MachineFileError {
    pub(crate) fn make(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Make { path, source }
    }

    /// Returns a function that makes the error of a write to this path.
    pub fn write(path: &str) -> impl FnOnce(io::Error) -> Self {
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
