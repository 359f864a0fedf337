//! Where a cluster is, from its token to its Cluster.

use std::collections::BTreeMap;

use keelway_fleet::{ClusterLocation, is_label_value};
use serde_json::json;

#[test]
fn a_location_is_read_as_it_was_written() {
    let west = ClusterLocation { region: Some("eu".to_owned()), zone: Some("a".to_owned()), provider: None };
    assert_eq!(ClusterLocation::of_annotations(&west.annotations()), west);
    assert_eq!(west.spec(), Some(json!({ "region": "eu", "zone": "a" })));
    assert_eq!(ClusterLocation::default().spec(), None);
}

/// The API server would refuse the whole Cluster, so that it could not register.
#[test]
fn values_that_no_cluster_can_have_are_left_out() {
    let annotations = BTreeMap::from([
        ("fleet.keelway.dev/region".to_owned(), "Frankfurt am Main".to_owned()),
        ("fleet.keelway.dev/zone".to_owned(), "a".to_owned()),
    ]);
    assert_eq!(ClusterLocation::of_annotations(&annotations).spec(), Some(json!({ "zone": "a" })));
    for (text, is) in
        [("eu-1", true), ("", false), ("a/b", false), ("-a", false), ("A_b.c", true), (&"a".repeat(64), false)]
    {
        assert_eq!(is_label_value(text), is, "{text}");
    }
}
