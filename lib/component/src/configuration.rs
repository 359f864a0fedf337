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
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file cannot be parsed.
    #[error("cannot parse the configuration {}", path.display())]
    Parse {
        /// The path of the file.
        path: PathBuf,
        /// The error of the parser.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A field is invalid.
    #[error("{}: {fault}", path.display())]
    Field {
        /// The path of the file.
        path: PathBuf,
        /// The invalid field, with help.
        fault: FieldFault,
    },
}

/// An invalid field, with help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}; {help}")]
pub struct FieldFault {
    /// The path of the field.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// What the user can do.
    pub help: String,
}

impl FieldFault {
    /// Returns the fault of a field.
    pub fn new(field: impl Into<String>, problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), help: help.into() }
    }
}

/// Validation across the fields of a configuration.
pub trait ValidateConfiguration {
    /// Returns the first fault.
    fn check(&self) -> Result<(), FieldFault>;
}

/// Reads and validates a file.
pub fn read<T: DeserializeOwned + ValidateConfiguration>(path: &Path) -> Result<T, ConfigurationError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigurationError::Read { path: path.to_owned(), source })?;
    let read: T = serde_saphyr::from_str(&text)
        .map_err(|source| ConfigurationError::Parse { path: path.to_owned(), source: Box::new(source) })?;
    read.check().map_err(|fault| ConfigurationError::Field { path: path.to_owned(), fault })?;
    Ok(read)
}
