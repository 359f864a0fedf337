//! Requests to a helper, sealed to its key (HPKE, RFC 9180). The seal is bound to the installation, the machine, the subject, and the config that
//! requires the request.

use hpke::{
    Deserializable, Kem as _, OpModeR, OpModeS, Serializable, aead::ChaCha20Poly1305, kdf::HkdfSha256,
    kem::X25519HkdfSha256, single_shot_open, single_shot_seal,
};
use keelway_api::name::{HypervisorName, InstallationId};
use serde::{Deserialize, Serialize};

use crate::operation::MachineOperation;

type Kem = X25519HkdfSha256;
type Private = <Kem as hpke::Kem>::PrivateKey;
type Public = <Kem as hpke::Kem>::PublicKey;

/// The format of the sealed text. Another format must have another context.
const CONTEXT: &str = "keelway helper 1";

/// Sealing or opening failed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The bytes are not a valid key.
    #[error("this is not the key of a helper")]
    Key,
    /// The request cannot be encrypted.
    #[error("the request cannot be sealed")]
    Seal,
    /// The text was sealed for another helper or another label, or it is incomplete.
    #[error("the request was not sealed for this helper with this label")]
    Open,
    /// The opened text cannot be decoded.
    #[error("the sealed request cannot be decoded")]
    Malformed,
}

/// The installation and the machine of a helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperIdentity {
    /// The installation that the helper works for.
    pub installation: InstallationId,
    /// The machine that the helper runs on.
    pub machine: HypervisorName,
}

impl HelperIdentity {
    fn info(&self) -> Vec<u8> {
        // Ids and names contain no line break.
        format!("{CONTEXT}\n{}\n{}", self.installation, self.machine).into_bytes()
    }
}

/// The number of a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConfigFence {
    /// The driver's term.
    pub term: u64,
    /// The generation within the term.
    pub generation: u64,
}

/// Public data beside a sealed request, to which the seal is bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealLabel {
    /// [`MachineOperation::subject`].
    pub subject: String,
    /// The config that requires the request. `None` if no config does.
    pub fence: Option<ConfigFence>,
}

impl SealLabel {
    pub(crate) fn text(&self) -> String {
        // Serializing texts and numbers cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The key pair of a helper.
pub struct HelperKeyPair(Private);

impl HelperKeyPair {
    /// Creates a key pair from this machine's randomness.
    #[must_use]
    pub fn generate() -> Self {
        Self(Kem::gen_keypair().0)
    }

    /// Returns a key pair from its stored private half.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SealError> {
        Private::from_bytes(bytes).map(Self).map_err(|_| SealError::Key)
    }

    /// Returns the private half.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes().to_vec()
    }

    /// Returns the public half.
    #[must_use]
    pub fn public(&self) -> HelperPublicKey {
        HelperPublicKey(Kem::sk_to_pk(&self.0))
    }
}

/// The public half of a helper's key pair.
#[derive(Clone)]
pub struct HelperPublicKey(Public);

impl HelperPublicKey {
    /// Returns the key from the bytes that a helper printed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SealError> {
        Public::from_bytes(bytes).map(Self).map_err(|_| SealError::Key)
    }

    /// Returns the key as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes().to_vec()
    }
}

impl std::fmt::Debug for HelperPublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HelperPublicKey")
    }
}

/// A request that only one helper can open.
#[derive(Debug, Clone)]
pub struct SealedWork {
    /// The encapsulated key.
    pub key: Vec<u8>,
    /// The ciphertext.
    pub text: Vec<u8>,
}

impl SealedWork {
    /// Seals a request.
    pub fn seal(
        to: &HelperPublicKey,
        identity: &HelperIdentity,
        label: &SealLabel,
        work: &MachineOperation,
    ) -> Result<Self, SealError> {
        let plain = serde_json::to_vec(work).map_err(|_| SealError::Malformed)?;
        let sealed = single_shot_seal::<ChaCha20Poly1305, HkdfSha256, Kem>(
            &OpModeS::Base,
            &to.0,
            &identity.info(),
            &plain,
            label.text().as_bytes(),
        );
        let (key, text) = sealed.map_err(|_| SealError::Seal)?;
        Ok(Self { key: key.to_bytes().to_vec(), text })
    }

    /// Opens a request that was sealed with this label.
    pub fn open(
        &self,
        keys: &HelperKeyPair,
        identity: &HelperIdentity,
        label: &str,
    ) -> Result<MachineOperation, SealError> {
        let key = <Kem as hpke::Kem>::EncappedKey::from_bytes(&self.key).map_err(|_| SealError::Open)?;
        let plain = single_shot_open::<ChaCha20Poly1305, HkdfSha256, Kem>(
            &OpModeR::Base,
            &keys.0,
            &key,
            &identity.info(),
            &self.text,
            label.as_bytes(),
        );
        let plain = plain.map_err(|_| SealError::Open)?;
        serde_json::from_slice(&plain).map_err(|_| SealError::Malformed)
    }
}
