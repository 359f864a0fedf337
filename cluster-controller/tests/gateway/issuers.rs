//! Issuers in the configuration of an API server. No document can request them.

use serde_json::{Value, json};

use crate::places::{ISSUERS, urls};

/// The configuration that a pass writes for an API server.
const GIVEN: &str = include_str!("../../../lib/planner/src/pod/authentication.json");

/// Returns that configuration with issuers at all places, each called through the egress connection `way`, and one at `direct` that is called
/// without an egress.
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
