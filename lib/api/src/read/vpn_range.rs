//! The default range of the VPN has changed. A cluster keeps the range with which it was created, also if its document does not name it.

use serde_json::{Value as Json, json};

use crate::cluster::{ClusterSpec, VpnSpec};

/// The default of v0.1.0, which recorded no ranges in `status.birth`.
const EARLIER: &str = "100.80.0.0/16";

/// Adds the range to a Cluster that exists and does not name one.
pub(super) fn keep(json: &mut Json) {
    if json.pointer("/spec/vpn/cidrs").is_some() {
        return;
    }
    let recorded = json.pointer("/status/birth/vpn/cidrs").cloned();
    // No release with that default had fleets, and a fleet has no range of its own.
    let is_fleet = json.pointer("/spec/fleet").is_some_and(|fleet| !fleet.is_null());
    let is_earlier = json.pointer("/status/id").is_some() && !is_fleet;
    let Some(ranges) = recorded.or_else(|| is_earlier.then(|| json!([EARLIER]))) else { return };
    let Some(spec) = json.pointer_mut("/spec").and_then(Json::as_object_mut) else { return };
    let vpn = spec.entry("vpn").or_insert_with(|| json!({}));
    if let Some(vpn) = vpn.as_object_mut() {
        drop(vpn.insert("cidrs".to_owned(), ranges));
    }
}

/// Keeps the stored range in a Cluster that a user wrote. A document without a range has been read with today's default, and a cluster of v0.1.0 has
/// the earlier default.
pub fn keep_vpn_range(written: &mut ClusterSpec, stored: &ClusterSpec) {
    if written.vpn.cidrs == VpnSpec::default().cidrs && stored.vpn.cidrs == [EARLIER] {
        written.vpn.cidrs.clone_from(&stored.vpn.cidrs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_document_without_a_range_keeps_the_stored_one() {
        let spec = |ranges: Option<&str>| -> ClusterSpec {
            let vpn = ranges.map_or(json!({}), |range| json!({ "cidrs": [range] }));
            serde_json::from_value(json!({ "version": "1.37.0", "vpn": vpn })).unwrap()
        };
        let kept = |written, stored| {
            let mut written = spec(written);
            keep_vpn_range(&mut written, &spec(stored));
            written.vpn.cidrs
        };
        assert_eq!(kept(None, Some(EARLIER)), [EARLIER]);
        assert_eq!(kept(None, Some("10.9.0.0/16")), VpnSpec::default().cidrs, "no release had this default");
        assert_eq!(kept(Some("10.8.0.0/16"), Some(EARLIER)), ["10.8.0.0/16"], "a change is refused elsewhere");
    }

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
        let fleet = json!({ "fleet": {} });
        assert_eq!(kept(&fleet, &earlier), fleet, "a fleet is of a later release");
    }
}
