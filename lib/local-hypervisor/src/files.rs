//! Operations on files and directories whose errors name the path.

use std::{fs, io, os::unix::fs::DirBuilderExt, path::Path};

use keelway_base::durable_file;

use crate::LocalHypervisorError;

/// Creates a directory and its parents, with mode 0700 for root only or 0755 for all readers.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), LocalHypervisorError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(LocalHypervisorError::file("make", path))
}

/// Replaces a file atomically: a reader sees the old or the new content.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<(), LocalHypervisorError> {
    write(path, content, 0o644)
}

/// The same, for a file that only root can read.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<(), LocalHypervisorError> {
    write(path, content, 0o600)
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), LocalHypervisorError> {
    durable_file::replace(path, content, mode).map_err(LocalHypervisorError::file("write", path))
}

/// Reads a text file. Returns `None` if it is missing.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, LocalHypervisorError> {
    none_if_missing(fs::read_to_string(path)).map_err(LocalHypervisorError::file("read", path))
}

/// Removes a directory with its content. It succeeds if the directory is missing.
pub(crate) fn remove_tree(path: &Path) -> Result<(), LocalHypervisorError> {
    none_if_missing(fs::remove_dir_all(path)).map(drop).map_err(LocalHypervisorError::file("remove", path))
}

/// Removes a directory if it is empty. It succeeds if the directory is missing.
pub(crate) fn remove_if_empty(path: &Path) -> Result<(), LocalHypervisorError> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => none_if_missing(other).map(drop).map_err(LocalHypervisorError::file("remove", path)),
    }
}

/// Returns the names in a directory. Returns none if the directory is missing.
pub(crate) fn names(path: &Path) -> Result<Vec<String>, LocalHypervisorError> {
    let read = || -> io::Result<Vec<String>> {
        let Some(entries) = none_if_missing(fs::read_dir(path))? else {
            return Ok(Vec::new());
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    read().map_err(LocalHypervisorError::file("list", path))
}

/// Maps a missing file to `None`.
pub(crate) fn none_if_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
