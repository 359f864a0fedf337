//! What the driver does through an agent instead of through the machine's own sockets and files.

use std::{fs, io::Write, net::SocketAddr};

use futures::StreamExt;
use keelway_api::name::PodName;
use keelway_hypervisor_agent::agent::ConnectionLimits;
use keelway_machine::log::{Log, LogOptions};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};

use crate::{WITHIN, installation::Installation, machine::Machine};

/// Starts a server that reads a connection to its end, and then echoes it.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut told = Vec::new();
            stream.read_to_end(&mut told).await.unwrap();
            stream.write_all(&told).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn connections_from_the_machines_network() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let client = machine.client(&driver);
    let address = echo().await;
    // Many times what the buffers between both ends hold.
    let told: Vec<u8> = (0..1_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    for _ in 0..3 {
        let mut stream = client.dial(address, WITHIN).await.unwrap();
        stream.write_all(&told).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        timeout(WITHIN, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer == told, "{} bytes of {}", answer.len(), told.len());
    }

    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let why = client.dial(nobody, WITHIN).await.unwrap_err();
    let why = std::error::Error::source(&why).unwrap().to_string();
    assert!(why.contains("Connection refused"), "{why}");
    assert!(machine.serves(&driver).await);
}

#[tokio::test]
async fn logs_are_listed_read_and_followed() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let client = machine.client(&driver);
    let pod: PodName = "0123456789abcdef/etcd-0".parse().unwrap();
    assert_eq!(client.logs(&pod, WITHIN).await.unwrap(), None);

    let folder = machine.log_folder().join("0123456789abcdef/etcd-0");
    fs::create_dir_all(&folder).unwrap();
    let line = |second: u32, text: &str| format!("2026-01-01T00:00:0{second}Z stdout F {text}\n");
    let mut file = fs::File::create(folder.join("main-0.log")).unwrap();
    file.write_all((line(0, "one") + &line(1, "two")).as_bytes()).unwrap();
    let log = Log { container: "main".to_owned(), attempt: 0 };
    assert_eq!(client.logs(&pod, WITHIN).await.unwrap(), Some(vec![log.clone()]));

    let wanted = LogOptions { tail: Some(1), timestamps: true, ..LogOptions::default() };
    let mut text = client.read_log(&pod, &log, &wanted, WITHIN).await.unwrap();
    assert_eq!(timeout(WITHIN, text.next()).await.unwrap().unwrap().unwrap(), b"2026-01-01T00:00:01Z two\n");
    assert!(timeout(WITHIN, text.next()).await.unwrap().is_none());

    let wanted =
        LogOptions { follow: true, since: Some("2026-01-01T00:00:01Z".parse().unwrap()), ..LogOptions::default() };
    let mut text = client.read_log(&pod, &log, &wanted, WITHIN).await.unwrap();
    assert_eq!(timeout(WITHIN, text.next()).await.unwrap().unwrap().unwrap(), b"two\n");
    file.write_all(line(2, "three").as_bytes()).unwrap();
    assert_eq!(timeout(WITHIN, text.next()).await.unwrap().unwrap().unwrap(), b"three\n");
    fs::remove_file(folder.join("main-0.log")).unwrap();
    assert!(timeout(WITHIN, text.next()).await.unwrap().is_none(), "the log is gone");
}

#[tokio::test]
async fn a_machine_is_adopted_over_the_network() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let client = machine.client(&driver);
    let id = "00000000000000ff".parse().unwrap();
    assert_eq!(client.state(WITHIN).await.unwrap().owner, None);
    client.adopt(&id, WITHIN).await.unwrap();
    assert_eq!(client.state(WITHIN).await.unwrap().owner, Some(id));
}
