//! Serial numbers that are recorded before their certificates are signed.

use core::{fmt, str::FromStr};

use crate::facts::hex;

/// The number of octets. RFC 5280, 4.1.2.2 allows 20.
const LENGTH: usize = 16;

/// A serial number that is chosen before its certificate is signed. Its text is 32 hexadecimal digits, of which the first is 4 to 7. That makes
/// the number positive and its encoding constant in length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial([u8; LENGTH]);

/// The error for a text that is not a serial number of this form.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a serial number of 32 hexadecimal digits that begins with 4 to 7")]
pub struct SerialError(String);

impl Serial {
    pub(crate) fn octets(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for Serial {
    type Err = SerialError;

    fn from_str(text: &str) -> Result<Self, SerialError> {
        let error = || SerialError(text.to_owned());
        let is_ours = text.len() == 2 * LENGTH && text.starts_with(['4', '5', '6', '7']);
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_ours && !text.starts_with('+'));
        number.map(|number| Self(number.to_be_bytes())).ok_or_else(error)
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_positive_and_as_long_as_any() {
        let text = "4123456789abcdef0123456789abcdef";
        assert_eq!(text.parse::<Serial>().unwrap().to_string(), text);
        for wrong in [
            "",
            "4",
            "3123456789abcdef0123456789abcdef",
            "8123456789abcdef0123456789abcdef",
            "4123456789abcdef0123456789abcdeg",
        ] {
            assert!(wrong.parse::<Serial>().is_err(), "{wrong}");
        }
    }
}
