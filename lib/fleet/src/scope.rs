//! Which objects belong to people, and which to the fleet itself. A policy that selects everything must not place the fleet's own objects: its
//! tokens and rights would be copied to every cluster.

use keelway_api::worker::MANAGED_BY;

use crate::{
    FleetObject,
    names::{FLEET_NAMESPACE, GROUP, cluster_of_namespace},
};

const SYSTEM_NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", FLEET_NAMESPACE];
/// What API servers create by themselves: kind and name.
const OF_API_SERVERS: [(&str, &str); 4] = [
    ("Namespace", "default"),
    ("Service", "kubernetes"),
    ("ConfigMap", "kube-root-ca.crt"),
    ("ServiceAccount", "default"),
];
const BOOTSTRAPPING: &str = "kubernetes.io/bootstrapping";

/// Whether a policy may place this object.
#[must_use]
pub fn is_placeable(object: &FleetObject) -> bool {
    let of = &object.reference;
    let is_system =
        |namespace: &str| SYSTEM_NAMESPACES.contains(&namespace) || cluster_of_namespace(namespace).is_some();
    let is_own_namespace = match (&of.namespace, of.kind.as_str()) {
        (Some(namespace), _) => is_system(namespace),
        (None, "Namespace") => is_system(&of.name),
        (None, _) => false,
    };
    let is_own_name =
        of.name.starts_with("system:") || of.name.starts_with("keelway:") || of.name.starts_with("system-");
    let is_own_definition = of.kind == "CustomResourceDefinition" && of.name.ends_with(&format!(".{GROUP}"));
    let is_of_api_server = OF_API_SERVERS.contains(&(of.kind.as_str(), of.name.as_str()));
    let is_managed = object.labels.contains_key(BOOTSTRAPPING)
        || object.labels.get(MANAGED_BY).is_some_and(|manager| manager.starts_with("keelway"));
    !(is_own_namespace || is_own_name || is_own_definition || is_of_api_server || is_managed)
}
