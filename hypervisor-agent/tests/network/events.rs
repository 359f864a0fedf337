//! The events of the runtime, which the agent sends to subscribers on its port.

use std::time::Duration;

use futures::StreamExt;
use k8s_cri::v1::{self, runtime_service_client::RuntimeServiceClient};
use keelway_hypervisor_agent::agent::ConnectionLimits;
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::{WITHIN, installation::Installation, machine::Machine};

/// The events of a sandbox, from its creation to its removal.
const LIFE: [v1::ContainerEventType; 4] = [
    v1::ContainerEventType::ContainerCreatedEvent,
    v1::ContainerEventType::ContainerStartedEvent,
    v1::ContainerEventType::ContainerStoppedEvent,
    v1::ContainerEventType::ContainerDeletedEvent,
];
/// The size of each event in bytes. A few hundred events exceed the buffers between the agent and a subscriber.
pub(crate) const SIZE: usize = 1 << 16;
/// The number of sandboxes. Their events exceed the agent's queue for a slow subscriber many times.
pub(crate) const MANY: u32 = 200;

pub(crate) type Runtime = RuntimeServiceClient<Channel>;

fn runtime(machine: &Machine, driver: &TempDir) -> Runtime {
    RuntimeServiceClient::new(machine.channel(driver.path()))
}

/// Subscribes. Retries until the agent's own subscription is in effect.
async fn subscribe(runtime: &mut Runtime) -> Streaming<v1::ContainerEventResponse> {
    let subscribing = async {
        loop {
            match runtime.get_container_events(v1::GetEventsRequest {}).await {
                Ok(answer) => return answer.into_inner(),
                Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHIN, subscribing).await.unwrap()
}

/// Runs a sandbox and removes it.
pub(crate) async fn live_and_die(runtime: &mut Runtime, attempt: u32, size: usize) -> String {
    let name = || "others".to_owned();
    let metadata = v1::PodSandboxMetadata { name: name(), uid: name(), namespace: name(), attempt };
    let annotations = [("size".to_owned(), "x".repeat(size))].into();
    let config = v1::PodSandboxConfig { metadata: Some(metadata), annotations, ..Default::default() };
    let request = v1::RunPodSandboxRequest { config: Some(config), ..Default::default() };
    let id = runtime.run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id;
    runtime.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() }).await.unwrap();
    runtime.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: id.clone() }).await.unwrap();
    id
}

/// Returns the events of a sandbox, up to the last one.
async fn told(events: &mut Streaming<v1::ContainerEventResponse>, id: &str) -> Vec<v1::ContainerEventType> {
    let mut told = Vec::new();
    while told.last() != LIFE.last() {
        let event = timeout(WITHIN, events.next()).await.unwrap().unwrap().unwrap();
        if event.container_id == id {
            told.push(event.container_event_type());
        }
    }
    told
}

/// Reads until the end of the subscription. Returns the number of events before it, and its status.
async fn end(events: &mut Streaming<v1::ContainerEventResponse>) -> (usize, Status) {
    let mut read = 0;
    loop {
        match timeout(WITHIN, events.next()).await.unwrap().unwrap() {
            Ok(_) => read += 1,
            Err(status) => return (read, status),
        }
    }
}

#[tokio::test]
async fn one_subscription_serves_many_clients() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let mut runtime = runtime(&machine, &driver);
    let mut subscribers = Vec::new();
    for _ in 0..10 {
        subscribers.push(subscribe(&mut runtime).await);
    }
    let id = live_and_die(&mut runtime, 0, 1).await;
    for events in &mut subscribers {
        assert_eq!(told(events, &id).await, LIFE);
    }
    assert_eq!(machine.calls("GetContainerEvents"), 1);
}

#[tokio::test]
async fn a_slow_subscriber_delays_no_other_and_learns_how_many_events_it_missed() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let (mut runtime, mut apart) = (runtime(&machine, &driver), runtime(&machine, &driver));
    let mut slow = subscribe(&mut apart).await;
    let mut quick = subscribe(&mut runtime).await;
    for attempt in 0..MANY {
        let id = live_and_die(&mut runtime, attempt, SIZE).await;
        assert_eq!(told(&mut quick, &id).await, LIFE);
    }
    let (read, why) = end(&mut slow).await;
    assert!(read < LIFE.len() * MANY as usize, "{read} were on the way");
    assert_eq!(why.code(), Code::Aborted, "{why}");
    assert!(why.message().contains("list again"), "{why}");
    let mut again = subscribe(&mut apart).await;
    let id = live_and_die(&mut runtime, MANY, SIZE).await;
    assert_eq!(told(&mut again, &id).await, LIFE);
    assert_eq!(machine.calls("GetContainerEvents"), 1);
    assert!(machine.client(&driver).state(Duration::from_secs(10)).await.is_ok());
}
