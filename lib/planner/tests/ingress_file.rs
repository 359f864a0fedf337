//! The file of an ingress: where haproxy listens, and its limits in a real haproxy. The limit of one source is smaller there, so that few connections
//! reach it.

use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use keelway_api::{
    jiff::Timestamp,
    machine::{ObservedValue, Pod},
};
use keelway_planner::{PassObservation, machine_configs, plan};
use socket2::{Domain, Socket, Type};

use crate::model::{hypervisors, identified, mint};

const CLUSTER: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default}
spec: {version: 1.37.0, ingress: {replicas: 1}}
";
/// The rule for concurrent connections of a source, and the limit in this test.
const RULE: &str = "    tcp-request connection reject if { sc0_conn_cur gt 8192 }\n";
const LIMIT: usize = 20;
/// The time limit of each wait.
const DEADLINE: Duration = Duration::from_secs(30);

/// Returns the pod of the ingress in a new cluster.
fn ingress() -> Pod {
    pods("").remove("ingress-0").unwrap()
}

/// Returns the pods of a new cluster by component. `bind` is the field of the public machine.
fn pods(bind: &str) -> BTreeMap<String, Pod> {
    let text: String = std::iter::once(CLUSTER.to_owned()).chain(hypervisors(&["Private", "Public"])).collect();
    let public = "public: [198.18.0.1]";
    assert!(text.contains(public), "{text}");
    let (documents, machines) = identified(&text.replace(public, &format!("{public}{bind}")));
    let machines = machines.into_iter().map(|(name, state)| (name, ObservedValue::Known(state))).collect();
    let seen = PassObservation { machines, ..PassObservation::default() };
    let mut plan = plan(documents, &seen, Timestamp::UNIX_EPOCH).unwrap();
    let mut certificates = BTreeMap::new();
    mint(&mut plan, &mut certificates);
    let seen = PassObservation { certificates, ..seen };
    let configs = machine_configs(&plan.documents, &seen).unwrap();
    let pods = configs.into_values().flat_map(|config| config.pods);
    pods.map(|(name, pod)| (name.component.to_string(), pod)).collect()
}

/// Returns the text of a file in a pod.
fn file(pod: &Pod, path: &str) -> String {
    let file = pod.files.iter().find(|file| file.path == path).unwrap();
    String::from_utf8(file.content.clone()).unwrap()
}

/// Returns the addresses on which haproxy listens, without ports.
fn listens(ingress: &Pod) -> Vec<String> {
    let text = file(ingress, "haproxy.cfg");
    let binds = text.lines().filter_map(|line| line.trim_start().strip_prefix("bind "));
    let binds = binds.filter(|bind| !bind.starts_with("unix@"));
    binds.map(|bind| bind.rsplit_once(':').unwrap().0.to_owned()).collect()
}

/// How haproxy checks the server.
#[derive(Clone, Copy)]
enum ServerChecks {
    None,
    /// As an ingress does, but without TLS.
    Http,
}

/// A haproxy with the configuration of an ingress, which listens on loopback and sends connections to one server.
struct LimitedIngress {
    process: Child,
    address: SocketAddr,
    directory: PathBuf,
}

impl Drop for LimitedIngress {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl LimitedIngress {
    fn start(name: &str, server: SocketAddr, rule: &str) -> Self {
        Self::start_with(name, server, rule, ServerChecks::None)
    }

