//! The loop over workload clusters: rights of agents, labels, and heartbeats.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use futures::{Stream, StreamExt, stream};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Secret},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use keelway_api::condition::{self, ConditionStatus, ConditionValue};
use keelway_component::{
    requests::{call, ignore_conflict, only},
    watching::controller_of,
};
use keelway_fleet::{
    CLUSTER_IDLE, CLUSTER_READY, CLUSTER_STANDBY, WorkloadCluster,
    bootstrap::{TOKEN_NAMESPACE, token_secret_name},
    names::{
        AGENT_LEASE, NAME_LABEL, PROVIDER_LABEL, REGION_LABEL, VERSION_LABEL, ZONE_LABEL, cluster_of_namespace,
        minor_version,
    },
};
use kube::{
    Api, ResourceExt,
    api::Patch,
    runtime::{controller::Action, reflector::ObjectRef, watcher},
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{
    cluster_removal::remove,
    context::{FleetContext, FleetControllerError, applied, apply, log_outcome, on_error},
    heartbeat::{Heartbeat, Renewal, readiness},
    registration::{
        AgentRecords,
        access::{self, AccessOwner},
        record::AgentRecord,
    },
};

/// The finalizer of a Cluster. The controller removes it once the agent has no rights any more.
pub(crate) const FINALIZER: &str = "fleet.keelway.dev/registration";
/// The conditions that the controller writes.
const CONDITIONS: [&str; 3] = [CLUSTER_READY, CLUSTER_IDLE, CLUSTER_STANDBY];

/// Keeps all workload clusters.
pub(crate) async fn run(context: Arc<FleetContext>) {
    let leases = Api::<Lease>::all(context.client.clone());
    let agents = watcher::Config::default().fields(&format!("metadata.name={AGENT_LEASE}"));
    let observer = Arc::clone(&context);
    controller_of(Api::<WorkloadCluster>::all(context.client.clone()))
        .reconcile_all_on(usage(Arc::clone(&context.usage)))
        .watches(leases, agents, move |lease| observe(&lease, &observer, Instant::now()))
        .run(reconcile, on_error, context)
        .for_each(|outcome| log_outcome("clusters", outcome))
        .await;
}

fn usage(changes: Arc<Notify>) -> impl Stream<Item = ()> + Send + 'static {
    stream::unfold(changes, async |changes| {
        changes.notified().await;
        Some(((), changes))
    })
}

/// Notes a heartbeat. The cluster is reconciled if its condition may change: while it is ready, its timer reads what is noted here.
fn observe(lease: &Lease, context: &FleetContext, now: Instant) -> Option<ObjectRef<WorkloadCluster>> {
    let cluster = cluster_of_namespace(lease.metadata.namespace.as_deref()?)?;
    let spec = lease.spec.as_ref()?;
    let time = spec.renew_time.as_ref()?.0.to_string();
    let renewal = Renewal { time: &time, seconds: spec.lease_duration_seconds };
    let is_news = context.remembered(cluster, |memory| {
        let before = memory.heartbeat.as_ref();
        let after = Heartbeat::observe(before, renewal, now);
        let is_known = before
            .is_some_and(|before| before.is_fresh() && before.is_current(now) && before.counts() == after.counts());
        memory.heartbeat = Some(after);
        !is_known
    });
    is_news.then(|| ObjectRef::new(cluster))
}

async fn reconcile(cluster: Arc<WorkloadCluster>, context: Arc<FleetContext>) -> Result<Action, FleetControllerError> {
    let name = cluster.name_any();
    if cluster.metadata.deletion_timestamp.is_some() {
        return remove(&cluster, &context).await;
    }
    let wanted = membership(&name, Some(&cluster));
    if !is_labelled(&cluster, &wanted) {
        apply(&wanted, &context).await?;
    }
    if context.remembered(&name, |memory| memory.granted.clone()) != cluster.uid() {
        grant(&cluster, &context).await?;
        context.remembered(&name, |memory| memory.granted = cluster.uid());
    }
    let heartbeat = context.remembered(&name, |memory| memory.heartbeat.clone());
    if heartbeat.as_ref().is_some_and(Heartbeat::is_fresh) {
        use_up_token(&name, &context).await?;
    }
    let ready = readiness(heartbeat.as_ref(), status_of(&cluster), Instant::now());
    report(&cluster, ready.condition, &context).await?;
    Ok(ready.next.map_or_else(Action::await_change, Action::requeue))
}

fn status_of(cluster: &WorkloadCluster) -> Option<ConditionStatus> {
    let conditions = &cluster.status.as_ref()?.conditions;
    let ready = conditions.iter().find(|condition| condition.type_ == CLUSTER_READY)?;
    let all = [ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown];
    all.into_iter().find(|status| status.as_str() == ready.status)
}

