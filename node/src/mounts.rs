//! Removes directories that kubelet and containerd filled. Mounts below them are undone first, and mounts of other programs stay.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};

use crate::{
    files::NodeFileError,
    removal::{RemovalError, delete_content, delete_tree},
};

/// The list of mounts of this thread's namespace, in the order in which they were made.
const LIST: &str = "/proc/thread-self/mounts";

/// Returns the path of a directory without symbolic links, as the kernel lists mounts. Returns `None` if the directory is absent.
pub(crate) fn resolved(directory: &Path) -> Result<Option<PathBuf>, NodeFileError> {
    match fs::canonicalize(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some).map_err(NodeFileError::new("resolve", directory)),
    }
}

/// Returns all mounts at or below a directory, whose path has no symbolic links.
pub(crate) fn below(directory: &Path) -> Result<Vec<PathBuf>, NodeFileError> {
    let list = fs::read(LIST).map_err(NodeFileError::new("read", LIST))?;
    let targets = list.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(1));
    Ok(targets.map(unescaped).filter(|target| target.starts_with(directory)).collect())
}

/// Decodes a path as the kernel writes it: blanks, line breaks and backslashes as three octal digits (`mangle_path`).
fn unescaped(text: &[u8]) -> PathBuf {
    let mut path = Vec::new();
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let number = after.get(..3).filter(|_| *byte == b'\\').and_then(|digits| {
            digits.iter().try_fold(0u8, |number, digit| {
                let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
                number.checked_mul(8)?.checked_add(digit)
            })
        });
        path.push(number.unwrap_or(*byte));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(path).into()
}

/// Removes a directory, or only its new entries if it existed `before`. It unmounts new mounts at and below what it removes.
///
/// # Errors
/// A file system is still mounted in the directory, or the directory became a link since. Then nothing was deleted.
pub(crate) fn remove(directory: &Path, before: &MountBaseline) -> Result<(), RemovalError> {
    let Some(real) = resolved(directory)? else { return Ok(()) };
    let kept = before.directories.get(directory);
    if kept.is_none() && directory.is_symlink() {
        return Err(RemovalError::Link { link: directory.to_owned(), target: real });
    }
    let is_kept = |mount: &Path| {
        let first = mount.strip_prefix(&real).ok().and_then(|below| below.iter().next());
        first.zip(kept).is_some_and(|(first, kept)| kept.contains(first.as_bytes()))
    };
    let is_new = |mount: &PathBuf| !before.mounts.contains(mount.as_os_str().as_bytes()) && !is_kept(mount);
    detach(below(&real)?.iter().filter(|mount| is_new(mount)));
    if let Some(mount) = below(&real)?.into_iter().find(is_new) {
        return Err(RemovalError::Mounted { mount, directory: directory.to_owned() });
    }
    match kept {
        Some(kept) => delete_content(&real, kept),
        None => delete_tree(&real),
    }
}

/// Unmounts all of these, the last one first. The caller finds what is still mounted.
fn detach<'a>(mounts: impl DoubleEndedIterator<Item = &'a PathBuf> + Clone) {
    // Otherwise unmounting a recursive bind mount also unmounts what is mounted below its source.
    for mount in mounts.clone() {
        if let Err(error) = mount_change(mount.as_path(), MountPropagationFlags::PRIVATE) {
            tracing::debug!(%error, mount = %mount.display(), "cannot separate the mount from its source");
        }
    }
    for mount in mounts.rev() {
        if let Err(error) = unmount(mount.as_path(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            tracing::warn!(%error, mount = %mount.display(), "cannot unmount");
        }
    }
}

/// The state of directories before kubelet and containerd filled them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MountBaseline {
    /// The names that each existing directory contained.
    pub(crate) directories: BTreeMap<PathBuf, BTreeSet<Vec<u8>>>,
    /// The mounts at or below these directories, as bytes of their resolved paths.
    pub(crate) mounts: BTreeSet<Vec<u8>>,
}

/// Returns the names of a directory's entries, as bytes.
pub(crate) fn names(directory: &Path) -> Result<BTreeSet<Vec<u8>>, NodeFileError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other.map_err(NodeFileError::new("list", directory))?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_vec()));
    names.collect::<io::Result<_>>().map_err(NodeFileError::new("list", directory))
}
