//! The relay as an end of TCP connections of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use keelway_vpn::relay::{Dialer, RelayStream};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::relay::{RELAY, relay, towards_relay, wait_for_peers};
use super::{MEGABYTE, SECOND, on_host, ours};
use crate::support::{Namespace, Noise, chain, connect, v4, v6};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Echoes every connection in `namespace`, until the process ends.
fn echo_server(namespace: &Namespace) -> SocketAddr {
    let listener = namespace.within(|| TcpListener::bind(SocketAddr::new(v4(1), 0)).unwrap());
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || echo(stream.unwrap()));
        }
    });
    address
}

fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

async fn echo_noise(stream: RelayStream, bytes: usize) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let writing = async {
        let mut noise = Noise::new(7);
        let mut chunk = vec![0; 32 * 1024];
        let mut digest = Sha256::new();
        for _ in 0..bytes / chunk.len() {
            noise.fill(&mut chunk);
            digest.update(&chunk);
            writer.write_all(&chunk).await.unwrap();
        }
        writer.shutdown().await.unwrap();
        digest.finalize()
    };
    let reading = async {
        let mut chunk = vec![0; 32 * 1024];
        let mut digest = Sha256::new();
        loop {
            let length = reader.read(&mut chunk).await.unwrap();
            if length == 0 {
                return digest.finalize();
            }
            digest.update(&chunk[..length]);
        }
    };
    let (sent, received) = tokio::join!(writing, reading);
    assert_eq!(sent, received);
}

#[test]
fn connections_are_opened_into_the_vpn() {
    on_host("stack::connections_are_opened_into_the_vpn", || {
        let [a, middle] = chain(1500);
        let relay = relay(&middle);
        let _left = ours(&a, &towards_relay(1, "10.231.0.2"));
        wait_for_peers(&relay, 1);
        let target = echo_server(&a);
        let dialer = relay.dialer();
        block_on(async {
            let stream = dialer.dial(target, SECOND * 5).await.unwrap();
            echo_noise(stream, 50 * MEGABYTE).await;
            let refused = dialer.dial(SocketAddr::new(v4(1), 9), SECOND * 5).await;
            assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::ConnectionRefused));
            let started = Instant::now();
            let silent = dialer.dial(SocketAddr::new(v4(2), 80), SECOND).await;
            assert_eq!(silent.err().map(|error| error.kind()), Some(ErrorKind::TimedOut));
            assert!(started.elapsed() < SECOND * 4, "{:?}", started.elapsed());
        });
    });
}

#[test]
fn connections_from_the_vpn_are_accepted() {
    on_host("stack::connections_from_the_vpn_are_accepted", || {
        let [a, middle] = chain(1500);
        let relay = relay(&middle);
        let _left = ours(&a, &towards_relay(1, "10.231.0.2"));
        wait_for_peers(&relay, 1);
        let mut listener = relay.dialer().listen(80).unwrap();
        assert_eq!(relay.dialer().listen(80).err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
        let client = a.run(|| {
            let streams: Vec<_> = (0..50).map(|_| connect(SocketAddr::new(v6(RELAY), 80))).collect();
            for mut stream in streams {
                stream.write_all(b"question").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert_eq!(answer, "answer to question");
            }
        });
        block_on(async {
            for _ in 0..50 {
                let (mut stream, from) = listener.accept().await.unwrap();
                assert_eq!(from.ip(), v6(1));
                let mut question = String::new();
                stream.read_to_string(&mut question).await.unwrap();
                stream.write_all(format!("answer to {question}").as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        });
        client.join().unwrap();
        drop(listener);
        let refused = a.within(|| TcpStream::connect_timeout(&SocketAddr::new(v4(RELAY), 80), SECOND * 5));
        assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::ConnectionRefused));
    });
}

async fn ask(dialer: Dialer, target: SocketAddr, number: u32) {
    let mut stream = dialer.dial(target, SECOND * 10).await.unwrap();
    stream.write_all(&number.to_be_bytes()).await.unwrap();
    assert_eq!(stream.read_u32().await.unwrap(), number);
}

#[test]
fn a_thousand_short_connections_all_succeed() {
    on_host("stack::a_thousand_short_connections_all_succeed", || {
        let [a, middle] = chain(1500);
        let relay = relay(&middle);
        let _left = ours(&a, &towards_relay(1, "10.231.0.2"));
        wait_for_peers(&relay, 1);
        let target = echo_server(&a);
        block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..1000 {
                if tasks.len() >= 50 {
                    tasks.join_next().await.unwrap().unwrap();
                }
                tasks.spawn(ask(relay.dialer(), target, number));
            }
            tasks.join_all().await;
        });
    });
}

#[test]
fn a_relay_that_stops_ends_its_connections() {
    on_host("stack::a_relay_that_stops_ends_its_connections", || {
        let [a, middle] = chain(1500);
        let relay = relay(&middle);
        let _left = ours(&a, &towards_relay(1, "10.231.0.2"));
        wait_for_peers(&relay, 1);
        let target = echo_server(&a);
        let dialer = relay.dialer();
        block_on(async {
            let mut stream = dialer.dial(target, SECOND * 5).await.unwrap();
            let mut listener = dialer.listen(80).unwrap();
            drop(relay);
            assert!(stream.read_u8().await.is_err());
            assert!(listener.accept().await.is_err());
            assert!(dialer.dial(target, SECOND).await.is_err());
        });
    });
}
