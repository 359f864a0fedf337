//! What happens to sandboxes and containers, as it happens.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use k8s_cri::v1::{self, runtime_service_client::RuntimeServiceClient};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    task::JoinHandle,
};
use tonic::transport::Channel;

use crate::{CriError, Operation};

/// How many events wait for a slow consumer before some are lost.
const WAITING: usize = 1024;

/// Something happened to a sandbox or container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriEvent {
    /// The id of the container, or of the sandbox itself.
    pub id: String,
    /// The id of the sandbox, where the runtime still knew it.
    pub sandbox_id: Option<String>,
    /// What happened.
    pub kind: EventKind,
    /// When.
    pub at: SystemTime,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was made.
    Created,
    /// It was started.
    Started,
    /// It ended.
    Stopped,
    /// It was removed.
    Deleted,
}

/// What a subscriber is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventMessage {
    /// Something happened.
    Event(CriEvent),
    /// So many events were lost because they were not fetched in time: list again.
    Missed(u64),
}

/// A subscription to events.
///
/// containerd blocks its own calls when a subscriber stops reading, so a task of its own reads here whatever the
/// consumer does, and what the consumer does not fetch in time is lost and counted. A runtime gives no sign that a
/// subscription is in effect before the first event: after subscribing, list, and list again now and then.
///
/// Dropping it ends the subscription.
#[derive(Debug)]
pub struct EventSubscription {
    waiting: mpsc::Receiver<Result<CriEvent, CriError>>,
    missed: Arc<AtomicU64>,
    reader: JoinHandle<()>,
}

impl EventSubscription {
    /// The next notice; `None` after the runtime ended the stream. An error is the last notice: subscribe again, and
    /// list.
    pub async fn next(&mut self) -> Option<Result<EventMessage, CriError>> {
        let missed = self.missed.swap(0, Ordering::Relaxed);
        if missed > 0 {
            return Some(Ok(EventMessage::Missed(missed)));
        }
        Some(self.waiting.recv().await?.map(EventMessage::Event))
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

pub(crate) fn subscribe(client: RuntimeServiceClient<Channel>, deadline: Duration) -> EventSubscription {
    let (sender, waiting) = mpsc::channel(WAITING);
    let missed = Arc::new(AtomicU64::new(0));
    let reader = tokio::spawn(read(client, deadline, sender, Arc::clone(&missed)));
    EventSubscription { waiting, missed, reader }
}

async fn read(
    mut client: RuntimeServiceClient<Channel>,
    deadline: Duration,
    sender: mpsc::Sender<Result<CriEvent, CriError>>,
    missed: Arc<AtomicU64>,
) {
    let failed = |status| CriError::from_status(Operation::new("GetContainerEvents", ""), deadline, status);
    // Go's gRPC sends the head of an answer with its first message, so this has no deadline of its own.
    let mut stream = match client.get_container_events(v1::GetEventsRequest {}).await {
        Ok(answer) => answer.into_inner(),
        // The consumer may be gone; then nobody wants to know.
        Err(status) => return drop(sender.send(Err(failed(status))).await),
    };
    loop {
        let event = match stream.message().await {
            Ok(Some(event)) => CriEvent::from(event),
            Ok(None) => return,
            Err(status) => return drop(sender.send(Err(failed(status))).await),
        };
        match sender.try_send(Ok(event)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                missed.fetch_add(1, Ordering::Relaxed);
            }
            Err(TrySendError::Closed(_)) => return,
        }
    }
}
