//! Reads an object that no watch contains.

use keelway_fleet::{FleetObject, ObjectState, PlacementLink, WorkloadRef};
use kube::{
    Api, Client,
    api::DynamicObject,
    core::{ApiResource, GroupVersionKind},
    discovery,
};

use crate::context::FleetContext;

/// Returns whether an object exists. Only the answer of an API server that names the object shows that it is deleted.
pub(super) async fn read(link: &PlacementLink, reference: Option<WorkloadRef>, context: &FleetContext) -> ObjectState {
    let Some(reference) = reference else {
        return ObjectState::Unreadable(format!("the object of the Placement {} is not known", link.name));
    };
    let api = match api_of(&reference, &context.client).await {
        Ok(api) => api,
        Err(error) => return ObjectState::Unreadable(error.to_string()),
    };
    match api.get(&reference.name).await {
        Ok(object) => match serde_json::to_value(object).map(FleetObject::parse) {
            Ok(Ok(object)) => ObjectState::Present(object),
            Ok(Err(error)) => ObjectState::Unreadable(error.to_string()),
            Err(error) => ObjectState::Unreadable(error.to_string()),
        },
        Err(kube::Error::Api(status)) if status.code == 404 && names(&status, &reference) => ObjectState::Deleted,
        Err(error) => ObjectState::Unreadable(error.to_string()),
    }
}

/// A kind that is not served is not found either, and its answer names no object.
fn names(status: &kube::core::Status, reference: &WorkloadRef) -> bool {
    status.details.as_ref().is_some_and(|details| details.name == reference.name)
}

/// Returns the API of an object's kind.
async fn api_of(reference: &WorkloadRef, client: &Client) -> kube::Result<Api<DynamicObject>> {
    let kind = GroupVersionKind::gvk(&reference.group, &reference.version, &reference.kind);
    let (resource, _): (ApiResource, _) = discovery::pinned_kind(client, &kind).await?;
    Ok(match &reference.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}
