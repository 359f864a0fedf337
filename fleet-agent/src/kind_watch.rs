//! Watches of what the agent applied: one for each kind in use, of the objects with the agent's label. If another orchestrator submits objects, those
//! with its label. Nothing is cached.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use keelway_fleet::names::{AGENT_FIELD_MANAGER, SCHEDULE_LABEL, SCHEDULE_TRUE};
use kube::{
    Api,
    api::DynamicObject,
    runtime::{
        WatchStreamExt,
        utils::Backoff,
        watcher::{self, Event, watcher},
    },
};
use tokio::{sync::mpsc::Sender, task::JoinHandle, time::sleep};

use crate::{
    manifest::{AppliedName, MANAGED_LABEL},
    workload_api::WorkloadApi,
};

/// How many objects a page of a list has.
const PAGE: u32 = 50;
/// The pause before a failed watch is started again.
const AGAIN: Duration = Duration::from_secs(1);

/// A constant pause. The number of watches of an agent is small.
pub(crate) struct SteadyPause;

impl Iterator for SteadyPause {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(AGAIN)
    }
}

impl Backoff for SteadyPause {
    fn reset(&mut self) {}
}

/// What the cluster has.
pub(crate) enum KindEvent {
    /// An object exists.
    Seen(AppliedName, Box<DynamicObject>),
    /// An object does not exist any more, or has lost the label.
    Gone(AppliedName),
    /// These are all objects of a kind, which an object without a name stands for.
    Listed(AppliedName, BTreeSet<AppliedName>),
}

/// The running watches.
pub(crate) struct KindWatches {
    api: Arc<WorkloadApi>,
    events: Sender<KindEvent>,
    /// The labels of the objects that matter.
    selector: String,
    running: BTreeMap<AppliedName, JoinHandle<()>>,
}

impl KindWatches {
    /// Watches nothing yet. `orchestrates`: the agent applies the objects.
    pub(crate) fn new(api: Arc<WorkloadApi>, events: Sender<KindEvent>, orchestrates: bool) -> Self {
        let (label, value) =
            if orchestrates { (MANAGED_LABEL, AGENT_FIELD_MANAGER) } else { (SCHEDULE_LABEL, SCHEDULE_TRUE) };
        Self { api, events, selector: format!("{label}={value}"), running: BTreeMap::new() }
    }

    /// Watches the kind of an object from now on.
    pub(crate) fn start(&mut self, object: &AppliedName) {
        let kind = kind_of(object);
        let (api, events, selector) = (Arc::clone(&self.api), self.events.clone(), self.selector.clone());
        self.running.entry(kind.clone()).or_insert_with(|| tokio::spawn(run(api, kind, events, selector)));
    }

    /// Ends the watch of a kind that is no longer in use.
    pub(crate) fn stop(&mut self, object: &AppliedName) {
        if let Some(watch) = self.running.remove(&kind_of(object)) {
            watch.abort();
        }
    }
}

impl Drop for KindWatches {
    fn drop(&mut self) {
        self.running.values().for_each(JoinHandle::abort);
    }
}

/// Returns the kind of an object as the name of no object.
pub(crate) fn kind_of(object: &AppliedName) -> AppliedName {
    AppliedName { namespace: None, name: String::new(), ..object.clone() }
}

async fn run(api: Arc<WorkloadApi>, kind: AppliedName, events: Sender<KindEvent>, selector: String) {
    let served = loop {
        match api.kind(&kind).await {
            Ok(served) => break served,
            Err(error) => {
                tracing::debug!(%error, kind = kind.kind, "cannot watch a kind yet");
                sleep(AGAIN).await;
            }
        }
    };
    let objects: Api<DynamicObject> = Api::all_with(api.client().clone(), &served.resource);
    let config = watcher::Config::default().labels(&selector).page_size(PAGE);
    let mut changes = pin!(watcher(objects, config).backoff(SteadyPause));
    let mut listed = BTreeSet::new();
    while let Some(change) = changes.next().await {
        let event = match change {
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                let name = name_of(&kind, &object);
                listed.insert(name.clone());
                KindEvent::Seen(name, Box::new(object))
            }
            Ok(Event::InitDone) => KindEvent::Listed(kind.clone(), std::mem::take(&mut listed)),
            Ok(Event::Apply(object)) => KindEvent::Seen(name_of(&kind, &object), Box::new(object)),
            Ok(Event::Delete(object)) => KindEvent::Gone(name_of(&kind, &object)),
            Err(error) => {
                tracing::debug!(%error, kind = kind.kind, "cannot watch a kind");
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

fn name_of(kind: &AppliedName, object: &DynamicObject) -> AppliedName {
    let metadata = &object.metadata;
    AppliedName {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone().unwrap_or_default(),
        ..kind.clone()
    }
}
