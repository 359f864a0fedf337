//! What an agent may do.

use keelway_fleet_controller::registration::access::{AccessOwner, granted, revoked};
use serde_json::{Value, json};

const WEST: AccessOwner<'_> = AccessOwner { cluster: "west", uid: "1" };

#[test]
fn every_binding_is_for_one_user() {
    let bindings: Vec<_> = granted(WEST).into_iter().filter(|object| object["roleRef"].is_object()).collect();
    assert_eq!(bindings.len(), 3);
    for binding in bindings {
        assert_eq!(
            binding["subjects"],
            json!([{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "keelway:fleet-agent:west" }])
        );
    }
}

#[test]
fn revoking_leaves_no_subject_in_any_binding() {
    let of = |objects: Vec<Value>| -> Vec<Value> {
        objects
            .into_iter()
            .filter(|object| object["roleRef"].is_object())
            .map(|object| object["metadata"].clone())
            .collect()
    };
    assert_eq!(of(granted(WEST)), of(revoked(WEST)));
    assert!(revoked(WEST).iter().all(|binding| binding["subjects"] == json!([])));
}
