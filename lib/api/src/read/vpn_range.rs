//! The default range of the VPN has changed. A cluster keeps the range with which it was created, also if its document does not name it.

use serde_json::{Value as Json, json};

/// The default of v0.1.0, which recorded no ranges in `status.birth`.
const EARLIER: &str = "100.80.0.0/16";

/// Adds the range to a Cluster that exists and does not name one.
pub(super) fn keep(json: &mut Json) {
    if json.pointer("/spec/vpn/cidrs").is_some() {
        return;
    }
    let recorded = json.pointer("/status/birth/vpn/cidrs").cloned();
    let is_earlier = json.pointer("/status/id").is_some();
    let Some(ranges) = recorded.or_else(|| is_earlier.then(|| json!([EARLIER]))) else { return };
    let Some(spec) = json.pointer_mut("/spec").and_then(Json::as_object_mut) else { return };
    let vpn = spec.entry("vpn").or_insert_with(|| json!({}));
    if let Some(vpn) = vpn.as_object_mut() {
        drop(vpn.insert("cidrs".to_owned(), ranges));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(spec: &Json, status: &Json) -> Json {
        let mut json = json!({ "spec": spec, "status": status });
        keep(&mut json);
        json["spec"].take()
    }

    #[test]
    fn an_existing_cluster_keeps_its_range() {
        let born = json!({ "id": "c1", "birth": { "vpn": { "cidrs": ["10.9.0.0/16"] } } });
        assert_eq!(kept(&json!({}), &born), json!({ "vpn": { "cidrs": ["10.9.0.0/16"] } }));
        let earlier = json!({ "id": "c1" });
        let expected = json!({ "vpn": { "enabled": true, "cidrs": [EARLIER] } });
        assert_eq!(kept(&json!({ "vpn": { "enabled": true } }), &earlier), expected);
        let named = json!({ "vpn": { "cidrs": ["10.8.0.0/16"] } });
        assert_eq!(kept(&named, &born), named, "a change is refused elsewhere");
        assert_eq!(kept(&json!({}), &json!({})), json!({}), "a new cluster gets the default");
    }
}
