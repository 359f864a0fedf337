//! Tokens as texts: a prefix, and JSON in base64url without padding (RFC 4648, section 5).

use base64::{DecodeError, Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

/// How tokens of one kind begin, and how long they may be.
pub(crate) struct TokenText {
    /// What every version begins with.
    pub(crate) family: &'static str,
    /// What this version begins with.
    pub(crate) prefix: &'static str,
    /// In bytes.
    pub(crate) longest: usize,
}

/// Why a text is no token of a kind. Nothing of the text is in it.
pub(crate) enum Unreadable {
    /// It does not begin as one.
    Prefix,
    /// It is of another version.
    Version,
    /// It is longer than any.
    TooLong,
    /// It is no base64url.
    Encoding(DecodeError),
    /// It holds something else.
    Form,
}

impl TokenText {
    /// The text of a token. It is a secret.
    pub(crate) fn write(&self, form: &impl Serialize) -> Zeroizing<String> {
        // Texts, and lists of them, can be written.
        let json = Zeroizing::new(serde_json::to_vec(form).unwrap_or_default());
        let mut text = Zeroizing::new(self.prefix.to_owned());
        URL_SAFE_NO_PAD.encode_string(&*json, &mut text);
        text
    }

    /// What a text holds, whatever blanks are around it.
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
        // The parser's own message would quote the text.
        serde_json::from_slice(&json).map_err(|_| Unreadable::Form)
    }
}
