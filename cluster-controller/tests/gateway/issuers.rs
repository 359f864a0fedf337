//! Issuers that an API server is given, as no document can ask for them.

use serde_json::{Value, json};

use crate::places::{ISSUERS, urls};

/// What a pass gives an API server.
const GIVEN: &str = include_str!("../../../planner/src/pod/authentication.json");

/// The same with issuers at all places, each called by the way that is given, and one at `direct`, which is called by none.
pub(crate) fn authentication(way: Option<&str>, direct: &str) -> Value {
    let issuer = |url: &str, way: Option<&str>| {
        let mut issuer = json!({ "url": url, "audiences": ["kubernetes"] });
        if let Some(way) = way {
            issuer["egressSelectorType"] = json!(way);
        }
        json!({ "issuer": issuer, "claimMappings": { "username": { "claim": "sub", "prefix": "" } } })
    };
    let mut configuration: Value = serde_json::from_str(GIVEN).unwrap();
    let mut issuers: Vec<Value> = urls(ISSUERS).iter().map(|url| issuer(url, way)).collect();
    issuers.push(issuer(direct, None));
    configuration["jwt"] = json!(issuers);
    configuration
}
