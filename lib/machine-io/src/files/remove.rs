//! Removes a directory whose content another process may be changing.

use std::{ffi::CStr, io};

use rustix::io::Errno;

use super::folder::{Folder, random_digits};

/// How often a directory is read again because new names appeared. Each round removes all that was there, or at least one level. Only a writer that
/// never stops exceeds this.
const ROUNDS: usize = 10_000;

/// Removes an entry with everything below. Never follows a link. Holds two directories open at any depth: deeper entries are moved up and removed
/// there.
pub(super) fn tree(parent: &Folder, name: &str) -> io::Result<()> {
    for _ in 0..ROUNDS {
        if gone(unlink_any(parent, name))? {
            return parent.sync();
        }
        let folder = match parent.child(name) {
            // The entry was removed, or replaced by something that is not a directory.
            Err(error) if is_changed(&error) => continue,
            found => found?,
        };
        for entry in folder.names()? {
            remove_entry(&folder, &entry)?;
        }
    }
    Err(io::Error::other("another process keeps writing to it"))
}

/// Removes an entry of the directory, or moves the entry's content up into the directory.
fn remove_entry(folder: &Folder, entry: &CStr) -> io::Result<()> {
    if gone(unlink_any(folder, entry))? {
        return Ok(());
    }
    let inner = match folder.child(entry) {
        Err(error) if is_changed(&error) => return Ok(()),
        found => found?,
    };
    for name in inner.names()? {
        if !gone(unlink_any(&inner, &name))? {
            let higher = format!(".keelway-old-{}", random_digits()?);
            gone(inner.move_to(&name, folder, &higher))?;
        }
    }
    Ok(())
}

/// Removes a file, a link or an empty directory.
fn unlink_any(folder: &Folder, name: impl rustix::path::Arg + Copy) -> Result<(), Errno> {
    match folder.unlink(name) {
        // For a directory, POSIX returns EPERM, and Linux returns EISDIR.
        Err(Errno::ISDIR | Errno::PERM) => folder.remove_empty(name),
        other => other,
    }
}

/// Returns whether the name is gone. If the directory is not empty, or the entry changed its kind meanwhile, the caller tries again.
fn gone(removed: Result<(), Errno>) -> io::Result<bool> {
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_changed(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::NOTDIR, Errno::LOOP].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
