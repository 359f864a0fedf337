//! An HTTP proxy that forwards connections (`CONNECT`) for clients with credentials, as companies have them.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustix::net::shutdown;

/// The longest request.
const LONGEST: usize = 4096;

/// A proxy. It ends when it is dropped, and its connections end with their clients.
pub struct TestHttpProxy {
    listener: Arc<TcpListener>,
    state: Arc<ProxyState>,
}

struct ProxyState {
    /// The expected `Proxy-Authorization`.
    authorization: Option<String>,
    targets: Mutex<BTreeSet<String>>,
}

impl TestHttpProxy {
    /// Starts a proxy at this address, in the network of this thread. `credentials` are `USER:PASSWORD`.
    pub fn start(address: SocketAddr, credentials: Option<&str>) -> Self {
        let listener = Arc::new(TcpListener::bind(address).unwrap());
        let authorization = credentials.map(|credentials| format!("Basic {}", STANDARD.encode(credentials)));
        let state = Arc::new(ProxyState { authorization, targets: Mutex::default() });
        let (accepting, shared) = (Arc::clone(&listener), Arc::clone(&state));
        thread::spawn(move || {
            while let Ok((client, _)) = accepting.accept() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || drop(shared.serve(client)));
            }
        });
        Self { listener, state }
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Returns the targets to which it connected.
    pub fn targets(&self) -> BTreeSet<String> {
        self.state.targets.lock().unwrap().clone()
    }
}

impl Drop for TestHttpProxy {
    fn drop(&mut self) {
        let _ = shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

impl ProxyState {
    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let request = head(&mut client)?;
        let target = request.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        if self.authorization.is_some() && authorization(&request) != self.authorization.as_deref() {
            let realm = "Proxy-Authenticate: Basic realm=\"test\"\r\nContent-Length: 0\r\n\r\n";
            return client.write_all(format!("HTTP/1.1 407 Proxy Authentication Required\r\n{realm}").as_bytes());
        }
        let Ok(server) = TcpStream::connect(target) else {
            return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n");
        };
        self.targets.lock().unwrap().insert(target.to_owned());
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || forward(from, to));
        forward(server, client);
        Ok(())
    }
}

fn head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < LONGEST {
        client.read_exact(&mut byte)?;
        head.extend(byte);
    }
    String::from_utf8(head).map_err(io::Error::other)
}

fn authorization(request: &str) -> Option<&str> {
    let mut headers = request.lines().filter_map(|line| line.split_once(": "));
    headers.find(|(name, _)| name.eq_ignore_ascii_case("proxy-authorization")).map(|(_, value)| value)
}

/// Copies until one side ends, and then ends the other one.
fn forward(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
