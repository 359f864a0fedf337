//! Clients with neither a certificate nor a token.

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{Api, Client, api::DeleteParams};
use serde_json::Value;

use crate::{
    plane::{AUTHENTICATION, GIVEN, Plane, replace},
    roles::open_secrets,
    wait,
};

const HEALTH: [&str; 3] = ["/livez", "/readyz", "/healthz"];
const SECRETS: &str = "/api/v1/secrets";
const OTHERS: [&str; 7] =
    ["/", "/version", "/api", "/metrics", "/openapi/v2", "/.well-known/openid-configuration", SECRETS];
/// The name of a role, and its binding, that let anonymous clients read all Secrets.
const OPEN: &str = "test:strangers-read-secrets";

/// Returns the HTTP status of a request.
pub(crate) async fn status(client: &Client, path: &str) -> u16 {
    match client.request_text(http::Request::get(path).body(vec![]).unwrap()).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// The configuration that a pass writes permits anonymous requests for health alone, whatever roles there are for them.
pub(crate) async fn are_told_of_health(plane: &Plane, admin: &Client) {
    open_secrets(admin, OPEN, "list", "system:unauthenticated").await;
    let stranger = plane.stranger().await;
    for path in HEALTH {
        assert_eq!(status(&stranger, path).await, 200, "{path}");
    }
    for path in OTHERS {
        assert_eq!(status(&stranger, path).await, 401, "{path}");
    }
}

/// Without the restriction to these paths, roles decide what anonymous clients read.
pub(crate) async fn without_guards(plane: &mut Plane, admin: &Client) {
    let mut everywhere: Value = serde_json::from_str(GIVEN).unwrap();
    everywhere["anonymous"].as_object_mut().unwrap().remove("conditions").unwrap();
    replace(AUTHENTICATION, &everywhere.to_string());
    plane.start_api().await;
    let stranger = plane.stranger().await;
    wait::until("with anonymous requests everywhere: a stranger reads Secrets", async || {
        status(&stranger, SECRETS).await == 200
    })
    .await;
    assert_eq!(status(&stranger, "/version").await, 200);
    assert_eq!(status(&stranger, "/metrics").await, 403, "no role says so");
    Api::<ClusterRoleBinding>::all(admin.clone()).delete(OPEN, &DeleteParams::default()).await.unwrap();
    wait::until("without a role: no Secrets", async || status(&stranger, SECRETS).await == 403).await;
}
