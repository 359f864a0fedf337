//! What an object states about itself.

use keelway_kube_object::KubeObject;
use serde_json::{Value, json};

fn object(api_version: &str, kind: &str) -> Value {
    json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "a" } })
}

#[test]
fn the_resource_follows_from_version_and_kind() {
    for (api_version, kind, group, plural) in [
        ("v1", "Namespace", "", "namespaces"),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "rbac.authorization.k8s.io", "clusterrolebindings"),
        ("networking.k8s.io/v1", "NetworkPolicy", "networking.k8s.io", "networkpolicies"),
        ("networking.k8s.io/v1", "IngressClass", "networking.k8s.io", "ingressclasses"),
        ("fleet.keelway.dev/v1alpha1", "SchedulePolicy", "fleet.keelway.dev", "schedulepolicies"),
    ] {
        let object = object(api_version, kind);
        let resource = KubeObject::read(&object).unwrap().resource();
        assert_eq!((resource.group.as_str(), resource.plural.as_str()), (group, plural));
        assert_eq!(resource.api_version, api_version);
    }
}

#[test]
fn an_object_that_does_not_state_what_it_is_is_refused() {
    let refused = |object: &Value| KubeObject::read(object).unwrap_err().to_string();
    assert_eq!(
        refused(&json!({ "kind": "ClusterRole", "metadata": { "name": "a" } })),
        "cannot apply an object without apiVersion",
        "it is not one of the core group"
    );
    assert_eq!(refused(&object("v1", "")), "cannot apply an object without kind");
    assert_eq!(refused(&json!({ "apiVersion": "v1", "kind": "Pod" })), "cannot apply an object without metadata.name");
}

#[test]
fn a_label_names_the_field_manager() {
    let mut labelled = object("v1", "Namespace");
    assert_eq!(KubeObject::read(&labelled).unwrap().manager("keelway"), "keelway");
    labelled["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("keelway-cluster-controller");
    assert_eq!(KubeObject::read(&labelled).unwrap().manager("keelway"), "keelway-cluster-controller");
}
