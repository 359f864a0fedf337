//! The kinds of a fleet, and what tokens contain.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use keelway_component::requests::call;
use keelway_fleet::bootstrap::{AUTHORITIES_KEY, ENDPOINTS_KEY, FLEET_INFORMATION, ISSUER_KEY, TOKEN_NAMESPACE};
use kube::{
    Api, ResourceExt,
    api::Patch,
    runtime::wait::{await_condition, conditions},
};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    FleetControllerConfiguration,
    context::{FleetContext, FleetControllerError, applied},
};

/// How long an API server may take to serve a kind.
const ESTABLISHED: Duration = Duration::from_secs(15);

/// Applies the definitions, and waits until they are established. A watch of such a kind would fail before.
pub(crate) async fn apply(context: &FleetContext) -> Result<(), FleetControllerError> {
    let api = Api::<CustomResourceDefinition>::all(context.client.clone());
    let definitions = keelway_fleet::crds();
    for definition in &definitions {
        let name = definition.name_any();
        call("apply a CustomResourceDefinition", api.patch(&name, &applied(), &Patch::Apply(definition))).await?;
    }
    for definition in &definitions {
        let name = definition.name_any();
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        match timeout(ESTABLISHED, established).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return Err(FleetControllerError::NotDefined(name)),
        }
    }
    Ok(())
}

/// Publishes what `keelway fleet token create` writes into each token, and what agents follow.
pub(crate) async fn publish(
    configuration: &FleetControllerConfiguration,
    authorities: &str,
    context: &FleetContext,
) -> Result<(), FleetControllerError> {
    let mut data = json!({ ENDPOINTS_KEY: configuration.endpoints.join("\n"), AUTHORITIES_KEY: authorities });
    if let Some(issuer) = configuration.issuer_key() {
        data[ISSUER_KEY] = json!(issuer);
    }
    let information = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": FLEET_INFORMATION, "namespace": TOKEN_NAMESPACE },
        "data": data,
    });
    crate::context::apply(&information, context).await
}
