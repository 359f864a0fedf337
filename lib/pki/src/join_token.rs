//! Join tokens: with one, a worker finds its cluster, authenticates it, and is admitted.
//!
//! The text is `kwj1.` or `kwj2.` followed by JSON in base64url without padding (RFC 4648, section 5). The digit is the version of the format: version 2
//! adds the names of the ingresses. A token without names has version 1.

use core::{fmt, net::SocketAddr, str::FromStr};

use rand_core::CryptoRng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use crate::{
    CertificateError, certificate,
    facts::hex,
    token_text::{TokenText, Unreadable},
};

/// A token with nine ingresses, six authorities and 101 names, the most that a Cluster has, needs less than two thirds of this length.
const LONGEST: usize = 65536;
const TEXT: TokenText = TokenText { family: "kwj", prefix: "kwj1.", longest: LONGEST };
/// The text of a token with names. A program that knows only version 1 refuses unknown fields, so this version makes it name the reason.
const TEXT_WITH_NAMES: TokenText = TokenText { prefix: "kwj2.", ..TEXT };
/// The number of characters of the two parts of a bootstrap token (`k8s.io/cluster-bootstrap`, `BootstrapTokenPattern`).
const ID: usize = 6;
const SECRET: usize = 16;
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// The generator of digits discards random bytes from this value up, so that every digit is equally likely.
const FAIR: u8 = 252;

/// A parsed join token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The endpoints of the cluster's ingresses.
    pub endpoints: Vec<SocketAddr>,
    /// DNS names of the ingresses. A worker resolves them if it can trust none of the endpoints.
    pub names: Vec<String>,
    /// The authorities. The certificate chain of an endpoint must contain one of them.
    pub authorities: Vec<AuthorityHash>,
    /// The bootstrap token with which the worker requests its first certificate.
    pub bootstrap: BootstrapToken,
}

/// The SHA-256 of an authority's public key in the format of kubeadm: `sha256:` and the lowercase hexadecimal digest of its
/// SubjectPublicKeyInfo.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuthorityHash(String);

/// A bootstrap token of Kubernetes. `Debug` prints the id, never the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    id: String,
    secret: Zeroizing<String>,
}

/// An error while reading a join token. Messages never quote the text, because it may contain a secret.
#[derive(Debug, thiserror::Error)]
pub enum JoinTokenError {
    /// The text does not start with the prefix of a join token.
    #[error(
        "this is not a join token: it must begin with kwj1. or kwj2.; copy all that `keelway join-token create` printed"
    )]
    Prefix,
    /// The token has another version.
    #[error("this program does not support the format of this join token: use the release of Keelway that created it")]
    Version,
    /// The text is longer than any join token.
    #[error("this is longer than a join token can be; copy only what `keelway join-token create` printed")]
    TooLong,
    /// The text is not valid base64url.
    #[error("the join token is damaged: a character is missing or was changed; copy it again")]
    Encoding(#[source] base64::DecodeError),
    /// The decoded text is not the content of a token.
    #[error("the join token is damaged, or its end is missing; copy it again")]
    Form,
    /// The token has no endpoint.
    #[error("the join token names no endpoint: create one for a cluster with an ingress")]
    NoEndpoint,
    /// The token has no authority.
    #[error("the join token names no authority; create a new one")]
    NoAuthority,
    /// The hash of an authority is malformed.
    #[error("the join token's authority {0:?} is not sha256: and 64 lowercase hexadecimal digits; create a new one")]
    Authority(String),
    /// The bootstrap token is malformed.
    #[error("the join token contains no bootstrap token of the form ID.SECRET; create a new one")]
    Bootstrap,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinTokenPayload {
    endpoints: Vec<SocketAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
    authorities: Vec<String>,
    token: String,
}

impl Drop for JoinTokenPayload {
    fn drop(&mut self) {
        self.token.zeroize();
    }
}

impl JoinToken {
    /// Returns the text of the token, for a worker. It is a secret.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<String> {
        let form = JoinTokenPayload {
            endpoints: self.endpoints.clone(),
            names: self.names.clone(),
            authorities: self.authorities.iter().map(|hash| hash.0.clone()).collect(),
            token: self.bootstrap.expose().to_string(),
        };
        let format = if self.names.is_empty() { TEXT } else { TEXT_WITH_NAMES };
        format.write(&form)
    }

    /// Returns whether the token names this authority, given its certificate in DER. The caller must find such an authority in a verified
    /// chain before it sends a secret.
    pub fn names(&self, authority: &[u8]) -> Result<bool, CertificateError> {
        Ok(self.authorities.contains(&AuthorityHash::of_der(authority)?))
    }
}

