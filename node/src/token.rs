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
    bare(&text).parse().map_err(TokenError::Form)
}

/// Returns the text without what editors, shells and mail programs put around it: blanks, line breaks, quotes and a byte order mark.
fn bare(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\u{feff}' | '"' | '\''))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_whatever_is_around_it() {
        let token = JoinToken {
            endpoints: vec!["203.0.113.1:20000".parse().unwrap()],
            names: vec!["api.example.com".to_owned()],
            authorities: vec![format!("sha256:{}", "0".repeat(64)).parse().unwrap()],
            bootstrap: "abcdef.0123456789abcdef".parse().unwrap(),
        };
        let text = token.encode();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        for (before, after) in [("", ""), ("", "\r\n"), ("\u{feff}", "\n"), ("\n\"", "\"\n\n"), ("\u{feff}'", "' ")] {
            let around = format!("{before}{}{after}", *text);
            fs::write(&file, &around).unwrap();
            assert_eq!(read(None, Some(&file)).unwrap(), token, "{before:?}");
            assert_eq!(read(Some(&around), None).unwrap(), token, "{before:?}");
        }
        let within = format!("{}\"{}", &text[..9], &text[9..]);
        assert!(matches!(read(Some(&within), None), Err(TokenError::Form(_))));
    }
}
