//! When each phase of an upgrade or of a rotation began, from the documents that `keelway reconcile` saves before each effect.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use keelway_api::{Documents, rotation::RotatedKey};
use keelway_e2e::machine::millis;

/// The pause between looks at the saved documents. A phase that is shorter may be missing.
const PAUSE: Duration = Duration::from_millis(200);

/// The phases of one command, in the order in which they began.
pub(crate) struct PhaseTimes {
    started: Instant,
    known: BTreeSet<String>,
    begun: Vec<(String, Duration)>,
}

impl PhaseTimes {
    /// Phases in these documents began earlier.
    pub(crate) fn after(documents: &Documents) -> Self {
        Self { started: Instant::now(), known: phases(documents).collect(), begun: Vec::new() }
    }

    /// Runs a command, and records the phases that begin meanwhile. `state` is the directory in which the command saves documents.
    pub(crate) fn follow<T>(&mut self, state: &Path, run: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            // If the command fails the test, this end is dropped, too.
            let (running, ended) = mpsc::channel::<()>();
            scope.spawn(move || {
                while ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                    for documents in saved(state) {
                        self.record(&documents);
                    }
                }
            });
            let done = run();
            drop(running);
            done
        })
    }

    pub(crate) fn record(&mut self, documents: &Documents) {
        let after = self.started.elapsed();
        for phase in phases(documents) {
            if self.known.insert(phase.clone()) {
                self.begun.push((phase, after));
            }
        }
    }

    /// Prints how long each phase took: until the next one began, or until everything was done after this time.
    pub(crate) fn print(&self, took: Duration) {
        let ends = self.begun.iter().skip(1).map(|(_, began)| *began).chain([took]);
        for ((phase, began), end) in self.begun.iter().zip(ends) {
            println!("{}  {phase}", millis(end.saturating_sub(*began)));
        }
    }
}

/// The documents that commands save until they have written them.
fn saved(state: &Path) -> Vec<Documents> {
    let files = fs::read_dir(state).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_of_reconcile = |name: &str| name.starts_with("reconcile-");
    let files = files.filter(|file| file.extension() == Some(OsStr::new("yaml")));
    let files = files.filter(|file| file.file_name().and_then(OsStr::to_str).is_some_and(is_of_reconcile));
    files.filter_map(|file| Documents::read(&fs::read(file).ok()?).ok()).collect()
}

/// The phases of rotations, and the releases that components of each role run or are about to run.
fn phases(documents: &Documents) -> impl Iterator<Item = String> {
    let components = documents.components.values();
    let upgrades = components.map(|component| format!("{}: {}", component.spec.version, component.spec.role));
    let rotations = documents.clusters.values().flat_map(|cluster| {
        let phase = move |key: RotatedKey| Some(format!("{key}: {:?}", cluster.rotation(key)?.phase));
        RotatedKey::ALL.into_iter().filter_map(phase)
    });
    upgrades.chain(rotations)
}
