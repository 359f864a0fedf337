//! The machine is a process in network and mount namespaces of its own. These tests need root, as local hypervisors do.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    net::{Ipv4Addr, Ipv6Addr, TcpListener},
    os::unix::net::UnixListener,
    process::{Child, Command, Stdio},
};

use rustix::fs::{Mode, OFlags, openat};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use super::*;

const SOCKET: &str = "KEELWAY_TEST_LISTENER_SOCKET";
const SETUP: &str = r#"mount -t tmpfs keelway-test "$1" && ip link set lo up && echo "$2" > "$1/name" && exec "$3" --exact --nocapture access::tests::a_machine_is_seen_through_the_process_behind_its_socket"#;

/// The machine's side: a Unix socket, and a TCP port that sends `hello`. Ends when its standard input is closed.
fn listen(socket: OsString) {
    let _socket = UnixListener::bind(socket).unwrap();
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    println!("\nport {}", server.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for connection in server.incoming() {
            std::io::Write::write_all(&mut connection.unwrap(), b"hello").unwrap();
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

struct Machine {
    process: Child,
    port: u16,
}

impl Machine {
    fn start(directory: &TempDir, name: &str) -> Self {
        let private = directory.path().join("private");
        fs::create_dir_all(&private).unwrap();
        let socket = directory.path().join("socket");
        let _ = fs::remove_file(&socket);
        let mut process = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-ec", SETUP, "sh"])
            .arg(&private)
            .arg(name)
            .arg(env::current_exe().unwrap())
            .env(SOCKET, &socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| line.unwrap().strip_prefix("port ")?.parse().ok());
        Self { process, port: port.expect("the listener to start") }
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn directory() -> TempDir {
    tempfile::Builder::new().prefix("keelway-access-").tempdir().unwrap()
}

async fn of_socket(directory: &TempDir) -> MachineAccess {
    MachineAccess::of_socket(&directory.path().join("socket")).await.unwrap()
}

async fn greeting(access: &MachineAccess, machine: &Machine) -> String {
    let mut stream = access.dial(machine.address(), Duration::from_secs(5)).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

async fn name(access: &MachineAccess, directory: &TempDir) -> String {
    let place = access.place().await.unwrap();
    let path = directory.path().join("private/name");
    let inside = path.strip_prefix("/").unwrap();
    let file = openat(place.root(), inside, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut text = String::new();
    fs::File::from(file).read_to_string(&mut text).unwrap();
    text.trim_end().to_owned()
}

#[tokio::test]
async fn a_machine_is_seen_through_the_process_behind_its_socket() {
    // The process behind the socket is this test binary again, because the crate has no other program to run.
    if let Some(socket) = env::var_os(SOCKET) {
        return listen(socket);
    }
    let directory = directory();
    let machine = Machine::start(&directory, "first");
    let access = of_socket(&directory).await;

    assert!(std::net::TcpStream::connect(machine.address()).is_err(), "the port can be reached without the machine");
    assert_eq!(greeting(&access, &machine).await, "hello");
    assert!(std::net::TcpStream::connect(machine.address()).is_err(), "this thread stayed in the machine's network");
    assert!(!directory.path().join("private/name").exists(), "the mount can be seen without the machine");
    assert_eq!(name(&access, &directory).await, "first");

    let ports = access.ports().await.unwrap();
    assert_eq!(ports.listening, [machine.port].into());
    assert!(ports.ephemeral.is_some_and(|(from, to)| from < to), "{ports:?}");
    let loopback = [IpAddr::from([127, 0, 0, 1]), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let addresses = access.addresses().await.unwrap();
    assert!(addresses.iter().all(|address| loopback.contains(address)) && !addresses.is_empty(), "{addresses:?}");
}

#[tokio::test]
async fn a_runtime_that_was_restarted_is_found_again() {
    let directory = directory();
    let first = Machine::start(&directory, "first");
    let access = of_socket(&directory).await;
    assert_eq!(name(&access, &directory).await, "first");
    drop(first);
    assert!(matches!(access.place().await, Err(AccessError::Connect { .. })));
    let second = Machine::start(&directory, "second");
    assert_eq!(name(&access, &directory).await, "second");
    assert_eq!(greeting(&access, &second).await, "hello");
}

#[tokio::test]
async fn a_port_without_a_listener_is_an_error_in_time() {
    let directory = directory();
    let machine = Machine::start(&directory, "only");
    let access = of_socket(&directory).await;
    let closed = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let refused = access.dial(closed, Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(refused, AccessError::Dial { .. }), "{refused:?}");
    // A namespace without a route fails at once, without a timeout.
    let elsewhere = "192.0.2.1:80".parse().unwrap();
    assert!(access.dial(elsewhere, Duration::from_secs(5)).await.is_err());
    drop(machine);
}

#[tokio::test]
async fn a_machine_in_our_own_namespaces_needs_no_other() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = server.local_addr().unwrap();
    let directory = directory();
    let access = MachineAccess::of_root(fs::File::open(directory.path()).unwrap().into());
    let stream = access.dial(address, Duration::from_secs(5)).await.unwrap();
    assert!(stream.nodelay().unwrap(), "a question is held back");
    assert!(access.ports().await.unwrap().listening.contains(&address.port()));
}
