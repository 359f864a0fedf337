//! Removes directories with their content, except for mounts of other programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use rustix::mount::{UnmountFlags, unmount};

use crate::files::{self, NodeFileError};

/// The list of mounts of this process' namespace, in the order in which they were made.
const LIST: &str = "/proc/self/mounts";

/// A directory cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// A file system is mounted in the directory, and its content would be lost.
    #[error("cannot remove {}: {} is mounted in it; unmount it", directory.display(), mount.display())]
    Mounted {
        /// The mount point.
        mount: PathBuf,
        /// The directory that contains it.
        directory: PathBuf,
    },
}

/// Returns all mounts at or below a directory.
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

/// Removes a directory, or only its new entries if it existed `before`. It unmounts mounts that are new. An earlier mount stays, and is an
/// error unless it is the directory itself.
pub(crate) fn remove(directory: &Path, before: &MountBaseline) -> Result<(), RemovalError> {
    let ours = |found: &PathBuf| !before.mounts.contains(found.as_os_str().as_bytes());
    for mount in below(directory)?.iter().rev().filter(|mount| ours(mount)) {
        if let Err(error) = unmount(mount.as_path(), UnmountFlags::DETACH) {
            tracing::warn!(%error, mount = %mount.display(), "cannot unmount");
        }
    }
    let is_itself = |mount: &PathBuf| mount == directory && !ours(mount);
    if let Some(mount) = below(directory)?.into_iter().find(|mount| !is_itself(mount)) {
        return Err(RemovalError::Mounted { mount, directory: directory.to_owned() });
    }
    match before.directories.get(directory) {
        Some(kept) => remove_but(directory, kept)?,
        None => files::remove_tree(directory)?,
    }
    Ok(())
}

/// The state of directories before kubelet and containerd filled them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MountBaseline {
    /// The names that each existing directory contained.
    pub(crate) directories: BTreeMap<PathBuf, BTreeSet<Vec<u8>>>,
    /// The mounts at or below these directories, as bytes of their paths.
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

fn remove_but(directory: &Path, kept: &BTreeSet<Vec<u8>>) -> Result<(), NodeFileError> {
    for name in names(directory)?.difference(kept) {
        let path = directory.join(OsStr::from_bytes(name));
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if is_directory { files::remove_tree(&path) } else { files::remove(&path) }?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_the_kernel_writes_them() {
        assert_eq!(unescaped(br"/a\040b\011\134\012c"), Path::new("/a b\t\\\nc"));
        assert_eq!(unescaped(br"/a\9z\77"), Path::new(r"/a\9z\77"));
        assert_eq!(unescaped(b"/\xff\\040").as_os_str().as_bytes(), b"/\xff ");
    }

    #[test]
    fn the_root_is_mounted_and_nothing_is_below_a_new_directory() {
        assert!(below(Path::new("/")).unwrap().contains(&PathBuf::from("/")));
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(below(directory.path()).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn new_entries_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        fs::create_dir_all(old.join("others")).unwrap();
        let directories = [(old.clone(), names(&old).unwrap())].into();
        for path in [&old, &new] {
            fs::create_dir_all(path.join("pods")).unwrap();
            fs::write(path.join("file"), "").unwrap();
        }
        let before = MountBaseline { directories, mounts: BTreeSet::new() };
        remove(&old, &before).unwrap();
        remove(&new, &before).unwrap();
        assert_eq!(names(&old).unwrap(), [b"others".to_vec()].into());
        assert!(!new.exists());
        remove(&new, &before).unwrap();
    }
}