impl From<Unreadable> for JoinTokenError {
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

/// Whether a text has only the characters of DNS names, so that it can be printed.
fn has_only_name_characters(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '.'))
}

impl FromStr for JoinToken {
    type Err = JoinTokenError;

    fn from_str(text: &str) -> Result<Self, JoinTokenError> {
        let has_names = text.trim_start().starts_with(TEXT_WITH_NAMES.prefix);
        let format = if has_names { TEXT_WITH_NAMES } else { TEXT };
        let form: JoinTokenPayload = format.read(text)?;
        if form.names.is_empty() == has_names || !form.names.iter().all(|name| has_only_name_characters(name)) {
            return Err(JoinTokenError::Form);
        }
        if form.endpoints.is_empty() {
            return Err(JoinTokenError::NoEndpoint);
        }
        if form.authorities.is_empty() {
            return Err(JoinTokenError::NoAuthority);
        }
        Ok(Self {
            endpoints: form.endpoints.clone(),
            names: form.names.clone(),
            authorities: form.authorities.iter().map(|text| text.parse()).collect::<Result<_, _>>()?,
            bootstrap: form.token.parse()?,
        })
    }
}

impl AuthorityHash {
    /// Returns the hash for an authority's certificate in PEM.
    pub fn of_pem(pem: &str) -> Result<Self, CertificateError> {
        Self::of_der(&certificate::decode_one(pem)?)
    }

    /// Returns the hashes of all authorities of a bundle, in its order.
    pub fn of_bundle(pem: &str) -> Result<Vec<Self>, CertificateError> {
        certificate::decode_bundle(pem)?.iter().map(|der| Self::of_der(der)).collect()
    }

    /// Returns the hash for an authority's certificate in DER.
    pub fn of_der(der: &[u8]) -> Result<Self, CertificateError> {
        let certificate = certificate::parse(der)?;
        Ok(Self(format!("sha256:{}", hex(&Sha256::digest(certificate.public_key().raw)))))
    }
}

impl FromStr for AuthorityHash {
    type Err = JoinTokenError;

    fn from_str(text: &str) -> Result<Self, JoinTokenError> {
        let digits = text.strip_prefix("sha256:").unwrap_or_default();
        let is_hex = digits.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
        if digits.len() == 64 && is_hex {
            Ok(Self(text.to_owned()))
        } else {
            Err(JoinTokenError::Authority(text.to_owned()))
        }
    }
}

impl fmt::Display for AuthorityHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl BootstrapToken {
    /// Mints a new bootstrap token.
    pub fn mint<R: CryptoRng + ?Sized>(rng: &mut R) -> Self {
        Self { id: digits(rng, ID), secret: Zeroizing::new(digits(rng, SECRET)) }
    }

    /// Returns the id, which is not secret. The Secret of the token is named `bootstrap-token-ID`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the secret part.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Returns both parts in the form that an API server accepts: `ID.SECRET`.
    #[must_use]
    pub fn expose(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}.{}", self.id, *self.secret))
    }
}

impl FromStr for BootstrapToken {
    type Err = JoinTokenError;

    fn from_str(text: &str) -> Result<Self, JoinTokenError> {
        let is = |part: &str, length: usize| part.len() == length && part.bytes().all(|c| DIGITS.contains(&c));
        match text.split_once('.') {
            Some((id, secret)) if is(id, ID) && is(secret, SECRET) => {
                Ok(Self { id: id.to_owned(), secret: Zeroizing::new(secret.to_owned()) })
            }
            Some(_) | None => Err(JoinTokenError::Bootstrap),
        }
    }
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootstrapToken({}, ..)", self.id)
    }
}

fn digits<R: CryptoRng + ?Sized>(rng: &mut R, length: usize) -> String {
    let mut text = String::with_capacity(length);
    while text.len() < length {
        let mut byte = [0];
        rng.fill_bytes(&mut byte);
        let [byte] = byte;
        let digit = DIGITS.get(usize::from(byte) % DIGITS.len()).filter(|_| byte < FAIR);
        text.extend(digit.map(|digit| char::from(*digit)));
    }
    text
}

