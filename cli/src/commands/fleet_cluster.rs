//! `keelway fleet cluster`.

use std::{
    collections::BTreeSet,
    io::{BufRead, IsTerminal, Write},
    pin::pin,
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};
use futures::{Stream, StreamExt, future::ready};
use keelway_api::{condition, duration::Span};
use keelway_fleet::{
    CLUSTER_READY, Work, WorkloadCluster,
    names::{WORKLOADS_ANNOTATION, WORKLOADS_DELETE, WORKLOADS_KEEP, works_namespace},
};
use kube::{
    Api, Error, ResourceExt,
    api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, Preconditions},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watch_object, watcher},
    },
};
use serde_json::json;
use tokio::{select, time::timeout};

use super::{
    fleet_api::{FleetArgument, is_refused},
    note, print,
    session::runtime,
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    progress::ProgressLine,
};

/// `keelway fleet cluster`.
#[derive(Subcommand)]
pub(crate) enum FleetClusterCommand {
    /// Remove a workload cluster from its fleet
    #[command(
        after_help = "Example:\n  keelway fleet cluster remove west --workloads keep --kubeconfig f1.kubeconfig\n  keelway fleet cluster remove west --workloads delete --timeout 10m --kubeconfig f1.kubeconfig"
    )]
    Remove(RemoveFleetClusterArguments),
}

#[derive(Args)]
pub(crate) struct RemoveFleetClusterArguments {
    /// The name of the workload cluster
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// What happens with the objects that the fleet placed there [default: ask, if there is a terminal]
    #[arg(long, value_enum)]
    pub(crate) workloads: Option<RemovedWorkloads>,
    /// Wait until the cluster is removed
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(crate) timeout: Span,
    #[command(flatten)]
    pub(crate) fleet: FleetArgument,
}

/// What happens with the objects in a removed cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RemovedWorkloads {
    /// They stay there and go on
    Keep,
    /// The agent deletes them first
    Delete,
}

impl RemovedWorkloads {
    /// Returns the value of the annotation of the Cluster.
    fn order(self) -> &'static str {
        match self {
            Self::Keep => WORKLOADS_KEEP,
            Self::Delete => WORKLOADS_DELETE,
        }
    }
}

pub(super) fn run(global: &GlobalArguments, command: &FleetClusterCommand) -> Result<Code, CommandFailure> {
    let FleetClusterCommand::Remove(arguments) = command;
    runtime()?.block_on(async {
        let (client, _) = arguments.fleet.client().await?;
        let membership = FleetMembership {
            clusters: Api::all(client.clone()),
            works: Api::namespaced(client, &works_namespace(&arguments.name)),
            name: &arguments.name,
        };
        remove(global, arguments, &membership).await
    })
}

async fn remove(
    global: &GlobalArguments,
    arguments: &RemoveFleetClusterArguments,
    membership: &FleetMembership<'_>,
) -> Result<Code, CommandFailure> {
    let cluster = find_cluster(&membership.clusters, membership.name).await?;
    let workloads = match arguments.workloads {
        Some(workloads) => workloads,
        None => ask(membership.name, membership.left().await?)?,
    };
    membership.order_removal(&cluster, workloads).await?;
    let object = format!("cluster.fleet.keelway.dev/{}", membership.name);
    if !arguments.wait {
        print(&format!("{object} is being removed\n"))?;
        return Ok(Code::Done);
    }
    if workloads == RemovedWorkloads::Delete && !is_ready(&cluster) {
        note(&format!(
            "the agent of {} does not report, and the removal waits for it; to leave the objects there, run the command again with \
             --workloads keep",
            membership.name
        ));
    }
    let progress = ProgressLine::of_terminal(global.quiet);
    let patience = Duration::from_secs(arguments.timeout.seconds());
    if let Ok(gone) = timeout(patience, membership.until_gone(&cluster, &progress)).await {
        gone?;
        print(&format!("{object} removed\n"))?;
        return Ok(Code::Done);
    }
    drop(progress);
    let left = membership.left().await?;
    note(&format!(
        "not removed before the timeout; {left} objects are left, and the fleet-controller continues: keelway fleet status"
    ));
    Ok(Code::NotSettled)
}

/// Returns a workload cluster. If it does not exist, the error names the existing ones.
pub(super) async fn find_cluster(
    clusters: &Api<WorkloadCluster>,
    name: &str,
) -> Result<WorkloadCluster, CommandFailure> {
    if let Some(found) = clusters.get_opt(name).await.map_err(CommandFailure::other)? {
        return Ok(found);
    }
    let known = match clusters.list(&ListParams::default()).await {
        Ok(known) => known.items,
        Err(Error::Api(status)) if status.code == 404 => {
            let help = "use the kubeconfig of a fleet, and check it: keelway fleet status";
            return Err(CommandFailure::usage(
                "this API server has no workload clusters: it is not that of a fleet",
                help,
            ));
        }
        Err(error) => return Err(CommandFailure::other(error)),
    };
    let names: Vec<String> = known.iter().map(ResourceExt::name_any).collect();
    let help = match names.as_slice() {
        [] => "the fleet has no workload cluster".to_owned(),
        names => format!("its workload clusters are {}", names.join(", ")),
    };
    Err(CommandFailure::usage(format!("the fleet has no workload cluster {name:?}"), help))
}

