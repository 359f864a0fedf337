//! Writes what was planned for one object.

use k8s_openapi::api::core::v1::ObjectReference;
use keelway_component::requests::{call, has_code, ignore_conflict};
use keelway_fleet::{
    DesiredWork, PlacementLink, PlacementSpec, TargetLabel, Work, WorkOrder, WorkloadPlacement, WorkloadRef,
    names::{
        CLUSTER_LABEL, FLEET_NAMESPACE, MATCHED_POLICY_LABEL, TARGET_CLUSTER_LABEL, WORK_FINALIZER, works_namespace,
    },
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch},
    core::ApiResource,
};
use serde_json::{Value, json};

use super::{
    events::EventQueue,
    model::WrittenObjects,
    plan::{ObjectPlan, PlannedEvent},
};
use crate::context::{FleetContext, FleetControllerError, applied, apply};

const API_VERSION: &str = "fleet.keelway.dev/v1alpha1";
/// The reason of the Warning that the controller may not write the label of an object.
const EVENT_NO_LABEL: &str = "CannotLabel";

/// Writes a plan. Returns what was written, also if a later write failed.
pub(super) async fn execute(
    link: &PlacementLink,
    plan: &ObjectPlan,
    context: &FleetContext,
    events: &EventQueue,
) -> (WrittenObjects, Option<FleetControllerError>) {
    let mut written = WrittenObjects::default();
    let outcome = write(link, plan, &mut written, context).await;
    if let (Ok(()), Some(object)) = (&outcome, &plan.object) {
        for event in plan.events.iter().chain(&written.refused_label) {
            events.send(reference(object), event.clone());
        }
    }
    (written, outcome.err())
}

async fn write(
    link: &PlacementLink,
    plan: &ObjectPlan,
    written: &mut WrittenObjects,
    context: &FleetContext,
) -> Result<(), FleetControllerError> {
    context.fence.check()?;
    // Each write is counted before it is sent: a reader that sees the document then finds the write in the metric.
    if let Some(spec) = &plan.save {
        context.metrics.count_write();
        written.placement = Some(save(link, spec, context).await?);
    }
    for order in &plan.orders {
        context.metrics.count_write();
        written.works.extend(carry_out(order, context).await?);
    }
    if let (Some(target), Some(object), Some(resource)) = (&plan.target, &plan.object, &plan.resource) {
        context.metrics.count_write();
        written.refused_label = label(object, resource, target, context).await?;
    }
    if let Some(status) = &plan.placement_status {
        context.metrics.count_write();
        let body = json!({ "apiVersion": API_VERSION, "kind": "Placement", "metadata": { "name": link.name }, "status": status });
        let api = Api::<WorkloadPlacement>::namespaced(context.client.clone(), &link.namespace);
        let (parameters, patch) = (applied(), Patch::Apply(&body));
        let status = api.patch_status(&link.name, &parameters, &patch);
        written.placement =
            ignore_conflict("write the status of a Placement", status).await?.or(written.placement.take());
    }
    if let (Some(status), Some(object), Some(resource)) = (&plan.object_status, &plan.object, &plan.resource) {
        context.metrics.count_write();
        write_status(object, resource, status, context).await?;
    }
    if plan.remove {
        let api = Api::<WorkloadPlacement>::namespaced(context.client.clone(), &link.namespace);
        context.metrics.count_write();
        ignore_conflict("delete a Placement", api.delete(&link.name, &DeleteParams::default())).await?;
    }
    Ok(())
}

async fn save(
    link: &PlacementLink,
    spec: &PlacementSpec,
    context: &FleetContext,
) -> Result<WorkloadPlacement, FleetControllerError> {
    if link.namespace == FLEET_NAMESPACE {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": FLEET_NAMESPACE } });
        apply(&namespace, context).await?;
    }
    let mut labels = serde_json::Map::new();
    if let Some(policy) = spec.policy.as_ref().filter(|policy| policy.len() <= 63) {
        labels.insert(MATCHED_POLICY_LABEL.to_owned(), json!(policy));
    }
    if let [only] = spec.clusters.as_slice() {
        labels.insert(TARGET_CLUSTER_LABEL.to_owned(), json!(only.name));
    }
    let body = json!({
        "apiVersion": API_VERSION,
        "kind": "Placement",
        "metadata": { "name": link.name, "labels": labels },
        "spec": spec,
    });
    let api = Api::<WorkloadPlacement>::namespaced(context.client.clone(), &link.namespace);
    Ok(call("save a Placement", api.patch(&link.name, &applied(), &Patch::Apply(&body))).await?)
}

