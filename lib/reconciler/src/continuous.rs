//! Continuous reconciliation: one task for each cluster, one for each machine, and one for all machines together. All run concurrently.
//!
//! ```text
//!  documents ──> cluster ───────── desired pods ────────────> machine ── config ──> agent
//!                   ^                                            |
//!                   └──────── observation of the cluster ────────┘
//! ```
//!
//! The pass of a cluster observes no machine. It uses the last observation of the cluster's components, so that a machine that hangs delays only
//! the clusters that rely on it. A machine receives one config for all its clusters, once each of them has published its desired pods.

mod cluster;
mod cluster_schedule;
mod common_documents;
mod decision;
mod driver;
mod index;
mod machine;
mod machines;
mod recheck;
mod save_queue;
mod snapshots;
mod state;

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use keelway_api::{
    Documents,
    machine::{MachineState, ObservedValue},
    name::{ClusterRef, HypervisorName},
};
use keelway_planner::Waves;
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{ApplyOutcome, Minter, PassContext, PassError, PassOutcome, StoreError};
pub use driver::{Driver, StopReason, highest_known_term};
use save_queue::SaveQueue;
use state::ReconcilerState;

/// Half the first interval after which a task observes again if it waits and no change was reported: unreachable machines report no changes. Each
/// further observation in a row doubles the interval.
const LOOK: Duration = Duration::from_secs(2);
/// The longest of these intervals.
const LONGEST_LOOK: Duration = Duration::from_secs(30);
/// The first interval at which an unhealthy component is probed again: readiness causes no event that we could wait for.
const RECHECK: Duration = Duration::from_millis(500);
/// The longest of these intervals. Between the two, the interval is a quarter of the time since the documents last changed.
const LONGEST_RECHECK: Duration = Duration::from_secs(5);
/// The number of cluster passes between decision and save at one time. It bounds memory, and the size of one save.
const AT_ONCE: usize = 8;
/// The number of clusters whose components are probed at one time. A component that does not respond takes a few seconds of its cluster's turn.
const ASKED_AT_ONCE: usize = 32;
/// The time that running effects have to end after a stop. Effects that are cut off are repeated later.
const LAST_EFFECTS: Duration = Duration::from_secs(10);
/// The pause after the store failed to load the documents.
const STORE: Duration = Duration::from_secs(1);

/// Documents that can change while they are reconciled.
#[async_trait::async_trait]
pub trait ChangingDocuments: Send + Sync {
    /// Returns when the documents may have changed since the last load.
    async fn changed(&self);
}

/// The subject of a task.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// What concerns all machines together: their status, certificates and identities.
    Machines,
    /// One machine.
    Machine(HypervisorName),
    /// One cluster.
    Cluster(ClusterRef),
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machines => f.write_str("hypervisors"),
            Self::Machine(name) => write!(f, "hypervisor/{name}"),
            Self::Cluster(name) => write!(f, "cluster/{name}"),
        }
    }
}

/// Receives the events of all tasks. The events of one task arrive in their order.
pub trait Watcher: Send {
    /// The task started.
    fn began(&mut self, task: &Task);
    /// A pass ended, after this time.
    fn passed(&mut self, task: &Task, outcome: &PassOutcome, took: Duration);
    /// The decision of a pass was saved: `before` is the part of the documents that the pass loaded, `after` the same part as it was saved.
    fn saved(&mut self, before: &Documents, after: &Documents);
    /// A machine was observed. The value is `Unreachable` if the machine did not respond.
    fn machine_observed(&mut self, machine: &HypervisorName, seen: &ObservedValue<MachineState>);
    /// The task of a machine tried to apply the config. `applying` is empty if nothing was to be done.
    fn applied(&mut self, task: &Task, applying: &ApplyOutcome);
    /// A pass failed, after this time.
    fn failed(&mut self, task: &Task, error: &PassError, took: Duration);
    /// The number of clusters that wait for their turn to decide and save.
    fn queued(&mut self, clusters: usize);
    /// The task ended, because its subject was removed.
    fn ended(&mut self, task: &Task);
    /// The store failed to load the documents.
    fn load_failed(&mut self, error: &StoreError);
}

/// The state that all tasks share.
struct InstallationReconciler<'a> {
    context: &'a PassContext,
    driver: Driver,
    /// The term of a later leader that most machines reported; 0 for none.
    superseded: AtomicU64,
    minter: Mutex<&'a mut dyn Minter>,
    watcher: Mutex<&'a mut dyn Watcher>,
    state: Mutex<ReconcilerState>,
    /// Held while documents are loaded or saved.
    store: tokio::sync::Mutex<()>,
    /// Whether a save failed partway. Until the next load, the content of the store is unknown.
    is_unsure: AtomicBool,
    /// The edits that wait to be saved.
    line: Mutex<SaveQueue>,
    /// Held from a decision that uses room or ports of machines until the decision is in the save queue, so that no two clusters use the same.
    placing: Mutex<()>,
    /// Held while the components of a cluster are probed: each probe uses memory until its response arrives.
    asking: Semaphore,
    passes: Semaphore,
    /// The number of clusters that wait for one of `passes`.
    queue: AtomicUsize,
    /// Notified when no cluster waits for its pass any more, and at most one edit for its save.
    at_ease: Notify,
}