/// A workload cluster in its fleet.
struct FleetMembership<'a> {
    clusters: Api<WorkloadCluster>,
    works: Api<PartialObjectMeta<Work>>,
    name: &'a str,
}

impl FleetMembership<'_> {
    /// Orders the removal. If it was ordered before, this changes what happens with the objects.
    async fn order_removal(
        &self,
        cluster: &WorkloadCluster,
        workloads: RemovedWorkloads,
    ) -> Result<(), CommandFailure> {
        let order =
            json!({ "metadata": { "uid": cluster.uid(), "annotations": { WORKLOADS_ANNOTATION: workloads.order() } } });
        let parameters = PatchParams { field_manager: Some("keelway".to_owned()), ..PatchParams::default() };
        self.clusters.patch(self.name, &parameters, &Patch::Merge(&order)).await.map_err(CommandFailure::other)?;
        let only = Preconditions { uid: cluster.uid(), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        self.clusters.delete(self.name, &parameters).await.map_err(CommandFailure::other)?;
        Ok(())
    }

    /// The number of objects that the fleet placed in the cluster.
    async fn left(&self) -> Result<usize, CommandFailure> {
        let works = self.works.list(&ListParams::default()).await.map_err(CommandFailure::other)?;
        Ok(works.items.len())
    }

    /// Watches until the Cluster is gone, and shows how many objects are left. A watch that fails is started again, unless it is refused.
    async fn until_gone(&self, cluster: &WorkloadCluster, progress: &ProgressLine) -> Result<(), CommandFailure> {
        let changes = watch_object(self.clusters.clone(), self.name).default_backoff();
        let mut gone = pin!(changes.filter_map(|seen| ready(outcome(seen, cluster))));
        let mut left = pin!(left(watcher(self.works.clone(), watcher::Config::default())));
        loop {
            select! {
                Some(gone) = gone.next() => return gone,
                Some(number) = left.next() => progress.show(&format!("{}: {number} objects are left", self.name)),
            }
        }
    }
}

/// Returns that the Cluster is gone, or that the user may not watch it.
fn outcome(
    seen: watcher::Result<Option<WorkloadCluster>>,
    cluster: &WorkloadCluster,
) -> Option<Result<(), CommandFailure>> {
    match seen {
        Ok(seen) => seen.is_none_or(|seen| seen.uid() != cluster.uid()).then_some(Ok(())),
        Err(error) if is_refused(&error) => Some(Err(CommandFailure::other(error))),
        Err(_) => None,
    }
}

/// Returns the number of objects after each change.
fn left(
    changes: impl Stream<Item = watcher::Result<Event<PartialObjectMeta<Work>>>> + Send,
) -> impl Stream<Item = usize> {
    let changes = changes.default_backoff().filter_map(|change| ready(change.ok()));
    changes.scan(BTreeSet::new(), |names, change| {
        match change {
            Event::Init => names.clear(),
            Event::InitApply(work) | Event::Apply(work) => drop(names.insert(work.name_any())),
            Event::Delete(work) => drop(names.remove(&work.name_any())),
            Event::InitDone => {}
        }
        ready(Some(names.len()))
    })
}

fn is_ready(cluster: &WorkloadCluster) -> bool {
    cluster.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, CLUSTER_READY))
}

/// Asks what happens with the objects. Without a terminal, the arguments have to state it.
fn ask(name: &str, objects: usize) -> Result<RemovedWorkloads, CommandFailure> {
    let refused = || {
        CommandFailure::usage(
            format!(
                "--workloads is missing: it states what happens with the {objects} objects that the fleet placed in {name}"
            ),
            "use --workloads keep to leave them there, or --workloads delete to delete them",
        )
    };
    let stdin = std::io::stdin();
    if !stdin.is_terminal() || !std::io::stderr().is_terminal() {
        return Err(refused());
    }
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "The fleet placed {objects} objects in {name}. Keep or delete them? [keep/delete] ");
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(CommandFailure::other)?;
    RemovedWorkloads::from_str(answer.trim(), true).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: u16) -> watcher::Error {
        let status = kube::core::Status { code, ..kube::core::Status::default() };
        watcher::Error::WatchStartFailed(Error::Api(Box::new(status)))
    }

    #[test]
    fn the_removal_ends_if_the_user_may_not_watch_it() {
        let named = |uid: &str| {
            let mut cluster = WorkloadCluster::new("west", keelway_fleet::WorkloadClusterSpec::default());
            cluster.metadata.uid = Some(uid.to_owned());
            cluster
        };
        let cluster = named("1");
        assert!(matches!(outcome(Err(failed(403)), &cluster), Some(Err(_))));
        assert!(outcome(Err(failed(500)), &cluster).is_none());
        assert!(outcome(Ok(Some(named("1"))), &cluster).is_none());
        assert!(matches!(outcome(Ok(Some(named("2"))), &cluster), Some(Ok(()))));
        assert!(matches!(outcome(Ok(None), &cluster), Some(Ok(()))));
    }
}
