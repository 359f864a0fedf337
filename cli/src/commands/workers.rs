//! What the commands about workers of a cluster share.

use keelway_api::{
    Cluster, Documents,
    duration::Span,
    jiff::{SignedDuration, Timestamp},
    name::ClusterRef,
};
use keelway_reconciler::{ClusterWorkers, WorkersError};
use tokio::runtime::Runtime;

use super::{named::missing_document_error, session::runtime};
use crate::{args::ClusterArgument, exit::CommandFailure};

/// Where the tokens that there are can be seen: it runs as it is told.
pub(super) fn list_tokens(of: &ClusterArgument) -> String {
    let ClusterRef { namespace, name } = of.reference();
    let namespace = if namespace == "default" { String::new() } else { format!(" --namespace {namespace}") };
    format!("see those that there are: keelway join-token list --cluster {name}{namespace}")
}

/// The cluster that is named.
pub(super) fn cluster<'a>(documents: &'a Documents, of: &ClusterArgument) -> Result<&'a Cluster, CommandFailure> {
    let name = of.reference();
    documents.clusters.get(&name).map(|cluster| &**cluster).ok_or_else(|| {
        let there = documents.clusters.keys().map(ToString::to_string).collect();
        missing_document_error("Cluster", &name.to_string(), &there)
    })
}

/// What asks the cluster about its workers. Nothing is asked yet.
pub(super) fn connect(
    documents: &Documents,
    cluster: &Cluster,
    of: &ClusterArgument,
) -> Result<(Runtime, ClusterWorkers), CommandFailure> {
    let runtime = runtime()?;
    // A client is served by tasks of its own.
    let entered = runtime.enter();
    let workers = ClusterWorkers::of(documents, cluster).map_err(|error| failure(error, of))?;
    drop(entered);
    Ok((runtime, workers))
}

/// This long from now.
pub(super) fn after(now: Timestamp, span: Span) -> Timestamp {
    let span = i64::try_from(span.seconds()).map_or(SignedDuration::MAX, SignedDuration::from_secs);
    now.saturating_add(span).unwrap_or(Timestamp::MAX)
}

/// What the command was asked for, and what failed on the way, end in two ways.
pub(super) fn failure(error: WorkersError, cluster: &ClusterArgument) -> CommandFailure {
    let list = list_tokens(cluster);
    let cluster = cluster.reference();
    match error {
        WorkersError::NotMade => {
            CommandFailure::usage(format!("cluster {cluster} was not made yet"), "make it first: keelway reconcile")
        }
        WorkersError::NoIngress => CommandFailure::usage(
            format!("cluster {cluster} has no ingress that its users could reach"),
            "set spec.ingress.replicas to 1 or more, and reconcile",
        ),
        WorkersError::NoToken(_) => CommandFailure::usage(error.to_string(), list),
        WorkersError::NoWorker(_) => {
            CommandFailure::usage(error.to_string(), "see those that there are: kubectl get nodes")
        }
        WorkersError::NoKinds
        | WorkersError::Secret(_)
        | WorkersError::Authority(_)
        | WorkersError::Api { .. }
        | WorkersError::TimedOut { .. } => CommandFailure::other(error),
    }
}