#[cfg(test)]
mod tests {
    use base64::{Engine, alphabet::URL_SAFE, engine::general_purpose::URL_SAFE_NO_PAD};
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{authority, hours, seeded, server};

    fn token() -> JoinToken {
        JoinToken {
            endpoints: vec!["203.0.113.1:20000".parse().unwrap(), "[2001:db8::1]:20000".parse().unwrap()],
            names: vec![],
            authorities: vec![AuthorityHash::of_pem(authority(1).certificate().pem()).unwrap()],
            bootstrap: BootstrapToken::mint(&mut seeded(1)),
        }
    }

    fn token_with_names() -> JoinToken {
        JoinToken { names: vec!["api.example.com".to_owned(), "in-1.example.com".to_owned()], ..token() }
    }

    fn encoded(json: &str) -> String {
        format!("{}{}", TEXT.prefix, URL_SAFE_NO_PAD.encode(json))
    }

    #[test]
    fn written_text_is_read_back() {
        let token = token();
        let text = token.encode();
        assert!(text.starts_with("kwj1.eyJ"), "{}", *text);
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        assert_eq!(format!(" {}\n", *text).parse::<JoinToken>().unwrap(), token);
    }

    /// Releases before version 2 wrote this text, and read no other.
    #[test]
    fn a_token_without_names_is_that_of_version_1() {
        let token = token();
        let text = encoded(&format!(
            r#"{{"endpoints":["203.0.113.1:20000","[2001:db8::1]:20000"],"authorities":["{}"],"token":"{}"}}"#,
            token.authorities[0],
            *token.bootstrap.expose()
        ));
        assert!(text.starts_with("kwj1."));
        assert_eq!(*token.encode(), text);
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
    }

    #[test]
    fn a_token_with_names_has_version_2() {
        let token = token_with_names();
        let text = token.encode();
        assert!(text.starts_with("kwj2.eyJ"), "{}", *text);
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        assert_eq!(format!(" {}\n", *text).parse::<JoinToken>().unwrap(), token);
    }

    #[test]
    fn the_longest_token_is_read() {
        let longest = JoinToken {
            endpoints: vec![format!("[{}]:65535", ["2001"; 8].join(":")).parse().unwrap(); 9],
            names: vec!["n".repeat(253); 101],
            authorities: vec![token().authorities[0].clone(); 6],
            ..token()
        };
        let text = longest.encode();
        assert!(text.len() < LONGEST * 2 / 3, "{}", text.len());
        assert_eq!(text.parse::<JoinToken>().unwrap(), longest);
    }

    #[test]
    fn every_cut_is_noticed() {
        for text in [token().encode(), token_with_names().encode()] {
            for end in 0..text.len() {
                assert!(text[..end].parse::<JoinToken>().is_err(), "{end}");
            }
        }
    }

