//! The text form of tokens: a prefix, and JSON in base64url without padding (RFC 4648, section 5).

use base64::{DecodeError, Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

/// The prefixes and the maximum length of one type of token.
pub(crate) struct TokenText {
    /// The prefix that all versions share.
    pub(crate) family: &'static str,
    /// The prefix of this version.
    pub(crate) prefix: &'static str,
    /// In bytes.
    pub(crate) longest: usize,
}

/// The reason that a text is not a token of this type. It contains nothing of the text.
pub(crate) enum Unreadable {
    /// The text does not start with the prefix of the type.
    Prefix,
    /// The token has another version.
    Version,
    /// The text is longer than the maximum.
    TooLong,
    /// The text is not base64url.
    Encoding(DecodeError),
    /// The decoded JSON does not have the fields of a token.
    Form,
}

impl TokenText {
    /// Returns the text of a token. It is a secret.
    pub(crate) fn write(&self, form: &impl Serialize) -> Zeroizing<String> {
        // Serializing strings and lists of strings cannot fail.
        let json = Zeroizing::new(serde_json::to_vec(form).unwrap_or_default());
        let mut text = Zeroizing::new(self.prefix.to_owned());
        URL_SAFE_NO_PAD.encode_string(&*json, &mut text);
        text
    }

    /// Decodes a token. Leading and trailing white space is ignored.
    pub(crate) fn read<T: DeserializeOwned>(&self, text: &str) -> Result<T, Unreadable> {
        let text = text.trim();
        let Some(encoded) = text.strip_prefix(self.prefix) else {
            let rest = text.strip_prefix(self.family);
            let is_other = rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            return Err(if is_other { Unreadable::Version } else { Unreadable::Prefix });
        };
        if text.len() > self.longest {
            return Err(Unreadable::TooLong);
        }
        let json = Zeroizing::new(URL_SAFE_NO_PAD.decode(encoded).map_err(Unreadable::Encoding)?);
        // The message of the parser is dropped because it would quote the text.
        serde_json::from_slice(&json).map_err(|_| Unreadable::Form)
    }
}
