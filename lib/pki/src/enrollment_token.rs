//! Enrollment tokens: the agent of a machine and the driver of its installation authenticate each other with one, once.
//!
//! The text is `kwe1.` followed by JSON in base64url without padding (RFC 4648, section 5). The digit is the version of the format.

use core::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use rand_core::CryptoRng;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    AuthorityHash, random_id,
    token_text::{TokenText, Unreadable},
};

/// A token with six authorities needs less than a quarter of this length.
const LONGEST: usize = 4096;
const TEXT: TokenText = TokenText { family: "kwe", prefix: "kwe1.", longest: LONGEST };
/// The number of bytes of the id, which is not secret, and of the secret.
const ID: usize = 8;
const SECRET: usize = 32;

/// A parsed enrollment token. The secret is private to this crate.
#[derive(Clone, PartialEq, Eq)]
pub struct EnrollmentToken {
    /// The installation that the machine is to join.
    pub installation: String,
    /// The name of the machine's Hypervisor.
    pub machine: String,
    /// The id of the token, which is not secret.
    pub id: String,
    /// The time at which the token expires.
    pub expires: Timestamp,
    /// The authorities, one of which signs the certificates that the machine receives.
    pub authorities: Vec<AuthorityHash>,
    pub(crate) secret: Zeroizing<Vec<u8>>,
}

/// An error while reading an enrollment token. Messages never quote the text, because it may contain a secret.
#[derive(Debug, thiserror::Error)]
pub enum EnrollmentTokenError {
    /// The text does not start with the prefix of an enrollment token.
    #[error(
        "this is not an enrollment token: it must begin with kwe1.; copy all that `keelway hypervisor enroll` printed"
    )]
    Prefix,
    /// The token has another version.
    #[error(
        "this program does not support the format of this enrollment token: use the release of Keelway that created it"
    )]
    Version,
    /// The text is longer than any enrollment token.
    #[error("this is longer than an enrollment token can be; copy only what `keelway hypervisor enroll` printed")]
    TooLong,
    /// The text is not valid base64url.
    #[error("the enrollment token is damaged: a character is missing or was changed; copy it again")]
    Encoding(#[source] base64::DecodeError),
    /// The decoded text is not the content of a token.
    #[error("the enrollment token is damaged, or its end is missing; copy it again")]
    Form,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnrollmentTokenPayload {
    installation: String,
    machine: String,
    id: String,
    secret: String,
    expires: Timestamp,
    authorities: Vec<String>,
}

impl Drop for EnrollmentTokenPayload {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl EnrollmentToken {
    /// Mints a new token.
    pub fn mint<R: CryptoRng + ?Sized>(
        installation: &str,
        machine: &str,
        authorities: Vec<AuthorityHash>,
        expires: Timestamp,
        rng: &mut R,
    ) -> Self {
        let id = random_id(rng, ID);
        let mut secret = Zeroizing::new(vec![0; SECRET]);
        rng.fill_bytes(&mut secret);
        Self { installation: installation.to_owned(), machine: machine.to_owned(), id, expires, authorities, secret }
    }

    /// Returns the text of the token, for the agent. It is a secret.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<String> {
        let form = EnrollmentTokenPayload {
            installation: self.installation.clone(),
            machine: self.machine.clone(),
            id: self.id.clone(),
            secret: URL_SAFE_NO_PAD.encode(&*self.secret),
            expires: self.expires,
            authorities: self.authorities.iter().map(ToString::to_string).collect(),
        };
        TEXT.write(&form)
    }
}

impl From<Unreadable> for EnrollmentTokenError {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Prefix => Self::Prefix,
            Unreadable::Version => Self::Version,
            Unreadable::TooLong => Self::TooLong,
            Unreadable::Encoding(source) => Self::Encoding(source),
            Unreadable::Form => Self::Form,
        }
    }
}

impl FromStr for EnrollmentToken {
    type Err = EnrollmentTokenError;

    fn from_str(text: &str) -> Result<Self, EnrollmentTokenError> {
        TEXT.read::<EnrollmentTokenPayload>(text)?.read().ok_or(EnrollmentTokenError::Form)
    }
}

impl EnrollmentTokenPayload {
    fn read(&self) -> Option<EnrollmentToken> {
        let secret = Zeroizing::new(URL_SAFE_NO_PAD.decode(&self.secret).ok()?);
        let is_id = self.id.len() == 2 * ID && self.id.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let authorities = self.authorities.iter().map(|hash| hash.parse()).collect::<Result<Vec<_>, _>>().ok()?;
        let is_whole = is_id && secret.len() == SECRET && !authorities.is_empty();
        is_whole.then(|| EnrollmentToken {
            installation: self.installation.clone(),
            machine: self.machine.clone(),
            id: self.id.clone(),
            expires: self.expires,
            authorities,
            secret,
        })
    }
}

impl fmt::Debug for EnrollmentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnrollmentToken")
            .field("installation", &self.installation)
            .field("machine", &self.machine)
            .field("id", &self.id)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{authority, now, seeded};

    fn token() -> EnrollmentToken {
        let hash = AuthorityHash::of_pem(authority(1).certificate().pem()).unwrap();
        EnrollmentToken::mint("00000000000000ff", "hv-1", vec![hash], now(), &mut seeded(7))
    }

    fn encoded(json: &str) -> String {
        format!("{}{}", TEXT.prefix, URL_SAFE_NO_PAD.encode(json))
    }

    #[test]
    fn written_text_is_read_back() {
        let token = token();
        let text = token.encode();
        assert_eq!(format!(" {}\n", *text).parse::<EnrollmentToken>().unwrap(), token);
        assert!(text.len() < LONGEST / 4);
    }

    #[test]
    fn other_texts_are_distinguished_errors() {
        let read = |text: &str| text.parse::<EnrollmentToken>().unwrap_err();
        assert!(matches!(read("kwj1.e30"), EnrollmentTokenError::Prefix));
        assert!(matches!(read("kwe2.e30"), EnrollmentTokenError::Version));
        assert!(matches!(read("kwe1.e3 0"), EnrollmentTokenError::Encoding(_)));
        assert!(matches!(read("kwe1.e30"), EnrollmentTokenError::Form));
        assert!(matches!(read(&format!("kwe1.{}", "A".repeat(LONGEST))), EnrollmentTokenError::TooLong));
        let whole = String::from_utf8(URL_SAFE_NO_PAD.decode(&token().encode()[TEXT.prefix.len()..]).unwrap()).unwrap();
        assert!(encoded(&whole).parse::<EnrollmentToken>().is_ok());
        let id = token().id;
        for wrong in [
            whole.replace(&id, "x"),
            whole.replace("sha256:", "sha1:"),
            whole.replace("\"machine\":\"hv-1\",", ""),
            whole.replacen('{', "{\"more\":1,", 1),
            whole.replace("\"secret\":\"", "\"secret\":\"AAAA"),
        ] {
            assert_ne!(wrong, whole);
            assert!(matches!(read(&encoded(&wrong)), EnrollmentTokenError::Form), "{wrong}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let token = token();
        let secret = URL_SAFE_NO_PAD.encode(&*token.secret);
        let shown = format!("{token:?}");
        assert!(shown.contains(&token.id) && !shown.contains(&secret) && !shown.contains("secret"), "{shown}");
        let damaged = encoded(&format!(r#"{{"secret":"{secret}"}}"#)).parse::<EnrollmentToken>().unwrap_err();
        assert!(!format!("{damaged:?} {damaged}").contains(&secret));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "(kwe[0-9]\\.)?[ -~]{0,200}") {
            let _ = text.parse::<EnrollmentToken>();
        }
    }
}
