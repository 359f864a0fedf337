//! Mutual proof of an enrollment token: the agent and the driver show each other that they hold it, without revealing it to a machine between
//! them.

use ring::hmac;
use sha2::{Digest, Sha256};

use crate::EnrollmentToken;

/// The purpose of a proof. It separates proofs of this protocol from proofs that another protocol makes with the same token.
const PURPOSE: &[u8] = b"keelway enrolment 1";

/// The side that makes a proof. A proof of one side is not valid for the other, so it cannot be reflected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnrollmentSide {
    /// The machine's agent.
    Agent,
    /// The installation's driver.
    Driver,
}

/// The connection that a proof is bound to. The proof is not valid on another connection, so a relay between two connections cannot use it.
#[derive(Clone, PartialEq, Eq)]
pub struct ProvenChannel {
    exported: [u8; 32],
    certificate: [u8; 32],
}

impl ProvenChannel {
    /// The exporter label that both ends of the connection use (RFC 8446, 7.5; RFC 5705, 4).
    pub const LABEL: &[u8] = b"EXPORTER-keelway-enrolment";

    /// Creates a channel from the keying material that both ends exported, and the certificate (DER) that the agent presented.
    #[must_use]
    pub fn new(exported: [u8; 32], agent: &[u8]) -> Self {
        Self { exported, certificate: Sha256::digest(agent).into() }
    }
}

impl EnrollmentToken {
    /// Returns the proof that this side of the connection holds the token.
    #[must_use]
    pub fn proof(&self, side: EnrollmentSide, channel: &ProvenChannel) -> Vec<u8> {
        hmac::sign(&self.key(), &self.statement(side, channel)).as_ref().to_vec()
    }

    /// Returns whether `proof` is the proof of that side. The comparison takes constant time.
    #[must_use]
    pub fn proves(&self, side: EnrollmentSide, channel: &ProvenChannel, proof: &[u8]) -> bool {
        hmac::verify(&self.key(), &self.statement(side, channel), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.secret)
    }

    /// Each part is preceded by its length, so that two different lists of parts never have the same bytes.
    fn statement(&self, side: EnrollmentSide, channel: &ProvenChannel) -> Vec<u8> {
        let side: &[u8] = match side {
            EnrollmentSide::Agent => b"agent",
            EnrollmentSide::Driver => b"driver",
        };
        let names = [&self.installation, &self.machine, &self.id].map(String::as_bytes);
        let parts = [PURPOSE, side, &channel.exported, &channel.certificate].into_iter().chain(names);
        parts.flat_map(|part| (part.len() as u64).to_be_bytes().into_iter().chain(part.iter().copied())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AuthorityHash,
        testing::{authority, now, seeded},
    };

    fn token(seed: u64) -> EnrollmentToken {
        let hash = AuthorityHash::of_pem(authority(1).certificate().pem()).unwrap();
        EnrollmentToken::mint("00000000000000ff", "hv-1", vec![hash], now(), &mut seeded(seed))
    }

    #[test]
    fn a_proof_is_of_one_side_on_one_connection_under_one_token() {
        let (token_one, channel) = (token(1), ProvenChannel::new([1; 32], b"certificate"));
        let proof = token_one.proof(EnrollmentSide::Agent, &channel);
        assert!(token_one.proves(EnrollmentSide::Agent, &channel, &proof));
        assert!(!token_one.proves(EnrollmentSide::Driver, &channel, &proof), "sent back");
        assert!(
            !token_one.proves(EnrollmentSide::Agent, &ProvenChannel::new([2; 32], b"certificate"), &proof),
            "relayed"
        );
        assert!(
            !token_one.proves(EnrollmentSide::Agent, &ProvenChannel::new([1; 32], b"another"), &proof),
            "another server"
        );
        assert!(!token(2).proves(EnrollmentSide::Agent, &channel, &proof), "another token");
        for (renamed, why) in [
            (EnrollmentToken { machine: "hv-2".to_owned(), ..token_one.clone() }, "another machine"),
            (
                EnrollmentToken { installation: "00000000000000fe".to_owned(), ..token_one.clone() },
                "another installation",
            ),
            (EnrollmentToken { id: "0000000000000000".to_owned(), ..token_one.clone() }, "another id"),
        ] {
            assert!(!renamed.proves(EnrollmentSide::Agent, &channel, &proof), "{why}");
        }
        for wrong in [&proof[..31], &[], &[0; 32]] {
            assert!(!token_one.proves(EnrollmentSide::Agent, &channel, wrong));
        }
    }

    #[test]
    fn parts_are_kept_apart() {
        let (one, channel) = (token(1), ProvenChannel::new([1; 32], b"certificate"));
        let two =
            EnrollmentToken { installation: "00000000000000ffh".to_owned(), machine: "v-1".to_owned(), ..one.clone() };
        assert_ne!(one.proof(EnrollmentSide::Agent, &channel), two.proof(EnrollmentSide::Agent, &channel));
    }
}
