//! A runtime in memory that passes the same contract tests as a real one.
//!
//! It has names, states, exits, labels, images and events like containerd, but runs no processes. If a container's program is the test program of the
//! feature `testing`, its arguments decide what the fake simulates. Any other program runs until it is stopped, with exit code 0, or until
//! [`Fake::exit_container`]. With [`Fake::inject`], a test makes a call that changes something fail or hang, or sends its caller a signal at that
//! moment.

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

/// How many events are queued for a slow subscriber before its stream ends. containerd queues as many before it blocks.
const EVENTS: usize = 100;

/// A fake runtime. Clones share one state.
#[derive(Clone, Debug)]
pub struct Fake {
    shared: Arc<FakeInner>,
}

#[derive(Debug)]
struct FakeInner {
    state: Mutex<FakeState>,
    journal: Mutex<CallJournal>,
    faults: CallFaults,
    /// Notified after each change of the state.
    changed: Notify,
    events: broadcast::Sender<v1::ContainerEventResponse>,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// Returns a runtime without sandboxes, containers or images.
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

    /// Returns a client in this process. Must run in a tokio runtime.
    #[must_use]
    pub fn runtime(&self, deadlines: Deadlines) -> CriRuntime {
        serve::in_process(self.clone(), deadlines)
    }

    /// Adds an image to the machine.
    pub fn add_image(&self, name: &str) {
        self.state().add_image(name);
    }

    /// Adds an image to the simulated registry. If the registry is empty, only images on the machine can be pulled.
    pub fn add_to_registry(&self, name: &str) {
        self.state().registry.insert(name.to_owned());
    }

    /// Adds a name to an image on the machine, as `ctr images tag` does.
    pub fn tag_image(&self, name: &str, other: &str) {
        self.state().tag_image(name, other);
    }

    /// Returns the id of an image on the machine, by one of its names.
    #[must_use]
    pub fn image_id(&self, name: &str) -> Option<String> {
        self.state().image(name).map(|image| image.id.clone())
    }

    /// Sets the cgroup driver that the runtime reports. `None` simulates a runtime that does not implement the query.
    pub fn set_cgroup_driver(&self, driver: Option<CriCgroupDriver>) {
        self.state().cgroup_driver = driver;
    }

    /// Sets the name and version that the runtime reports.
    pub fn set_version(&self, name: &str, version: &str) {
        self.state().version = (name.to_owned(), version.to_owned());
    }

    /// Sets the URL of the streams that `Exec` returns from now on. The fake does not serve it.
    pub fn set_streams(&self, url: &str) {
        self.state().streams = Some(url.to_owned());
    }

    /// Ends the running containers of this name in all pods with this exit code. Returns how many it ended.
    #[must_use = "where none runs, nothing was done"]
    pub fn exit_container(&self, name: &str, code: i32) -> usize {
        self.changing(|state| state.exit_by_name(name, code, now()))
    }

    /// Injects a fault into the `nth` call from now on that changes something; 1 is the next one.
    pub fn inject(&self, nth: usize, fault: CallFault) {
        let made = lock(&self.shared.journal).changes();
        self.shared.faults.add(made + nth, fault);
    }

    /// Returns the calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<RecordedCall> {
        lock(&self.shared.journal).calls().to_vec()
    }

    /// Appends a line to a file for each further call that changes something: the method and the name of its object.
    pub fn write_calls_to(&self, path: &Path) -> io::Result<()> {
        lock(&self.shared.journal).write_to(path)
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        lock(&self.shared.state)
    }

    /// Changes the state, sends its events to subscribers, and wakes the tasks that wait for a change.
    fn changing<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        let mut state = self.state();
        let outcome = change(&mut state);
        if self.shared.events.receiver_count() > 0 {
            for event in state.take_events() {
                // Fails without a subscriber. The last one may have left just now.
                let _ = self.shared.events.send(event);
            }
        }
        drop(state);
        self.shared.changed.notify_waiters();
        outcome
    }
}

/// Ignores poisoning. Each change is made under one lock, so a test that panics elsewhere leaves the state consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns nanoseconds since 1970, the unit of CRI.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