/// Reconciles until the run is stopped or another leader supersedes this one; in the second case it stops the run itself. A broken document or
/// machine delays only what depends on it, until it is repaired.
pub async fn reconcile_continuously(
    context: &PassContext,
    driver: Driver,
    waves: Waves,
    minter: &mut dyn Minter,
    documents: &dyn ChangingDocuments,
    watcher: &mut dyn Watcher,
) -> StopReason {
    let keeper = InstallationReconciler {
        context,
        driver,
        superseded: AtomicU64::new(0),
        minter: Mutex::new(minter),
        watcher: Mutex::new(watcher),
        state: Mutex::new(ReconcilerState::in_waves(waves)),
        store: tokio::sync::Mutex::default(),
        is_unsure: AtomicBool::new(false),
        line: Mutex::default(),
        placing: Mutex::default(),
        asking: Semaphore::new(ASKED_AT_ONCE),
        passes: Semaphore::new(AT_ONCE),
        queue: AtomicUsize::new(0),
        at_ease: Notify::new(),
    };
    let mut tasks: FuturesUnordered<BoxFuture<'_, Task>> = FuturesUnordered::new();
    let mut running = BTreeSet::new();
    let mut changed = keeper.reload().boxed();
    let mut snapshots = keeper.snapshots().boxed();
    loop {
        tokio::select! {
            // A fixed order makes a run repeatable.
            biased;
            () = context.run.stop.cancelled() => break,
            loaded = &mut changed => {
                if let Err(error) = loaded {
                    keeper.watcher().load_failed(&error);
                }
                for task in keeper.state().tasks() {
                    if running.insert(task.clone()) {
                        keeper.watcher().began(&task);
                        tasks.push(keeper.run(task).boxed());
                    }
                }
                changed = keeper.next_load(documents).boxed();
            }
            Some(ended) = tasks.next() => {
                keeper.watcher().ended(&ended);
                running.remove(&ended);
            }
            () = &mut snapshots => {}
        }
    }
    // We drop the load first: it may hold `store`, and a task that saves would wait for it forever.
    drop(changed);
    // A snapshot that is cut off was not stored, and is taken later.
    drop(snapshots);
    // Each task stops between two effects.
    let _ = timeout(LAST_EFFECTS, tasks.for_each(|_| std::future::ready(()))).await;
    keeper.end()
}

impl<'a> InstallationReconciler<'a> {
    fn state(&self) -> MutexGuard<'_, ReconcilerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watcher(&self) -> MutexGuard<'_, &'a mut dyn Watcher> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn minter(&self) -> MutexGuard<'_, &'a mut dyn Minter> {
        self.minter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> MutexGuard<'_, SaveQueue> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn placing(&self) -> MutexGuard<'_, ()> {
        self.placing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether clusters wait for their pass, or more than this number of edits wait to be saved.
    fn is_busy(&self, these: usize) -> bool {
        self.queue.load(Ordering::Relaxed) > 0 || self.line().len() > these
    }

    /// Wakes the machines that wait while clusters are busy.
    fn notify_if_idle(&self) {
        if !self.is_busy(1) {
            self.at_ease.notify_waiters();
        }
    }

    fn is_stopped(&self) -> bool {
        self.context.run.stop.is_cancelled()
    }

    /// Waits for the turn of one more cluster to decide and save.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(turn) = self.passes.try_acquire() {
            return Some(turn);
        }
        self.watcher().queued(self.queue.fetch_add(1, Ordering::Relaxed) + 1);
        let turn = self.passes.acquire().await.ok();
        self.watcher().queued(self.queue.fetch_sub(1, Ordering::Relaxed) - 1);
        self.notify_if_idle();
        turn
    }

    /// Waits until this time, or until the run is stopped.
    async fn pause_until(&self, end: Instant) {
        // A timer would let other tasks run first, even if no time is left.
        if end <= Instant::now() {
            return;
        }
        tokio::select! {
            biased;
            () = self.context.run.stop.cancelled() => {}
            () = sleep_until(end) => {}
        }
    }

    async fn run(&self, task: Task) -> Task {
        match &task {
            Task::Machines => self.machines().await,
            Task::Machine(name) => self.machine(name).await,
            Task::Cluster(name) => self.cluster(name).await,
        }
        task
    }

    async fn next_load(&self, documents: &dyn ChangingDocuments) -> Result<(), StoreError> {
        documents.changed().await;
        let loaded = self.reload().await;
        if loaded.is_err() {
            sleep(STORE).await;
        }
        loaded
    }

    /// Loads the current documents, and wakes the tasks whose documents changed.
    async fn reload(&self) -> Result<(), StoreError> {
        let _alone = self.store.lock().await;
        self.load().await
    }

    async fn load(&self) -> Result<(), StoreError> {
        let documents = self.context.store.load().await?;
        self.is_unsure.store(false, Ordering::Relaxed);
        // Credentials come first, so that the tasks of new machines use them for their first observation.
        let met_anew = self.context.machines.load_credentials(&documents);
        self.state().take(documents);
        self.state().wake_machines(&met_anew);
        self.stage_anew();
        Ok(())
    }
}
