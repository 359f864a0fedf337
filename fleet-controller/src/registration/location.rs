//! Where a cluster is, as its token states it.

use k8s_openapi::api::core::v1::Secret;
use keelway_component::requests::call;
use keelway_fleet::{
    ClusterLocation, WorkloadCluster,
    bootstrap::{TOKEN_NAMESPACE, token_secret_name},
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::context::{FleetContext, FleetControllerError};

/// The field manager of what a token states. It is not that of the controller, whose applies would remove these fields.
const TOKEN_MANAGER: &str = "keelway-fleet-token";

/// Writes what the token states about its cluster. Fields that it does not state stay as they are.
pub(super) async fn describe(cluster: &str, token: &str, context: &FleetContext) -> Result<(), FleetControllerError> {
    let secrets = Api::<Secret>::namespaced(context.client.clone(), TOKEN_NAMESPACE);
    let found = call("read the token", secrets.get_opt(&token_secret_name(token))).await?;
    let location = found.map(|secret| ClusterLocation::of_annotations(secret.annotations())).unwrap_or_default();
    let Some(spec) = location.spec() else { return Ok(()) };
    let clusters = Api::<WorkloadCluster>::all(context.client.clone());
    let parameters = PatchParams { field_manager: Some(TOKEN_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({ "spec": spec }));
    call("describe the Cluster", clusters.patch(cluster, &parameters, &patch)).await?;
    Ok(())
}
