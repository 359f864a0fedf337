//! A copy of a directory while a manager may write to it.

use std::{collections::BTreeMap, io, path::Path};

use super::files::{FileSelection, StoreFiles};
use crate::accept::ChangedFiles;

/// How often the files are read until two readings are the same.
const MOST_READINGS: usize = 100;

/// The documents of a directory could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A file cannot be read.
    #[error("could not read {0}")]
    Read(std::path::PathBuf, #[source] io::Error),
    /// A manager keeps writing.
    #[error("the documents in {0} changed each time that they were read: try again")]
    Changing(std::path::PathBuf),
}

/// Returns the text of all documents in a store's directory, from one moment: all files are read until two readings are the same. The manager
/// saves documents in an order that is sound after each file. Refused files are included.
///
/// # Errors
/// It is no directory, a file cannot be read, or the files change all the time.
pub fn copy_documents(root: &Path) -> Result<Vec<u8>, CopyError> {
    let files = StoreFiles::at(root);
    let read = || files.read(&FileSelection::All, &BTreeMap::new());
    let failed = |cause| CopyError::Read(root.to_owned(), cause);
    let mut last: ChangedFiles = read().map_err(failed)?;
    for _ in 0..MOST_READINGS {
        let next = read().map_err(failed)?;
        if next == last {
            let texts: Vec<Vec<u8>> = last.into_values().flatten().collect();
            return Ok(texts.join(&b"\n---\n"[..]));
        }
        last = next;
    }
    Err(CopyError::Changing(root.to_owned()))
}
