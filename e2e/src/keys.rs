//! Key material, and whether it is where it must not be.

use std::path::Path;

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::Documents;

/// Texts, each of which gives away a key.
pub struct Keys(Vec<String>);

impl Keys {
    /// Of every private key and encryption key in these documents: as PEM has it, and as Secrets have it.
    pub fn of(documents: &Documents) -> Self {
        let values = documents.secrets.values().flat_map(|secret| secret.data.iter().flatten());
        let keys = values.filter(|(name, _)| Path::new(name.as_str()).extension().is_some_and(|kind| kind == "key"));
        Self(keys.flat_map(|(_, value)| marks(&value.0)).collect())
    }

    /// How many texts there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many of them are in these bytes.
    pub fn found_in(&self, bytes: &[u8]) -> usize {
        let text = String::from_utf8_lossy(bytes);
        self.0.iter().filter(|mark| text.contains(*mark)).count()
    }
}

/// The middle of a text tells as much as all of it, and is not parted by line breaks or by what comes before it.
fn marks(value: &[u8]) -> Vec<String> {
    let whole = STANDARD.encode(value);
    let secret = match String::from_utf8(value.to_vec()) {
        Ok(text) if text.contains("PRIVATE KEY") => {
            // The second line: the first one begins alike in all keys of a kind.
            text.lines().nth(2).unwrap().to_owned()
        }
        _ => whole.clone(),
    };
    let start = whole.len() / 2;
    vec![secret.chars().take(40).collect(), whole[start..whole.len().min(start + 40)].trim_end_matches('=').to_owned()]
}
