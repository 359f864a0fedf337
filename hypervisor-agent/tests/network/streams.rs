//! Streams of a runtime, which the agent relays on its port: only to the driver, and only once.

use std::{io, net::SocketAddr, sync::Arc};

use k8s_cri::v1::{self, runtime_service_client::RuntimeServiceClient};
use keelway_hypervisor_agent::agent::ConnectionLimits;
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    WITHIN,
    installation::{AGENT, Installation},
    machine::{Machine, config},
    refusals::tls,
};

/// Starts a streaming server that accepts any path any number of times, and echoes what it reads.
async fn streams() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo(stream));
        }
    });
    address
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    head(&mut stream).await?;
    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    stream.write_all(switched.as_bytes()).await?;
    let mut told = Vec::new();
    stream.read_to_end(&mut told).await?;
    stream.write_all(&told).await?;
    stream.shutdown().await
}

/// Reads the HTTP head of a stream.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(head).unwrap())
}

/// Requests a stream, and returns the status of the response.
async fn ask<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, path: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = timeout(WITHIN, head(stream)).await.unwrap().unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

async fn connect(machine: &Machine, identity: &TempDir) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(machine.address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(tls(Some(identity))));
    connector.connect(AGENT.try_into().unwrap(), stream).await.unwrap()
}

/// Prepares a stream, and returns the URL that the agent returns.
async fn prepare(machine: &Machine, identity: &TempDir) -> String {
    let mut runtime = RuntimeServiceClient::new(machine.channel(identity.path()));
    let all = runtime.list_containers(v1::ListContainersRequest::default()).await.unwrap().into_inner().containers;
    let request = v1::ExecRequest { container_id: all[0].id.clone(), ..v1::ExecRequest::default() };
    runtime.exec(request).await.unwrap().into_inner().url
}

async fn machine_with_streams(installation: &mut Installation, driver: &TempDir) -> (Machine, SocketAddr) {
    let machine = Machine::new(installation, ConnectionLimits::default());
    let runtime = streams().await;
    timeout(WITHIN, machine.client(driver).apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    (machine, runtime)
}

#[tokio::test]
async fn a_stream_opens_once_and_only_for_its_client() {
    let mut installation = Installation::new(1);
    let driver = installation.driver(|_| {});
    let (machine, runtime) = machine_with_streams(&mut installation, &driver).await;
    machine.fake.set_streams(&format!("http://{runtime}/exec/token-1"));
    let url = prepare(&machine, &driver).await;
    assert_eq!(url, format!("https://{}/exec/token-1", machine.address));

    assert_eq!(ask(&mut connect(&machine, &driver).await, "/exec/token-2").await, 404, "it was given out by nobody");
    let mut stream = connect(&machine, &driver).await;
    assert_eq!(ask(&mut stream, "/exec/token-1").await, 101);
    let told: Vec<u8> = (0..1_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    stream.write_all(&told).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    timeout(WITHIN, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer == told, "{} bytes of {}", answer.len(), told.len());
    assert_eq!(ask(&mut connect(&machine, &driver).await, "/exec/token-1").await, 404, "it is used");

    // The runtime itself accepts these paths repeatedly.
    for path in ["/exec/token-1", "/exec/token-2"] {
        assert_eq!(ask(&mut TcpStream::connect(runtime).await.unwrap(), path).await, 101, "{path}");
    }
    assert!(machine.serves(&driver).await);
}

#[tokio::test]
async fn an_agent_gets_no_stream() {
    let mut installation = Installation::new(1);
    let driver = installation.driver(|_| {});
    let (machine, runtime) = machine_with_streams(&mut installation, &driver).await;
    machine.fake.set_streams(&format!("http://{runtime}/exec/token-1"));
    prepare(&machine, &driver).await;
    let agent = installation.agent("hv-2");
    assert_eq!(ask(&mut connect(&machine, &agent).await, "/exec/token-1").await, 403);
    assert_eq!(ask(&mut connect(&machine, &driver).await, "/exec/token-1").await, 101, "the driver gets it");
}

/// If the agent cannot dial the URL of the runtime, the stream on the agent's own port fails with 502.
#[tokio::test]
async fn a_runtime_that_cannot_be_dialled() {
    let mut installation = Installation::new(1);
    let driver = installation.driver(|_| {});
    let (machine, _) = machine_with_streams(&mut installation, &driver).await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for url in [format!("http://{nobody}/exec/a"), "https://127.0.0.1:1/exec/a".to_owned()] {
        machine.fake.set_streams(&url);
        prepare(&machine, &driver).await;
        assert_eq!(ask(&mut connect(&machine, &driver).await, "/exec/a").await, 502, "{url}");
    }
    assert!(machine.serves(&driver).await);
}
