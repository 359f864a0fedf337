//! Stand-ins for a gateway and an egress, each without the guards that are code.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixListener, lookup_host};
use tokio_rustls::TlsAcceptor;

use crate::daemon::{Egress, Gateway};
use crate::lan::address;
use crate::support::Namespace;

/// Serves in place of a gateway, with its certificate. It requests no client certificate, and it dials names as well as addresses from its
/// machine.
pub(crate) fn gateway(gateway: &Gateway) {
    let file = |name: &str| gateway.daemon.file(name);
    let certificate = CertificateDer::from_pem_file(file("tls.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("tls.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let at = (address(gateway.number), 20010);
    let listener = gateway.daemon.machine.within(|| std::net::TcpListener::bind(at).unwrap());
    listener.set_nonblocking(true).unwrap();
    serve(&gateway.daemon.machine, async move {
        let listener = TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                while let Some(request) = head(&mut stream).await {
                    match request.strip_prefix("CONNECT ") {
                        Some(target) => return lead(stream, TcpStream::connect(target).await).await,
                        // The egress checks whether the gateway responds.
                        None => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap(),
                    }
                }
            });
        }
    });
}

/// Serves the control-plane socket of an egress. It checks the addresses of a name, and then dials the name.
pub(crate) fn egress(egress: &Egress) {
    let _ = std::fs::remove_file(egress.control_plane());
    let listener = std::os::unix::net::UnixListener::bind(egress.control_plane()).unwrap();
    listener.set_nonblocking(true).unwrap();
    serve(&egress.daemon.machine, async move {
        let listener = UnixListener::from_std(listener).unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let request = head(&mut stream).await.unwrap();
                let name = request.strip_prefix("CONNECT ").unwrap();
                let Ok(found) = lookup_host(name).await else {
                    return stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                };
                let found: Vec<SocketAddr> = found.collect();
                if found.iter().any(|address| address.ip().is_loopback()) {
                    let refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 9\r\n\r\nloopback\n";
                    return stream.write_all(refusal).await.unwrap();
                }
                lead(stream, TcpStream::connect(name).await).await;
            });
        }
    });
}

/// Runs a server on a machine until the test ends.
fn serve(machine: &Namespace, server: impl Future<Output = ()> + Send + 'static) {
    drop(machine.run(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(server);
    }));
}

/// Returns method and target of the next request, if there is one.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).unwrap().split_once(" HTTP/").map(|(request, _)| request.to_owned())
}

async fn lead(mut from: impl AsyncRead + AsyncWrite + Unpin, to: std::io::Result<TcpStream>) {
    match to {
        Ok(mut to) => {
            from.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let _ = copy_bidirectional(&mut from, &mut to).await;
        }
        Err(error) => {
            let why = format!("{error}\n");
            let answer = format!("HTTP/1.1 502 Bad Gateway\r\ncontent-length: {}\r\n\r\n{why}", why.len());
            let _ = from.write_all(answer.as_bytes()).await;
        }
    }
}
