//! Copies a data directory.

use std::{ffi::CStr, io};

use rustix::fs::{FileType, Stat};

use super::{
    folder::{Attributes, Folder, UNFINISHED},
    remove,
};

/// Copies a directory with everything below it, and renames the copy to its name once it is on disk. An attempt that runs already, because its caller
/// stopped waiting, is awaited; what one that was interrupted left behind is removed. A copy that exists is replaced only if it is empty.
pub(super) fn directory(parent: &Folder, name: &str, copy: &str) -> io::Result<()> {
    parent.lock()?;
    match parent.child(copy) {
        Ok(found) if found.has_other_than(&[])? => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let unfinished = format!("{UNFINISHED}{copy}");
    remove::tree(parent, &unfinished)?;
    let from = parent.child(name)?;
    parent.make(&unfinished, attributes(&from.own_stat()?))?;
    let to = parent.child(&unfinished)?;
    let mut left = vec![(from, to)];
    while let Some((from, to)) = left.pop() {
        left.extend(entries(&from, &to)?);
        to.sync()?;
    }
    parent.move_to(unfinished.as_str(), parent, copy)?;
    parent.sync()
}

/// Copies the files of one directory, and returns its directories with their new copies.
fn entries(from: &Folder, to: &Folder) -> io::Result<Vec<(Folder, Folder)>> {
    let mut directories = Vec::new();
    for name in from.names()? {
        let found = from.stat(&*name)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind == FileType::Directory {
            let text = plain(&name)?;
            to.make(text, attributes(&found))?;
            directories.push((from.child(text)?, to.child(text)?));
        } else if kind == FileType::RegularFile {
            file((from, to), plain(&name)?, attributes(&found))?;
        } else {
            // etcd writes neither links nor sockets.
            return Err(io::Error::other(format!("{} is neither a file nor a directory", name.to_string_lossy())));
        }
    }
    Ok(directories)
}

fn file((from, to): (&Folder, &Folder), name: &str, attributes: Attributes) -> io::Result<()> {
    let changed = || io::Error::other(format!("{name} is not a regular file any more"));
    let mut source = from.open_regular(name)?.ok_or_else(changed)?;
    let mut copy = to.create_file(name)?;
    io::copy(&mut source, &mut copy)?;
    attributes.finish(&copy)
}

fn plain(name: &CStr) -> io::Result<&str> {
    name.to_str().map_err(io::Error::other)
}

fn attributes(found: &Stat) -> Attributes {
    Attributes { user: found.st_uid, group: found.st_gid, mode: found.st_mode & 0o7777 }
}
