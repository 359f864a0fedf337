//! The public keys that a backup is sealed to.

use std::str::FromStr;

use age::x25519::Recipient;

/// A public key that a backup is sealed to.
#[derive(Clone)]
pub struct BackupRecipient(pub(crate) Recipient);

/// A text is not a recipient. The text is not quoted: it may be a secret key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecipientError {
    /// It is a secret key.
    #[error("it is a secret key: use its public key, which `age-keygen -y FILE` prints")]
    SecretKey,
    /// It is something else.
    #[error(
        "it is not a public key of age, such as age1..; `age-keygen -o FILE` creates a key and prints its public key"
    )]
    Other,
    /// A file has no recipient.
    #[error("the file has no public key of age, such as age1..")]
    None,
}

impl FromStr for BackupRecipient {
    type Err = RecipientError;

    fn from_str(text: &str) -> Result<Self, RecipientError> {
        if text.to_ascii_uppercase().starts_with("AGE-SECRET-KEY-") {
            return Err(RecipientError::SecretKey);
        }
        text.parse().map(Self).map_err(|_| RecipientError::Other)
    }
}

/// Reads a file of recipients: one in each line. Empty lines and lines that start with `#` are ignored. The error has the number of the line.
pub fn recipients_of_file(text: &str) -> Result<Vec<BackupRecipient>, (usize, RecipientError)> {
    let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let found: Vec<BackupRecipient> =
        lines.map(|(line, number)| line.parse().map_err(|error| (number, error))).collect::<Result<_, _>>()?;
    if found.is_empty() { Err((1, RecipientError::None)) } else { Ok(found) }
}
