//! Key material, and whether it is where it must not be.

use std::path::Path;

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::Documents;

/// For each key the texts that give it away.
pub struct LeakPatterns(Vec<Vec<String>>);

impl LeakPatterns {
    /// Every private key and encryption key in these documents.
    pub fn of(documents: &Documents) -> Self {
        let values = documents.secrets.values().flat_map(|secret| secret.data.iter().flatten());
        let keys = values.filter(|(name, _)| Path::new(name.as_str()).extension().is_some_and(|kind| kind == "key"));
        Self(keys.map(|(_, value)| marks(&value.0)).collect())
    }

    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many of them are in these bytes.
    pub fn found_in(&self, bytes: &[u8]) -> usize {
        let text = String::from_utf8_lossy(bytes);
        self.0.iter().filter(|marks| marks.iter().any(|mark| text.contains(mark))).count()
    }
}

/// As Secrets have a key, and as PEM has it. The middle of a text tells as much as all of it, and is not parted by line
/// breaks or by what comes before it.
fn marks(value: &[u8]) -> Vec<String> {
    let whole = STANDARD.encode(value);
    let start = whole.len() / 2;
    let middle = whole[start..whole.len().min(start + 40)].trim_end_matches('=').to_owned();
    let text = std::str::from_utf8(value).ok().filter(|text| text.contains("PRIVATE KEY"));
    // The second line: the first one begins alike in all keys of a kind.
    let line = text.and_then(|text| text.lines().nth(2)).map(|line| line.chars().take(40).collect());
    line.into_iter().chain([middle]).collect()
}
