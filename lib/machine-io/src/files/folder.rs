//! An open directory. Entries are addressed by one plain name at a time, and links are never followed.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use keelway_api::machine::Disk;
use keelway_machine::layout::{is_plain_name, is_plain_relative_path};
use rustix::{
    fs::{
        AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, fchmod, fchown, flock,
        fstat, fstatvfs, fsync, mkdirat, openat, openat2, renameat, statat, unlinkat,
    },
    io::Errno,
    path::Arg,
    rand::{GetRandomFlags, getrandom},
};

/// The prefix of a file that is not completely written. If a crash leaves such a file, it is observed as a file that the config does not have.
pub(super) const UNFINISHED: &str = ".keelway-new-";

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Owner, group and permission bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes {
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) mode: u32,
}

impl Attributes {
    pub(super) fn of_root(mode: u32) -> Self {
        Self::of_user(0, mode)
    }

    pub(super) fn of_user(user: u32, mode: u32) -> Self {
        Self { user, group: user, mode }
    }

    /// Sets them on a file that was written, and waits until the file is on disk.
    pub(super) fn finish(self, file: &File) -> io::Result<()> {
        self.set(file.as_fd())?;
        file.sync_all()
    }

    fn set(self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let found = fstat(descriptor)?;
        if (found.st_uid, found.st_gid) != (self.user, self.group) {
            let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
            fchown(descriptor, Some(user), Some(group))?;
        }
        if found.st_mode & 0o7777 != self.mode {
            fchmod(descriptor, Mode::from_raw_mode(self.mode))?;
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Folder {
    /// Opens a directory by its absolute path on the machine. Links on the way, which the machine's owner may have created, are resolved inside the
    /// machine's root and never lead out of it.
    pub(super) fn open_in_root(root: BorrowedFd<'_>, path: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        loop {
            match openat2(root, path, flags, Mode::empty(), resolve) {
                // The kernel returns EAGAIN if a rename happened meanwhile.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Ok(Self(other?)),
            }
        }
    }

    /// Returns the capacity of the file system. If no more files can be created, nothing is available.
    pub(super) fn disk(&self) -> io::Result<Disk> {
        let found = fstatvfs(&self.0)?;
        // Some file systems have no limit on files, and report 0.
        let no_more_files = found.f_files > 0 && found.f_ffree == 0;
        Ok(Disk {
            capacity_bytes: found.f_blocks.saturating_mul(found.f_frsize),
            available_bytes: if no_more_files { 0 } else { found.f_bfree.saturating_mul(found.f_frsize) },
        })
    }

    /// Opens a directory in this one.
    pub(super) fn child(&self, name: impl Arg) -> io::Result<Self> {
        Ok(Self(openat(&self.0, name, DIRECTORY, Mode::empty())?))
    }

    /// Opens a directory further down, name by name. A path that leads elsewhere is an error.
    pub(super) fn descend(self, path: &str) -> io::Result<Self> {
        if !is_plain_relative_path(path) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path leads out of its directory"));
        }
        path.split('/').try_fold(self, |folder, name| folder.child(name))
    }

    /// Opens the parent directory of a path further down, and returns it with the path's last name.
    pub(super) fn parent_of(self, path: &str) -> io::Result<(Self, &str)> {
        match path.rsplit_once('/') {
            Some((parent, name)) if is_plain_name(name) => Ok((self.descend(parent)?, name)),
            None if is_plain_name(path) => Ok((self, path)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the path leads out of its directory")),
        }
    }

    /// Creates a directory in this one, and sets its attributes. If the directory exists, only sets its attributes.
    pub(super) fn make(&self, name: &str, attributes: Attributes) -> io::Result<()> {
        let made = self.make_bare(name, attributes.mode)?;
        let child = self.child(name)?;
        attributes.set(child.0.as_fd())?;
        if made {
            self.sync()?;
        }
        Ok(())
    }

    /// Creates a directory in this one; the umask applies to its mode. Returns whether it did not exist.
    pub(super) fn make_bare(&self, name: &str, mode: u32) -> io::Result<bool> {
        match mkdirat(&self.0, name, Mode::from_raw_mode(mode)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces a file atomically. At any moment, also after a loss of power, the old or the new file is there, complete and with its owner.
    pub(super) fn replace(&self, name: &str, content: &[u8], attributes: Attributes) -> io::Result<()> {
        self.replace_by(UNFINISHED, name, content, attributes)
    }

    /// As [`Self::replace`]. Until the file is complete, its name begins with `beginning`.
    pub(super) fn replace_by(
        &self,
        beginning: &str,
        name: &str,
        content: &[u8],
        attributes: Attributes,
    ) -> io::Result<()> {
        let unfinished = format!("{beginning}{}", random_digits()?);
        let placed = self
            .create(&unfinished, content, attributes)
            .and_then(|()| Ok(renameat(&self.0, &unfinished, &self.0, name)?));
        if placed.is_err() {
            // The first error is the one to report. The next pass removes a file that is left here.
            let _ = unlinkat(&self.0, &unfinished, AtFlags::empty());
        }
        placed?;
        self.sync()
    }

    fn create(&self, name: &str, content: &[u8], attributes: Attributes) -> io::Result<()> {
        let mut file = self.create_file(name)?;
        file.write_all(content)?;
        attributes.finish(&file)
    }

    /// Creates an empty file of root. It is an error if the name exists.
    pub(super) fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.0, name, flags, Mode::from_raw_mode(0o600))?))
    }

