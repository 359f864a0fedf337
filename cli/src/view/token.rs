//! The view of join tokens.

use keelway_api::{Time, jiff::Timestamp};
use keelway_reconciler::TokenRecord;
use serde_json::{Value as Json, json};

use super::{TableRow, age};

/// A join token of a cluster, without its secret.
pub(crate) struct TokenView {
    pub(crate) cluster: String,
    pub(crate) record: TokenRecord,
    pub(crate) now: Timestamp,
}

impl TableRow for TokenView {
    const HEADER: &'static [&'static str] = &["TOKEN", "STATE", "EXPIRES IN", "AGE", "CLUSTER"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        let ends = match self.record.expires {
            Some(end) if end > self.now => age(Some(&Time(self.now)), end),
            Some(_) => "<expired>".to_owned(),
            None => "<never>".to_owned(),
        };
        let made = age(self.record.created.as_ref(), self.now);
        vec![self.record.id.clone(), self.state().to_owned(), ends, made, self.cluster.clone()]
    }
}

impl TokenView {
    fn state(&self) -> &'static str {
        if self.record.expires.is_some_and(|end| end <= self.now) { "Ended" } else { "Active" }
    }

    pub(crate) fn json(&self) -> Json {
        json!({
            "apiVersion": "keelway.dev/v1alpha1",
            "kind": "JoinToken",
            "metadata": {"name": self.record.id, "creationTimestamp": self.record.created},
            "status": {"cluster": self.cluster, "state": self.state(), "expirationTimestamp": self.record.expires},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_active_until_it_expires() {
        let now: Timestamp = "2026-11-22T05:00:00Z".parse().unwrap();
        let view = |expires: &str| {
            let created = Some(Time("2026-11-22T04:00:00Z".parse().unwrap()));
            let record = TokenRecord { id: "abcdef".to_owned(), created, expires: Some(expires.parse().unwrap()) };
            TokenView { cluster: "c1".to_owned(), record, now }
        };
        assert_eq!(view("2026-11-23T05:00:00Z").cells(), ["abcdef", "Active", "24h", "60m", "c1"]);
        assert_eq!(view("2026-11-22T05:00:00Z").cells()[1..3], ["Ended", "<expired>"]);
        assert_eq!(view("2026-11-23T05:00:00Z").json()["status"]["expirationTimestamp"], "2026-11-23T05:00:00Z");
    }
}
