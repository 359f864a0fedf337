//! The most recent events of the machine, in memory and on disk. New events are sent to watchers.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use keelway_api::{jiff::Timestamp, machine::MachineEvent, name::PodName};
use keelway_machine_io::local::LocalMachine;
use tokio::sync::{broadcast, mpsc};

/// How many events are kept. Repetitions of an event count once.
const REMEMBERED: usize = 256;
/// How many lines the file can grow to before it is rewritten. Each occurrence of an event is a line.
const LINES: usize = 4 * REMEMBERED;

/// The subject of an event: a container of a component, a component (no container), or the machine (neither).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventSubject {
    pub(super) pod: Option<PodName>,
    pub(super) container: String,
}

impl EventSubject {
    pub(super) fn pod(pod: &PodName, container: &str) -> Self {
        Self { pod: Some(pod.clone()), container: container.to_owned() }
    }
}

#[derive(Debug)]
pub(super) struct EventJournal {
    ring: Mutex<Ring>,
    to_watchers: broadcast::Sender<MachineEvent>,
    to_disk: mpsc::UnboundedSender<MachineEvent>,
    /// Held while the file is written.
    writing: tokio::sync::Mutex<()>,
}

/// Events in the order of their last occurrence, the newest last.
#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<MachineEvent>,
    /// False for a machine without an owner, which has no records.
    open: bool,
}

impl Ring {
    /// Adds an event, and removes an earlier occurrence of the same event.
    fn insert(&mut self, event: MachineEvent) {
        self.events.retain(|known| !same(known, &event));
        self.events.push_back(event);
        if self.events.len() > REMEMBERED {
            self.events.pop_front();
        }
    }
}

fn same(one: &MachineEvent, other: &MachineEvent) -> bool {
    let words = |event: &MachineEvent| (event.warning, event.reason.clone(), event.message.clone());
    one.pod == other.pod && one.container == other.container && words(one) == words(other)
}

/// Events that are to be written to disk.
pub(super) type ToDisk = mpsc::UnboundedReceiver<MachineEvent>;

#[expect(clippy::redundant_closure_for_method_calls, reason = "the methods are not general over their lifetime")]
impl EventJournal {
    /// Continues with the events on disk. If the file cannot be read, starts empty: no decision depends on events.
    pub(super) async fn open(machine: &LocalMachine, open: bool) -> (Self, ToDisk) {
        let mut ring = Ring { open, ..Ring::default() };
        if open {
            let bytes = machine.with_files(|files| files.read_events()).await.ok().flatten().unwrap_or_default();
            // The last line may be incomplete after a crash.
            let lines = bytes.split(|byte| *byte == b'\n');
            lines.filter_map(|line| serde_json::from_slice(line).ok()).for_each(|event| ring.insert(event));
        }
        let (to_disk, on_the_way) = mpsc::unbounded_channel();
        let journal = Self {
            ring: Mutex::new(ring),
            to_watchers: broadcast::Sender::new(REMEMBERED),
            to_disk,
            writing: tokio::sync::Mutex::default(),
        };
        (journal, on_the_way)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, about: EventSubject, (warning, reason): (bool, &str), message: String) {
        let now = Timestamp::now();
        let mut event = MachineEvent {
            pod: about.pod,
            container: about.container,
            warning,
            reason: reason.to_owned(),
            message,
            count: 1,
            first: now,
            last: now,
        };
        {
            let mut ring = self.ring();
            if !ring.open {
                return;
            }
            if let Some(known) = ring.events.iter().find(|known| same(known, &event)) {
                event.count = known.count.saturating_add(1);
                event.first = known.first;
            }
            ring.insert(event.clone());
        }
        // Fails if there is no watcher.
        let _ = self.to_watchers.send(event.clone());
        let _ = self.to_disk.send(event);
    }

    /// Returns the kept events, and a receiver for further ones.
    pub(super) fn read(&self) -> (Vec<MachineEvent>, broadcast::Receiver<MachineEvent>) {
        let following = self.to_watchers.subscribe();
        (self.ring().events.iter().cloned().collect(), following)
    }

    /// Starts recording, because the machine has an owner.
    pub(super) fn begin(&self) {
        self.ring().open = true;
    }

    /// Stops recording and deletes all events, because the machine has no owner any more. After this returns, nothing is written to disk.
    pub(super) async fn end(&self) {
        {
            let mut ring = self.ring();
            ring.open = false;
            ring.events.clear();
        }
        drop(self.writing.lock().await);
    }

    /// Writes events to disk for as long as it is polled. Events that cannot be written stay in memory.
    pub(super) async fn persist(self: Arc<Self>, machine: Arc<LocalMachine>, mut on_the_way: ToDisk) {
        let mut lines = LINES;
        while let Some(event) = on_the_way.recv().await {
            let mut batch = vec![event];
            while let Ok(event) = on_the_way.try_recv() {
                batch.push(event);
            }
            let _writing = self.writing.lock().await;
            let anew = lines + batch.len() > LINES;
            let written: Vec<MachineEvent> = {
                let ring = self.ring();
                if !ring.open {
                    continue;
                }
                if anew { ring.events.iter().cloned().collect() } else { batch }
            };
            lines = if anew { written.len() } else { lines + written.len() };
            let texts = written.iter().filter_map(|event| serde_json::to_string(event).ok());
            let text: String = texts.flat_map(|line| [line, "\n".to_owned()]).collect();
            if let Err(error) = machine.with_files(move |files| files.write_events(text.as_bytes(), anew)).await {
                tracing::debug!(%error, "events are not on disk");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(open: bool) -> (EventJournal, ToDisk) {
        let (to_disk, on_the_way) = mpsc::unbounded_channel();
        let ring = Mutex::new(Ring { open, ..Ring::default() });
        (
            EventJournal {
                ring,
                to_watchers: broadcast::Sender::new(16),
                to_disk,
                writing: tokio::sync::Mutex::default(),
            },
            on_the_way,
        )
    }

    fn note(journal: &EventJournal, message: &str) {
        journal.note(EventSubject::default(), (true, "Failed"), message.to_owned());
    }

    #[test]
    fn a_repeated_event_is_counted_and_moves_to_the_end() {
        let (journal, _disk) = journal(true);
        for message in ["a", "b", "a", "a"] {
            note(&journal, message);
        }
        let seen: Vec<(String, u32)> = journal.read().0.into_iter().map(|event| (event.message, event.count)).collect();
        assert_eq!(seen, [("b".to_owned(), 1), ("a".to_owned(), 3)]);
        let last = journal.read().0.pop().unwrap();
        assert!(last.first <= last.last);
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let (journal, _disk) = journal(true);
        (0..2 * REMEMBERED).for_each(|number| note(&journal, &number.to_string()));
        let seen = journal.read().0;
        assert_eq!(seen.len(), REMEMBERED);
        assert_eq!(seen.last().unwrap().message, (2 * REMEMBERED - 1).to_string());
    }

    #[tokio::test]
    async fn a_machine_without_an_installation_has_no_events() {
        let (journal, mut disk) = journal(false);
        note(&journal, "before");
        journal.begin();
        note(&journal, "meanwhile");
        journal.end().await;
        note(&journal, "after");
        assert!(journal.read().0.is_empty());
        assert_eq!(disk.try_recv().unwrap().message, "meanwhile");
        assert!(disk.try_recv().is_err());
    }
}
