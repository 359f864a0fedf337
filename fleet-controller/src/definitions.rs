//! The kinds of a fleet.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use keelway_component::requests::call;
use kube::{
    Api, ResourceExt,
    api::Patch,
    runtime::wait::{await_condition, conditions},
};
use tokio::time::timeout;

use crate::context::{FleetContext, FleetControllerError, applied};

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
