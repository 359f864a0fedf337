//! Subscribers that do not read. containerd queues a hundred events for each subscriber, and then blocks all calls. For that reason, only a
//! process beside the runtime subscribes, and it reads regardless of what its own callers do.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use hyper_util::rt::TokioIo;
use k8s_cri::v1::{self, runtime_service_client::RuntimeServiceClient};
use keelway_cri::{EventMessage, testing::Containerd};
use tokio::{net::UnixStream, time::timeout};
use tonic::transport::Endpoint;

use crate::subject::{Subject, container};

/// The number of containers in a case. Each has four events. Two thirds of all events exceed what containerd's queue and the connection hold.
const LIVES: u32 = 40;
/// The size in bytes of the pod in each event. It soon fills what a connection buffers.
const NOTE: usize = 32 << 10;
/// A container usually takes 0.2 s from creation to removal. One that takes this long is blocked.
const HELD_UP: Duration = Duration::from_secs(10);

pub(crate) async fn who_does_not_fetch_holds_nobody_up((subject, containerd): &(&Subject, &Containerd)) {
    let mut unfetched = subject.runtime.events();
    let started = Instant::now();
    assert_eq!(lives(subject, "unfetched", LIVES).await, LIVES);
    println!("{LIVES} containers came and went in {:?}", started.elapsed());
    assert!(matches!(unfetched.next().await, Some(Ok(EventMessage::Event(_)))));

    // Without a reader in between, containerd blocks.
    let unread = unread(containerd.socket()).await;
    let lived = lives(subject, "unread", LIVES).await;
    println!("{lived} containers came and went until containerd held them up");
    assert!(lived < LIVES, "containerd holds nobody up: the reader is not needed");
    unread.abort();
    let _ = unread.await;
    assert_eq!(lives(subject, "after", 2).await, 2, "it ends with the subscription");
}

/// Subscribes, and does not read.
async fn unread(socket: PathBuf) -> tokio::task::JoinHandle<()> {
    let dial = tower::service_fn(move |_: http::Uri| {
        let dialling = UnixStream::connect(socket.clone());
        async { Ok::<_, std::io::Error>(TokioIo::new(dialling.await?)) }
    });
    let window = 65_535;
    let endpoint = Endpoint::from_static("http://localhost");
    let endpoint = endpoint.initial_stream_window_size(window).initial_connection_window_size(window);
    let channel = endpoint.connect_with_connector(dial).await.unwrap();
    tokio::spawn(async move {
        // The response begins with the first event.
        let events = RuntimeServiceClient::new(channel).get_container_events(v1::GetEventsRequest {}).await.unwrap();
        std::future::pending::<()>().await;
        drop(events);
    })
}

/// Runs and removes containers one after another. Returns how many finished before one was blocked.
async fn lives(subject: &Subject, case: &str, wanted: u32) -> u32 {
    let mut sandbox = subject.sandbox(case);
    sandbox.annotations.insert("keelway.dev/long".into(), "x".repeat(NOTE));
    let pod = subject.runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let mut lived = 0;
    for attempt in 0..wanted {
        let mut spec = container("one", &["exit", "0"]);
        spec.attempt = attempt;
        let life = async {
            let id = subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
            subject.runtime.start_container(&id).await.unwrap();
            subject.exited(&id).await;
            subject.runtime.remove_container(&id).await.unwrap();
        };
        if timeout(HELD_UP, life).await.is_err() {
            break;
        }
        lived += 1;
    }
    lived
}
