//! The kinds of a fleet, and what tokens contain.

use std::{pin::pin, time::Duration};

use futures::StreamExt;
use k8s_openapi::{
    api::core::v1::ConfigMap, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use keelway_base::error_chain::ErrorChain;
use keelway_component::requests::call;
use keelway_fleet::bootstrap::{AUTHORITIES_KEY, ENDPOINTS_KEY, FLEET_INFORMATION, ISSUER_KEY, TOKEN_NAMESPACE};
use kube::{
    Api, ResourceExt,
    api::Patch,
    runtime::{
        WatchStreamExt,
        wait::{await_condition, conditions},
        watcher::watch_object,
    },
};
use serde_json::{Value, json};
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
    crate::context::apply(&information(configuration, authorities), context).await
}

/// Publishes it again whenever it changes otherwise, such as by a restore of the fleet's store.
pub(crate) async fn keep_published(
    configuration: &FleetControllerConfiguration,
    authorities: &str,
    context: &FleetContext,
) {
    let api = Api::<ConfigMap>::namespaced(context.client.clone(), TOKEN_NAMESPACE);
    let wanted = information(configuration, authorities);
    let mut versions = pin!(watch_object(api, FLEET_INFORMATION).default_backoff());
    while let Some(version) = versions.next().await {
        let Ok(version) = version else { continue };
        let data = version.and_then(|found| found.data).map(|data| json!(data));
        if data.as_ref() != Some(&wanted["data"])
            && let Err(error) = crate::context::apply(&wanted, context).await
        {
            tracing::warn!("cannot publish the authorities of the fleet: {}", ErrorChain(&error));
        }
    }
}

fn information(configuration: &FleetControllerConfiguration, authorities: &str) -> Value {
    let mut data = json!({ ENDPOINTS_KEY: configuration.endpoints.join("\n"), AUTHORITIES_KEY: authorities });
    if let Some(issuer) = configuration.issuer_key() {
        data[ISSUER_KEY] = json!(issuer);
    }
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": FLEET_INFORMATION, "namespace": TOKEN_NAMESPACE },
        "data": data,
    })
}
