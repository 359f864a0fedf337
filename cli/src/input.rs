//! Documents from stdin or files.

use std::{
    borrow::Cow,
    fs,
    io::{IsTerminal, Read},
    path::PathBuf,
};

use anyhow::Context;
use keelway_api::{Asked, Documents};

use crate::exit::Failure;

/// What a command read, before it means anything.
#[derive(Clone)]
pub(crate) struct Input {
    /// What to call it in messages.
    pub(crate) name: String,
    /// Byte for byte.
    pub(crate) bytes: Vec<u8>,
}

impl Input {
    /// Reads the files one after another, or stdin where there are none. `-` is stdin too.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Self, Failure> {
        if files.is_empty() {
            return Self::stdin();
        }
        let mut all = Self {
            name: files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", "),
            bytes: Vec::new(),
        };
        for file in files {
            let bytes = if file.as_os_str() == "-" {
                Self::stdin()?.bytes
            } else {
                fs::read(file).with_context(|| format!("could not read {}", file.display())).map_err(Failure::other)?
            };
            if !all.bytes.is_empty() {
                all.bytes.extend_from_slice(b"\n---\n");
            }
            all.bytes.extend(bytes);
        }
        Ok(all)
    }

    /// The same, where documents are only added to: there may be none yet.
    pub(crate) fn read_or_nothing(files: &[PathBuf]) -> Result<Self, Failure> {
        if files.is_empty() && std::io::stdin().is_terminal() {
            return Ok(Self { name: "stdin".to_owned(), bytes: Vec::new() });
        }
        Self::read(files)
    }

    /// What stands for a document that flags make: it is not part of the input, so no line of it is quoted.
    pub(crate) fn flags() -> Self {
        Self { name: "flags".to_owned(), bytes: Vec::new() }
    }

    fn stdin() -> Result<Self, Failure> {
        if std::io::stdin().is_terminal() {
            return Err(Failure::usage(
                "there are no documents on stdin",
                "pipe them in, or name a file with -f: keelway status -f c1.yaml",
            ));
        }
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("could not read stdin").map_err(Failure::other)?;
        Ok(Self { name: "stdin".to_owned(), bytes })
    }

    /// The documents; every fault of them otherwise.
    pub(crate) fn documents(&self) -> Result<Documents, Failure> {
        self.parse(false)
    }

    /// The documents as a world that can be reconciled; every fault of them otherwise.
    pub(crate) fn world(&self) -> Result<Documents, Failure> {
        self.parse(true)
    }

    /// The documents of a part of a world; every fault of each otherwise.
    pub(crate) fn documents_apart(&self) -> Result<Documents, Failure> {
        Documents::read_apart(&self.bytes, Asked::default()).map_err(|faults| Failure::faults(faults, self))
    }

    fn parse(&self, whole: bool) -> Result<Documents, Failure> {
        let asked = Asked { keys: Some(&keelway_reconciler::secret_faults), whole };
        Documents::read_with(&self.bytes, asked).map_err(|faults| Failure::faults(faults, self))
    }

    /// For messages: what is not UTF-8 is replaced.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}
