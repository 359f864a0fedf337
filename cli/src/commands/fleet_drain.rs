//! `keelway fleet cordon`, `keelway fleet drain` and `keelway fleet uncordon`.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    time::Duration,
};

use clap::Args;
use futures::{StreamExt, stream::select};
use keelway_api::duration::Span;
use keelway_fleet::{
    ClusterDrain, Work, WorkloadCluster, WorkloadPlacement, WorkloadRef,
    names::{REASON_CANNOT_MOVE, REASON_NEEDED, works_namespace},
};
use kube::{
    Api, ResourceExt,
    api::{PartialObjectMeta, Patch, PatchParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    fleet_api::{FleetArgument, is_refused},
    fleet_cluster::find_cluster,
    note, print,
    session::runtime,
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    progress::ProgressLine,
};

#[derive(Args)]
pub(crate) struct FleetCordonArguments {
    /// The name of the workload cluster
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) fleet: FleetArgument,
}

#[derive(Args)]
pub(crate) struct FleetDrainArguments {
    /// The name of the workload cluster
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// How many objects with pods may move at a time
    #[arg(long, value_name = "NUMBER", default_value_t = ClusterDrain::default_moves(), value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_moves: u32,
    /// Wait until the objects have left the cluster
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    pub(crate) timeout: Span,
    #[command(flatten)]
    pub(crate) fleet: FleetArgument,
}

pub(super) fn cordon(arguments: &FleetCordonArguments) -> Result<Code, CommandFailure> {
    change(arguments, &json!({ "unschedulable": true }), "cordoned")
}

pub(super) fn uncordon(arguments: &FleetCordonArguments) -> Result<Code, CommandFailure> {
    change(arguments, &json!({ "unschedulable": null, "drain": null }), "uncordoned")
}

fn change(arguments: &FleetCordonArguments, spec: &Value, outcome: &str) -> Result<Code, CommandFailure> {
    runtime()?.block_on(async {
        let (client, _) = arguments.fleet.client().await?;
        order(&Api::all(client), &arguments.name, spec).await
    })?;
    print(&format!("cluster.fleet.keelway.dev/{} {outcome}\n", arguments.name))?;
    Ok(Code::Done)
}

/// Changes the specification of a cluster.
async fn order(clusters: &Api<WorkloadCluster>, name: &str, spec: &Value) -> Result<(), CommandFailure> {
    let cluster = find_cluster(clusters, name).await?;
    let body = json!({ "metadata": { "uid": cluster.uid() }, "spec": spec });
    let parameters = PatchParams { field_manager: Some("keelway".to_owned()), ..PatchParams::default() };
    clusters.patch(name, &parameters, &Patch::Merge(&body)).await.map_err(CommandFailure::other)?;
    Ok(())
}

pub(super) fn drain(global: &GlobalArguments, arguments: &FleetDrainArguments) -> Result<Code, CommandFailure> {
    let name = &arguments.name;
    runtime()?.block_on(async {
        let (client, _) = arguments.fleet.client().await?;
        let spec = json!({ "drain": { "maxMoves": arguments.max_moves } });
        order(&Api::all(client.clone()), name, &spec).await?;
        if !arguments.wait {
            print(&format!("cluster.fleet.keelway.dev/{name} is being drained\n"))?;
            return Ok(Code::Done);
        }
        let progress = ProgressLine::of_terminal(global.quiet);
        let patience = Duration::from_secs(arguments.timeout.seconds());
        let placements = Api::<WorkloadPlacement>::all(client.clone());
        let works = Api::<PartialObjectMeta<Work>>::namespaced(client, &works_namespace(name));
        let mut contents = DrainedContents::default();
        let drained = timeout(patience, contents.until_drained(name, placements, works, &progress)).await;
        drop(progress);
        match drained {
            Ok(Err(failure)) => return Err(failure),
            Ok(Ok(())) if contents.works.is_empty() => {
                print(&format!("cluster.fleet.keelway.dev/{name} drained\n"))?;
                return Ok(Code::Done);
            }
            Ok(Ok(())) | Err(_) => {}
        }
        print(&contents.stays())?;
        let has_ended = drained.is_ok();
        note(&contents.summary(name, has_ended));
        Ok(if has_ended { Code::Failed } else { Code::NotSettled })
    })
}

