//! Configuration files, YAML or JSON.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not what it should be.
    #[error("{} is no such configuration", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A field makes no sense.
    #[error("{}: {fault}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Which, and how to mend it.
        fault: FieldFault,
    },
}

/// A field that makes no sense, and its mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}; {help}")]
pub struct FieldFault {
    /// The field's path.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// How to mend it.
    pub help: String,
}

impl FieldFault {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), help: help.into() }
    }
}

/// Whether the parts of a configuration make sense together.
pub(crate) trait ValidateConfiguration {
    /// The first fault.
    fn check(&self) -> Result<(), FieldFault>;
}

/// Reads a file.
pub(crate) fn read<T: DeserializeOwned + ValidateConfiguration>(path: &Path) -> Result<T, ConfigurationError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigurationError::Read { path: path.to_owned(), source })?;
    let read: T = serde_saphyr::from_str(&text)
        .map_err(|source| ConfigurationError::Parse { path: path.to_owned(), source: Box::new(source) })?;
    read.check().map_err(|fault| ConfigurationError::Field { path: path.to_owned(), fault })?;
    Ok(read)
}
