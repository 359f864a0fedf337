//! A real haproxy beside a fake runtime: the agent changes its servers while it runs, and no connection is closed.
#![expect(clippy::unwrap_used, reason = "this is all test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use keelway_api::{
    machine::{
        Container, ContainerResources, HaproxyServers, MachineConfig, Mount, Pod, STATE_DIRECTORY, ServerAdmin,
        ServerState,
    },
    name::PodName,
};
use keelway_cri::{Deadlines, fake::Fake};
use keelway_machine::{converge::converge, report::ApplyReport};
use keelway_machine_io::{access::MachineAccess, local::LocalMachine};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "example.test/haproxy:1";
const CLUSTER: &str = "0000000000000001";
const USER: u32 = 20_001;
/// These health checks only connect.
const OPTIONS: &str = "check inter 200ms rise 1 fall 2 on-marked-down shutdown-sessions";
/// A time limit for changes that haproxy makes by itself.
const SOON: Duration = Duration::from_secs(30);

/// A real haproxy process. It stands in for the container, which the fake runtime only simulates.
struct Haproxy {
    process: Child,
    port: u16,
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Machine {
    root: TempDir,
    local: LocalMachine,
    generation: u64,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("keelway-haproxy-").tempdir().unwrap();
        for path in ["var/lib", "var/log"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let access = MachineAccess::of_root(fs::File::open(root.path()).unwrap().into());
        let fake = Fake::new();
        fake.add_image(IMAGE);
        let local = LocalMachine::new(access, fake.runtime(Deadlines::default()), None);
        Self { root, local, generation: 0 }
    }

    fn run(&self) -> PathBuf {
        self.root.path().join(format!("{}/{CLUSTER}/ingress-0/run", STATE_DIRECTORY.trim_start_matches('/')))
    }

    /// Applies a config with these servers. Returns the effects that concern servers.
    async fn apply(&mut self, servers: &[(&str, SocketAddr)]) -> Vec<String> {
        self.generation += 1;
        self.repeat(servers).await
    }

    /// Applies the last config again. Returns the effects that concern servers.
    async fn repeat(&mut self, servers: &[(&str, SocketAddr)]) -> Vec<String> {
        let config = config(self.generation, servers);
        let report: ApplyReport = self.local.apply(&config, &CancellationToken::new(), &|_| {}).await.unwrap();
        assert!(report.is_complete(), "{report:#?}");
        report.done.iter().map(ToString::to_string).filter(|line| line.contains("server")).collect()
    }

    async fn servers(&self) -> Option<BTreeMap<String, ServerState>> {
        self.local.observe().await.unwrap().servers.remove(&ingress())
    }

    /// Starts a haproxy with one server.
    async fn start(&self, server: SocketAddr) -> Haproxy {
        let socket = self.run().join("admin.sock");
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let configuration = format!(
            "global\n    stats socket {} mode 600 level admin uid {USER} gid {USER}\n\
             defaults\n    mode tcp\n    timeout connect 2s\n    timeout client 1h\n    timeout server 1h\n\
             frontend front\n    bind 127.0.0.1:{port}\n    default_backend back\n\
             backend back\n    balance roundrobin\n    server a {server} {OPTIONS}\n",
            socket.display()
        );
        let file = self.root.path().join("haproxy.cfg");
        fs::write(&file, configuration).unwrap();
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("haproxy");
        command.args(["-q", "-db", "-f"]).arg(file).env("PATH", path).stdout(Stdio::null()).stderr(Stdio::null());
        let haproxy = Haproxy { process: command.spawn().unwrap(), port };
        self.until(|servers| servers.contains_key("back/a")).await;
        haproxy
    }

    /// Polls until the servers match, because haproxy does not report changes.
    async fn until(&self, holds: impl Fn(&BTreeMap<String, ServerState>) -> bool) {
        let started = Instant::now();
        loop {
            let servers = self.servers().await.unwrap_or_default();
            if holds(&servers) {
                return;
            }
            assert!(started.elapsed() < SOON, "{servers:?}");
            thread::park_timeout(Duration::from_millis(20));
        }
    }
}

fn ingress() -> PodName {
    PodName { cluster: CLUSTER.parse().unwrap(), component: "ingress-0".parse().unwrap() }
}

fn config(generation: u64, servers: &[(&str, SocketAddr)]) -> MachineConfig {
    let container = Container {
        name: "ingress".to_owned(),
        image: IMAGE.to_owned(),
        command: vec!["haproxy".to_owned()],
        mounts: vec![Mount { source: "run".to_owned(), target: "/run/haproxy".to_owned(), read_only: false }],
        resources: ContainerResources { cpu_request_millis: 50, cpu_limit_millis: None, memory_limit_bytes: 1 << 28 },
        stop_seconds: 5,
        liveness: None,
    };
    let addresses = servers.iter().map(|(name, address)| (format!("back/{name}"), *address)).collect();
    let pod = Pod {
        user: USER,
        files: Vec::new(),
        data: vec!["run".to_owned()],
        containers: vec![container],
        pause_image: IMAGE.to_owned(),
        servers: Some(HaproxyServers { options: OPTIONS.to_owned(), addresses }),
        start: keelway_api::machine::Start::Always,
        hold: false,
        registries: std::collections::BTreeMap::new(),
        prefetch: std::collections::BTreeSet::new(),
    };
    MachineConfig {
        format: keelway_api::machine::ConfigFormat::NEWEST,
        installation: "00000000000000ff".parse().unwrap(),
        term: 1,
        generation,
        pods: [(ingress(), pod)].into(),
        others: std::collections::BTreeSet::new(),
        removals: std::collections::BTreeMap::new(),
    }
}

/// Starts a server that sends its name at the start of each connection, and then echoes each line.
fn server(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut stream = stream;
                let mut line = format!("{name}\n");
                // A health check sends nothing and closes the connection.
                while stream.write_all(line.as_bytes()).is_ok() {
                    line.clear();
                    if reader.read_line(&mut line).unwrap_or(0) == 0 {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A connection through haproxy.
struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Opens a connection, and returns it with the name of its server.
    fn open(haproxy: &Haproxy) -> (Self, String) {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, haproxy.port)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut connection = Self(BufReader::new(stream));
        let name = connection.line();
        (connection, name)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn answers(&mut self) -> bool {
        self.0.get_mut().write_all(b"hello\n").unwrap();
        self.line() == "hello"
    }
}

/// Returns the names of the servers that new connections reach.
fn reached(haproxy: &Haproxy) -> BTreeSet<String> {
    (0..8).map(|_| Connection::open(haproxy).1).collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn servers_change_while_connections_stay() {
    let mut machine = Machine::new();
    let (a, b) = (server("a"), server("b"));
    assert_eq!(machine.apply(&[("a", a)]).await, [""; 0], "a haproxy that does not answer is told nothing");
    assert_eq!(machine.servers().await, None);
    let haproxy = machine.start(a).await;
    assert_eq!(machine.repeat(&[("a", a)]).await, [""; 0]);

    assert_eq!(machine.apply(&[("a", a), ("b", b)]).await, [format!("add server back/b at {b}")]);
    assert_eq!(machine.servers().await.unwrap()["back/b"].admin, ServerAdmin::Serves);
    assert_eq!(machine.repeat(&[("a", a), ("b", b)]).await, [""; 0]);
    assert_eq!(reached(&haproxy), names(&["a", "b"]));

    let mut kept: Vec<_> = (0..8).map(|_| Connection::open(&haproxy)).filter(|(_, name)| name == "b").collect();
    assert!(!kept.is_empty());
    assert_eq!(machine.apply(&[("a", a)]).await, ["drain server back/b"]);
    let drained = machine.servers().await.unwrap().remove("back/b").unwrap();
    assert_eq!(
        drained,
        ServerState { address: b, admin: ServerAdmin::Drains, sessions: kept.len() as u64, ready: true }
    );
    assert_eq!(machine.repeat(&[("a", a)]).await, [""; 0], "connections are waited for");
    assert_eq!(reached(&haproxy), names(&["a"]));
    assert!(kept.iter_mut().all(|(connection, _)| connection.answers()));

    drop(kept);
    machine.until(|servers| servers["back/b"].sessions == 0).await;
    assert_eq!(machine.repeat(&[("a", a)]).await, ["remove server back/b"]);
    assert_eq!(machine.servers().await.unwrap().len(), 1);
}

#[tokio::test]
async fn every_change_can_be_repeated() {
    let mut machine = Machine::new();
    let (a, b) = (server("a"), server("b"));
    machine.apply(&[("a", a)]).await;
    let haproxy = machine.start(a).await;
    // Executes each change twice, both times with the state from before the first execution.
    for servers in [&[("a", a), ("b", b)][..], &[("b", b)], &[("b", b)], &[("a", a), ("b", b)]] {
        machine.generation += 1;
        let actions = converge(&config(machine.generation, servers), &machine.local.observe().await.unwrap()).unwrap();
        for _ in 0..2 {
            let report = machine.local.execute(actions.clone(), &CancellationToken::new(), &|_| {}).await;
            assert!(report.is_complete(), "{report:#?}");
        }
        machine.until(|servers| servers.values().all(|server| server.sessions == 0)).await;
    }
    assert_eq!(reached(&haproxy), names(&["a", "b"]));
}

#[tokio::test]
async fn a_moved_server_is_removed_before_it_is_added_again() {
    let mut machine = Machine::new();
    let (a, b) = (server("a"), server("b"));
    machine.apply(&[("a", a)]).await;
    let haproxy = machine.start(a).await;
    assert_eq!(machine.apply(&[("a", b)]).await, ["drain server back/a"]);
    assert_eq!(machine.repeat(&[("a", b)]).await, ["remove server back/a"]);
    assert_eq!(machine.repeat(&[("a", b)]).await, [format!("add server back/a at {b}")]);
    assert_eq!(reached(&haproxy), names(&["b"]));
}

#[tokio::test]
async fn a_haproxy_that_hangs_hides_nothing_else() {
    let mut machine = Machine::new();
    let a = server("a");
    machine.apply(&[("a", a)]).await;
    let haproxy = machine.start(a).await;
    let pid = Pid::from_child(&haproxy.process);
    kill_process(pid, Signal::STOP).unwrap();
    let state = machine.local.observe().await.unwrap();
    assert_eq!((state.servers.len(), state.sandboxes.len()), (0, 1));
    kill_process(pid, Signal::CONT).unwrap();
    machine.until(|servers| servers.len() == 1).await;
}

#[tokio::test]
async fn only_sockets_of_the_pod_itself_are_used() {
    let mut machine = Machine::new();
    machine.apply(&[]).await;
    let other = machine.root.path().join("other.sock");
    let asked = UnixListener::bind(&other).unwrap();
    asked.set_nonblocking(true).unwrap();
    let own = machine.run().join("admin.sock");
    std::os::unix::fs::symlink(&other, &own).unwrap();
    assert_eq!(machine.servers().await, None);
    fs::remove_file(&own).unwrap();
    // A socket of another user, under the expected name.
    fs::hard_link(&other, &own).unwrap();
    assert_eq!(machine.servers().await, None);
    assert!(asked.accept().is_err(), "somebody else was asked");
    std::os::unix::fs::chown(&other, Some(USER), Some(USER)).unwrap();
    assert_eq!(machine.servers().await, None, "it gives no answer");
    assert!(asked.accept().is_ok());
}
