//! Removal of a workload cluster from its fleet.

use std::time::Duration;

use keelway_component::requests::{call, ignore_conflict, only};
use keelway_fleet::{
    Work, WorkloadCluster,
    names::{WORK_FINALIZER, works_namespace},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
    runtime::controller::Action,
};
use serde_json::json;

use crate::{
    cluster_reconciler::{FINALIZER, membership},
    context::{FleetContext, FleetControllerError, apply},
    registration::{
        AgentRecords,
        access::{self, AccessOwner},
        record::AgentRecord,
    },
};

/// The annotation of a Cluster that decides what its removal does with the objects that run there.
pub(crate) const WORKLOADS: &str = keelway_fleet::names::WORKLOADS_ANNOTATION;
/// The value of [`WORKLOADS`] that deletes them. All others, and no value, keep them.
pub(crate) const DELETE: &str = keelway_fleet::names::WORKLOADS_DELETE;
/// How often a removal that waits for Works to go is looked at.
const SOON: Duration = Duration::from_secs(2);

/// Removes a cluster from the fleet: first its workloads, if that was ordered, then the rights of its agent, then what is left of it.
pub(crate) async fn remove(cluster: &WorkloadCluster, context: &FleetContext) -> Result<Action, FleetControllerError> {
    let (name, uid) = (cluster.name_any(), cluster.uid().unwrap_or_default());
    if !cluster.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
        return Ok(Action::await_change());
    }
    let works = Api::<Work>::namespaced(context.client.clone(), &works_namespace(&name));
    if cluster.annotations().get(WORKLOADS).is_some_and(|value| value == DELETE) && delete(&works).await? > 0 {
        return Ok(Action::requeue(SOON));
    }
    for binding in access::revoked(AccessOwner { cluster: &name, uid: &uid }) {
        apply(&binding, context).await?;
    }
    let records = AgentRecords::read(&context.client).await?;
    let record = records.of(&name)?.unwrap_or_default();
    records.write(&name, &AgentRecord { removed: true, token: None, ..record }).await?;
    // No Work is written from here on, and those that were under way are there.
    context.leaving.write().await.insert(name.clone());
    release(&works).await?;
    if delete(&works).await? > 0 {
        // Another writer may have changed one meanwhile, so that its finalizer is still there.
        return Ok(Action::requeue(SOON));
    }
    context.forget(&name);
    let mut released = membership(&name, Some(cluster));
    released["metadata"]["finalizers"] = json!([]);
    apply(&released, context).await?;
    tracing::info!(cluster = name, "removed a cluster from the fleet");
    Ok(Action::await_change())
}

/// Deletes the Works, and returns how many there were. Each waits for the agent if it has its finalizer.
async fn delete(works: &Api<Work>) -> Result<usize, FleetControllerError> {
    let found = call("list Works", works.list(&ListParams::default())).await?.items;
    for work in found.iter().filter(|work| work.metadata.deletion_timestamp.is_none()) {
        ignore_conflict("delete a Work", works.delete(&work.name_any(), &only(work))).await?;
    }
    Ok(found.len())
}

/// Removes the agent's finalizer from the Works: the agent has no rights any more, and the objects stay.
async fn release(works: &Api<Work>) -> Result<(), FleetControllerError> {
    for mut work in call("list Works", works.list(&ListParams::default())).await?.items {
        work.finalizers_mut().retain(|finalizer| finalizer != WORK_FINALIZER);
        let (name, parameters) = (work.name_any(), PostParams::default());
        ignore_conflict("release a Work", works.replace(&name, &parameters, &work)).await?;
    }
    Ok(())
}
