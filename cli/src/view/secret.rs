//! The view of a Secret, without its values.

use keelway_api::{Secret, jiff::Timestamp};

use super::{TableRow, age};

pub(crate) struct SecretView {
    name: String,
    kind: String,
    values: usize,
    age: String,
}

impl SecretView {
    pub(crate) fn of(name: String, secret: &Secret, now: Timestamp) -> Self {
        Self {
            name,
            kind: secret.type_.clone().unwrap_or_else(|| "Opaque".to_owned()),
            values: secret.data.as_ref().map_or(0, keelway_api::entries::CompactMap::len),
            age: age(secret.metadata.creation_timestamp(), now),
        }
    }
}

impl TableRow for SecretView {
    const HEADER: &'static [&'static str] = &["SECRET", "TYPE", "DATA", "AGE"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), self.kind.clone(), self.values.to_string(), self.age.clone()]
    }
}
