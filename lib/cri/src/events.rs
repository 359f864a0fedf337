//! Events of sandboxes and containers.

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

/// How many events are queued for a slow consumer. Further events are dropped and counted.
const WAITING: usize = 1024;

/// An event of a sandbox or container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriEvent {
    /// The id of the container or sandbox.
    pub id: String,
    /// The id of the sandbox, if the runtime still had the sandbox.
    pub sandbox_id: Option<String>,
    /// What happened.
    pub kind: EventKind,
    /// When it happened, by the runtime's clock.
    pub at: SystemTime,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The sandbox or container was created.
    Created,
    /// The sandbox or container was started.
    Started,
    /// The sandbox or container stopped.
    Stopped,
    /// The sandbox or container was removed.
    Deleted,
}

/// A message to a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventMessage {
    /// An event.
    Event(CriEvent),
    /// This many events were dropped because the queue was full. List again.
    Missed(u64),
}

/// A subscription to events.
///
/// containerd blocks its own calls if a subscriber stops reading. A separate task therefore always reads, and drops and counts events if the consumer
/// is too slow. A runtime does not confirm a subscription before the first event: after subscribing, list, and list again periodically.
///
/// Dropping the subscription ends it.
#[derive(Debug)]
pub struct EventSubscription {
    waiting: mpsc::Receiver<Result<CriEvent, CriError>>,
    missed: Arc<AtomicU64>,
    reader: JoinHandle<()>,
}

impl EventSubscription {
    /// Returns the next message, or `None` after the runtime ended the stream. An error is the last message: subscribe again, and list.
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
    // Go's gRPC sends the response headers with the first message, so this call has no deadline.
    let mut stream = match client.get_container_events(v1::GetEventsRequest {}).await {
        Ok(answer) => answer.into_inner(),
        // Sending fails only if the consumer is gone.
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
