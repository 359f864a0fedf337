//! What the fleet learns about this cluster: the release of Kubernetes, and what its nodes have room for.

use std::{collections::BTreeMap, fmt::Debug, pin::pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use keelway_fleet::{CapacityReport, ResourceQuantities, WorkloadCluster, names::AGENT_FIELD_MANAGER};
use kube::{
    Api, Client, Error, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::watcher::{self, Event, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    AgentDuties,
    node_cache::{CachedNode, CachedPod, NodeCache, PodKey, pod_key},
    report_pace::{NextReport, SentReport, next_report},
    workload_api::WorkloadApi,
};

/// How many objects a page of a list has.
const PAGE: u32 = 100;
/// How long changes are collected before the capacity is computed again.
const COLLECT: Duration = Duration::from_secs(1);
/// The pause before objects are listed again.
const WATCH_AGAIN: Duration = Duration::from_secs(1);
/// The pause before a report that the fleet refused is sent again.
const AGAIN: Duration = Duration::from_secs(5);
/// The pods that count. The API server reports one that ends as deleted.
const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// What is reported of this cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ClusterInventory {
    pub(crate) version: String,
    pub(crate) allocatable: ResourceQuantities,
    pub(crate) capacity: CapacityReport,
    /// Whether the nodes and pods are watched at this moment. Otherwise what is known may be old.
    pub(crate) is_watched: bool,
}

/// Watches the nodes and pods of this cluster, until the process ends.
pub(crate) async fn observe(api: Arc<WorkloadApi>, inventory: watch::Sender<Option<ClusterInventory>>) {
    let nodes: Api<Node> = Api::all(api.client().clone());
    let pods: Api<Pod> = Api::all(api.client().clone());
    let config = watcher::Config::default().page_size(PAGE);
    let watched_nodes = |pause| watched(nodes.clone(), config.clone(), pause);
    let watched_pods = |pause| watched(pods.clone(), config.clone().fields(RUNNING), pause);
    let mut nodes = pin!(watched_nodes(Duration::ZERO));
    let mut pods = pin!(watched_pods(Duration::ZERO));
    let mut observed = ObservedNodes::default();
    let mut version = String::new();
    let mut due: Option<Instant> = None;
    loop {
        let compute = async move {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        select! {
            Some(change) = nodes.next() => {
                if change.is_err() {
                    nodes.set(watched_nodes(WATCH_AGAIN));
                }
                observed.node(change);
            }
            Some(change) = pods.next() => {
                if change.is_err() {
                    pods.set(watched_pods(WATCH_AGAIN));
                }
                observed.pod(change);
            }
            () = compute => {
                due = None;
                if observed.is_relisted() || version.is_empty() {
                    // An upgrade of the API server ends its watches.
                    if let Ok(found) = api.client().apiserver_version().await {
                        found.git_version.trim_start_matches('v').clone_into(&mut version);
                    }
                }
                publish(observed.inventory(&version), &inventory);
                continue;
            }
        }
        if observed.is_whole() && due.is_none() {
            // The first report does not wait for more.
            let pause = if version.is_empty() { Duration::ZERO } else { COLLECT };
            due = Some(Instant::now() + pause);
        }
    }
}

/// Lists and watches objects after a pause. After an error, begin anew: a watch that only continues does not say when.
fn watched<K>(api: Api<K>, config: watcher::Config, pause: Duration) -> impl Stream<Item = watcher::Result<Event<K>>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    stream::once(sleep(pause)).flat_map(move |()| watcher(api.clone(), config.clone()))
}

fn publish(current: ClusterInventory, inventory: &watch::Sender<Option<ClusterInventory>>) {
    inventory.send_if_modified(|last| {
        let is_new = last.as_ref() != Some(&current);
        if is_new {
            *last = Some(current);
        }
        is_new
    });
}

/// Nodes and pods, and how far they are known.
#[derive(Debug, Default)]
struct ObservedNodes {
    cache: NodeCache,
    nodes: WatchedList<String, CachedNode>,
    pods: WatchedList<PodKey, CachedPod>,
    is_relisted: bool,
}

/// The state of one watch.
#[derive(Debug)]
struct WatchedList<K, T> {
    /// The objects of the current list so far.
    listed: BTreeMap<K, T>,
    is_whole: bool,
    is_broken: bool,
}

impl<K, T> Default for WatchedList<K, T> {
    fn default() -> Self {
        Self { listed: BTreeMap::new(), is_whole: false, is_broken: false }
    }
}

impl<K: Ord, T> WatchedList<K, T> {
    /// Notes an event. `read` returns nothing for an object that does not count.
    fn observe<E>(
        &mut self,
        event: watcher::Result<Event<E>>,
        items: &mut BTreeMap<K, T>,
        key: fn(&E) -> K,
        read: impl Fn(&E) -> Option<T>,
    ) {
        match &event {
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => self.is_broken = false,
            // While objects are listed again, what is known is old.
            Ok(Event::Init) | Err(_) => self.is_broken = true,
            Ok(Event::InitApply(_)) => {}
        }
        match event {
            Ok(Event::Init) => self.listed.clear(),
            Ok(Event::InitApply(object)) => self.listed.extend(read(&object).map(|item| (key(&object), item))),
            Ok(Event::InitDone) => {
                *items = std::mem::take(&mut self.listed);
                self.is_whole = true;
            }
            Ok(Event::Apply(object)) => match read(&object) {
                Some(item) => drop(items.insert(key(&object), item)),
                None => drop(items.remove(&key(&object))),
            },
            Ok(Event::Delete(object)) => drop(items.remove(&key(&object))),
            Err(error) => tracing::warn!(%error, "cannot watch the nodes and pods of this cluster"),
        }
    }
}

impl ObservedNodes {
    fn node(&mut self, change: watcher::Result<Event<Node>>) {
        self.is_relisted |= matches!(change, Ok(Event::InitDone));
        self.nodes.observe(change, &mut self.cache.nodes, ResourceExt::name_any, |node| Some(CachedNode::read(node)));
    }

    fn pod(&mut self, change: watcher::Result<Event<Pod>>) {
        self.pods.observe(change, &mut self.cache.pods, pod_key, CachedPod::read);
    }

    fn is_whole(&self) -> bool {
        self.nodes.is_whole && self.pods.is_whole
    }

    /// Whether the nodes were listed since the last call.
    fn is_relisted(&mut self) -> bool {
        std::mem::take(&mut self.is_relisted)
    }

    fn inventory(&self, version: &str) -> ClusterInventory {
        ClusterInventory {
            version: version.to_owned(),
            allocatable: self.cache.allocatable(),
            capacity: self.cache.capacity(),
            is_watched: !self.nodes.is_broken && !self.pods.is_broken,
        }
    }
}

/// Sends the inventory, and each change of it, until that fails. `statuses` is when the status of an object was sent last.
pub(crate) async fn send(
    client: &Client,
    cluster: (&str, AgentDuties),
    mut inventory: watch::Receiver<Option<ClusterInventory>>,
    mut statuses: watch::Receiver<Option<Timestamp>>,
) -> Error {
    let api: Api<WorkloadCluster> = Api::all(client.clone());
    let mut last: Option<(ClusterInventory, SentReport)> = None;
    loop {
        let now = Timestamp::now();
        let current = inventory.borrow_and_update().clone().filter(|current| current.is_watched);
        let status = *statuses.borrow_and_update();
        let next = current.as_ref().map_or(NextReport::OnChange, |current| {
            let has_changed = last.as_ref().is_none_or(|(sent, _)| sent != current);
            next_report(last.as_ref().map(|(_, sent)| *sent), has_changed, status, now)
        });
        match (next, current) {
            (NextReport::Now { counts_until }, Some(current)) => {
                match send_once(&api, cluster, &current, counts_until).await {
                    Ok(()) => last = Some((current, SentReport { at: now, counts_until })),
                    // The fleet controller has not created the Cluster yet, or a person deleted it.
                    Err(Error::Api(status)) if matches!(status.code, 403 | 404 | 422) => {
                        tracing::warn!(error = %status, "cannot report the status of this cluster");
                        sleep(AGAIN).await;
                    }
                    Err(error) => return error,
                }
            }
            (NextReport::Later(rest), _) => select! {
                () = sleep(rest) => {}
                () = any_change(&mut inventory, &mut statuses) => {}
            },
            (NextReport::OnChange | NextReport::Now { .. }, _) => any_change(&mut inventory, &mut statuses).await,
        }
    }
}

/// Waits until one of both changes. Once there is no sender, nothing changes any more.
async fn any_change<A, B>(a: &mut watch::Receiver<A>, b: &mut watch::Receiver<B>) {
    let (a, b) = (a.changed(), b.changed());
    let is_sent = select! {
        changed = a => changed.is_ok(),
        changed = b => changed.is_ok(),
    };
    if !is_sent {
        std::future::pending::<()>().await;
    }
}

async fn send_once(
    api: &Api<WorkloadCluster>,
    (cluster, duties): (&str, AgentDuties),
    inventory: &ClusterInventory,
    counts_until: Timestamp,
) -> Result<(), Error> {
    let capacity = CapacityReport { observed_time: Some(MicroTime(counts_until)), ..inventory.capacity.clone() };
    let body = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": { "name": cluster },
        "status": {
            "kubernetesVersion": inventory.version,
            "agentVersion": env!("CARGO_PKG_VERSION"),
            "orchestrationEnabled": duties.orchestrates,
            "reschedulingEnabled": duties.reschedules,
            "allocatable": inventory.allocatable,
            "capacity": capacity,
        },
    });
    api.patch_status(cluster, &PatchParams::apply(AGENT_FIELD_MANAGER).force(), &Patch::Apply(&body)).await?;
    Ok(())
}
