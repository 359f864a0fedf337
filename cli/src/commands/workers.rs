//! Shared code of the commands about workers of a cluster.

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

/// Returns the help that lists the join tokens, as a command line that a user can run unchanged.
pub(super) fn list_tokens(of: &ClusterArgument) -> String {
    let ClusterRef { namespace, name } = of.reference();
    let namespace = if namespace == "default" { String::new() } else { format!(" --namespace {namespace}") };
    format!("list the join tokens: keelway join-token list --cluster {name}{namespace}")
}

/// Returns the named cluster, or an error that lists the existing ones.
pub(super) fn cluster<'a>(documents: &'a Documents, of: &ClusterArgument) -> Result<&'a Cluster, CommandFailure> {
    let name = of.reference();
    documents.clusters.get(&name).map(|cluster| &**cluster).ok_or_else(|| {
        let there = documents.clusters.keys().map(ToString::to_string).collect();
        missing_document_error("Cluster", &name.to_string(), &there)
    })
}

/// Returns a client of the cluster for its workers. It sends no request yet.
pub(super) fn connect(
    documents: &Documents,
    cluster: &Cluster,
    of: &ClusterArgument,
) -> Result<(Runtime, ClusterWorkers), CommandFailure> {
    let runtime = runtime()?;
    // The client spawns tasks, which need the runtime.
    let entered = runtime.enter();
    let workers = ClusterWorkers::of(documents, cluster).map_err(|error| failure(error, of))?;
    drop(entered);
    Ok((runtime, workers))
}

/// Returns the time after this span. A time out of range becomes the last possible one.
pub(super) fn after(now: Timestamp, span: Span) -> Timestamp {
    let span = i64::try_from(span.seconds()).map_or(SignedDuration::MAX, SignedDuration::from_secs);
    now.saturating_add(span).unwrap_or(Timestamp::MAX)
}

/// Converts an error. Errors of usage exit with 2, all others with 1.
pub(super) fn failure(error: WorkersError, cluster: &ClusterArgument) -> CommandFailure {
    let list = list_tokens(cluster);
    let cluster = cluster.reference();
    match error {
        WorkersError::NotMade => CommandFailure::usage(
            format!("cluster {cluster} has not been created yet"),
            "create it first: keelway reconcile",
        ),
        WorkersError::Fleet => CommandFailure::usage(
            format!("cluster {cluster} is a fleet, which has no workers"),
            "choose a cluster that is not a fleet; workload clusters join a fleet with fleet agents (docs/fleet.md)",
        ),
        WorkersError::NoIngress => CommandFailure::usage(
            format!("cluster {cluster} has no ingress for its users"),
            "set spec.ingress.replicas to at least 1, and run `keelway reconcile`",
        ),
        WorkersError::NoToken(_) => CommandFailure::usage(error.to_string(), list),
        WorkersError::NoWorker(_) => CommandFailure::usage(error.to_string(), "list the workers: kubectl get nodes"),
        WorkersError::NoKinds
        | WorkersError::Secret(_)
        | WorkersError::Authority(_)
        | WorkersError::Api { .. }
        | WorkersError::TimedOut { .. } => CommandFailure::other(error),
    }
}