    /// Appends to a file of root, or overwrites it in place.
    pub(super) fn append(&self, name: &str, content: &[u8], anew: bool) -> io::Result<()> {
        let how = if anew { OFlags::TRUNC } else { OFlags::APPEND };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | how;
        let mut file = File::from(openat(&self.0, name, flags, Mode::from_raw_mode(0o600))?);
        Attributes::of_root(0o600).set(file.as_fd())?;
        file.write_all(content)
    }

    /// Creates an empty file with these attributes, for writing. It is an error if the name exists.
    pub(super) fn create_empty(&self, name: &str, attributes: Attributes) -> io::Result<File> {
        let file = self.create_file(name)?;
        attributes.set(file.as_fd())?;
        Ok(file)
    }

    /// Opens a regular file without blocking (a pipe may have no reader). Returns `None` for anything else.
    pub(super) fn open_regular(&self, name: impl Arg) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                Ok(file.metadata()?.is_file().then_some(file))
            }
            // A link (ELOOP), or a socket (ENXIO).
            Err(Errno::LOOP | Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the text of a small file, or `None` if it does not exist.
    pub(super) fn read(&self, name: &str) -> io::Result<Option<String>> {
        let bytes = self.read_bytes(name)?;
        bytes.map(|bytes| String::from_utf8(bytes).map_err(io::Error::other)).transpose()
    }

    /// Returns the content of a file of at most 64 MiB, or `None` if it does not exist.
    pub(super) fn read_bytes(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open_regular(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let Some(file) = file else {
            return Err(io::Error::other("not a regular file"));
        };
        let mut content = Vec::new();
        file.take(64 << 20).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// Returns a descriptor that refers to a socket of the directory's owner. A socket of another user is refused, so that no data is sent to it.
    pub(super) fn open_socket(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(&self.0, name, flags, Mode::empty())?;
        let (found, own) = (fstat(&socket)?, self.own_stat()?);
        let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
        if is_socket && found.st_uid == own.st_uid {
            Ok(socket)
        } else {
            Err(io::Error::other("not a socket of its directory's owner"))
        }
    }

    /// Returns the names in this directory.
    pub(super) fn names(&self) -> io::Result<Vec<CString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(entry.file_name().to_owned());
            }
        }
        Ok(names)
    }

    /// Returns whether there is a name that begins with none of these.
    pub(super) fn has_other_than(&self, beginnings: &[&str]) -> io::Result<bool> {
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let known = beginnings.iter().any(|beginning| name.starts_with(beginning.as_bytes()));
            if !known && !matches!(name, b"." | b"..") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the attributes of an entry. A link is not followed.
    pub(super) fn stat(&self, name: impl Arg) -> io::Result<Stat> {
        Ok(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Returns the attributes of this directory.
    pub(super) fn own_stat(&self) -> io::Result<Stat> {
        Ok(fstat(&self.0)?)
    }

    pub(super) fn set(&self, attributes: Attributes) -> io::Result<()> {
        attributes.set(self.0.as_fd())
    }

    /// Writes changes of this directory's entries to disk, so that they survive a loss of power.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.0)?)
    }

    /// Waits until no one else has locked this directory, and locks it until it is closed.
    pub(super) fn lock(&self) -> io::Result<()> {
        Ok(flock(&self.0, FlockOperation::LockExclusive)?)
    }

    pub(super) fn unlink(&self, name: impl Arg) -> Result<(), Errno> {
        unlinkat(&self.0, name, AtFlags::empty())
    }

    pub(super) fn remove_empty(&self, name: impl Arg) -> Result<(), Errno> {
        unlinkat(&self.0, name, AtFlags::REMOVEDIR)
    }

    pub(super) fn move_to(&self, name: impl Arg, to: &Self, new: &str) -> Result<(), Errno> {
        renameat(&self.0, name, &to.0, new)
    }
}

/// Returns sixteen random hexadecimal digits.
pub(super) fn random_digits() -> io::Result<String> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