async fn carry_out(order: &WorkOrder, context: &FleetContext) -> Result<Option<Work>, FleetControllerError> {
    match order {
        WorkOrder::Create(desired) | WorkOrder::Update(desired) => write_work(desired, context).await,
        WorkOrder::Delete { cluster, name, why } => {
            tracing::info!(cluster, work = name, why = ?why, "deletes a Work");
            let api = Api::<Work>::namespaced(context.client.clone(), &works_namespace(cluster));
            let deleted = ignore_conflict("delete a Work", api.delete(name, &DeleteParams::default())).await?;
            let Some(deleted) = deleted else { return Ok(None) };
            Ok(deleted.left())
        }
    }
}

/// Writes a Work, unless its cluster is being removed: nothing would release its finalizer.
async fn write_work(desired: &DesiredWork, context: &FleetContext) -> Result<Option<Work>, FleetControllerError> {
    let leaving = context.leaving.read().await;
    if leaving.contains(&desired.cluster) {
        return Ok(None);
    }
    let body = json!({
        "apiVersion": API_VERSION,
        "kind": "Work",
        "metadata": {
            "name": desired.name,
            "labels": { CLUSTER_LABEL: desired.cluster },
            "finalizers": [WORK_FINALIZER],
        },
        "spec": desired.spec,
    });
    let api = Api::<Work>::namespaced(context.client.clone(), &works_namespace(&desired.cluster));
    Ok(Some(call("write a Work", api.patch(&desired.name, &applied(), &Patch::Apply(&body))).await?))
}

/// Writes the label of an object that names the cluster in which another orchestrator submits it. Returns an Event if the controller has no right to.
async fn label(
    object: &WorkloadRef,
    resource: &ApiResource,
    target: &TargetLabel,
    context: &FleetContext,
) -> Result<Option<PlannedEvent>, FleetControllerError> {
    let labels = match target {
        TargetLabel::Set(cluster) => json!({ TARGET_CLUSTER_LABEL: cluster }),
        TargetLabel::Remove => json!({}),
    };
    let body = json!({
        "apiVersion": resource.api_version,
        "kind": object.kind,
        "metadata": { "name": object.name, "uid": object.uid, "labels": labels },
    });
    let (parameters, patch) = (applied(), Patch::Apply(&body));
    match api_of(object, resource, context).patch(&object.name, &parameters, &patch).await {
        Err(error) if has_code(&error, 403) => {
            let note = format!(
                "The fleet-controller may not write the label {TARGET_CLUSTER_LABEL}: {error}. Grant the user keelway:fleet-controller the verb patch \
                 on {}.{}, or read the label of the Placement instead.",
                resource.plural, resource.group
            );
            Ok(Some(PlannedEvent { is_warning: true, reason: EVENT_NO_LABEL, note }))
        }
        outcome => {
            ignore_conflict("write the label of an object", std::future::ready(outcome)).await?;
            Ok(None)
        }
    }
}

fn api_of(object: &WorkloadRef, resource: &ApiResource, context: &FleetContext) -> Api<DynamicObject> {
    match &object.namespace {
        Some(namespace) => Api::namespaced_with(context.client.clone(), namespace, resource),
        None => Api::all_with(context.client.clone(), resource),
    }
}

/// Writes the merged status of an object. A kind without such a subresource has none.
async fn write_status(
    object: &WorkloadRef,
    resource: &ApiResource,
    status: &Value,
    context: &FleetContext,
) -> Result<(), FleetControllerError> {
    let api = api_of(object, resource, context);
    let reference = reference(object);
    let body = json!({
        "apiVersion": reference.api_version,
        "kind": object.kind,
        "metadata": { "name": object.name, "uid": object.uid },
        "status": status,
    });
    let (parameters, patch) = (applied(), Patch::Apply(&body));
    ignore_conflict("write the status of an object", api.patch_status(&object.name, &parameters, &patch)).await?;
    Ok(())
}

fn reference(object: &WorkloadRef) -> ObjectReference {
    let version = &object.version;
    ObjectReference {
        api_version: Some(if object.group.is_empty() {
            version.clone()
        } else {
            format!("{}/{version}", object.group)
        }),
        kind: Some(object.kind.clone()),
        name: Some(object.name.clone()),
        namespace: object.namespace.clone(),
        uid: object.uid.clone(),
        ..ObjectReference::default()
    }
}
