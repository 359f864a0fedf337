//! Sealing to a key of the cluster, in the format of age (<https://age-encryption.org/v1>), so that the program `age` opens a snapshot without Keelway.

use std::{
    io::{self, Read, Seek, Write},
    iter,
    str::FromStr,
};

use age::{
    DecryptError, Decryptor, EncryptError, Encryptor,
    secrecy::ExposeSecret,
    stream::{StreamReader, StreamWriter},
    x25519::Identity,
};
use bech32::{Bech32, Hrp};
use zeroize::Zeroizing;

/// The prefix of age's secret keys.
const PREFIX: &str = "age-secret-key-";
/// The length of a key in bytes.
const LENGTH: usize = 32;

/// The key that snapshots of one cluster are sealed to. It has no `Debug`.
#[derive(Clone)]
pub struct SealingKey(Identity);

/// Bytes are not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key of snapshots must have {LENGTH} bytes, not {0}")]
pub struct SealingKeyError(usize);

/// A file could not be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It could not be sealed.
    #[error("cannot seal the snapshot")]
    Seal(#[source] EncryptError),
    /// It is not a sealed file.
    #[error("it is not a file that age sealed")]
    NotSealed(#[source] DecryptError),
    /// It is sealed to another key.
    #[error("it is sealed to another key: it belongs to another cluster, or to an earlier key of this one")]
    OtherKey,
    /// A file could not be read or written.
    #[error("cannot read or write a file")]
    Io(#[source] io::Error),
}

impl SealingKey {
    /// Creates a key from 32 random bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SealingKeyError> {
        let error = || SealingKeyError(bytes.len());
        if bytes.len() != LENGTH {
            return Err(error());
        }
        let prefix = Hrp::parse(PREFIX).map_err(|_| error())?;
        let text = bech32::encode::<Bech32>(prefix, bytes).map(Zeroizing::new).map_err(|_| error())?;
        let text = Zeroizing::new(text.to_uppercase());
        Identity::from_str(&text).map(Self).map_err(|_| error())
    }

    /// Reads the key that [`Self::expose_text`] returned. None: it is another text.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Identity::from_str(text.trim()).ok().map(Self)
    }

    /// Returns the key as text, as a file of identities for `age --decrypt`.
    #[must_use]
    pub fn expose_text(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.to_string().expose_secret().to_owned())
    }

    /// Seals what is written. The file is complete only after `finish`.
    pub(crate) fn seal<W: Write>(&self, output: W) -> Result<StreamWriter<W>, SealError> {
        let recipient = self.0.to_public();
        let sealing = Encryptor::with_recipients(iter::once(&recipient as _)).map_err(SealError::Seal)?;
        sealing.wrap_output(output).map_err(SealError::Io)
    }

    /// Opens a sealed file.
    pub fn open<R: Read + Seek>(&self, input: R) -> Result<StreamReader<R>, SealError> {
        let sealed = Decryptor::new(input).map_err(SealError::NotSealed)?;
        sealed.decrypt(iter::once(&self.0 as _)).map_err(|error| {
            if matches!(error, DecryptError::NoMatchingKeys) {
                SealError::OtherKey
            } else {
                SealError::NotSealed(error)
            }
        })
    }
}
