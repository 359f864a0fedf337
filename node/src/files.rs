//! Files that are written as a whole or not at all.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    panic::resume_unwind,
    path::{Path, PathBuf},
    thread,
};

use keelway_base::durable_file;
pub(crate) use keelway_base::durable_file::temporary_path;
use rustix::fs::{FlockOperation, flock};
use serde::{Serialize, de::DeserializeOwned};

/// A file could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct NodeFileError {
    operation: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl NodeFileError {
    pub(crate) fn new(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self { operation, path, source }
    }
}

/// Replaces a file atomically: a reader sees all of the old or all of the new content.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<(), NodeFileError> {
    tracing::trace!(action = %path.display(), "saves");
    durable_file::replace(path, content.as_ref(), mode).map_err(NodeFileError::new("write", path))?;
    tracing::trace!(action = %path.display(), "saved");
    Ok(())
}

/// The next content of a file.
#[derive(Debug)]
pub(crate) struct StagedFile {
    path: PathBuf,
    content: Vec<u8>,
    mode: u32,
}

impl StagedFile {
    pub(crate) fn text(path: PathBuf, content: &str, mode: u32) -> Self {
        Self { path, content: content.as_bytes().to_vec(), mode }
    }

    /// Returns a value as JSON, readable by root only.
    pub(crate) fn json<T: Serialize>(path: PathBuf, value: &T) -> Result<Self, NodeFileError> {
        let content = json(&path, value)?;
        Ok(Self { path, content, mode: 0o600 })
    }
}

/// Writes files that do not depend on each other concurrently, in about the time that a disk needs for one.
pub(crate) fn write_all(all: &[StagedFile]) -> Result<(), NodeFileError> {
    for next in all {
        tracing::trace!(action = %next.path.display(), "saves");
    }
    at_once(all, |StagedFile { path, content, mode }| {
        durable_file::replace(path, content, *mode).map_err(NodeFileError::new("write", path))
    })?;
    for next in all {
        tracing::trace!(action = %next.path.display(), "saved");
    }
    Ok(())
}

/// Calls `each` for every item concurrently. After all calls have ended, it returns the first error.
pub(crate) fn at_once<T: Sync>(
    all: &[T],
    each: impl Fn(&T) -> Result<(), NodeFileError> + Sync,
) -> Result<(), NodeFileError> {
    thread::scope(|scope| {
        let each = &each;
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(move || each(one))).collect();
        let outcomes: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        outcomes.into_iter().try_for_each(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Replaces a file that every start writes again: atomically, but possibly lost if the machine crashes.
pub(crate) fn write_volatile(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<(), NodeFileError> {
    tracing::trace!(action = %path.display(), "saves");
    durable_file::replace_volatile(path, content.as_ref(), mode).map_err(NodeFileError::new("write", path))?;
    tracing::trace!(action = %path.display(), "saved");
    Ok(())
}

/// The same for a value as JSON, readable by root only.
pub(crate) fn write_json_volatile<T: Serialize>(path: &Path, value: &T) -> Result<(), NodeFileError> {
    write_volatile(path, json(path, value)?, 0o600)
}

/// Writes a file only if its content differs. Returns whether it did.
pub(crate) fn update(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<bool, NodeFileError> {
    if fs::read(path).is_ok_and(|found| found == content.as_ref()) {
        return Ok(false);
    }
    write(path, content, mode).map(|()| true)
}

/// Writes a value as JSON, readable by root only.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), NodeFileError> {
    write(path, json(path, value)?, 0o600)
}

fn json<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>, NodeFileError> {
    serde_json::to_vec_pretty(value).map_err(io::Error::other).map_err(NodeFileError::new("write", path))
}

/// Reads a text file. Returns `None` if the file does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, NodeFileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(NodeFileError::new("read", path)(error)),
    }
}

/// Reads a value from JSON. Returns `None` if the file does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, NodeFileError> {
    let Some(text) = read(path)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(io::Error::from).map_err(NodeFileError::new("read", path))
}

/// Waits for an exclusive lock. Dropping the file releases it.
pub(crate) fn lock(path: &Path) -> Result<File, NodeFileError> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let file = file.map_err(NodeFileError::new("open", path))?;
    flock(&file, FlockOperation::LockExclusive).map_err(io::Error::from).map_err(NodeFileError::new("lock", path))?;
    Ok(file)
}

/// Creates a directory and its parents. It succeeds if the directory exists.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), NodeFileError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(NodeFileError::new("make", path))
}

/// Removes a file or a link. It succeeds if the file is absent.
pub(crate) fn remove(path: &Path) -> Result<(), NodeFileError> {
    gone(fs::remove_file(path)).map_err(NodeFileError::new("remove", path))
}

/// Treats an absent file as success.
pub(crate) fn gone(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn written_files_are_read_again_and_only_root_can_read_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        assert_eq!(read_json::<Vec<u32>>(&path).unwrap(), None);
        write_json(&path, &vec![1, 2]).unwrap();
        assert_eq!(read_json(&path).unwrap(), Some(vec![1, 2]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!update(&path, fs::read(&path).unwrap(), 0o600).unwrap());
        assert!(update(&path, "[]", 0o600).unwrap());
    }

    #[test]
    fn several_files_are_written_at_once_and_a_failure_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let next = |name: &str| StagedFile::text(at(name), name, 0o644);
        write_all(&[next("a"), StagedFile::json(at("b"), &1).unwrap()]).unwrap();
        assert_eq!((read(&at("a")).unwrap().as_deref(), read_json(&at("b")).unwrap()), (Some("a"), Some(1)));
        assert_eq!(fs::metadata(at("b")).unwrap().permissions().mode() & 0o777, 0o600);
        let error = write_all(&[next("gone/c"), next("d")]).unwrap_err();
        assert!(error.to_string().contains("gone/c"), "{error}");
        assert!(at("d").exists());
        write_json_volatile(&at("a"), &2).unwrap();
        assert_eq!((read_json(&at("a")).unwrap(), fs::read_dir(directory.path()).unwrap().count()), (Some(2), 3));
    }

    #[test]
    fn an_absent_file_counts_as_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        remove(&path).unwrap();
    }
}
