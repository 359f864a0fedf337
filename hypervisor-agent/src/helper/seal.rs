//! What a helper is handed, sealed to its key (HPKE, RFC 9180): bound to installation, machine, what it is about, and the
//! config that asks for it.

use hpke::{
    Deserializable, Kem as _, OpModeR, OpModeS, Serializable, aead::ChaCha20Poly1305, kdf::HkdfSha256,
    kem::X25519HkdfSha256, single_shot_open, single_shot_seal,
};
use keelway_api::name::{HypervisorName, InstallationId};
use serde::{Deserialize, Serialize};

use crate::machine_io::MachineOperation;

type Kem = X25519HkdfSha256;
type Private = <Kem as hpke::Kem>::PrivateKey;
type Public = <Kem as hpke::Kem>::PublicKey;

/// What is sealed, and how: another format is another context.
const CONTEXT: &str = "keelway helper 1";

/// Why something was not sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// A key is none.
    #[error("this is no key of a helper")]
    Key,
    /// It cannot be sealed.
    #[error("it cannot be sealed")]
    Seal,
    /// It was sealed for another one, or as something else, or it is not whole.
    #[error("it was not sealed for this helper, or as something else")]
    Open,
    /// What was sealed means nothing here.
    #[error("what was sealed makes no sense")]
    Malformed,
}

/// Whose helper it is, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperIdentity {
    /// Whose.
    pub installation: InstallationId,
    /// On which machine.
    pub machine: HypervisorName,
}

impl HelperIdentity {
    fn info(&self) -> Vec<u8> {
        // No id and no name has a line break in it.
        format!("{CONTEXT}\n{}\n{}", self.installation, self.machine).into_bytes()
    }
}

/// Which config asks for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConfigFence {
    /// The driver's term.
    pub term: u64,
    /// The generation within the term.
    pub generation: u64,
}

/// What is told beside something sealed, and bound to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealLabel {
    /// [`Work::subject`].
    pub subject: String,
    /// Which config asks for it, where one does.
    pub fence: Option<ConfigFence>,
}

impl SealLabel {
    pub(crate) fn text(&self) -> String {
        // Plain data of texts and numbers has no way to fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A helper's own key pair.
pub struct HelperKeyPair(Private);

impl HelperKeyPair {
    /// A new one, of this machine's randomness.
    #[must_use]
    pub fn generate() -> Self {
        Self(Kem::gen_keypair().0)
    }

    /// One that was kept.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SealError> {
        Private::from_bytes(bytes).map(Self).map_err(|_| SealError::Key)
    }

    /// The private half.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes().to_vec()
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> HelperPublicKey {
        HelperPublicKey(Kem::sk_to_pk(&self.0))
    }
}

/// The public half of a helper's key pair.
#[derive(Clone)]
pub struct HelperPublicKey(Public);

impl HelperPublicKey {
    /// As a helper told it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SealError> {
        Public::from_bytes(bytes).map(Self).map_err(|_| SealError::Key)
    }

    /// As it is told.
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

/// Something that only one helper opens.
#[derive(Debug, Clone)]
pub struct SealedWork {
    /// The encapsulated key.
    pub key: Vec<u8>,
    /// The ciphertext.
    pub text: Vec<u8>,
}

impl SealedWork {
    /// Seals work.
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

    /// Opens what was sealed under the text of a label.
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
