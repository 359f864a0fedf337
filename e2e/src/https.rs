//! Requests over TLS on given connections: with and without a client certificate, and with responses that stay open.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    sync::Arc,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use crate::deadline;

/// The trusted authorities and the identity of a client.
pub struct HttpsClient {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
}

/// A response.
#[derive(Debug)]
pub struct HttpsResponse {
    /// The HTTP status.
    pub status: u16,
    /// The headers and the body.
    pub text: String,
}

impl HttpsClient {
    /// Creates a client that trusts a bundle (PEM) for this server name, and presents a certificate and key (PEM) if there is one.
    pub fn new(bundle: &[u8], server_name: &str, identity: Option<(&[u8], &[u8])>) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => {
                let certificates = CertificateDer::pem_slice_iter(certificates).map(Result::unwrap).collect();
                builder.with_client_auth_cert(certificates, PrivateKeyDer::from_pem_slice(key).unwrap()).unwrap()
            }
        };
        Self { config: Arc::new(config), server_name: ServerName::try_from(server_name.to_owned()).unwrap() }
    }

    /// Sends one `GET` with `Connection: close` on this connection.
    pub fn get(&self, stream: TcpStream, path: &str) -> io::Result<HttpsResponse> {
        let mut stream = self.ask(stream, path, "close")?;
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        // etcd's peer port may close the connection seconds after its response.
        while !is_whole(&bytes) {
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(length) => bytes.extend_from_slice(&part[..length]),
                // Some servers close the connection without a TLS closure alert.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        answer(&bytes)
    }

    /// Returns the certificate of a server that this client trusts. The server may reject the client afterwards.
    pub fn server_certificate(&self, mut stream: TcpStream) -> io::Result<CertificateDer<'static>> {
        stream.set_read_timeout(Some(deadline::REQUEST))?;
        let mut client = ClientConnection::new(self.config.clone(), self.server_name.clone()).unwrap();
        while client.is_handshaking() {
            client.complete_io(&mut stream)?;
        }
        Ok(client.peer_certificates().unwrap()[0].clone().into_owned())
    }

    /// Sends a `GET` whose response does not end. Returns after the headers.
    pub fn stream(&self, stream: TcpStream, path: &str) -> io::Result<impl BufRead + Send + use<>> {
        let mut reader = BufReader::new(self.ask(stream, path, "keep-alive")?);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        assert!(first.contains(" 200 "), "{first}");
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line)?;
        }
        // The response has no time limit: it may contain nothing for any time.
        reader.get_ref().sock.set_read_timeout(None)?;
        Ok(reader)
    }

    fn ask(
        &self,
        stream: TcpStream,
        path: &str,
        connection: &str,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        stream.set_read_timeout(Some(deadline::REQUEST))?;
        let client = ClientConnection::new(self.config.clone(), self.server_name.clone()).unwrap();
        let mut stream = StreamOwned::new(client, stream);
        let host = self.server_name.to_str();
        // In TLS 1.3, a server rejects a client after the client's part of the handshake. Only the server's alert contains the reason.
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: {connection}\r\n\r\n");
        match stream.write_all(head.as_bytes()).and_then(|()| stream.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => stream.read(&mut [0]).map(drop)?,
            written => written?,
        }
        Ok(stream)
    }
}

/// Sends one `GET` without TLS.
pub fn plain(mut stream: TcpStream, path: &str) -> io::Result<HttpsResponse> {
    stream.set_read_timeout(Some(deadline::REQUEST))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    answer(&bytes)
}

/// Whether a response has all bytes of its body, if it says how many these are.
fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return false };
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: Option<usize> = length.and_then(|(_, value)| value.trim().parse().ok());
    length.is_some_and(|length| bytes.len() >= head.len() + 4 + length)
}

fn answer(bytes: &[u8]) -> io::Result<HttpsResponse> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no HTTP: {text}")))?;
    Ok(HttpsResponse { status, text })
}

/// Returns the response to a `ClientHello` whose newest version is this one: the type of the first record and, if it is an alert, its description.
pub fn client_hello_response(mut stream: TcpStream, version: [u8; 2]) -> io::Result<(u8, u8)> {
    stream.set_read_timeout(Some(deadline::REQUEST))?;
    stream.write_all(&client_hello(version))?;
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    Ok((head[0], head[6]))
}

/// TLS 1.2, as encoded on the wire.
pub const TLS_1_2: [u8; 2] = [3, 3];
/// TLS 1.1, as encoded on the wire.
pub const TLS_1_1: [u8; 2] = [3, 2];
/// The type of a record with a handshake message (RFC 5246, section 6.2.1).
pub const HANDSHAKE: u8 = 22;
/// The type of a record with an alert.
pub const ALERT: u8 = 21;
/// The alert `protocol_version` (RFC 5246, section 7.2).
pub const PROTOCOL_VERSION: u8 = 70;

/// The message has no `supported_versions` extension, so that its version field counts (RFC 5246, section 7.4.1.2).
fn client_hello(version: [u8; 2]) -> Vec<u8> {
    let extensions: [&[u8]; 3] = [
        // supported_groups: secp256r1
        &[0, 10, 0, 4, 0, 2, 0, 23],
        // ec_point_formats: uncompressed
        &[0, 11, 0, 2, 1, 0],
        // signature_algorithms: ecdsa_secp256r1_sha256, rsa_pss_rsae_sha256
        &[0, 13, 0, 6, 0, 4, 4, 3, 8, 4],
    ];
    // ECDHE-ECDSA with AES-128-GCM and with AES-128-CBC, and the same with RSA.
    let suites = [0xc0, 0x2b, 0xc0, 0x09, 0xc0, 0x2f, 0xc0, 0x13];
    let body = [version.to_vec(), vec![7; 32], vec![0], sized(2, &suites), vec![1, 0], sized(2, &extensions.concat())]
        .concat();
    let message = [vec![1], sized(3, &body)].concat();
    [vec![HANDSHAKE, 3, 1], sized(2, &message)].concat()
}

/// Prefixes bytes with their count in big-endian order. `width` is the number of bytes of the count.
fn sized(width: usize, bytes: &[u8]) -> Vec<u8> {
    let count = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [&count[4 - width..], bytes].concat()
}
