//! A stream through two devices whose datagrams TLS carries, compared with the same devices over UDP, and with the same bytes over TLS alone.
//!
//! All ends encrypt on the cores of one machine, so that the cipher of WireGuard bounds each tunnel. Both streams over TLS use the TLS library of Keelway. The ingress, which forwards either unread, is not between them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keelway_vpn::datagram_stream::carry;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::report::{Report, Row, median};
use crate::stack::block_on;
use crate::streams::stream;
use crate::support::{End, Namespace, chain, v4};
use crate::{Plan, devices, ours, right};

/// The name in the server's certificate.
const NAME: &str = "gateway.keelway";
/// The server: the second namespace of a chain.
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 231, 0, 2)), 8443);
/// Where the near device sends its datagrams, in place of the far one.
const CARRIER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 51821);
/// The port of the far device.
const DEVICE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 51820);
/// Longer than a round.
const SILENCE: Duration = Duration::from_secs(600);

/// The configurations of both sides, which trust each other.
struct TlsPair {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsPair {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let client = client.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let server = ServerConfig::builder_with_provider(provider);
        let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        Self {
            client: Arc::new(client.with_no_client_auth()),
            server: Arc::new(server.with_single_cert(vec![certificate], key).unwrap()),
        }
    }

    async fn connect(client: Arc<ClientConfig>) -> client::TlsStream<TcpStream> {
        let stream = TcpStream::connect(SERVER).await.unwrap();
        stream.set_nodelay(true).unwrap();
        TlsConnector::from(client).connect(ServerName::try_from(NAME).unwrap(), stream).await.unwrap()
    }

    /// Sends once the server listens.
    async fn accept(server: Arc<ServerConfig>, ready: mpsc::Sender<()>) -> server::TlsStream<TcpStream> {
        let listener = TcpListener::bind(SERVER).await.unwrap();
        ready.send(()).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        TlsAcceptor::from(server).accept(stream).await.unwrap()
    }
}

/// Both ends of a TLS connection that carries datagrams between two devices, each in a thread. They end when this is dropped.
struct Carriers {
    ends: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Carriers {
    fn start([a, b]: &[Namespace; 2]) -> Self {
        let tls = TlsPair::new();
        let ((ready, listening), (bound, has_bound)) = (mpsc::channel(), mpsc::channel());
        let ((near_end, near_ends), (far_end, far_ends)) = (channel(), channel());
        let far = b.run(move || until_dropped(far(tls.server, ready), far_ends));
        listening.recv().unwrap();
        let near = a.run(move || until_dropped(near(tls.client, bound), near_ends));
        has_bound.recv().unwrap();
        Self { ends: vec![near_end, far_end], threads: vec![near, far] }
    }
}

impl Drop for Carriers {
    fn drop(&mut self) {
        self.ends.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

async fn near(client: Arc<ClientConfig>, bound: mpsc::Sender<()>) {
    let socket = UdpSocket::bind(CARRIER).await.unwrap();
    bound.send(()).unwrap();
    let (_, device) = socket.peek_from(&mut [0; 1]).await.unwrap();
    socket.connect(device).await.unwrap();
    let stream = TlsPair::connect(client).await;
    let _ = carry(stream, &socket, SILENCE, |_| true, |_| {}).await;
}

async fn far(server: Arc<ServerConfig>, ready: mpsc::Sender<()>) {
    let stream = TlsPair::accept(server, ready).await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.connect(DEVICE).await.unwrap();
    let _ = carry(stream, &socket, SILENCE, |_| true, |_| {}).await;
}

/// Runs one end until the other side of the channel is dropped.
fn until_dropped(end: impl Future<Output = ()>, dropped: Receiver<()>) {
    block_on(async {
        tokio::select! {
            () = end => {}
            _ = dropped => {}
        }
    });
}

/// Returns the speed of a stream through two devices, in Gbit/s.
fn carried(plan: &Plan) -> f64 {
    let namespaces = chain(1500);
    let _far = ours(&namespaces[1], &right());
    let _carriers = Carriers::start(&namespaces);
    let [a, b] = &namespaces;
    let _near = ours(a, &End::new(1).peer(2, "10.232.0.2/32", &format!("Endpoint = {CARRIER}")));
    stream(a, b, v4(2), Duration::from_millis(500));
    stream(a, b, v4(2), plan.seconds)
}

/// Returns the speed of a stream over TLS, in Gbit/s.
fn plain(plan: &Plan) -> f64 {
    let [a, b] = chain(1500);
    let (tls, seconds) = (TlsPair::new(), plan.seconds);
    let (ready, listening) = mpsc::channel();
    let receiver = b.run(move || {
        block_on(async {
            let mut stream = TlsPair::accept(tls.server, ready).await;
            let (mut chunk, mut total, started) = (vec![0; 256 * 1024], 0.0, Instant::now());
            while let Ok(length @ 1..) = stream.read(&mut chunk).await {
                total += length as f64;
            }
            total * 8.0 / 1e9 / started.elapsed().as_secs_f64()
        })
    });
    listening.recv().unwrap();
    a.within(move || {
        block_on(async {
            let mut stream = TlsPair::connect(tls.client).await;
            let (chunk, started) = (vec![7; 128 * 1024], Instant::now());
            while started.elapsed() < seconds {
                stream.write_all(&chunk).await.unwrap();
            }
            let _ = stream.shutdown().await;
        });
    });
    receiver.join().unwrap()
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    let (mut tunnel, mut udp, mut tls) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        tunnel.push(carried(plan));
        udp.push(devices::round(plan, ours).speed);
        tls.push(plain(plan));
    }
    let what = "one TCP stream, two devices and WireGuard over TLS, beside the same over UDP";
    report.add(Row::ratio(what, "Gbit/s", &tunnel, &udp, 0.5));
    report.note(format!("The same bytes over TLS alone: {:.2} Gbit/s.", median(tls)));
}
