//! Reads the join token that the user provides.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use keelway_pki::{JoinToken, JoinTokenError};
use zeroize::Zeroizing;

/// The join token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Stdin could not be read.
    #[error("cannot read the join token from stdin")]
    Stdin(#[source] io::Error),
    /// The file could not be read.
    #[error("cannot read the join token from {}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The text is not a join token.
    #[error(transparent)]
    Form(JoinTokenError),
}

/// Reads a token from `file`; otherwise from `word`, or from stdin if `word` is `-` or absent.
pub fn read(word: Option<&str>, file: Option<&Path>) -> Result<JoinToken, TokenError> {
    let text = match (word, file) {
        (_, Some(path)) => Zeroizing::new(
            fs::read_to_string(path).map_err(|source| TokenError::File { path: path.to_owned(), source })?,
        ),
        (Some("-") | None, None) => {
            let mut text = Zeroizing::new(String::new());
            io::stdin().read_to_string(&mut text).map_err(TokenError::Stdin)?;
            text
        }
        (Some(word), None) => Zeroizing::new(word.to_owned()),
    };
    text.parse().map_err(TokenError::Form)
}
