//! The join token, from where the user has it.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use keelway_pki::{JoinToken, JoinTokenError};
use zeroize::Zeroizing;

/// There is no join token that can be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Stdin could not be read.
    #[error("cannot read the join token from stdin")]
    Stdin(#[source] io::Error),
    /// The file could not be read.
    #[error("cannot read the join token from {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is none.
    #[error(transparent)]
    Form(JoinTokenError),
}

/// Reads a token: from a file, from stdin where the word is `-`, or the word itself.
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
