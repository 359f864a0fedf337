//! Events in a management cluster: what happened, beside the object that it is of. They are for people alone: nothing waits for
//! them, and what cannot be told is in the log.

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

/// Events that may wait to be told. What comes beyond is dropped.
const WAITING: usize = 8192;
/// Events that are known, whole, for those that are like them: a recorder forgets none for six minutes.
const KNOWN: usize = 256;
/// How long they are gathered, as those of one kind are one: whoever is told of them looks after more than a second.
const GATHER: Duration = Duration::from_secs(1);
/// How long nothing was written and nobody changed anything before one is told: documents come first, and a birth of many tells of each of
/// them then.
const QUIET: Duration = Duration::from_millis(200);
/// How long that is waited for.
const LONGEST: Duration = Duration::from_secs(30);
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of a note (`events.k8s.io/v1`).
const LONGEST_NOTE: usize = 1024;
/// What the manager was doing.
const ACTION: &str = "Reconciling";

/// How documents are written meanwhile.
pub(super) struct WriteActivity {
    /// Held while changes are made of which several cannot be made at once.
    pub(super) turns: Arc<Mutex<()>>,
    pub(super) shared: Arc<SharedWatchCache>,
}

impl WriteActivity {
    /// Returns once nobody writes any more, or a moment has come.
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

/// Takes what is to be told.
#[derive(Debug, Clone)]
pub struct EventSender(mpsc::Sender<DocumentEvent>);

impl EventSender {
    /// Begins to tell. Ends with the last one that tells. While documents are written, one is told at most: they are waited for.
    pub(super) fn start(client: Client, resources: StoreResources, writing: WriteActivity) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(publish(client, resources, writing, receiver));
        Self(sender)
    }

    /// Tells this, soon.
    pub fn send(&self, event: DocumentEvent) {
        if self.0.try_send(event).is_err() {
            tracing::warn!("too many events wait to be told: one is dropped");
        }
    }
}

/// What waits together is told together. The recorder counts what happens again and again in one Event of a series.
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
    let told = timeout(PATIENCE, recorder.publish(&new, &regarding)).await;
    if !matches!(told, Ok(Ok(()))) {
        let error = told.ok().and_then(Result::err).map(|error| error.to_string());
        let why = error.as_deref().unwrap_or("no answer");
        tracing::warn!(document = %event.regarding, reason = event.reason, why, "could not tell an event");
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
    fn a_note_ends_between_two_letters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"ä".repeat(LONGEST_NOTE)).len(), LONGEST_NOTE);
        assert_eq!(cut(&format!("a{}", "ä".repeat(LONGEST_NOTE))).len(), LONGEST_NOTE - 1);
    }
}
