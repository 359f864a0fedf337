//! The part of the agent that carries out Works in its cluster, also while the fleet is unreachable.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Instant,
};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use keelway_base::error_chain::chain_text;
use keelway_fleet::names::{REASON_NOT_SUBMITTED, REASON_TRACKED};
use kube::api::DynamicObject;
use serde_json::Value;
use tokio::{select, sync::mpsc::Receiver, time::sleep_until};

use crate::{
    decision::{AppliedRecord, OrderedObject, ReleaseReason},
    kind_watch::{KindEvent, KindWatches, kind_of},
    manifest::{AppliedName, ApplyRank},
    metrics::{AgentMetrics, WorkState},
    ownership::{FieldConflict, FieldPaths},
    reconcile::{WorkOutcome, reconcile},
    record_store::{RecordStore, RecordStoreError, StoredWork},
    reports::{AppliedReport, ObjectReport, PendingReports},
    tracking::{is_tracked, not_submitted, track, waits},
    work_queue::WorkQueue,
    workload_api::{WorkloadApi, facts},
    works::{FleetEvent, ReceivedWork},
};

/// How many Works are carried out at once.
const CONCURRENT: usize = 16;

/// What identifies the last apply of an object: a change of the agent's fields or another object is drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AppliedMark(u64);

impl AppliedMark {
    fn new(uid: &str, owned: &FieldPaths) -> Self {
        let mut hasher = DefaultHasher::new();
        (uid, owned).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A Work. Its manifest is here only until it is applied.
struct KnownWork {
    order: OrderedObject,
    manifest: Option<Value>,
    mark: Option<AppliedMark>,
    /// What a watch saw last.
    seen: Option<AppliedMark>,
    applied: Option<AppliedReport>,
    object_digest: Option<u64>,
    /// Whether the fleet sent the Work to this process, so that it is known what was reported.
    is_received: bool,
    /// A status that was observed before that.
    held: Option<ObjectReport>,
    /// The state in which the Work is counted.
    counted: Option<WorkState>,
}

impl KnownWork {
    fn new(order: OrderedObject) -> Self {
        Self {
            order,
            manifest: None,
            mark: None,
            seen: None,
            applied: None,
            object_digest: None,
            is_received: false,
            held: None,
            counted: None,
        }
    }

    /// What was applied before a restart is applied until the agent or the fleet reports otherwise.
    fn state(&self) -> WorkState {
        match &self.applied {
            Some(report) if report.is_applied => WorkState::Applied,
            Some(report) if waits(report) => WorkState::Pending,
            Some(_) => WorkState::Failed,
            None if self.mark.is_some() => WorkState::Applied,
            None => WorkState::Pending,
        }
    }
}

type RunningWork = BoxFuture<'static, (OrderedObject, Value, WorkOutcome)>;

/// The Works of this cluster.
pub(crate) struct WorkEngine {
    api: Arc<WorkloadApi>,
    store: RecordStore,
    reports: Arc<PendingReports>,
    watches: KindWatches,
    works: BTreeMap<String, KnownWork>,
    objects: BTreeMap<AppliedName, String>,
    queue: WorkQueue,
    running: FuturesUnordered<RunningWork>,
    metrics: AgentMetrics,
    /// Whether the agent applies objects. Otherwise another orchestrator submits them.
    orchestrates: bool,
}

impl WorkEngine {
    /// Starts with what was applied last. An agent that applies nothing starts with nothing.
    pub(crate) fn load(
        api: Arc<WorkloadApi>,
        store: RecordStore,
        (reports, metrics): (Arc<PendingReports>, AgentMetrics),
        watches: KindWatches,
        orchestrates: bool,
    ) -> Result<Self, RecordStoreError> {
        let (mut works, mut objects) = (BTreeMap::new(), BTreeMap::new());
        store.load(|order, record| {
            if !orchestrates {
                return;
            }
            objects.insert(order.object.clone(), order.work.clone());
            let mark = Some(AppliedMark::new(&record.object_uid, &record.owned));
            let known = KnownWork { mark, counted: Some(WorkState::Applied), ..KnownWork::new(order) };
            metrics.count_work(None, known.counted);
            works.insert(known.order.work.clone(), known);
        })?;
        let (queue, running) = (WorkQueue::default(), FuturesUnordered::new());
        let mut engine = Self { api, store, reports, watches, works, objects, queue, running, metrics, orchestrates };
        for known in engine.works.values() {
            engine.watches.start(&known.order.object);
        }
        Ok(engine)
    }

    /// Carries out Works until the senders of events are gone.
    pub(crate) async fn run(mut self, mut fleet: Receiver<FleetEvent>, mut cluster: Receiver<KindEvent>) {
        loop {
            while self.queue.running() < CONCURRENT
                && let Some(work) = self.queue.start(Instant::now())
            {
                self.start(&work);
            }
            self.metrics.set_queue(self.queue.depth());
            let retry = self.queue.next_retry();
            select! {
                event = fleet.recv() => match event {
                    Some(event) => self.on_fleet(event),
                    None => return,
                },
                event = cluster.recv() => match event {
                    Some(event) => self.on_cluster(event),
                    None => return,
                },
                Some((order, manifest, outcome)) = self.running.next() => self.finish(&order, manifest, outcome),
                () = sleep_until(retry.unwrap_or_else(Instant::now).into()), if retry.is_some() => {}
            }
        }
    }

    fn on_fleet(&mut self, event: FleetEvent) {
        match event {
            FleetEvent::Received(received) => self.receive(*received),
            FleetEvent::Gone(work) => self.forget(&work),
            FleetEvent::Withdrawn { work, uid } => self.withdraw(&work, &uid),
            FleetEvent::Listed(listed) => {
                let gone: Vec<String> = self.works.keys().filter(|work| !listed.contains(*work)).cloned().collect();
                for work in &gone {
                    self.forget(work);
                }
            }
            FleetEvent::Refused { work, generation, message, applied } => {
                let last = applied.as_ref().filter(|last| !last.is_applied);
                let since = last.map_or_else(Timestamp::now, |last| last.since);
                let (reason, drift) = ("InvalidManifest".to_owned(), vec![]);
                let report = AppliedReport { generation, is_applied: false, reason, message, drift, since };
                if applied.as_ref() != Some(&report) {
                    self.reports.applied(&work, report);
                }
            }
        }
    }

    fn receive(&mut self, received: ReceivedWork) {
        let ReceivedWork { order, manifest, applied, object_digest } = received;
        let (work, rank) = (order.work.clone(), order.object.rank());
        let manifest = self.orchestrates.then_some(manifest);
        if let Some(known) = self.works.get_mut(&work) {
            let is_same = (&known.order.uid, known.order.generation, known.order.is_deletion)
                == (&order.uid, order.generation, order.is_deletion);
            known.applied = known.applied.take().or(applied);
            if let Some(held) = known.held.take().filter(|held| object_digest != Some(held.digest())) {
                self.reports.object(&work, held);
            }
            known.object_digest = known.object_digest.or(object_digest);
            known.is_received = true;
            if is_same {
                return self.count(&work);
            }
            if known.order.uid != order.uid {
                known.mark = None;
            }
            known.order = order;
            known.manifest = manifest;
        } else {
            self.objects.insert(order.object.clone(), work.clone());
            let known = KnownWork { manifest, applied, object_digest, is_received: true, ..KnownWork::new(order) };
            self.works.insert(work.clone(), known);
        }
        self.count(&work);
        self.queue.add(&work, rank);
    }

    /// Counts a Work in its state.
    fn count(&mut self, work: &str) {
        let Some(known) = self.works.get_mut(work) else { return };
        let state = Some(known.state());
        let before = std::mem::replace(&mut known.counted, state);
        if before != state {
            self.metrics.count_work(before, state);
        }
    }

    fn withdraw(&mut self, work: &str, uid: &str) {
        match self.works.get_mut(work).filter(|known| known.order.uid == uid) {
            Some(known) => {
                known.order.is_deletion = true;
                self.queue.add(work, known.order.object.rank());
            }
            None => self.reports.release(work, uid),
        }
    }

    /// Stops managing a Work. Its object stays as it is: only a Work with a deletion timestamp deletes.
    fn forget(&mut self, work: &str) {
        let Some(known) = self.works.remove(work) else { return };
        self.metrics.count_work(known.counted, None);
        let object = known.order.object;
        self.queue.remove(work);
        self.store.remove(work);
        self.objects.remove(&object);
        let kind = kind_of(&object);
        if !self.works.values().any(|other| kind_of(&other.order.object) == kind) {
            self.watches.stop(&object);
        }
    }

    fn on_cluster(&mut self, event: KindEvent) {
        match event {
            KindEvent::Seen(object, live) => self.see(&object, &live),
            KindEvent::Gone(object) => {
                if let Some(work) = self.objects.get(&object) {
                    self.queue.add(work, object.rank());
                }
            }
            KindEvent::Listed(kind, listed) => {
                let is_there = |known: &&KnownWork| known.mark.is_some() || is_tracked(known.applied.as_ref());
                for known in self.works.values().filter(is_there) {
                    let object = &known.order.object;
                    if kind_of(object) == kind && !listed.contains(object) {
                        self.queue.add(&known.order.work, object.rank());
                    }
                }
            }
        }
    }

    fn see(&mut self, object: &AppliedName, live: &DynamicObject) {
        let Some(known) = self.objects.get(object).and_then(|work| self.works.get_mut(work)) else { return };
        if !self.orchestrates && !is_tracked(known.applied.as_ref()) {
            // It was submitted, or got its label.
            self.queue.add(&known.order.work, object.rank());
        }
        let facts = facts(live);
        let seen = AppliedMark::new(&facts.uid, &facts.owned);
        known.seen = Some(seen);
        if known.mark.is_some_and(|mark| mark != seen) && !self.queue.is_running(&known.order.work) {
            self.queue.add(&known.order.work, object.rank());
        }
        let status =
            live.data.get("status").filter(|status| status.as_object().is_some_and(|status| !status.is_empty()));
        let Some(status) = status else { return };
        let report = ObjectReport { generation: live.metadata.generation, status: Some(status.clone()) };
        let digest = report.digest();
        if known.object_digest.replace(digest) == Some(digest) {
            return;
        }
        if known.is_received {
            self.reports.object(&known.order.work, report);
        } else {
            known.held = Some(report);
        }
    }

    fn start(&mut self, work: &str) {
        let Some(known) = self.works.get(work) else { return self.queue.finish(work, false, Instant::now()) };
        let (order, api) = (known.order.clone(), Arc::clone(&self.api));
        if !self.orchestrates {
            self.watches.start(&order.object);
            self.running.push(Box::pin(async move {
                let outcome = track(&api, &order).await;
                (order, Value::Null, outcome)
            }));
            return;
        }
        let stored = self.store.get(work);
        let (stored, record) = stored.map_or((None, None), |stored| (Some(stored.manifest), Some(stored.record)));
        let manifest = known.manifest.clone().or(stored);
        let Some(manifest) = manifest.or_else(|| order.is_deletion.then_some(Value::Null)) else {
            tracing::warn!(work, "the file of an applied Work is gone; the fleet sends the Work again");
            self.queue.finish(work, false, Instant::now());
            return self.forget(work);
        };
        self.running.push(Box::pin(async move {
            let outcome = reconcile(&api, &order, &manifest, record.as_ref()).await;
            (order, manifest, outcome)
        }));
    }

    fn finish(&mut self, order: &OrderedObject, manifest: Value, outcome: WorkOutcome) {
        let (work, now) = (order.work.clone(), Instant::now());
        if self.works.get(&work).is_none_or(|known| known.order.uid != order.uid) {
            return self.queue.finish(&work, false, now);
        }
        self.metrics.count_attempt(outcome.name());
        let has_failed = match outcome {
            WorkOutcome::Applied(record) => self.applied(order, manifest, record),
            WorkOutcome::Corrected(record) => {
                self.metrics.count_correction();
                self.applied(order, manifest, record)
            }
            WorkOutcome::Unchanged => false,
            WorkOutcome::Tracked(live) => {
                let message = "another orchestrator submitted the object, and the agent reports it".to_owned();
                self.report(order, true, REASON_TRACKED, message, vec![]);
                self.see(&order.object, &live);
                false
            }
            WorkOutcome::NotSubmitted { is_there } => {
                self.report(order, false, REASON_NOT_SUBMITTED, not_submitted(is_there), vec![]);
                false
            }
            WorkOutcome::Deleting => true,
            WorkOutcome::Released(reason) => {
                if reason != ReleaseReason::Absent {
                    tracing::info!(work, object = %order.object, ?reason, "does not delete an object");
                }
                self.reports.release(&work, &order.uid);
                self.forget(&work);
                false
            }
            WorkOutcome::Conflicts(conflicts) => {
                self.report(order, false, "Conflict", conflict_message(&conflicts), vec![]);
                true
            }
            WorkOutcome::Drifted(lost) => {
                let fields: Vec<String> = lost.into_iter().collect();
                let message = format!("fields were changed in the cluster: {}", fields.join(", "));
                self.report(order, true, "Drifted", message, fields);
                false
            }
            WorkOutcome::Missing => {
                self.report(order, false, "Missing", "the object was deleted in the cluster".to_owned(), vec![]);
                false
            }
            WorkOutcome::Failed(error) => {
                let message = chain_text(&error);
                tracing::warn!(work, message, "cannot carry out a Work");
                self.report(order, false, error.reason(), message, vec![]);
                true
            }
        };
        self.queue.finish(&work, has_failed, now);
    }

    /// Records an apply. Returns whether that failed.
    fn applied(&mut self, order: &OrderedObject, manifest: Value, record: AppliedRecord) -> bool {
        let mark = AppliedMark::new(&record.object_uid, &record.owned);
        if let Err(error) = self.store.put(StoredWork { order: order.clone(), record, manifest }) {
            self.report(order, false, "NotRecorded", chain_text(&error), vec![]);
            return true;
        }
        self.watches.start(&order.object);
        if order.object.rank() == ApplyRank::Definition {
            self.queue.retry_all(Instant::now());
        }
        self.report(order, true, "Applied", "the object is applied".to_owned(), vec![]);
        let Some(known) = self.works.get_mut(&order.work) else { return false };
        known.mark = Some(mark);
        if known.order == *order {
            known.manifest = None;
        }
        if known.seen.is_some_and(|seen| seen != mark) {
            // A watch saw another version meanwhile, which may be older or newer.
            self.queue.add(&order.work, order.object.rank());
        }
        false
    }

    fn report(&mut self, order: &OrderedObject, is_applied: bool, reason: &str, message: String, drift: Vec<String>) {
        let Some(known) = self.works.get_mut(&order.work) else { return };
        let last = known.applied.as_ref().filter(|last| last.is_applied == is_applied);
        let since = last.map_or_else(Timestamp::now, |last| last.since);
        let reason = reason.to_owned();
        let report = AppliedReport { generation: order.generation, is_applied, reason, message, drift, since };
        if known.applied.as_ref() != Some(&report) {
            known.applied = Some(report.clone());
            self.reports.applied(&order.work, report);
        }
        self.count(&order.work);
    }
}

fn conflict_message(conflicts: &[FieldConflict]) -> String {
    let fields: Vec<String> =
        conflicts.iter().map(|conflict| format!("{} ({})", conflict.field, conflict.manager)).collect();
    format!(
        "other managers own fields in the cluster: {}; remove the fields from the object, or set conflictResolution: Overwrite in its policy",
        fields.join(", ")
    )
}