/// What is in a cluster that is being drained.
#[derive(Debug, Default)]
struct DrainedContents {
    /// The names of the Works in the cluster.
    works: BTreeSet<String>,
    /// The objects whose Placement names the cluster, by the namespace and the name of the Placement.
    placed: BTreeMap<(String, String), PlacedThere>,
    lists: usize,
}

/// An object whose Placement names the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PlacedThere {
    object: String,
    reason: String,
    message: String,
}

/// A change of a Work or a Placement.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
enum ContentChange {
    Work(Event<PartialObjectMeta<Work>>),
    Placement(Event<WorkloadPlacement>),
}

impl DrainedContents {
    /// Watches until nothing is in the cluster, or only objects that cannot leave it. A watch that fails is started again, unless it is refused.
    async fn until_drained(
        &mut self,
        cluster: &str,
        placements: Api<WorkloadPlacement>,
        works: Api<PartialObjectMeta<Work>>,
        progress: &ProgressLine,
    ) -> Result<(), CommandFailure> {
        let works = watcher(works, watcher::Config::default()).default_backoff();
        let placements = watcher(placements, watcher::Config::default()).default_backoff();
        let changes = select(
            works.map(|change| change.map(ContentChange::Work)),
            placements.map(|change| change.map(ContentChange::Placement)),
        );
        let mut changes = pin!(changes);
        while let Some(change) = changes.next().await {
            match change {
                Ok(change) => self.observe(change, cluster),
                Err(error) if is_refused(&error) => return Err(CommandFailure::other(error)),
                Err(_) => continue,
            }
            if self.is_drained() {
                break;
            }
            progress.show(&format!(
                "{cluster}: {} objects are left, {} of them stay",
                self.works.len(),
                self.stuck().count()
            ));
        }
        Ok(())
    }

    fn observe(&mut self, change: ContentChange, cluster: &str) {
        match change {
            ContentChange::Work(Event::Init) => self.works.clear(),
            ContentChange::Work(Event::InitApply(work) | Event::Apply(work)) => {
                self.works.insert(work.name_any());
            }
            ContentChange::Work(Event::Delete(work)) => {
                self.works.remove(&work.name_any());
            }
            ContentChange::Placement(Event::Init) => self.placed.clear(),
            ContentChange::Placement(Event::InitApply(placement) | Event::Apply(placement)) => {
                let key = key(&placement);
                match PlacedThere::read(&placement, cluster) {
                    Some(placed) => drop(self.placed.insert(key, placed)),
                    None => drop(self.placed.remove(&key)),
                }
            }
            ContentChange::Placement(Event::Delete(placement)) => drop(self.placed.remove(&key(&placement))),
            ContentChange::Work(Event::InitDone) | ContentChange::Placement(Event::InitDone) => self.lists += 1,
        }
    }

    /// Whether everything that can leave has left: no object is left, or each one cannot leave, or is needed by one that cannot.
    fn is_drained(&self) -> bool {
        let is_listed = self.lists >= 2;
        let waits = |placed: &PlacedThere| ![REASON_CANNOT_MOVE, REASON_NEEDED].contains(&placed.reason.as_str());
        let is_settled = self.works.len() <= self.placed.len() && !self.placed.values().any(waits);
        is_listed && (self.works.is_empty() && self.placed.is_empty() || is_settled && self.stuck().next().is_some())
    }

    fn stuck(&self) -> impl Iterator<Item = &PlacedThere> {
        self.placed.values().filter(|placed| placed.reason == REASON_CANNOT_MOVE)
    }

    /// Returns a line for each object that cannot leave.
    fn stays(&self) -> String {
        self.stuck().map(|placed| format!("{} stays: {}\n", placed.object, placed.message)).collect::<Vec<_>>().concat()
    }

