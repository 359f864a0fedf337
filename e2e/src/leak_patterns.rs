//! Finds key material where it must not be.

use std::path::Path;

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::Documents;

/// For each key, the texts that reveal it.
pub struct LeakPatterns(Vec<Vec<String>>);

impl LeakPatterns {
    /// Collects all private keys and encryption keys of these documents.
    pub fn of(documents: &Documents) -> Self {
        let values = documents.secrets.values().flat_map(|secret| secret.data.iter().flatten());
        let keys = values.filter(|(name, _)| Path::new(name.as_str()).extension().is_some_and(|kind| kind == "key"));
        Self(keys.map(|(_, value)| marks(&value.0)).collect())
    }

    /// Returns the number of keys.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of keys that occur in these bytes.
    pub fn found_in(&self, bytes: &[u8]) -> usize {
        let text = String::from_utf8_lossy(bytes);
        self.0.iter().filter(|marks| marks.iter().any(|mark| text.contains(mark))).count()
    }
}

/// Returns a part of the key as Secrets encode it, and a part of its PEM text. The part is from the middle: it reveals as much as the whole, and line
/// breaks or a preceding text do not split it.
fn marks(value: &[u8]) -> Vec<String> {
    let whole = STANDARD.encode(value);
    let start = whole.len() / 2;
    let middle = whole[start..whole.len().min(start + 40)].trim_end_matches('=').to_owned();
    let text = std::str::from_utf8(value).ok().filter(|text| text.contains("PRIVATE KEY"));
    // The third line. The beginning is the same in all keys of a type.
    let line = text.and_then(|text| text.lines().nth(2)).map(|line| line.chars().take(40).collect());
    line.into_iter().chain([middle]).collect()
}