/// Creates the Cluster of an agent that registers, its namespace, and its rights.
pub(crate) async fn register(name: &str, context: &FleetContext) -> Result<(), FleetControllerError> {
    apply(&membership(name, None), context).await?;
    context.remembered(name, |memory| memory.has_no_token = false);
    let clusters = Api::<WorkloadCluster>::all(context.client.clone());
    grant(&call("read the Cluster", clusters.get(name)).await?, context).await
}

async fn grant(cluster: &WorkloadCluster, context: &FleetContext) -> Result<(), FleetControllerError> {
    let (name, uid) = (cluster.name_any(), cluster.uid().unwrap_or_default());
    for object in access::granted(AccessOwner { cluster: &name, uid: &uid }) {
        apply(&object, context).await?;
    }
    context.leaving.write().await.remove(&name);
    Ok(())
}

/// Returns the Cluster as the controller applies it: with its finalizer, and the labels that follow from its spec and status.
pub(crate) fn membership(name: &str, found: Option<&WorkloadCluster>) -> Value {
    let mut labels = BTreeMap::from([(NAME_LABEL, name.to_owned())]);
    if let Some(found) = found {
        let spec = &found.spec;
        let version = found.status.as_ref().and_then(|status| minor_version(status.kubernetes_version.as_deref()?));
        let derived = [
            (PROVIDER_LABEL, spec.provider.clone()),
            (REGION_LABEL, spec.region.clone()),
            (ZONE_LABEL, spec.zone.clone()),
            (VERSION_LABEL, version),
        ];
        labels.extend(derived.into_iter().filter_map(|(label, value)| Some((label, value?))));
    }
    json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": { "name": name, "labels": labels, "finalizers": [FINALIZER] },
        "spec": {},
    })
}

/// Whether the Cluster has all that the controller applies, and none of these labels too many.
fn is_labelled(cluster: &WorkloadCluster, wanted: &Value) -> bool {
    let labels = cluster.labels();
    let managed = [NAME_LABEL, PROVIDER_LABEL, REGION_LABEL, ZONE_LABEL, VERSION_LABEL];
    let is_same =
        |label: &&str| labels.get(*label).map(String::as_str) == wanted["metadata"]["labels"][*label].as_str();
    managed.iter().all(is_same) && cluster.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Deletes the token of a registration: its agent uses its certificate. Until then the agent may ask for it again.
async fn use_up_token(cluster: &str, context: &FleetContext) -> Result<(), FleetControllerError> {
    if context.remembered(cluster, |memory| memory.has_no_token) {
        return Ok(());
    }
    let records = AgentRecords::read(&context.client).await?;
    if let Some(record) = records.of(cluster)?
        && let Some(used) = &record.token
    {
        let secrets = Api::<Secret>::namespaced(context.client.clone(), TOKEN_NAMESPACE);
        let name = token_secret_name(&used.id);
        if let Some(secret) = call("read the token", secrets.get_opt(&name)).await? {
            ignore_conflict("delete the token", secrets.delete(&name, &only(&secret))).await?;
        }
        records.write(cluster, &AgentRecord { token: None, ..record }).await?;
    }
    context.remembered(cluster, |memory| memory.has_no_token = true);
    Ok(())
}

fn idle(is_busy: bool) -> ConditionValue {
    let (status, reason, message) = if is_busy {
        (ConditionStatus::False, "Busy", "the fleet runs pods in the cluster")
    } else {
        (ConditionStatus::True, "Idle", "the fleet runs no pods in the cluster")
    };
    ConditionValue { status, reason: reason.to_owned(), message: message.to_owned() }
}

/// Writes the conditions of the cluster, if they differ.
async fn report(
    cluster: &WorkloadCluster,
    ready: ConditionValue,
    context: &FleetContext,
) -> Result<(), FleetControllerError> {
    let name = cluster.name_any();
    context.remembered(&name, |memory| memory.ready = Some(ready.status));
    context.count_clusters();
    let before = cluster.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let mut after: Vec<_> = before.iter().filter(|one| CONDITIONS.contains(&one.type_.as_str())).cloned().collect();
    let own = after.clone();
    let (generation, now) = (cluster.metadata.generation, Time(Timestamp::now()));
    let awake = ConditionValue {
        status: ConditionStatus::False,
        reason: "Awake".to_owned(),
        message: "the fleet puts no cluster to sleep".to_owned(),
    };
    condition::set(&mut after, CLUSTER_READY, ready, generation, &now);
    condition::set(&mut after, CLUSTER_STANDBY, awake, generation, &now);
    if let Some(is_busy) = context.remembered(&name, |memory| memory.is_busy) {
        condition::set(&mut after, CLUSTER_IDLE, idle(is_busy), generation, &now);
    }
    if after == own {
        return Ok(());
    }
    let body = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": { "name": name },
        "status": { "conditions": after },
    });
    let clusters = Api::<WorkloadCluster>::all(context.client.clone());
    let (parameters, patch) = (applied(), Patch::Apply(&body));
    let written = clusters.patch_status(&name, &parameters, &patch);
    context.metrics.count_write();
    ignore_conflict("write the status of a Cluster", written).await?;
    Ok(())
}
