//! Publishes Events in a management cluster, on the objects that they concern. They inform users only: no task waits for them, and an Event that
//! cannot be published is logged.

mod budget;
mod fold;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use keelway_api::{document::DocumentName, event::DocumentEvent, jiff::Timestamp};
use kube::{
    Client,
    runtime::events::{Event as NewEvent, EventType, Recorder, Reporter},
};
use tokio::{
    sync::{Mutex, mpsc},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{MANAGER, SharedWatchCache, api::StoreResources};
use budget::Budget;
use fold::fold;

/// The most Events that wait to be published. Further ones are dropped.
const WAITING: usize = 8192;
/// The most Events that a recorder may keep in memory for series. A recorder drops none for six minutes, so it is replaced after this many.
const KNOWN: usize = 256;
/// How long Events are collected, so that similar ones can be folded. A second is short for the users that read them.
const GATHER: Duration = Duration::from_secs(1);
/// How long the store must be without writes before an Event is published. Documents come first, and the creation of many clusters causes many
/// Events.
const QUIET: Duration = Duration::from_millis(200);
/// The longest wait for such a time.
const LONGEST: Duration = Duration::from_secs(30);
/// The time limit for publishing one Event.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of a note (`events.k8s.io/v1`).
const LONGEST_NOTE: usize = 1024;
/// The action in the Events of the manager.
const ACTION: &str = "Reconciling";

/// The writes of documents that Events wait for.
pub(super) struct WriteActivity {
    /// Held during a sequence of changes of documents.
    pub(super) turns: Arc<Mutex<()>>,
    pub(super) shared: Arc<SharedWatchCache>,
}

impl WriteActivity {
    /// Returns once no documents are written, or at this time.
    async fn rests(&self, end: Instant) {
        loop {
            let quiet = self.shared.held().last_write().map_or(Instant::now(), |touched| touched + QUIET);
            if quiet <= Instant::now() || end <= Instant::now() {
                break;
            }
            sleep_until(quiet.min(end)).await;
        }
        drop(self.turns.lock().await);
    }
}

/// Sends Events to the task that publishes them.
#[derive(Debug, Clone)]
pub struct EventSender(mpsc::Sender<DocumentEvent>);

impl EventSender {
    /// Starts publishing. The task ends when the last sender is dropped. It pauses while documents are written.
    pub(super) fn start(client: Client, resources: StoreResources, writing: WriteActivity) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(publish(client, resources, writing, receiver));
        Self(sender)
    }

    /// Publishes this Event later.
    pub fn send(&self, event: DocumentEvent) {
        if self.0.try_send(event).is_err() {
            tracing::warn!("too many events are queued; dropping one");
        }
    }
}

/// Publishes Events that wait together in one batch. The recorder counts repeated Events in one Event with a series.
async fn publish(
    client: Client,
    resources: StoreResources,
    writing: WriteActivity,
    mut events: mpsc::Receiver<DocumentEvent>,
) {
    let begin = || Recorder::new(client.clone(), Reporter::from(MANAGER));
    let mut recorder = begin();
    let mut budget = Budget::default();
    let mut known = 0;
    let mut together = Vec::new();
    while events.recv_many(&mut together, WAITING).await > 0 {
        let end = Instant::now() + LONGEST;
        sleep(GATHER).await;
        writing.rests(end).await;
        while let Ok(event) = events.try_recv() {
            together.push(event);
        }
        for event in fold(std::mem::take(&mut together)) {
            if !budget.try_spend(&event.regarding, Timestamp::now()) {
                continue;
            }
            if known == KNOWN {
                (recorder, known) = (begin(), 0);
            }
            known += 1;
            writing.rests(end).await;
            publish_event(&recorder, &resources, &event).await;
        }
    }
}

async fn publish_event(recorder: &Recorder, resources: &StoreResources, event: &DocumentEvent) {
    let regarding = ObjectReference { uid: event.uid.clone(), ..reference(resources, &event.regarding) };
    let new = NewEvent {
        type_: if event.warning { EventType::Warning } else { EventType::Normal },
        reason: event.reason.to_owned(),
        note: Some(cut(&event.note).to_owned()),
        action: ACTION.to_owned(),
        secondary: event.related.as_ref().map(|related| reference(resources, related)),
    };
    let published = timeout(PATIENCE, recorder.publish(&new, &regarding)).await;
    if !matches!(published, Ok(Ok(()))) {
        let error = published.ok().and_then(Result::err).map(|error| error.to_string());
        let why = error.as_deref().unwrap_or("no response");
        tracing::warn!(document = %event.regarding, reason = event.reason, why, "could not send an event");
    }
}

fn reference(resources: &StoreResources, name: &DocumentName) -> ObjectReference {
    let resource = resources.of(name);
    ObjectReference {
        api_version: Some(resource.api_version.clone()),
        kind: Some(resource.kind.clone()),
        name: Some(name.name().to_owned()),
        namespace: name.namespace(),
        ..ObjectReference::default()
    }
}

fn cut(note: &str) -> &str {
    let end = note.char_indices().map(|(at, letter)| at + letter.len_utf8()).take_while(|end| *end <= LONGEST_NOTE);
    note.get(..end.last().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"ä".repeat(LONGEST_NOTE)).len(), LONGEST_NOTE);
        assert_eq!(cut(&format!("a{}", "ä".repeat(LONGEST_NOTE))).len(), LONGEST_NOTE - 1);
    }
}
