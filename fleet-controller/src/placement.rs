//! The loop over users' objects: policies and annotations become Placements and Works, and what clusters report becomes the status of objects.
//!
//! All documents are watched and kept in memory ([`model`]). For each object that a change may affect, in the order of [`queue`], [`plan`] decides what
//! to write, without IO, and [`execute`] writes it. Events about objects are written beside that ([`events`]). A settled fleet plans nothing.

mod census;
mod events;
mod execute;
mod listed;
mod model;
mod plan;
mod queue;
mod verify;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{
    StreamExt,
    future::join_all,
    stream::{self, BoxStream, SelectAll},
};
use k8s_openapi::jiff::Timestamp;
use keelway_base::error_chain::ErrorChain;
use keelway_fleet::{PlacedKind, PlacementLink, SchedulePolicy, Work, WorkloadCluster, WorkloadPlacement};
use kube::{
    Api, Resource,
    api::DynamicObject,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use self::{
    events::EventQueue,
    model::{FleetChange, FleetModel},
    plan::ObjectPlan,
};
use crate::{context::FleetContext, metrics::FleetMetrics};

pub use self::{
    census::{CensusState, FleetCensus},
    listed::{ListedChange, ListedObjects},
    queue::{PlanCause, PlanQueue, ROUND},
};

/// How many objects are planned together. What is observed meanwhile is read afterwards, so that it is not older than what was written.
const TOGETHER: usize = 64;
/// How many of them are written at once.
const AT_ONCE: usize = 16;
/// The pause before the objects whose writes failed are planned again.
const AGAIN: Duration = Duration::from_secs(2);
/// How often Placements and Works are counted for metrics.
const CENSUS: Duration = Duration::from_secs(10);

type FleetChanges = SelectAll<BoxStream<'static, watcher::Result<FleetChange>>>;

/// Keeps all objects placed.
pub(crate) async fn run(context: Arc<FleetContext>) {
    let (events, queued) = mpsc::channel(events::MOST);
    let events = EventQueue(events);
    tokio::join!(place(&context, &events), events::publish(queued, &context));
}

async fn place(context: &Arc<FleetContext>, events: &EventQueue) {
    let mut changes = watches(context);
    let mut model = FleetModel::new(PlacedKind::built_in());
    let mut watched = BTreeSet::new();
    let mut failed = BTreeSet::new();
    let mut retry_at: Option<Instant> = None;
    let reported = ReportedCensus(&context.metrics);
    let mut census = interval(CENSUS);
    census.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        model.set_time(time(), now());
        let due = model.next_due(now());
        let deadline = model.deadline().map(until);
        tokio::select! {
            biased;
            _ = census.tick() => reported.0.set_census(&model.census()),
            Some(change) = changes.next() => match change {
                Ok(change) => {
                    model.observe(change, now());
                    if model.take_emptied() {
                        // The removal of its cluster may wait for that.
                        context.usage.notify_one();
                    }
                }
                Err(error) => tracing::info!("a watch failed; retrying: {}", ErrorChain(&error)),
            },
            () = at(retry_at) => {
                retry_at = None;
                model.pend(std::mem::take(&mut failed), PlanCause::Decision, now());
            }
            () = at(deadline) => {}
            () = at(due.map(Instant::from_std)) => {
                let links = model.next(TOGETHER, now());
                failed.extend(settle(links, &mut model, context, events).await);
                if let Some((all, busy)) = model.take_usage() {
                    context.set_usage(&all, &busy);
                }
                if !failed.is_empty() && retry_at.is_none() {
                    retry_at = Some(Instant::now() + AGAIN);
                }
            }
        }
        for kind in model.custom_kinds() {
            if watched.insert(kind.clone()) {
                model.add_custom(kind.clone());
                changes.push(watch_objects(context, kind));
            }
        }
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Returns the time in whole seconds, as conditions have it.
fn time() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default()
}

/// Returns when it is this time by the clock. If the clock is set meanwhile, the next pass corrects that.
fn until(time: Timestamp) -> Instant {
    let left = time.duration_since(Timestamp::now());
    Instant::now() + Duration::try_from(left).unwrap_or_default()
}

/// Waits until then, or forever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The numbers of objects in the metrics. Once this replica does not lead any more, the next one reports them.
struct ReportedCensus<'a>(&'a FleetMetrics);

impl Drop for ReportedCensus<'_> {
    fn drop(&mut self) {
        self.0.set_census(&FleetCensus::default());
    }
}

/// Decides what to write for an object, and measures how long that takes.
fn planned(link: &PlacementLink, model: &FleetModel, metrics: &FleetMetrics) -> ObjectPlan {
    let began = Instant::now();
    let planned = plan::plan(link, model);
    metrics.observe_decision(began.elapsed());
    planned
}

/// Plans and writes these objects. Returns those that failed.
async fn settle(
    links: Vec<PlacementLink>,
    model: &mut FleetModel,
    context: &FleetContext,
    events: &EventQueue,
) -> Vec<PlacementLink> {
    let unknown: Vec<PlacementLink> = links.iter().filter(|link| model.is_unknown(link)).cloned().collect();
    let found = join_all(unknown.iter().map(|link| verify::read(link, model.reference(link), context))).await;
    for (link, state) in unknown.into_iter().zip(found) {
        model.verified(link, state);
    }
    let mut plans = Vec::new();
    for link in links {
        let plan = planned(&link, model, &context.metrics);
        // The next object must not be placed in the same room, nor move in the turn of this one.
        model.planned(&link, &plan);
        plans.push((plan, link));
    }
    let writes =
        plans.iter().map(|(plan, link)| async move { (link, execute::execute(link, plan, context, events).await) });
    let written: Vec<_> = stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
    let mut failed = Vec::new();
    for (link, (outcome, error)) in written {
        model.written(outcome, now());
        if let Some(error) = error {
            // It does not move.
            model.note_leaving(link, None);
            context.metrics.count_failure();
            tracing::warn!(
                placement = link.name,
                namespace = link.namespace,
                "cannot settle an object: {}",
                ErrorChain(&error)
            );
            failed.push(link.clone());
        }
    }
    failed
}

fn watches(context: &FleetContext) -> FleetChanges {
    let mut all = SelectAll::new();
    all.push(watch::<WorkloadCluster>(context, FleetChange::Cluster));
    all.push(watch::<SchedulePolicy>(context, FleetChange::Policy));
    all.push(watch::<WorkloadPlacement>(context, FleetChange::Placement));
    all.push(watch::<Work>(context, FleetChange::Work));
    for kind in PlacedKind::built_in() {
        all.push(watch_objects(context, kind));
    }
    all
}

fn watch<K>(
    context: &FleetContext,
    change: fn(Event<K>) -> FleetChange,
) -> BoxStream<'static, watcher::Result<FleetChange>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let events = watcher(Api::<K>::all(context.client.clone()), watcher::Config::default());
    // Nothing reads who wrote which field, and that is much of a small document.
    let events = events.modify(|object| object.meta_mut().managed_fields = None).default_backoff();
    events.map(move |event| event.map(change)).boxed()
}

fn watch_objects(context: &FleetContext, kind: PlacedKind) -> BoxStream<'static, watcher::Result<FleetChange>> {
    let api = Api::<DynamicObject>::all_with(context.client.clone(), &kind.resource());
    let events = watcher(api, watcher::Config::default()).modify(|object| object.metadata.managed_fields = None);
    events.default_backoff().map(move |event| event.map(|event| FleetChange::Object(kind.clone(), event))).boxed()
}
