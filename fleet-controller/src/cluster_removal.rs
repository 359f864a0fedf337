//! Removal of a workload cluster from its fleet.

use std::time::Duration;

use keelway_component::requests::{call, delete_precondition, ignore_conflict, only};
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
    removal_step::{RemovalOrder, RemovalStep, removal_step},
};

/// The annotation of a Cluster that decides what its removal does with the objects that run there.
pub(crate) const WORKLOADS: &str = keelway_fleet::names::WORKLOADS_ANNOTATION;
/// The value of [`WORKLOADS`] that deletes them. All others, and no value, keep them.
pub(crate) const DELETE: &str = keelway_fleet::names::WORKLOADS_DELETE;
/// How often a removal that waits for the agent lists the Works, beside the observation that the last one is gone.
const SELDOM: Duration = Duration::from_secs(60);
/// When a removal goes on after another writer changed Works.
const SOON: Duration = Duration::from_secs(2);
/// The rounds without such a writer: each Work is released, then deleted, then gone.
const ROUNDS: usize = 3;

/// Removes a cluster from the fleet: first its workloads, if that was ordered, then the rights of its agent, then what is left of it.
pub(crate) async fn remove(cluster: &WorkloadCluster, context: &FleetContext) -> Result<Action, FleetControllerError> {
    let (name, uid) = (cluster.name_any(), cluster.uid().unwrap_or_default());
    // The observed Cluster may be gone by now, and applying an object creates it.
    let clusters = Api::<WorkloadCluster>::all(context.client.clone());
    let current = call("read the Cluster", clusters.get_opt(&name)).await?;
    if !current.as_ref().is_some_and(|current| current.uid() == cluster.uid() && is_kept(current)) {
        return Ok(Action::await_change());
    }
    let works = Api::<Work>::namespaced(context.client.clone(), &works_namespace(&name));
    let deletes = cluster.annotations().get(WORKLOADS).is_some_and(|value| value == DELETE);
    if deletes && remove_works(&works, RemovalOrder::DeleteObjects).await? > 0 {
        return Ok(Action::requeue(SELDOM));
    }
    for binding in access::revoked(AccessOwner { cluster: &name, uid: &uid }) {
        apply(&binding, context).await?;
    }
    let records = AgentRecords::read(&context.client).await?;
    let record = records.of(&name)?.unwrap_or_default();
    records.write(&name, &AgentRecord { removed: true, token: None, ..record }).await?;
    // No Work is written from here on, and those that were under way are there.
    context.leaving.write().await.insert(name.clone());
    let mut left = usize::MAX;
    for _ in 0..ROUNDS {
        left = remove_works(&works, RemovalOrder::KeepObjects).await?;
    }
    if left > 0 {
        return Ok(Action::requeue(SOON));
    }
    context.forget(&name);
    let mut released = membership(&name, Some(cluster));
    released["metadata"]["finalizers"] = json!([]);
    released["metadata"]["uid"] = json!(uid);
    apply(&released, context).await?;
    tracing::info!(cluster = name, "removed a cluster from the fleet");
    Ok(Action::await_change())
}

fn is_kept(cluster: &WorkloadCluster) -> bool {
    cluster.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Takes one step for each Work, and returns how many there were. A Work that changed meanwhile is left for the next round.
async fn remove_works(works: &Api<Work>, order: RemovalOrder) -> Result<usize, FleetControllerError> {
    let found = call("list Works", works.list(&ListParams::default())).await?.items;
    let number = found.len();
    for mut work in found {
        let name = work.name_any();
        let has_finalizer = work.finalizers().iter().any(|finalizer| finalizer == WORK_FINALIZER);
        match removal_step(order, has_finalizer, work.metadata.deletion_timestamp.is_some()) {
            RemovalStep::Release => {
                work.finalizers_mut().retain(|finalizer| finalizer != WORK_FINALIZER);
                ignore_conflict("release a Work", works.replace(&name, &PostParams::default(), &work)).await?;
            }
            RemovalStep::Delete => {
                ignore_conflict("delete a Work", works.delete(&name, &only(&work))).await?;
            }
            RemovalStep::DeleteVersion => {
                ignore_conflict("delete a Work", works.delete(&name, &delete_precondition(&work))).await?;
            }
            RemovalStep::Wait => {}
        }
    }
    Ok(number)
}