    fn start_with(name: &str, server: SocketAddr, rule: &str, checks: ServerChecks) -> Self {
        let text = file(&ingress(), "haproxy.cfg");
        assert!(text.contains(RULE), "{text}");
        let directory = std::env::temp_dir().join(format!("keelway-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let line = |line: &str| match line.trim_start() {
            bind if bind.starts_with("bind 198.18.") => format!("    bind {address}\n"),
            check if check.starts_with("default-server") => match (checks, check.split_once(" check-ssl")) {
                (ServerChecks::Http, Some((without_tls, _))) => format!("    {without_tls}\n"),
                (ServerChecks::Http | ServerChecks::None, _) => String::new(),
            },
            check if check.starts_with("option httpchk") || check.starts_with("http-check") => match checks {
                ServerChecks::Http => format!("{line}\n"),
                ServerChecks::None => String::new(),
            },
            _ => format!("{line}\n"),
        };
        let text: String = text.replace(RULE, rule).lines().map(line).collect();
        let text = text.replace("/run/haproxy", directory.to_str().unwrap());
        let (_, backend) = text.split_once("default_backend ").unwrap();
        let backend = backend.lines().next().unwrap();
        let servers = format!("backend {backend} from {backend}\n    server a {server}\n");
        let files = [("haproxy.cfg", text.as_str()), ("servers.cfg", servers.as_str())];
        let mut command = Command::new("haproxy");
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        command.arg("-db").env("PATH", path).stdout(Stdio::null());
        for (name, content) in files {
            fs::write(directory.join(name), content).unwrap();
            command.arg("-f").arg(directory.join(name));
        }
        let ingress = Self { process: command.spawn().unwrap(), address, directory };
        until("haproxy listens", || TcpStream::connect(address).is_ok());
        ingress
    }

    /// Returns the response to a command of the administrative socket.
    fn command(&self, command: &str) -> String {
        let mut socket = UnixStream::connect(self.directory.join("admin.sock")).unwrap();
        socket.write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        text
    }

    /// Returns a figure of `show info`.
    fn figure(&self, name: &str) -> u64 {
        let text = self.command("show info");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap();
        line.parse().unwrap()
    }

    /// Returns a column of `show stat` for the server.
    fn server_column(&self, name: &str) -> String {
        let text = self.command("show stat");
        let mut lines = text.lines().map(|line| line.trim_start_matches("# ").split(',').collect::<Vec<_>>());
        let header = lines.next().unwrap();
        let column = |name: &str| header.iter().position(|column| *column == name).unwrap();
        let server = lines.find(|line| line.get(column("svname")) == Some(&"a")).unwrap();
        server[column(name)].to_owned()
    }

    /// Opens a connection from this address of loopback. Returns it if the server responds.
    fn connect(&self, from: Ipv4Addr) -> Option<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&self.address.into()).ok()?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(b"?").ok()?;
        match stream.read(&mut [0]) {
            Ok(1) => Some(stream),
            Ok(_) => None,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
                None
            }
        }
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        thread::park_timeout(Duration::from_millis(20));
    }
}

/// A server that responds to each connection with a byte, and closes it after the client.
fn server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"!");
            thread::spawn(move || while matches!(stream.read(&mut [0; 16]), Ok(1..)) {});
        }
    });
    address
}

/// An API server of which only `/readyz` responds. Any other connection gets a byte.
#[derive(Default)]
struct Readyz {
    failing: Mutex<Failing>,
    /// How many requests failed since that was ordered.
    failures: AtomicUsize,
}

/// Which of the next requests fail.
#[derive(Default)]
struct Failing {
    check: &'static str,
    requests: usize,
}

impl Readyz {
    fn serve(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let readyz = Arc::clone(self);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, readyz) = (stream.unwrap(), Arc::clone(&readyz));
                thread::spawn(move || {
                    let mut request = [0; 1024];
                    while let Ok(length @ 1..) = stream.read(&mut request) {
                        let response = if request[..length].starts_with(b"GET /readyz") {
                            readyz.response()
                        } else {
                            "!".to_owned()
                        };
                        let _ = stream.write_all(response.as_bytes());
                    }
                });
            }
        });
        address
    }

    /// Returns the response, in the form of `k8s.io/apiserver/pkg/server/healthz`.
    fn response(&self) -> String {
        let mut failing = self.failing.lock().unwrap();
        let (status, body) = match failing.requests.checked_sub(1) {
            None => ("200 OK", "ok".to_owned()),
            Some(left) => {
                failing.requests = left;
                self.failures.fetch_add(1, Ordering::SeqCst);
                let body = format!(
                    "[+]ping ok\n[+]log ok\n[-]{} failed: reason withheld\nreadyz check failed\n",
                    failing.check
                );
                ("500 Internal Server Error", body)
            }
        };
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn fail(&self, check: &'static str, requests: usize) {
        let mut failing = self.failing.lock().unwrap();
        self.failures.store(0, Ordering::SeqCst);
        *failing = Failing { check, requests };
    }

    fn until_failures(&self, least: usize) {
        until("haproxy checks the server", || self.failures.load(Ordering::SeqCst) >= least);
    }
}

fn still_responds(stream: &mut TcpStream) -> bool {
    stream.write_all(b"?").is_ok() && matches!(stream.read(&mut [0]), Ok(1))
}

