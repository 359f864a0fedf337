//! Documents from stdin or files.

use std::{
    borrow::Cow,
    fs,
    io::{IsTerminal, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use anyhow::Context;
use keelway_api::{Documents, ReadOptions, document::DocumentRef};

use crate::{
    directories::state_directory,
    exit::CommandFailure,
    last_documents::{self, shell_word},
};

/// The bytes that a command has read, before they are parsed.
#[derive(Clone)]
pub(crate) struct Input {
    /// The name of the input in messages.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// The single file that the bytes came from, also if the shell redirected it to stdin.
    file: Option<PathBuf>,
}

impl Input {
    /// Reads the files in order. Without files it reads stdin, which `-` also names.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self, CommandFailure> {
        if files.is_empty() {
            return Self::stdin();
        }
        let mut all = Self {
            name: files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", "),
            bytes: Vec::new(),
            file: if let [file] = files { Some(file.clone()) } else { None },
        };
        for file in files {
            let bytes = if file.as_os_str() == "-" {
                let stdin = Self::stdin()?;
                all.file = all.file.and(stdin.file);
                stdin.bytes
            } else {
                read_file(file)?
            };
            if !all.bytes.is_empty() {
                all.bytes.extend_from_slice(b"\n---\n");
            }
            all.bytes.extend(bytes);
        }
        Ok(all)
    }

    /// Reads the input of a command that only adds documents. If stdin is a terminal, the input is empty.
    pub(crate) fn read_or_empty(files: &[PathBuf]) -> Result<Self, CommandFailure> {
        if files.is_empty() && std::io::stdin().is_terminal() {
            return Ok(Self { name: "stdin".to_owned(), bytes: Vec::new(), file: None });
        }
        Self::read(files)
    }

    /// Reads the input of a command that requires documents. Refuses empty input if there are documents to restore.
    pub(crate) fn read_some(files: &[PathBuf]) -> Result<Self, CommandFailure> {
        let input = Self::read(files)?;
        if input.is_blank() { input.refuse_blank() } else { Ok(input) }
    }

    /// Reads input that can be empty. Like [`Self::read_some`] for a file, but accepts an empty pipe.
    pub(crate) fn read_some_of_file(files: &[PathBuf]) -> Result<Self, CommandFailure> {
        let input = Self::read(files)?;
        if input.is_blank() && input.file.is_some() { input.refuse_blank() } else { Ok(input) }
    }

    /// Returns the input of a document that is made from flags. Messages quote no line of it.
    pub(crate) fn flags() -> Self {
        Self { name: "flags".to_owned(), bytes: Vec::new(), file: None }
    }

    /// Returns documents that come from a file or a directory in another form.
    pub(crate) fn of_file(path: &Path, bytes: Vec<u8>) -> Self {
        Self { name: path.display().to_string(), bytes, file: None }
    }

    fn stdin() -> Result<Self, CommandFailure> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            return Err(CommandFailure::usage(
                "no documents on stdin",
                "pipe documents to stdin, or read a file with -f: keelway status -f c1.yaml",
            ));
        }
        let identity = FileIdentity::of(stdin.as_fd());
        let file = identity.and_then(|_| fs::read_link("/proc/self/fd/0").ok());
        refuse_stdout(identity, file.as_deref().unwrap_or(Path::new("stdin")))?;
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("could not read stdin").map_err(CommandFailure::other)?;
        Ok(Self { name: "stdin".to_owned(), bytes, file })
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.bytes.iter().all(u8::is_ascii_whitespace)
    }

    /// Refuses empty input if there are documents to restore. Otherwise returns it, and the caller reports what is missing.
    fn refuse_blank(self) -> Result<Self, CommandFailure> {
        let Some(advice) = last_documents::restore_help(&state_directory(), self.file.as_deref()) else {
            return Ok(self);
        };
        let problem = match &self.file {
            Some(file) => format!(
                "{} is empty; a shell empties the file of `> FILE` before it starts the command",
                file.display()
            ),
            None => format!("{} is empty; the previous command wrote no documents", self.name),
        };
        Err(CommandFailure::usage(problem, format!("{advice}{IN_PLACE}")))
    }

    /// Parses the documents. Returns all faults if there are any.
    pub(crate) fn documents(&self) -> Result<Documents, CommandFailure> {
        self.parse(false)
    }

    /// Parses the documents as a complete world that can be reconciled. Returns all faults if there are any.
    pub(crate) fn world(&self) -> Result<Documents, CommandFailure> {
        self.parse(true)
    }

    /// Parses documents that are part of a world. Returns all faults if there are any.
    pub(crate) fn documents_apart(&self) -> Result<Documents, CommandFailure> {
        Documents::read_partial(&self.bytes, ReadOptions::default())
            .map_err(|faults| CommandFailure::faults(faults, self))
    }

    fn parse(&self, whole: bool) -> Result<Documents, CommandFailure> {
        let asked = ReadOptions {
            keys: Some(&keelway_reconciler::secret_faults),
            is_complete_world: whole,
            ..ReadOptions::default()
        };
        let documents =
            Documents::read_with(&self.bytes, asked).map_err(|faults| CommandFailure::faults(faults, self))?;
        warn_of_newer_fields(&documents);
        Ok(documents)
    }

    /// Returns the text for messages. Bytes that are not UTF-8 are replaced.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}

