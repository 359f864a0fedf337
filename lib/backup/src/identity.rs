//! The secret keys that open a backup.

use age::x25519::Identity;

/// Secret keys. They have no `Debug`.
pub struct BackupIdentities(pub(crate) Vec<Identity>);

/// A file has no usable secret keys. Its lines are never quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BackupIdentityError {
    /// A line is not a secret key.
    #[error("line {0} is not a secret key of age (AGE-SECRET-KEY-1..)")]
    Line(usize),
    /// The file is itself sealed.
    #[error("the key file is sealed with a passphrase: open it first, with `age --decrypt FILE`")]
    Sealed,
    /// There is no key.
    #[error("the file has no secret key of age (AGE-SECRET-KEY-1..)")]
    None,
}

impl BackupIdentities {
    /// Reads a file as `age-keygen` writes it. Empty lines and lines that start with `#` are ignored.
    pub fn parse(text: &str) -> Result<Self, BackupIdentityError> {
        if text.starts_with("age-encryption.org/") || text.starts_with("-----BEGIN AGE ENCRYPTED FILE-----") {
            return Err(BackupIdentityError::Sealed);
        }
        let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        let keys: Vec<Identity> = lines
            .map(|(line, number)| line.parse().map_err(|_| BackupIdentityError::Line(number)))
            .collect::<Result<_, _>>()?;
        if keys.is_empty() { Err(BackupIdentityError::None) } else { Ok(Self(keys)) }
    }
}
