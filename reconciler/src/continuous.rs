//! Documents that are kept for as long as they are to be: a pass for each cluster, a task for each machine, all at once.
//!
//! ```text
//!  documents ──> cluster ── what it wants of each machine ──> machine ── config ──> agent
//!                   ^                                            |
//!                   └──────── what was seen of the cluster ──────┘
//! ```
//!
//! A cluster's pass asks no machine: it works on what was seen of its own part last, so that a machine that hangs holds up nobody but
//! who relies on it. A machine is given one config of all its clusters, once each of them has told what it wants.

mod cluster;
mod common_documents;
mod decision;
mod driver;
mod index;
mod machine;
mod machines;
mod recheck;
mod save_queue;
mod state;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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

/// How soon at first a look follows one that found something to wait for, should nothing tell of a change: machines that are out of
/// reach send none. Each further one in a row doubles it.
const LOOK: Duration = Duration::from_secs(2);
/// The longest of these.
const LONGEST_LOOK: Duration = Duration::from_secs(30);
/// How soon at first a component that is not well is asked again: readiness has no event to wait for.
const RECHECK: Duration = Duration::from_millis(500);
/// How soon at last. In between it is a part of the time in which nothing got better.
const LONGEST_RECHECK: Duration = Duration::from_secs(5);
/// Passes of clusters at one time, from the decision until it is saved: a store is asked for as much at once, and each of them takes room.
const AT_ONCE: usize = 8;
/// Clusters whose components are asked at one time. One that does not answer takes a few seconds, whatever others wait for.
const ASKED_AT_ONCE: usize = 32;
/// How long effects that have begun may take once nothing more is to be done. What is cut off then is done again later.
const LAST_EFFECTS: Duration = Duration::from_secs(10);
/// How long documents did not change before they are put together in memory.
const REST: Duration = Duration::from_secs(2);
/// How long a store that did not answer is left alone.
const STORE: Duration = Duration::from_secs(1);

/// Whoever has documents that change while they are kept.
#[async_trait::async_trait]
pub trait ChangingDocuments: Send + Sync {
    /// Returns when documents may be others than at the last load.
    async fn changed(&self);

    /// [Puts them together](Documents::put_together), if these are all that there is. What others have of them stays where it is for these.
    /// Returns whether it did.
    fn compact(&self, _known: &mut Arc<Documents>) -> bool {
        false
    }
}

/// What a task works on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// What is of machines and of none of them alone.
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

/// What is told of tasks, of each one after the other.
pub trait Watcher: Send {
    /// It begins.
    fn began(&mut self, task: &Task);
    /// A pass ended, after so long.
    fn passed(&mut self, task: &Task, outcome: &PassOutcome, took: Duration);
    /// What a pass decided of these documents is saved.
    fn saved(&mut self, before: &Documents, after: &Documents);
    /// A machine was looked at; `Seen::Unreachable`: it does not answer.
    fn machine_observed(&mut self, machine: &HypervisorName, seen: &ObservedValue<MachineState>);
    /// A machine was looked at, and brought to its config.
    fn applied(&mut self, task: &Task, applying: &ApplyOutcome);
    /// A pass could not be carried out.
    fn failed(&mut self, task: &Task, error: &PassError, took: Duration);
    /// So many clusters wait for their pass, as others have theirs.
    fn queued(&mut self, clusters: usize);
    /// What it works on is gone.
    fn ended(&mut self, task: &Task);
    /// The documents could not be read.
    fn load_failed(&mut self, error: &StoreError);
}

/// All that tasks share.
struct InstallationReconciler<'a> {
    context: &'a PassContext,
    driver: Driver,
    /// The term of a later leader that most machines told of; 0 for none.
    superseded: AtomicU64,
    minter: Mutex<&'a mut dyn Minter>,
    watcher: Mutex<&'a mut dyn Watcher>,
    state: Mutex<ReconcilerState>,
    /// Held while documents are loaded or saved.
    store: tokio::sync::Mutex<()>,
    /// Whether a save broke off, so that nobody knows what there is before the next load.
    is_unsure: AtomicBool,
    /// What is about to be saved.
    line: Mutex<SaveQueue>,
    /// Held from the decision that takes something of machines until it stands in the line.
    placing: Mutex<()>,
    /// Held while components are asked how they are: each question takes room for as long as its answer takes.
    asking: Semaphore,
    passes: Semaphore,
    /// Clusters that wait for one of these.
    queue: AtomicUsize,
    /// Told when nobody is busy any more.
    at_ease: Notify,
}

/// Works until it is told to stop, or another one leads, for which it tells itself to stop. What a broken document or machine keeps from
/// being done is done once that is mended.
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
    let mut together = keeper.compact_when_idle(documents).boxed();
    loop {
        tokio::select! {
            // In one order, so that a run can be repeated.
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
            never = &mut together => match never {},
        }
    }
    // A load that nobody waits for would keep others from saving.
    drop((changed, together));
    // Each stops between two effects.
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

    /// Whether clusters wait for their pass, or more of them than these to have what came of it saved.
    fn is_busy(&self, these: usize) -> bool {
        self.queue.load(Ordering::Relaxed) > 0 || self.line().len() > these
    }

    /// Machines that are left alone as long as clusters are busy wait for that.
    fn notify_if_idle(&self) {
        if !self.is_busy(1) {
            self.at_ease.notify_waiters();
        }
    }

    fn is_stopped(&self) -> bool {
        self.context.run.stop.is_cancelled()
    }

    /// Waits until one more cluster may have its pass.
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

    /// Waits for the end of a pause, or to be told to stop.
    async fn pause_until(&self, end: Instant) {
        // A timer would put who is in a hurry behind others.
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

    /// Puts documents together each time that much of them changed and nothing does any more.
    async fn compact_when_idle(&self, documents: &dyn ChangingDocuments) -> Infallible {
        let replaced = self.state().replaced.clone();
        loop {
            replaced.notified().await;
            while timeout(REST, replaced.notified()).await.is_ok() {}
            let _alone = self.store.lock().await;
            self.state().compact(documents);
        }
    }

    async fn next_load(&self, documents: &dyn ChangingDocuments) -> Result<(), StoreError> {
        documents.changed().await;
        let loaded = self.reload().await;
        if loaded.is_err() {
            sleep(STORE).await;
        }
        loaded
    }

    /// Takes the documents as they are now. Whoever works on one that changed is woken.
    async fn reload(&self) -> Result<(), StoreError> {
        let _alone = self.store.lock().await;
        self.load().await
    }

    async fn load(&self) -> Result<(), StoreError> {
        let documents = self.context.store.load().await?;
        self.is_unsure.store(false, Ordering::Relaxed);
        // Whoever looks at a machine that is new does so as whom its document says.
        let met_anew = self.context.machines.load_credentials(&documents);
        self.state().take(documents);
        self.state().wake_machines(&met_anew);
        self.stage_anew();
        Ok(())
    }
}
