//! A runtime in memory that passes the same contract as the real one.
//!
//! It has names, states, exits, labels, images and events as containerd has them, and no processes. What a container's
//! program would do is decided by its arguments, if it is the test program of the feature `testing`; any other runs
//! until it is stopped, with exit code 0, or until [`Fake::exit_container`]. Tests can make any of the calls that change
//! something fail, hang, or be the moment at which its caller gets a signal ([`Fake::inject`]).

mod behaviour;
mod change;
mod faults;
mod image_service;
mod journal;
mod program;
mod runtime_service;
mod serve;
mod state;

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use k8s_cri::v1;
use tokio::sync::{Notify, broadcast};

pub use faults::{CallFault, SignalTiming};
pub use journal::RecordedCall;
pub use program::FakeProgram;
pub use serve::serve;

use crate::{CriCgroupDriver, CriRuntime, Deadlines};
use faults::CallFaults;
use journal::CallJournal;
use state::FakeState;

/// How many events wait for a slow subscriber before its stream ends, as many as containerd holds before it blocks.
const EVENTS: usize = 100;

/// A fake runtime. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Fake {
    shared: Arc<FakeInner>,
}

#[derive(Debug)]
struct FakeInner {
    state: Mutex<FakeState>,
    journal: Mutex<CallJournal>,
    faults: CallFaults,
    /// Told after each change of the state.
    changed: Notify,
    events: broadcast::Sender<v1::ContainerEventResponse>,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// A runtime with nothing on it.
    #[must_use]
    pub fn new() -> Self {
        let shared = FakeInner {
            state: Mutex::default(),
            journal: Mutex::default(),
            faults: CallFaults::default(),
            changed: Notify::new(),
            events: broadcast::Sender::new(EVENTS),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A client of it in this process. Needs a tokio runtime.
    #[must_use]
    pub fn runtime(&self, deadlines: Deadlines) -> CriRuntime {
        serve::in_process(self.clone(), deadlines)
    }

    /// Puts an image on the machine.
    pub fn add_image(&self, name: &str) {
        self.state().add_image(name);
    }

    /// Puts an image into the registry that pulls come from. Without one, only what is on the machine can be pulled.
    pub fn add_to_registry(&self, name: &str) {
        self.state().registry.insert(name.to_owned());
    }

    /// Gives an image on the machine another name, as `ctr images tag` does.
    pub fn tag_image(&self, name: &str, other: &str) {
        self.state().tag_image(name, other);
    }

    /// The id of an image on the machine, by one of its names.
    #[must_use]
    pub fn image_id(&self, name: &str) -> Option<String> {
        self.state().image(name).map(|image| image.id.clone())
    }

    /// What the runtime says of who manages cgroups; `None` for a runtime that does not know the question.
    pub fn set_cgroup_driver(&self, driver: Option<CriCgroupDriver>) {
        self.state().cgroup_driver = driver;
    }

    /// What the runtime calls itself, and of which version.
    pub fn set_version(&self, name: &str, version: &str) {
        self.state().version = (name.to_owned(), version.to_owned());
    }

    /// Where commands are told to be connected to from now on: what is there is no part of the fake.
    pub fn set_streams(&self, url: &str) {
        self.state().streams = Some(url.to_owned());
    }

    /// Ends the running containers of this name, in all pods, with this exit code. Returns how many there were.
    #[must_use = "where none runs, nothing was done"]
    pub fn exit_container(&self, name: &str, code: i32) -> usize {
        self.changing(|state| state.exit_by_name(name, code, now()))
    }

    /// Lets something go wrong at the `nth` call from now on that changes something; 1 is the next one.
    pub fn inject(&self, nth: usize, fault: CallFault) {
        let made = lock(&self.shared.journal).changes();
        self.shared.faults.add(made + nth, fault);
    }

    /// The calls that were made so far.
    #[must_use]
    pub fn calls(&self) -> Vec<RecordedCall> {
        lock(&self.shared.journal).calls().to_vec()
    }

    /// Appends from now on a line to a file for each call that changes something: method and name.
    pub fn write_calls_to(&self, path: &Path) -> io::Result<()> {
        lock(&self.shared.journal).write_to(path)
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        lock(&self.shared.state)
    }

    /// Changes the state, and tells everybody who waits for that and who subscribed to events.
    fn changing<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        let mut state = self.state();
        let outcome = change(&mut state);
        if self.shared.events.receiver_count() > 0 {
            for event in state.take_events() {
                // Fails without a subscriber, and one may have left just now.
                let _ = self.shared.events.send(event);
            }
        }
        drop(state);
        self.shared.changed.notify_waiters();
        outcome
    }
}

/// A test that panicked elsewhere leaves the state as whole as it was: each change is made under one lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since 1970, as CRI counts time.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