/// Warns a user who has downgraded about fields of a newer release: they have no effect in this one.
fn warn_of_newer_fields(documents: &Documents) {
    for name in documents.names() {
        let fields = documents.get(&name).map(DocumentRef::newer_fields).unwrap_or_default();
        if !fields.is_empty() {
            let fields = fields.join(", ");
            let _ = writeln!(
                std::io::stderr(),
                "warning: {name}: {fields} belong to a newer release; they are preserved but have no effect"
            );
        }
    }
}

/// The help for a command that would overwrite its input.
const IN_PLACE: &str = "\n  help: to keep a file up to date, use `keelway reconcile --in-place FILE`; other commands write to another file";

/// Identifies a regular file, to detect two descriptors of the same one. Terminals, pipes and other files have no identity here.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(descriptor: BorrowedFd<'_>) -> Option<Self> {
        Self::from_metadata(&fs::File::from(descriptor.try_clone_to_owned().ok()?).metadata().ok()?)
    }

    fn from_metadata(found: &fs::Metadata) -> Option<Self> {
        found.is_file().then(|| Self { device: found.dev(), inode: found.ino() })
    }
}

fn read_file(file: &Path) -> Result<Vec<u8>, CommandFailure> {
    let failed = || format!("could not read {}", file.display());
    let found = fs::metadata(file).with_context(failed).map_err(CommandFailure::other)?;
    refuse_stdout(FileIdentity::from_metadata(&found), file)?;
    fs::read(file).with_context(failed).map_err(CommandFailure::other)
}

/// Refuses a command whose stdout is its own input: it would read what it writes, and the shell may have emptied the file already.
fn refuse_stdout(input: Option<FileIdentity>, file: &Path) -> Result<(), CommandFailure> {
    if input.is_none() || input != FileIdentity::of(std::io::stdout().as_fd()) {
        return Ok(());
    }
    let size = fs::metadata(file).map(|found| found.len()).unwrap_or_default();
    let name = file.display();
    if size > 0 {
        return Err(CommandFailure::usage(
            format!("stdout is the input file {name}; the file is unchanged"),
            format!(
                "write to another file, or keep this one up to date: keelway reconcile --in-place {}",
                shell_word(file)
            ),
        ));
    }
    let problem = format!("stdout is the input file {name}, which the shell emptied before it started this command");
    let help = last_documents::restore_help(&state_directory(), Some(file))
        .unwrap_or_else(|| format!("restore it from a backup; {} contains no copy", state_directory().display()));
    Err(CommandFailure::usage(problem, format!("{help}{IN_PLACE}")))
}
