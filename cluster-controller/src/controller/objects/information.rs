//! The information that workers read about their cluster: authorities and endpoints.

use keelway_api::worker::{AUTHORITIES_KEY, INFORMATION, INFORMATION_KEY};
use serde_json::{Value, json};

use super::{super::ControllerConfiguration, ObjectError};

/// The ConfigMap in `kube-system` with the default CNI configuration.
pub(super) const CNI: &str = "keelway-cni";

pub(super) fn objects(configuration: &ControllerConfiguration, authorities: &str) -> Result<Vec<Value>, ObjectError> {
    let cluster = serde_json::to_string(&configuration.information()).map_err(ObjectError::Form)?;
    Ok(vec![
        config_map("kube-system", INFORMATION, &json!({ AUTHORITIES_KEY: authorities, INFORMATION_KEY: cluster })),
        config_map(
            "kube-public",
            "cluster-info",
            &json!({ "kubeconfig": kubeconfig(configuration, authorities).to_string() }),
        ),
    ])
}

/// Builds the kubeconfig of bootstrap discovery: a server and its authorities, without credentials.
fn kubeconfig(configuration: &ControllerConfiguration, authorities: &str) -> Value {
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

pub(super) fn config_map(namespace: &str, name: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": namespace },
        "data": data,
    })
}
