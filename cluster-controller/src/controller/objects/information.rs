//! The information that workers read about their cluster: authorities and endpoints.

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{
    registry::{PULL_SECRET, PULL_SECRET_KEY},
    worker::{AUTHORITIES_KEY, INFORMATION, INFORMATION_KEY, REGISTRIES},
};
use serde_json::{Value, json};

use super::{super::ControllerConfiguration, ObjectError, PublishedFiles};

/// The ConfigMap in `kube-system` with the default CNI configuration.
pub(super) const CNI: &str = "keelway-cni";

pub(super) fn objects(
    configuration: &ControllerConfiguration,
    files: &PublishedFiles,
) -> Result<Vec<Value>, ObjectError> {
    let cluster = serde_json::to_string(&configuration.information()).map_err(ObjectError::Form)?;
    let authorities = &files.authorities;
    let mut objects = vec![
        config_map("kube-system", INFORMATION, &json!({ AUTHORITIES_KEY: authorities, INFORMATION_KEY: cluster })),
        config_map(
            "kube-public",
            "cluster-info",
            &json!({ "kubeconfig": kubeconfig(configuration, authorities).to_string() }),
        ),
    ];
    objects.extend(files.registries.as_deref().map(registries));
    Ok(objects)
}

/// The Secret with credentials for the images of workers.
fn registries(config: &[u8]) -> Value {
    let (namespace, name) = REGISTRIES;
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": name, "namespace": namespace },
        "type": PULL_SECRET,
        "data": { PULL_SECRET_KEY: STANDARD.encode(config) },
    })
}

/// Builds the kubeconfig of bootstrap discovery: a server and its authorities, without credentials.
fn kubeconfig(configuration: &ControllerConfiguration, authorities: &str) -> Value {
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
