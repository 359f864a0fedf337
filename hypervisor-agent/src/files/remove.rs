//! Removal of a directory whose content somebody else may be changing.

use std::{ffi::CStr, io};

use rustix::io::Errno;

use super::folder::{Folder, random_digits};

/// How often a directory is looked through again because new names appeared. Each time takes away all that was there, one
/// level deeper at least; only a writer that never stops gets past it.
const ROUNDS: usize = 10_000;

/// Removes a name with all that is below it. Never follows a link, and holds two directories open at any depth: what lies
/// deeper is moved up to be removed from there.
pub(super) fn tree(parent: &Folder, name: &str) -> io::Result<()> {
    for _ in 0..ROUNDS {
        if gone(unlink_any(parent, name))? {
            return parent.sync();
        }
        let folder = match parent.child(name) {
            // It was replaced by something that is not a directory, or removed.
            Err(error) if is_changed(&error) => continue,
            found => found?,
        };
        for entry in folder.names()? {
            remove_entry(&folder, &entry)?;
        }
    }
    Err(io::Error::other("somebody goes on writing into it"))
}

/// Removes an entry of the directory that is being emptied, or moves what is below it up into that directory.
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
        // POSIX says EPERM for a directory, Linux says EISDIR.
        Err(Errno::ISDIR | Errno::PERM) => folder.remove_empty(name),
        other => other,
    }
}

/// Whether a removal did away with the name; one that is not empty, or changed its kind meanwhile, is looked at again.
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
