//! A directory as a sink.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use tempfile::NamedTempFile;

use super::{SinkError, SnapshotSink};
use crate::{SealedSnapshot, receive::temporary_file};

/// A directory. It is created with mode 0700. Files in it have mode 0600, appear as a whole, and are durable once they are there.
#[derive(Debug, Clone)]
pub struct DirectorySink {
    root: PathBuf,
}

impl DirectorySink {
    /// Returns the sink in this directory.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn place(&self, key: &str) -> Result<PathBuf, SinkError> {
        let path = self.root.join(key);
        let directory = path.parent().unwrap_or(&self.root).to_owned();
        make_directory(&directory)?;
        Ok(path)
    }
}

fn make_directory(directory: &Path) -> Result<(), SinkError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|cause| SinkError::File { operation: "create", path: directory.to_owned(), cause })
}

/// Replaces `path` in one step.
fn persist(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

/// Adds the files below `directory` to `found`, relative to `root`.
fn walk(root: &Path, directory: &Path, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            walk(root, &path, found)?;
        } else if let Some(key) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            found.push(key.to_owned());
        }
    }
    Ok(())
}

#[async_trait]
impl SnapshotSink for DirectorySink {
    /// The sink itself: a snapshot becomes visible by renaming its file.
    async fn spool(&self) -> Result<PathBuf, SinkError> {
        make_directory(&self.root)?;
        Ok(self.root.clone())
    }

    async fn put_snapshot(&self, key: &str, snapshot: &SealedSnapshot) -> Result<(), SinkError> {
        let path = self.place(key)?;
        let failed = |cause| SinkError::File { operation: "write", path: path.clone(), cause };
        // The file is in the spool, which is the sink. A link keeps the caller's file until it is dropped.
        match fs::hard_link(snapshot.file.path(), &path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::remove_file(&path).and_then(|()| fs::hard_link(snapshot.file.path(), &path))
            }
            done => done,
        }
        .map_err(failed)?;
        File::open(path.parent().unwrap_or(&self.root)).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    async fn get_snapshot(&self, key: &str) -> Result<File, SinkError> {
        let path = self.root.join(key);
        File::open(&path).map_err(|cause| SinkError::File { operation: "read", path, cause })
    }

    async fn put(&self, key: &str, content: Vec<u8>) -> Result<(), SinkError> {
        let path = self.place(key)?;
        let written = || {
            let mut file = temporary_file(path.parent().unwrap_or(&self.root))?;
            file.write_all(&content)?;
            persist(file, &path)
        };
        written().map_err(|cause| SinkError::File { operation: "write", path: path.clone(), cause })
    }

    async fn get(&self, key: &str) -> Result<Vec<u8>, SinkError> {
        let path = self.root.join(key);
        fs::read(&path).map_err(|cause| SinkError::File { operation: "read", path, cause })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, SinkError> {
        let directory = self.root.join(prefix);
        let mut found = Vec::new();
        match walk(&self.root, &directory, &mut found) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(cause) => Err(SinkError::File { operation: "list", path: directory, cause }),
            Ok(()) => Ok(found),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), SinkError> {
        let path = self.root.join(key);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done.map_err(|cause| SinkError::File { operation: "delete", path, cause }),
        }
    }
}
