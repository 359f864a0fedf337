//! Many connections of a relay whose readers stall.
#![expect(clippy::unwrap_used, reason = "this is all test")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use keelway_vpn::relay::RelayStream;
use keelway_vpn::{CoreLimits, PeerConfig, PeerSet, PrivateKey, Relay, RelayConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// The number of connections. With full buffers, they would use most of a gateway's memory limit.
const STREAMS: usize = 200;
/// The most bytes of their buffers: 48 MiB of large ones, and 64 KiB for each connection beyond these.
const MOST: usize = (48 << 20) + STREAMS * (64 << 10);
const PORT: u16 = 10250;
const PATIENCE: Duration = Duration::from_secs(60);
/// The sender counts as stalled after this time without progress.
const STALLED: Duration = Duration::from_millis(200);

fn key(number: u8) -> PrivateKey {
    STANDARD.encode([number; 32]).parse().unwrap()
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 1, 0, number).into()
}

fn relay(number: u8) -> Relay {
    Relay::start(RelayConfig {
        name: format!("r{number}"),
        private_key: Some(key(number)),
        listen_port: 0,
        addresses: vec![address(number)],
        mtu: 1420,
        limits: CoreLimits::default(),
    })
    .unwrap()
}

fn peer(number: u8, port: u16) -> PeerSet {
    let mut peer = PeerConfig::new(key(number).public());
    peer.endpoint = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    peer.allowed_ips.insert(address(number).into());
    [peer].into_iter().collect()
}

/// Two relays that are peers of each other.
fn pair() -> (Relay, Relay) {
    let (gateway, worker) = (relay(1), relay(2));
    gateway.set_peers(&peer(2, worker.listen_port()));
    worker.set_peers(&peer(1, gateway.listen_port()));
    (gateway, worker)
}

/// Writes until nothing is accepted any more, and keeps the connection open.
async fn fill(mut stream: RelayStream) -> RelayStream {
    let block = vec![7; 64 << 10];
    while matches!(timeout(STALLED, stream.write_all(&block)).await, Ok(Ok(()))) {}
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_connections_use_bounded_memory_and_another_one_is_served() {
    let (gateway, worker) = pair();
    let mut listener = worker.dialer().listen(PORT).unwrap();
    let (sender, mut filled) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move { sender.send(fill(stream).await) });
        }
    });
    let dialer = gateway.dialer();
    let to = SocketAddr::new(address(2), PORT);
    let (mut stalled, mut writers) = (Vec::new(), Vec::new());
    for number in 0..STREAMS {
        stalled.push(dialer.dial(to, PATIENCE).await.unwrap_or_else(|error| panic!("connection {number}: {error}")));
    }
    while writers.len() < STREAMS {
        writers.push(timeout(PATIENCE, filled.recv()).await.unwrap().unwrap());
    }
    let used = gateway.stream_buffer_bytes();
    println!("{STREAMS} stalled connections have buffers of {} MiB", used >> 20);
    assert!(used <= MOST, "{used}");

    let mut another = dialer.dial(to, PATIENCE).await.unwrap();
    let mut read = vec![0; 16 << 10];
    timeout(PATIENCE, another.read_exact(&mut read)).await.expect("it is served").unwrap();
    drop((stalled, another));
    drop(writers);
}

#[tokio::test]
async fn the_end_of_the_packet_thread_is_reported() {
    let relay = relay(3);
    assert!(relay.is_running());
    relay.stop();
    let ended = async {
        while relay.is_running() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, ended).await.unwrap();
}

#[tokio::test]
async fn the_buffers_of_the_outer_sockets_are_reported() {
    let buffers = relay(4).kernel_buffers();
    assert!(buffers.receive > 0 && buffers.receive <= buffers.wanted, "{buffers:?}");
    assert!(buffers.send > 0 && buffers.send <= buffers.wanted, "{buffers:?}");
}
