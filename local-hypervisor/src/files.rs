//! Directories and files, with errors that name them.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use crate::LocalHypervisorError;

/// Makes a directory and its parents, for root alone or, with mode 0755, for all to read.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), LocalHypervisorError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(LocalHypervisorError::file("make", path))
}

/// Writes a file in one step: readers see the old content or the new one.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<(), LocalHypervisorError> {
    write(path, content, 0o644)
}

/// The same, for root's eyes.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<(), LocalHypervisorError> {
    write(path, content, 0o600)
}

fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), LocalHypervisorError> {
    let new = path.with_extension("new");
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&new)?;
        io::Write::write_all(&mut file, content)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(LocalHypervisorError::file("write", path))
}

/// The file's text, if it is there.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, LocalHypervisorError> {
    none_if_missing(fs::read_to_string(path)).map_err(LocalHypervisorError::file("read", path))
}

/// Removes a directory with all in it, if it is there.
pub(crate) fn remove_tree(path: &Path) -> Result<(), LocalHypervisorError> {
    none_if_missing(fs::remove_dir_all(path)).map(drop).map_err(LocalHypervisorError::file("remove", path))
}

/// Removes a directory, if it is there and empty.
pub(crate) fn remove_if_empty(path: &Path) -> Result<(), LocalHypervisorError> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => none_if_missing(other).map(drop).map_err(LocalHypervisorError::file("remove", path)),
    }
}

/// The names in a directory; none where there is no directory.
pub(crate) fn names(path: &Path) -> Result<Vec<String>, LocalHypervisorError> {
    let read = || -> io::Result<Vec<String>> {
        let Some(entries) = none_if_missing(fs::read_dir(path))? else {
            return Ok(Vec::new());
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    read().map_err(LocalHypervisorError::file("list", path))
}

/// Absence as a value.
pub(crate) fn none_if_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
