//! What workers read of their cluster: whom to trust, and where it is reached.

use serde_json::{Value, json};

use super::{super::Configuration, service::PORT};

/// The ConfigMap in `kube-system` with the trust bundle, the endpoints and the ranges.
pub(super) const ENDPOINTS: &str = "keelway-endpoints";
/// The ConfigMap in `kube-system` with the default CNI configuration.
pub(super) const CNI: &str = "keelway-cni";

pub(super) fn objects(configuration: &Configuration, authorities: &str) -> Vec<Value> {
    vec![
        config_map(
            "kube-system",
            ENDPOINTS,
            &json!({
                "ca.crt": authorities,
                "cluster.json": cluster(configuration).to_string(),
            }),
        ),
        config_map(
            "kube-public",
            "cluster-info",
            &json!({ "kubeconfig": kubeconfig(configuration, authorities).to_string() }),
        ),
    ]
}

/// One document, so that a reader never sees half of a change.
fn cluster(configuration: &Configuration) -> Value {
    json!({
        "version": configuration.version,
        "endpoints": configuration.endpoints,
        "api": { "addresses": configuration.api_addresses(), "port": PORT },
        "vpnCIDRs": configuration.vpn_cidrs,
        "podCIDRs": configuration.pod_cidrs,
        "serviceCIDRs": configuration.service_cidrs,
        "dnsDomain": configuration.dns_domain,
        "dnsAddress": configuration.dns_address(),
    })
}

/// As bootstrap discovery knows it: a kubeconfig with a server and its authorities, and nobody's credentials.
fn kubeconfig(configuration: &Configuration, authorities: &str) -> Value {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let server = configuration.endpoints.first().map(|endpoint| format!("https://{}", endpoint.address));
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "", "cluster": { "server": server, "certificate-authority-data": STANDARD.encode(authorities) } }],
        "contexts": [],
        "users": [],
    })
}

/// A ConfigMap.
pub(super) fn config_map(namespace: &str, name: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": namespace },
        "data": data,
    })
}
