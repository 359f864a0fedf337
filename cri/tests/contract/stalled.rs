//! Subscribers that do not read. containerd keeps a hundred events for each, and then keeps everybody waiting: that is why only
//! whoever is beside the runtime subscribes, and reads on whatever its own callers do.

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

/// Containers of a case. Each life has four events: with what is on its way, two thirds of them are more than containerd keeps.
const LIVES: u32 = 40;
/// Each event tells of the whole pod: this much of it, in bytes, soon fills what a connection takes unread.
const NOTE: usize = 32 << 10;
/// A life takes a fifth of a second. One that takes as long as this is held up.
const HELD_UP: Duration = Duration::from_secs(10);

pub(crate) async fn who_does_not_fetch_holds_nobody_up((subject, containerd): &(&Subject, &Containerd)) {
    let mut unfetched = subject.runtime.events();
    let started = Instant::now();
    assert_eq!(lives(subject, "unfetched", LIVES).await, LIVES);
    println!("{LIVES} containers came and went in {:?}", started.elapsed());
    assert!(matches!(unfetched.next().await, Some(Ok(EventMessage::Event(_)))));

    // Without the reader in between, they are held up.
    let unread = unread(containerd.socket()).await;
    let lived = lives(subject, "unread", LIVES).await;
    println!("{lived} containers came and went until containerd held them up");
    assert!(lived < LIVES, "containerd holds nobody up: the reader is not needed");
    unread.abort();
    let _ = unread.await;
    assert_eq!(lives(subject, "after", 2).await, 2, "it ends with the subscription");
}

/// A subscription that nobody reads.
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
        // The answer begins with the first event.
        let events = RuntimeServiceClient::new(channel).get_container_events(v1::GetEventsRequest {}).await.unwrap();
        std::future::pending::<()>().await;
        drop(events);
    })
}

/// Containers that come and go, one after the other. Returns how many did before one was held up.
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
