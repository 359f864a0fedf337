//! Keelway's top directories, which are among directories of other programs.

use std::{io, os::fd::BorrowedFd};

use keelway_machine::layout::{FILE_MODE, MADE_BY_US, is_ours};
use rustix::io::Errno;

use super::{
    folder::{Attributes, Folder, UNFINISHED},
    split,
};

const MODE: u32 = MADE_BY_US | 0o711;

/// Opens a top directory. Creates it, and the directories above it, if they are missing.
pub(super) fn make(root: BorrowedFd<'_>, path: &str) -> io::Result<Folder> {
    match Folder::open_in_root(root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let (parent, name) = split(path);
    let parent = make_parents(root, parent)?;
    if parent.make_bare(name, MODE)? {
        // The umask may have removed bits.
        parent.child(name)?.set(Attributes::of_root(MODE))?;
        parent.sync()?;
    }
    Folder::open_in_root(root, path)
}

fn make_parents(root: BorrowedFd<'_>, path: &str) -> io::Result<Folder> {
    match Folder::open_in_root(root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_empty() => {}
        found => return found,
    }
    let (parent, name) = split(path);
    let above = if parent.is_empty() { "/" } else { parent };
    make_parents(root, above)?.make_bare(name, 0o755)?;
    Folder::open_in_root(root, path)
}

/// Removes Keelway's records from a top directory, and the directory itself if Keelway created it and nothing else is in it.
pub(super) fn leave(root: BorrowedFd<'_>, path: &str, records: &[&str]) -> io::Result<()> {
    let folder = match Folder::open_in_root(root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    for name in records {
        absent_is_fine(folder.unlink(*name))?;
    }
    remove_unfinished(&folder, UNFINISHED)?;
    folder.sync()?;
    if !is_ours(folder.own_stat()?.st_mode) {
        return Ok(());
    }
    let (parent, name) = split(path);
    match Folder::open_in_root(root, parent)?.remove_empty(name) {
        // Another program put something there, or mounted a file system on it. From now on, the directory no longer counts as created by Keelway.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => folder.set(Attributes::of_root(MODE & !MADE_BY_US)),
        other => absent_is_fine(other),
    }
}

/// Replaces a record of root. First removes what a crash left of an incomplete write: each record has one writer at a time, and the writers of other
/// records are not affected.
pub(super) fn replace_record(folder: &Folder, name: &str, content: &[u8]) -> io::Result<()> {
    let unfinished = format!("{UNFINISHED}{name}-");
    remove_unfinished(folder, &unfinished)?;
    folder.replace_by(&unfinished, name, content, Attributes::of_root(FILE_MODE))
}

fn remove_unfinished(folder: &Folder, beginning: &str) -> io::Result<()> {
    for name in folder.names()? {
        if name.to_bytes().starts_with(beginning.as_bytes()) {
            absent_is_fine(folder.unlink(&name))?;
        }
    }
    Ok(())
}

fn absent_is_fine(removed: Result<(), Errno>) -> io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}
