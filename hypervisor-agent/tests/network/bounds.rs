//! Limits of the resources that clients can use, with and without a valid certificate.

use std::{
    fs,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::stream;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use keelway_hypervisor_agent::agent::ConnectionLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{io::AsyncWriteExt, runtime::Handle, task::spawn_blocking, time::timeout};
use tonic::{body::Body, transport::Channel};
use tower::ServiceExt;

use crate::{
    ALONE, WITHIN,
    installation::Installation,
    machine::{Machine, config},
    refusals::{converse, tls},
};

/// The number of connections that send nothing.
pub(crate) const IDLE: usize = 10_000;
/// Descriptors and tasks of this process other than those of strangers: those of the runtime, the agent and the driver.
const OTHERS: usize = 128;
/// How many bytes of a message can be in transit when it is refused: flow control windows and socket buffers.
pub(crate) const ON_THE_WAY: usize = 64 << 20;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn ten_thousand_silent_connections_use_bounded_resources() {
    let _alone = ALONE.lock().await;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let mut installation = Installation::new(1);
    let bounds = ConnectionLimits::default();
    let machine = Machine::new(&mut installation, bounds);
    let driver = installation.driver(|_| {});
    let watching = machine.client(&driver);
    timeout(WITHIN, watching.apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    let tasks = Handle::current().metrics().num_alive_tasks();
    let mut idle = Vec::new();
    for _ in 0..10 {
        idle.extend(say_nothing(&machine, IDLE / 10).await);
        assert!(machine.serves(&driver).await, "with {} connections", idle.len());
        let more = Handle::current().metrics().num_alive_tasks().saturating_sub(tasks);
        assert!(more <= bounds.strangers + OTHERS, "{more} more tasks");
        let ends = descriptors() - idle.len();
        assert!(ends <= bounds.strangers + OTHERS, "{ends} descriptors");
    }
    assert!(watching.state(WITHIN).await.is_ok(), "a conversation that stood goes on");

    // If the limit allows all connections, each has a task of its own.
    let machine = Machine::new(&mut installation, ConnectionLimits { strangers: IDLE, ..bounds });
    let _idle = say_nothing(&machine, IDLE / 10).await;
    let all = async {
        while Handle::current().metrics().num_alive_tasks() < IDLE / 10 {
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHIN, all).await.unwrap();
}

async fn say_nothing(machine: &Machine, connections: usize) -> Vec<TcpStream> {
    let address = machine.address;
    let connect = move || (0..connections).map(|_| TcpStream::connect(address).unwrap()).collect();
    timeout(WITHIN, spawn_blocking(connect)).await.unwrap().unwrap()
}

/// The announced size of a message, in chunks.
pub(crate) const GIGABYTE: usize = 1 << 10;
pub(crate) const CHUNK: usize = 1 << 20;

/// Sends a request whose message is announced with this many chunks, and sends as much of it as the agent reads. Returns the status of the
/// response and the number of bytes that the agent has read.
pub(crate) async fn ask_with_chunks(channel: Channel, path: &str, chunks: usize) -> (Option<String>, usize) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&taken);
    let length = u32::try_from(chunks * CHUNK).unwrap().to_be_bytes();
    let head = Bytes::from([&[0][..], &length].concat());
    let chunk = Bytes::from(vec![0; CHUNK]);
    let chunks = std::iter::once(head).chain(std::iter::repeat_n(chunk, chunks)).map(move |bytes| {
        counting.fetch_add(bytes.len(), Ordering::SeqCst);
        Ok::<_, std::convert::Infallible>(Frame::data(bytes))
    });
    let body = Body::new(StreamBody::new(stream::iter(chunks)));
    let request = http::Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
    let asking = channel.oneshot(request.body(body).unwrap());
    let answer = timeout(WITHIN, asking).await.unwrap();
    let status = answer.ok().and_then(|answer| {
        let status = answer.headers().get("grpc-status")?;
        Some(status.to_str().unwrap().to_owned())
    });
    (status, taken.load(Ordering::SeqCst))
}

#[tokio::test]
async fn a_message_of_a_gigabyte_is_refused_by_its_first_bytes() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    assert!(machine.serves(&driver).await);
    for path in ["/keelway.agent.v1.Agent/Apply", "/runtime.v1.RuntimeService/Version"] {
        let (status, taken) = ask_with_chunks(machine.channel(driver.path()), path, GIGABYTE).await;
        // OUT_OF_RANGE (11), or the agent resets the stream before the client reads the status.
        assert!(status.as_deref().is_none_or(|status| status == "11"), "{path}: {status:?}");
        assert!(taken < ON_THE_WAY, "{path}: {taken} bytes were taken");
        assert!(machine.serves(&driver).await, "after {path}");
    }
}

/// Encodes the n-th request of a connection as HEADERS and DATA (RFC 9113, 6; RFC 7541, 6).
pub(crate) fn question(nth: u32, path: &str, message: &[u8]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let headers = [
        // `:method: POST`, `:scheme: http`, and names of the static table: `:path`, `:authority`, `content-type`.
        vec![0x83, 0x86, 0x04],
        text(path),
        vec![0x01],
        text("agent"),
        vec![0x0f, 0x10],
        text("application/grpc"),
        vec![0x00],
        text("te"),
        text("trailers"),
    ]
    .concat();
    let frame = |kind: u8, flags: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags], &(2 * nth + 1).to_be_bytes()[..], payload].concat()
    };
    let length = u8::try_from(message.len()).unwrap();
    [frame(1, 4, &headers), frame(0, 1, &[&[0, 0, 0, 0, length], message].concat())].concat()
}

#[tokio::test]
async fn a_client_that_does_not_read_responses_is_disconnected() {
    let mut installation = Installation::new(1);
    let bounds = ConnectionLimits { conversations: 1, silence: Duration::from_secs(1), ..ConnectionLimits::default() };
    let machine = Machine::new(&mut installation, bounds);
    let driver = installation.driver(|_| {});
    let mut stuck = converse(&machine, &tls(Some(&driver))).await.unwrap();
    let before = machine.fake.calls().len();
    for nth in 0..1000 {
        let path = ["/keelway.agent.v1.Agent/GetState", "/keelway.agent.v1.Agent/WatchState"][nth as usize % 2];
        // The agent may have closed the connection by then.
        if stuck.write_all(&question(nth, path, &[])).await.is_err() {
            break;
        }
    }
    stuck.flush().await.ok();
    let taken = async {
        while !machine.serves(&driver).await {
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHIN, taken).await.unwrap();
    assert!(machine.fake.calls().len() > before, "it was answered");
    drop(stuck);
}