#[test]
fn an_api_server_that_stops_or_lacks_etcd_keeps_its_connections_and_gets_no_new_ones() {
    for check in ["shutdown", "etcd", "etcd-readiness"] {
        let readyz = Arc::new(Readyz::default());
        let ingress = LimitedIngress::start_with("readyz", readyz.serve(), RULE, ServerChecks::Http);
        let mut kept = ingress.connect(ONE).unwrap();
        readyz.fail(check, usize::MAX);
        until("no new connections", || ingress.connect(ONE).is_none());
        readyz.until_failures(4);
        assert_eq!(ingress.server_column("status"), "NOLB", "{check}");
        assert!(still_responds(&mut kept), "{check}");
        readyz.fail("", 0);
        until("new connections again", || ingress.connect(ONE).is_some());
    }
}

#[test]
fn a_readyz_that_fails_once_for_another_reason_costs_no_connection() {
    let readyz = Arc::new(Readyz::default());
    let ingress = LimitedIngress::start_with("synced", readyz.serve(), RULE, ServerChecks::Http);
    let mut kept = ingress.connect(ONE).unwrap();
    readyz.fail("informer-sync", 1);
    until("haproxy has counted the failure", || ingress.server_column("chkfail") == "1");
    assert!(ingress.server_column("status").starts_with("UP"));
    assert!(ingress.connect(ONE).is_some());
    assert!(still_responds(&mut kept));

    readyz.fail("informer-sync", usize::MAX);
    until("no new connections", || ingress.connect(ONE).is_none());
    assert_eq!(ingress.server_column("status"), "DOWN");
    assert!(!still_responds(&mut kept), "clients connect again to another API server");
}

const ONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

#[test]
fn one_source_cannot_occupy_an_ingress() {
    let rule = RULE.replace("8192", &LIMIT.to_string());
    let ingress = LimitedIngress::start("limited", server(), &rule);
    let open: Vec<TcpStream> = (0..LIMIT).map(|_| ingress.connect(ONE).unwrap()).collect();
    assert!(ingress.connect(ONE).is_none(), "one more than the limit");
    assert!(ingress.connect(OTHER).is_some(), "other sources are served");
    drop(open);
    until("the source is served again", || ingress.connect(ONE).is_some());

    let unlimited = LimitedIngress::start("unlimited", server(), "");
    let open: Vec<Option<TcpStream>> = (0..=LIMIT).map(|_| unlimited.connect(ONE)).collect();
    assert!(open.iter().all(Option::is_some), "without the rule, one source has more connections");
}

/// The memory limit of an ingress determines its connections, and no source may have all of them.
#[test]
fn the_connections_of_an_ingress_follow_from_its_memory() {
    let memory = ingress().containers[0].resources.memory_limit_bytes;
    assert_eq!(memory, 1 << 30);
    let ingress = LimitedIngress::start("sized", server(), RULE);
    let (most, descriptors) = (ingress.figure("Maxconn"), ingress.figure("Ulimit-n"));
    assert!(descriptors <= memory / (32 << 10) * 2, "{descriptors}");
    // A few descriptors are for listeners and sockets of haproxy itself.
    assert!((descriptors / 2 - 64..=descriptors / 2).contains(&most), "{most} of {descriptors}");
}

#[test]
fn an_ingress_listens_on_its_public_addresses_unless_the_network_translates_them() {
    assert_eq!(listens(&ingress()), ["198.18.0.1"]);
    let behind = pods(", bind: [10.0.0.1]");
    assert_eq!(listens(&behind["ingress-0"]), ["10.0.0.1"]);
}

/// Only what the machine itself uses changes: workers and other gateways use the public address.
#[test]
fn a_translated_address_stays_the_address_for_others() {
    let (before, behind) = (pods(""), pods(", bind: [10.0.0.1]"));
    for component in ["kube-apiserver-0", "cluster-controller-0", "etcd-0"] {
        let (Some(before), Some(behind)) = (before.get(component), behind.get(component)) else { continue };
        for (one, other) in before.files.iter().zip(&behind.files) {
            assert!(one.path == "egress.json" || one.content == other.content, "{component}: {}", one.path);
        }
    }
    if let Some(gateway) = behind.get("gateway-0") {
        assert!(file(gateway, "kubeconfig.json").contains("https://10.0.0.1:"));
    }
    assert_ne!(before["ingress-0"].digest(), behind["ingress-0"].digest());
}
