//! The socket by which `wg` finds a device.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Errno;
use super::request::SetRequest;
use super::response::DeviceState;
use crate::device::DeviceInner;
use crate::io::SystemClock;
use crate::key::PrivateKey;

/// The directory in which `wg` looks for sockets.
const DIRECTORY: &str = "/var/run/wireguard";
/// The number of clients that are served at once. Further clients are disconnected at once.
const MOST_CLIENTS: usize = 16;
/// How long a client may stay silent before it is disconnected.
const PATIENCE: Duration = Duration::from_secs(30);
/// The largest request, in bytes. A thousand peers with ten prefixes each need half of it.
const LARGEST_REQUEST: u64 = 4 << 20;

/// Returns the path at which `wg` looks for the socket of the device `name`.
#[must_use]
pub fn default_socket(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.sock"))
}

/// The socket could not be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve the userspace API on {}", path.display())]
pub struct ServeError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Serves a device's socket until it is dropped.
pub struct UapiServer {
    path: PathBuf,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UapiServer {
    pub(crate) fn start(path: PathBuf, shared: Arc<DeviceInner>) -> Result<Self, ServeError> {
        let fail = |source| ServeError { path: path.clone(), source };
        let listener = listen(&path).map_err(fail)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let acceptor = Acceptor { listener, shared, stopping: Arc::clone(&stopping) };
        let thread =
            std::thread::Builder::new().name("vpn-uapi".to_owned()).spawn(move || acceptor.run()).map_err(fail)?;
        Ok(Self { path, stopping, thread: Some(thread) })
    }
}

impl Drop for UapiServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // The acceptor blocks until a client connects, so connect to it.
        let woken = UnixStream::connect(&self.path).is_ok();
        let _ = fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    if UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    // A process that no longer exists left this socket.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

struct Acceptor {
    listener: UnixListener,
    shared: Arc<DeviceInner>,
    stopping: Arc<AtomicBool>,
}

impl Acceptor {
    fn run(self) {
        let clients = Arc::new(AtomicUsize::new(0));
        for stream in self.listener.incoming() {
            if self.stopping.load(Ordering::Acquire) {
                return;
            }
            let Ok(stream) = stream else { continue };
            if clients.fetch_add(1, Ordering::AcqRel) >= MOST_CLIENTS {
                clients.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let (shared, clients) = (Arc::clone(&self.shared), Arc::clone(&clients));
            std::thread::spawn(move || {
                if let Err(error) = serve(&stream, &shared) {
                    tracing::debug!(%error, "lost a client of the userspace API");
                }
                clients.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }
}

fn serve(stream: &UnixStream, shared: &DeviceInner) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(io::Read::take(stream, LARGEST_REQUEST));
    while let Some(lines) = read_operation(&mut reader)? {
        let (text, errno) = match operate(&lines, shared) {
            Ok(text) => (text, 0),
            Err(errno) => (String::new(), errno.number()),
        };
        let mut writer = stream;
        writer.write_all(format!("{text}errno={errno}\n\n").as_bytes())?;
        reader.get_mut().set_limit(LARGEST_REQUEST);
    }
    Ok(())
}

/// Reads lines up to an empty one. Returns `None` if the client closed the connection.
fn read_operation(reader: &mut impl BufRead) -> io::Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end_matches('\n');
        if line.is_empty() {
            return Ok(Some(lines));
        }
        lines.push(line.to_owned());
    }
}

fn operate(lines: &[String], shared: &DeviceInner) -> Result<String, Errno> {
    let Some((operation, rest)) = lines.split_first() else {
        return Err(Errno::Protocol);
    };
    match operation.as_str() {
        "get=1" if rest.is_empty() => Ok(get(shared)),
        "set=1" => {
            let request = SetRequest::parse(rest.iter().map(String::as_str))?;
            set(&request, shared).map(|()| String::new())
        }
        _ => Err(Errno::Invalid),
    }
}

fn get(shared: &DeviceInner) -> String {
    let listen_port = shared.sockets().port;
    let fwmark = shared.fwmark();
    let core = shared.core();
    DeviceState {
        private_key: core.private_key(),
        listen_port,
        fwmark,
        peers: core.peers(),
        stats: core.stats().collect(),
    }
    .render()
}

fn set(request: &SetRequest, shared: &DeviceInner) -> Result<(), Errno> {
    if let Some(port) = request.listen_port {
        shared.set_listen_port(port).map_err(|_| Errno::AddressInUse)?;
    }
    if let Some(fwmark) = request.fwmark {
        shared.set_fwmark(fwmark).map_err(|_| Errno::Invalid)?;
    }
    let now = SystemClock.now();
    let mut core = shared.core();
    if let Some(private_key) = &request.private_key {
        core.set_private_key(private_key.clone(), now);
    }
    let own = core.private_key().map(PrivateKey::public);
    let wanted = request.edit(core.peers(), own);
    core.set_peers(&wanted, now);
    // An endpoint in the request applies even if it equals the last configured one and the peer has roamed away from it.
    for peer in &request.peers {
        if let Some(endpoint) = peer.endpoint {
            core.set_endpoint(&peer.public_key, endpoint);
        }
    }
    drop(core);
    shared.wake();
    Ok(())
}