    fn summary(&self, cluster: &str, has_ended: bool) -> String {
        let (left, stuck) = (self.works.len(), self.stuck().count());
        if has_ended {
            return format!(
                "{left} objects are left in {cluster}; {stuck} of them cannot leave it, and the others are needed there. The fleet moves them once that \
                 changes: keelway fleet explain"
            );
        }
        format!(
            "not drained before the timeout; {left} objects are left in {cluster}, {stuck} of them cannot leave it, and the fleet continues. The condition \
             Moving of a Placement states what its object waits for: kubectl get placements.fleet.keelway.dev --all-namespaces"
        )
    }
}

impl PlacedThere {
    /// Reads a Placement, or returns `None` if it does not name the cluster.
    fn read(placement: &WorkloadPlacement, cluster: &str) -> Option<Self> {
        let spec = &placement.spec;
        spec.clusters.iter().find(|placed| placed.name == cluster)?;
        let reason = spec.reasons.iter().find(|reason| reason.cluster == cluster).cloned().unwrap_or_default();
        Some(Self { object: text(&spec.object), reason: reason.reason, message: reason.message })
    }
}

fn key(placement: &WorkloadPlacement) -> (String, String) {
    (placement.namespace().unwrap_or_default(), placement.name_any())
}

/// Returns an object as kubectl names it.
fn text(object: &WorkloadRef) -> String {
    let kind = object.kind.to_lowercase();
    let group = if object.group.is_empty() { String::new() } else { format!(".{}", object.group) };
    let namespace = object.namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
    format!("{kind}{group}/{}{namespace}", object.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(name: &str, clusters: &[&str], reason: &str) -> WorkloadPlacement {
        let clusters: Vec<Value> = clusters.iter().map(|name| json!({ "name": name })).collect();
        serde_json::from_value(json!({
            "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Placement",
            "metadata": { "name": format!("deployment.apps.{name}"), "namespace": "shop" },
            "spec": {
                "object": { "group": "apps", "version": "v1", "kind": "Deployment", "namespace": "shop", "name": name },
                "clusters": clusters,
                "reasons": [{ "cluster": "west", "reason": reason, "message": "why" }],
            },
        }))
        .unwrap_or_else(|error| panic!("{error}"))
    }

    fn work(name: &str) -> PartialObjectMeta<Work> {
        serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap_or_else(|error| panic!("{error}"))
    }

    fn contents(changes: Vec<ContentChange>) -> DrainedContents {
        let mut contents = DrainedContents::default();
        let done = [ContentChange::Work(Event::InitDone), ContentChange::Placement(Event::InitDone)];
        changes.into_iter().chain(done).for_each(|change| contents.observe(change, "west"));
        contents
    }

    fn both(mut changes: Vec<ContentChange>, more: ContentChange) -> Vec<ContentChange> {
        changes.push(more);
        changes
    }

    #[test]
    fn a_drain_ends_when_nothing_that_can_leave_is_left() {
        let works =
            |names: &[&str]| names.iter().map(|name| ContentChange::Work(Event::Apply(work(name)))).collect::<Vec<_>>();
        let placed =
            |name, clusters: &[&str], reason| ContentChange::Placement(Event::Apply(placement(name, clusters, reason)));
        assert!(contents(vec![]).is_drained());
        assert!(!DrainedContents::default().is_drained(), "nothing is listed yet");
        // It waits for its turn.
        assert!(!contents(both(works(&["web"]), placed("web", &["west"], "Chosen"))).is_drained());
        // It is moving.
        assert!(!contents(both(works(&["web"]), placed("web", &["east"], "Draining"))).is_drained());
        assert!(contents(vec![placed("web", &["east"], "Draining")]).is_drained());
        // It cannot leave, and another one is needed by it.
        let config = placed("config", &["east", "west"], "Needed");
        let stuck = both(both(works(&["web", "config"]), placed("web", &["west"], "CannotMove")), config);
        let stuck = contents(stuck);
        assert!(stuck.is_drained());
        assert_eq!(stuck.stays(), "deployment.apps/web in shop stays: why\n");
        // What is needed leaves after what needed it.
        assert!(!contents(both(works(&["config"]), placed("config", &["east", "west"], "Needed"))).is_drained());
    }
}
