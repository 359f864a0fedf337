//! Deletes directories with their content. It follows no symbolic link, and stops where another file system is mounted.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, OsStr},
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, openat, statat, statx, unlinkat},
    io::Errno,
};

use crate::files::{self, NodeFileError};

/// A directory cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// A file system is mounted in the directory, and its content would be lost.
    #[error("cannot remove {}: {} is a mount point; unmount it, and run the command again", directory.display(), mount.display())]
    Mounted {
        /// The mount point.
        mount: PathBuf,
        /// The directory that contains it.
        directory: PathBuf,
    },
    /// The directory has become a link since the join, and its target may contain files of other programs.
    #[error(
        "cannot remove {}: since the join, it was replaced by a symbolic link to {}; put the directory itself there again, and run the command again",
        link.display(),
        target.display()
    )]
    Link {
        /// The link.
        link: PathBuf,
        /// The directory that it leads to.
        target: PathBuf,
    },
}

/// Deletes a directory with its content. It succeeds if the directory is absent.
pub(crate) fn delete_tree(directory: &Path) -> Result<(), RemovalError> {
    delete_content(directory, &BTreeSet::new())?;
    Ok(files::gone(fs::remove_dir(directory)).map_err(NodeFileError::new("remove", directory))?)
}

/// Deletes the content of a directory, except for the entries with the names `kept`. It succeeds if the directory is absent.
pub(crate) fn delete_content(directory: &Path, kept: &BTreeSet<Vec<u8>>) -> Result<(), RemovalError> {
    let opened = match openat(CWD, directory, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened.map_err(failed("open", directory))?,
    };
    let mounted = MountIdentity::of(&opened).map_err(failed("read the metadata of", directory))?;
    TreeDeletion { directory, mounted }.clear(&opened, directory, kept)
}

/// How directories are opened: never through a link.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Identifies a mount. The device differs between file systems. The number differs between mounts of one file system, such as bind mounts;
/// kernels before Linux 5.8 report 0 for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MountIdentity {
    device: (u32, u32),
    number: u64,
}

impl MountIdentity {
    fn of(directory: &OwnedFd) -> rustix::io::Result<Self> {
        let found = statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
        Ok(Self { device: (found.stx_dev_major, found.stx_dev_minor), number: found.stx_mnt_id })
    }
}

/// The deletion of one directory.
struct TreeDeletion<'a> {
    directory: &'a Path,
    /// The only mount in which anything is deleted.
    mounted: MountIdentity,
}

impl TreeDeletion<'_> {
    fn clear(&self, opened: &OwnedFd, path: &Path, kept: &BTreeSet<Vec<u8>>) -> Result<(), RemovalError> {
        for name in entries(opened).map_err(failed("list", path))? {
            if !kept.contains(name.to_bytes()) {
                self.delete(opened, &name, &path.join(OsStr::from_bytes(name.to_bytes())))?;
            }
        }
        Ok(())
    }

    /// Deletes one entry of an opened directory. `path` is for errors only.
    fn delete(&self, within: &OwnedFd, name: &CStr, path: &Path) -> Result<(), RemovalError> {
        let found = match statat(within, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            found => found.map_err(failed("read the metadata of", path))?,
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return self.unlink(within, name, path, AtFlags::empty());
        }
        let opened = openat(within, name, DIRECTORY, Mode::empty()).map_err(failed("open", path))?;
        if MountIdentity::of(&opened).map_err(failed("read the metadata of", path))? != self.mounted {
            return Err(self.is_mounted(path));
        }
        self.clear(&opened, path, &BTreeSet::new())?;
        self.unlink(within, name, path, AtFlags::REMOVEDIR)
    }

    /// The kernel refuses to remove a mount point of this mount namespace.
    fn unlink(&self, within: &OwnedFd, name: &CStr, path: &Path, flags: AtFlags) -> Result<(), RemovalError> {
        match unlinkat(within, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::BUSY) => Err(self.is_mounted(path)),
            Err(errno) => Err(failed("remove", path)(errno)),
        }
    }

    fn is_mounted(&self, mount: &Path) -> RemovalError {
        RemovalError::Mounted { mount: mount.to_owned(), directory: self.directory.to_owned() }
    }
}

/// Returns the names of all entries, before any of them is deleted.
fn entries(directory: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let names = Dir::read_from(directory.as_fd())?.map(|entry| Ok(entry?.file_name().to_owned()));
    let is_entry = |name: &rustix::io::Result<CString>| !matches!(name, Ok(name) if name.as_c_str() == c"." || name.as_c_str() == c"..");
    names.filter(is_entry).collect()
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(Errno) -> RemovalError {
    let path = path.to_owned();
    move |errno| NodeFileError::new(operation, path)(errno.into()).into()
}
