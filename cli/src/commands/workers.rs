//! What the commands about workers of a cluster share.

use keelway_api::{
    Cluster, Documents,
    duration::Span,
    jiff::{SignedDuration, Timestamp},
    name::ClusterRef,
};
use keelway_reconciler::{Workers, WorkersError};
use tokio::runtime::Runtime;

use super::{named::absent, session::runtime};
use crate::{args::OfCluster, exit::Failure};

/// Where the tokens that there are can be seen: it runs as it is told.
pub(super) fn list_tokens(of: &OfCluster) -> String {
    let ClusterRef { namespace, name } = of.reference();
    let namespace = if namespace == "default" { String::new() } else { format!(" --namespace {namespace}") };
    format!("see those that there are: keelway join-token list --cluster {name}{namespace}")
}

/// The cluster that is named.
pub(super) fn cluster<'a>(documents: &'a Documents, of: &OfCluster) -> Result<&'a Cluster, Failure> {
    let name = of.reference();
    documents.clusters.get(&name).map(|cluster| &**cluster).ok_or_else(|| {
        let there = documents.clusters.keys().map(ToString::to_string).collect();
        absent("Cluster", &name.to_string(), &there)
    })
}

/// What asks the cluster about its workers. Nothing is asked yet.
pub(super) fn connect(documents: &Documents, cluster: &Cluster, of: &OfCluster) -> Result<(Runtime, Workers), Failure> {
    let runtime = runtime()?;
    // A client is served by tasks of its own.
    let entered = runtime.enter();
    let workers = Workers::of(documents, cluster).map_err(|error| failure(error, of))?;
    drop(entered);
    Ok((runtime, workers))
}

/// This long from now.
pub(super) fn after(now: Timestamp, span: Span) -> Timestamp {
    let span = i64::try_from(span.seconds()).map_or(SignedDuration::MAX, SignedDuration::from_secs);
    now.saturating_add(span).unwrap_or(Timestamp::MAX)
}

/// What the command was asked for, and what failed on the way, end in two ways.
pub(super) fn failure(error: WorkersError, cluster: &OfCluster) -> Failure {
    let list = list_tokens(cluster);
    let cluster = cluster.reference();
    match error {
        WorkersError::NotMade => {
            Failure::usage(format!("cluster {cluster} was not made yet"), "make it first: keelway reconcile")
        }
        WorkersError::NoIngress => Failure::usage(
            format!("cluster {cluster} has no ingress that its users could reach"),
            "set spec.ingress.replicas to 1 or more, and reconcile",
        ),
        WorkersError::NoToken(_) => Failure::usage(error.to_string(), list),
        WorkersError::NoWorker(_) => Failure::usage(error.to_string(), "see those that there are: kubectl get nodes"),
        WorkersError::NoKinds
        | WorkersError::Secret(_)
        | WorkersError::Authority(_)
        | WorkersError::Api { .. }
        | WorkersError::TimedOut { .. } => Failure::other(error),
    }
}
