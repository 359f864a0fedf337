//! Sealing and opening.

use std::io::{self, Read, Write};

use age::{DecryptError, Decryptor, EncryptError, Encryptor, Identity, Recipient};
use zeroize::Zeroizing;

use crate::{BackupIdentities, BackupRecipient};

/// A backup could not be sealed.
#[derive(Debug, thiserror::Error)]
pub enum BackupSealError {
    /// The recipients cannot be used together, or there are none.
    #[error("cannot seal the backup to these recipients")]
    Recipients(#[source] EncryptError),
    /// It could not be written.
    #[error("cannot seal the backup")]
    Write(#[source] io::Error),
}

/// A backup could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BackupOpenError {
    /// It is not a file that age sealed.
    #[error("it is not a backup of Keelway: age did not seal it; `keelway backup` writes backups")]
    NotSealed,
    /// It is sealed to other keys.
    #[error("none of the keys opens it: it is sealed to another recipient; use the key file of that recipient")]
    OtherKey,
    /// It ends early, or was changed.
    #[error("it is truncated or damaged: use another copy")]
    Damaged,
}

/// Seals bytes to all recipients: each can open the result alone.
pub fn seal(recipients: &[BackupRecipient], contents: &[u8]) -> Result<Vec<u8>, BackupSealError> {
    let recipients = recipients.iter().map(|recipient| &recipient.0 as &dyn Recipient);
    let sealing = Encryptor::with_recipients(recipients).map_err(BackupSealError::Recipients)?;
    let mut sealed = Vec::with_capacity(contents.len() + 1024);
    let mut output = sealing.wrap_output(&mut sealed).map_err(BackupSealError::Write)?;
    output.write_all(contents).map_err(BackupSealError::Write)?;
    output.finish().map_err(BackupSealError::Write)?;
    Ok(sealed)
}

/// Opens a sealed file. All of it is verified before this returns.
pub fn open(identities: &BackupIdentities, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, BackupOpenError> {
    let keys = identities.0.iter().map(|key| key as &dyn Identity);
    let opened = Decryptor::new(sealed).map_err(|error| header_error(&error, sealed))?;
    let mut opened = opened.decrypt(keys).map_err(|error| header_error(&error, sealed))?;
    let mut contents = Zeroizing::new(Vec::with_capacity(sealed.len()));
    opened.read_to_end(&mut contents).map_err(|_| BackupOpenError::Damaged)?;
    Ok(contents)
}

fn header_error(error: &DecryptError, sealed: &[u8]) -> BackupOpenError {
    const START: &[u8] = b"age-encryption.org/";
    if matches!(error, DecryptError::NoMatchingKeys) {
        BackupOpenError::OtherKey
    } else if sealed.starts_with(START) {
        BackupOpenError::Damaged
    } else {
        BackupOpenError::NotSealed
    }
}