    #[test]
    fn each_fault_has_its_error() {
        let hash = token().authorities[0].to_string();
        let form = |endpoints: &str, authority: &str, token: &str| {
            encoded(&format!(r#"{{"endpoints":[{endpoints}],"authorities":[{authority}],"token":"{token}"}}"#))
        };
        let (endpoint, authority) = ("\"203.0.113.1:1\"", format!("\"{hash}\""));
        let read = |text: &str| text.parse::<JoinToken>().unwrap_err();
        assert!(form(endpoint, &authority, "abcdef.0123456789abcdef").parse::<JoinToken>().is_ok());
        assert!(matches!(read("abcdef.0123456789abcdef"), JoinTokenError::Prefix));
        assert!(matches!(read(""), JoinTokenError::Prefix));
        assert!(matches!(read("kwj3.e30"), JoinTokenError::Version));
        assert!(matches!(read("kwj1.e3 0"), JoinTokenError::Encoding(_)));
        assert!(matches!(read("kwj1.e30"), JoinTokenError::Form));
        let with_names = |prefix: &str, names: &[&str]| {
            let form = serde_json::json!({
                "endpoints": ["203.0.113.1:1"], "names": names, "authorities": [hash], "token": "abcdef.0123456789abcdef"
            });
            format!("{prefix}{}", URL_SAFE_NO_PAD.encode(form.to_string()))
        };
        assert!(with_names("kwj2.", &["api.example.com"]).parse::<JoinToken>().is_ok());
        assert!(matches!(read(&with_names("kwj1.", &["api.example.com"])), JoinTokenError::Form));
        assert!(matches!(read(&with_names("kwj2.", &[])), JoinTokenError::Form));
        assert!(matches!(read(&with_names("kwj2.", &["\u{1b}[2J"])), JoinTokenError::Form));
        assert!(matches!(read(&format!("kwj1.{}", "A".repeat(LONGEST))), JoinTokenError::TooLong));
        let bootstrap = "abcdef.0123456789abcdef";
        assert!(matches!(read(&form("", &authority, bootstrap)), JoinTokenError::NoEndpoint));
        assert!(matches!(read(&form("\"host:1\"", &authority, bootstrap)), JoinTokenError::Form));
        assert!(matches!(read(&form(endpoint, "", bootstrap)), JoinTokenError::NoAuthority));
        for wrong in ["sha256:ab", "SHA256:ab", &hash.to_uppercase()] {
            assert!(matches!(read(&form(endpoint, &format!("\"{wrong}\""), bootstrap)), JoinTokenError::Authority(_)));
        }
        for wrong in
            ["abcdef", "abcdef.", "abcde.0123456789abcdef", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef0"]
        {
            assert!(matches!(read(&form(endpoint, &authority, wrong)), JoinTokenError::Bootstrap), "{wrong}");
        }
        let unknown = encoded(&format!(
            r#"{{"endpoints":[{endpoint}],"authorities":[{authority}],"token":"{bootstrap}","x":1}}"#
        ));
        assert!(matches!(read(&unknown), JoinTokenError::Form));
    }

    #[test]
    fn no_secret_is_shown() {
        let token = token();
        let secret = token.bootstrap.secret();
        assert_eq!(secret.len(), SECRET);
        assert!(!format!("{token:?}").contains(secret));
        let damaged = encoded(&format!(r#"{{"endpoints":1,"token":"{}"}}"#, *token.bootstrap.expose()));
        let error = damaged.parse::<JoinToken>().unwrap_err();
        assert!(!format!("{error:?} {error}").contains(secret));
    }

    #[test]
    fn an_authority_is_known_by_its_key() {
        let token = token();
        let der = |seed| certificate::decode_one(authority(seed).certificate().pem()).unwrap();
        assert!(token.names(&der(1)).unwrap());
        assert!(!token.names(&der(2)).unwrap());
        let leaf = authority(1).issue(&server(hours(1)), &mut seeded(3)).unwrap();
        assert!(!token.names(&certificate::decode_one(&leaf.certificate_pem).unwrap()).unwrap());
        assert!(token.names(b"no certificate").is_err());
    }

    #[test]
    fn a_bundle_has_a_hash_for_each() {
        let pem = |seed| authority(seed).certificate().pem().to_owned();
        let hashes = AuthorityHash::of_bundle(&[pem(1), pem(2)].concat()).unwrap();
        assert_eq!(hashes, [pem(1), pem(2)].map(|pem| AuthorityHash::of_pem(&pem).unwrap()));
        assert!(AuthorityHash::of_bundle(&[pem(1).as_str(), "damaged"].concat()).is_err());
    }

    #[test]
    fn new_ones_differ() {
        let mut rng = seeded(1);
        let (one, two) = (BootstrapToken::mint(&mut rng), BootstrapToken::mint(&mut rng));
        assert_ne!(one, two);
        assert_eq!(one.expose().parse::<BootstrapToken>().unwrap(), one);
    }

    /// The case of a hexadecimal digit of an IPv6 address has no meaning (RFC 4291, section 2.2), so such a change yields the same token.
    #[test]
    fn a_changed_character_is_an_error_or_another_token() {
        let token = token_with_names();
        let text = token.encode();
        let json = |text: &str| URL_SAFE_NO_PAD.decode(&text[TEXT.prefix.len()..]).unwrap();
        let characters = URL_SAFE.as_str();
        for (at, to) in (TEXT.prefix.len()..text.len()).flat_map(|at| characters.chars().map(move |to| (at, to))) {
            let mut changed = text.to_string();
            changed.replace_range(at..=at, to.encode_utf8(&mut [0; 4]));
            if changed.parse::<JoinToken>().is_ok_and(|read| read == token) {
                assert!(json(&changed).eq_ignore_ascii_case(&json(&text)), "{to} at {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "(kwj[0-9]\\.)?[ -~]{0,200}") {
            let _ = text.parse::<JoinToken>();
        }
    }
}
