//! Replaces files atomically, and never overwrites what another program wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sha2::{Digest, Sha256};

use crate::{
    accept::ChangedFiles,
    document_paths::{FOLDERS, is_document},
};

/// The prefix of a file that is not complete yet.
const UNFINISHED: &str = ".keelway-";
/// The file that names the new store of the documents, during a pivot.
const LEFT_FOR: &str = "left-for";
/// The suffix of a refused file.
const REFUSED: &str = ".refused";

/// The SHA-256 of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentHash([u8; 32]);

impl ContentHash {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

/// The files below a store's directory.
#[derive(Debug)]
pub(super) struct StoreFiles {
    root: PathBuf,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileSelection {
    All,
    /// These paths, whether they exist or not.
    These(BTreeSet<PathBuf>),
}

/// Whether a file was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplaceOutcome {
    Yes,
    /// Another program changed the file, so nothing was written.
    No,
}

impl StoreFiles {
    /// Returns the files of a directory that exists.
    pub(super) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(super) fn open(root: &Path) -> io::Result<Self> {
        make_directory(root)?;
        FOLDERS.iter().try_for_each(|folder| make_directory(&root.join(folder)))?;
        Ok(Self { root: root.to_owned() })
    }

    /// Removes incomplete files that an interrupted writer left.
    pub(super) fn clear(&self) -> io::Result<()> {
        for path in self.all()? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(UNFINISHED) {
                fs::remove_file(self.root.join(path))?;
            }
        }
        Ok(())
    }

    /// Returns the files whose content differs from `known`.
    pub(super) fn read(
        &self,
        which: &FileSelection,
        known: &BTreeMap<PathBuf, ContentHash>,
    ) -> io::Result<ChangedFiles> {
        let paths = match which {
            FileSelection::All => self.all()?.into_iter().chain(known.keys().cloned()).collect(),
            FileSelection::These(paths) => paths.clone(),
        };
        let mut found = ChangedFiles::new();
        for path in paths.into_iter().filter(|path| is_document(path)) {
            let bytes = self.bytes(&path)?;
            if bytes.as_deref().map(ContentHash::of).as_ref() != known.get(&path) {
                found.insert(path, bytes);
            }
        }
        Ok(found)
    }

    /// Replaces the known content of a file durably. `None` means that the file does not exist.
    pub(super) fn replace(
        &self,
        path: &Path,
        known: Option<ContentHash>,
        wanted: Option<&[u8]>,
    ) -> io::Result<ReplaceOutcome> {
        let file = self.root.join(path);
        let directory = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let name = file.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let beside = directory.join(format!("{UNFINISHED}{name}"));
        let replaced = match (known, wanted) {
            (None, None) => return Ok(ReplaceOutcome::Yes),
            (known, Some(wanted)) => {
                make_directory(directory)?;
                write(&beside, wanted)?;
                exchange(&beside, &file, known)?
            }
            (Some(known), None) => remove_unless_changed(&beside, &file, known)?,
        };
        File::open(directory)?.sync_all()?;
        Ok(replaced)
    }

    /// Renames a refused file, so that the document can be written in its place. Returns the new name; none if there was no file.
    pub(super) fn set_aside(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let mut aside = path.to_owned().into_os_string();
        aside.push(REFUSED);
        match fs::rename(self.root.join(path), self.root.join(&aside)) {
            Ok(()) => Ok(Some(aside.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn read_left_for(&self) -> io::Result<Option<String>> {
        let bytes = self.bytes(Path::new(LEFT_FOR))?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
    }

    pub(super) fn write_left_for(&self, target: Option<&str>) -> io::Result<()> {
        let Some(target) = target else { return self.remove(Path::new(LEFT_FOR)) };
        let beside = self.root.join(format!("{UNFINISHED}{LEFT_FOR}"));
        write(&beside, format!("{target}\n").as_bytes())?;
        fs::rename(beside, self.root.join(LEFT_FOR))?;
        File::open(&self.root)?.sync_all()
    }

    /// Removes a file durably, if it exists.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let file = self.root.join(path);
        match fs::remove_file(&file) {
            Ok(()) => file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn bytes(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.root.join(path)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn all(&self) -> io::Result<BTreeSet<PathBuf>> {
        let mut found = BTreeSet::new();
        for folder in FOLDERS {
            walk(&self.root, Path::new(folder), &mut found)?;
        }
        Ok(found)
    }
}

fn walk(root: &Path, below: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            walk(root, &path, found)?;
        } else {
            found.insert(path);
        }
    }
    Ok(())
}

/// Creates a directory durably.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut handle = options.write(true).create(true).truncate(true).mode(0o600).open(file)?;
    handle.write_all(bytes)?;
    handle.sync_all()
}

/// Moves a new file into place. If there was a file before, both exchange places atomically, so that its content is checked before it is removed.
fn exchange(beside: &Path, file: &Path, known: Option<ContentHash>) -> io::Result<ReplaceOutcome> {
    let flags = if known.is_some() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
    match renameat_with(CWD, beside, CWD, file, flags) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOENT) => {
            fs::remove_file(beside)?;
            return Ok(ReplaceOutcome::No);
        }
        Err(error) => return Err(error.into()),
    }
    let Some(known) = known else { return Ok(ReplaceOutcome::Yes) };
    if ContentHash::of(&fs::read(beside)?) == known {
        fs::remove_file(beside)?;
        return Ok(ReplaceOutcome::Yes);
    }
    renameat_with(CWD, beside, CWD, file, RenameFlags::EXCHANGE)?;
    fs::remove_file(beside)?;
    Ok(ReplaceOutcome::No)
}

/// Removes a file, unless its content is not the known one.
fn remove_unless_changed(beside: &Path, file: &Path, known: ContentHash) -> io::Result<ReplaceOutcome> {
    match fs::rename(file, beside) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ReplaceOutcome::Yes),
        Err(error) => return Err(error),
    }
    if ContentHash::of(&fs::read(beside)?) == known {
        fs::remove_file(beside)?;
        return Ok(ReplaceOutcome::Yes);
    }
    // If another program wrote a newer file meanwhile, that file stays.
    match renameat_with(CWD, beside, CWD, file, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => fs::remove_file(beside)?,
        Err(error) => return Err(error.into()),
    }
    Ok(ReplaceOutcome::No)
}
