//! Two network namespaces, processes in them, and transfers between them. Everything is taken away on drop.

#![allow(dead_code, reason = "shared by the live tests and the benchmark, which use different parts")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use keelway_vpn::{PrivateKey, PublicKey};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sha2::{Digest, Sha256};

/// The newest wireguard-go of the Go modules.
const WIREGUARD_GO: &str = "golang.zx2c4.com/wireguard@v0.0.0-20260522210424-ecfc5a8d5446";

/// Runs a command that must succeed.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `done` says so, and fails after `patience`.
pub fn wait_until(what: &str, patience: Duration, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    // A pause between looks: there is no event for most of what is waited for.
    let pause = UdpSocket::bind("127.0.0.1:0").unwrap();
    pause.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        let _ = pause.recv(&mut [0]);
    }
}

/// A network namespace.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    /// `test` and the process id make the name.
    pub fn new(test: &str) -> Self {
        assert!(rustix::process::geteuid().is_root(), "this test makes network namespaces: run it as root");
        let name = format!("kwvpn-{test}-{}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    pub fn ip(&self, args: &[&str]) -> String {
        run("ip", &[&["-n", &self.name], args].concat())
    }

    /// Runs a closure in a thread of the namespace.
    pub fn run<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
        let handle = File::open(Path::new("/run/netns").join(&self.name)).unwrap();
        std::thread::spawn(move || {
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&handle), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        })
    }

    /// The same, and waits for it.
    pub fn within<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        self.run(act).join().unwrap()
    }

    pub fn spawn(&self, program: &Path, args: &[&str], environment: &[(&str, &str)]) -> Process {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).args(args);
        command.envs(environment.iter().copied());
        Process::spawn(command)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Namespaces in a row, each joined to the next: number `i` has 10.231.i.1 towards the next one, and that has 10.231.i.2.
pub fn chain<const N: usize>(test: &str, mtu: u32) -> [Namespace; N] {
    let namespaces: [Namespace; N] = std::array::from_fn(|number| Namespace::new(&format!("{test}{number}")));
    for (number, pair) in namespaces.windows(2).enumerate() {
        let mtu = mtu.to_string();
        run(
            "ip",
            &[
                "link",
                "add",
                "right",
                "mtu",
                &mtu,
                "netns",
                &pair[0].name,
                "type",
                "veth",
                "peer",
                "name",
                "left",
                "mtu",
                &mtu,
                "netns",
                &pair[1].name,
            ],
        );
        pair[0].ip(&["addr", "add", &format!("10.231.{number}.1/24"), "dev", "right"]);
        pair[1].ip(&["addr", "add", &format!("10.231.{number}.2/24"), "dev", "left"]);
        pair[0].ip(&["addr", "add", &format!("fd31:{number}::1/64"), "dev", "right", "nodad"]);
        pair[1].ip(&["addr", "add", &format!("fd31:{number}::2/64"), "dev", "left", "nodad"]);
        pair[0].ip(&["link", "set", "right", "up"]);
        pair[1].ip(&["link", "set", "left", "up"]);
    }
    namespaces
}

/// A child process, ended when it is dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn spawn(mut command: Command) -> Self {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = std::env::temp_dir().join(format!("kwvpn-{}-{number}.log", std::process::id()));
        let file = File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Self { child: command.spawn().unwrap(), log }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Processor time that its threads have used so far.
    pub fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).unwrap();
        let nanoseconds = tasks.flatten().filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanoseconds.sum())
    }

    /// Asks it to end and waits until it has.
    pub fn stop(&mut self) {
        let Some(id) = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw) else {
            return;
        };
        if self.is_running() {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(5);
            while self.is_running() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Builds wireguard-go once.
pub fn wireguard_go() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wireguard-go");
        let program = directory.join("wireguard");
        if !program.exists() {
            let status = Command::new("go").args(["install", WIREGUARD_GO]).env("GOBIN", &directory).status();
            assert!(status.is_ok_and(|status| status.success()), "go install {WIREGUARD_GO}");
        }
        program
    })
}

/// Keys by number: the same ones in each run.
pub fn private_key(number: u8) -> PrivateKey {
    PrivateKey::from_bytes([number; 32])
}

pub fn private_text(number: u8) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(private_key(number).as_bytes())
}

pub fn public_key(number: u8) -> PublicKey {
    private_key(number).public()
}

/// One end of a tunnel: what stands in its file.
#[derive(Clone)]
pub struct End {
    pub number: u8,
    pub port: u16,
    pub mtu: u16,
    pub peers: Vec<String>,
}

impl End {
    pub fn new(number: u8) -> Self {
        Self { number, port: 51820, mtu: 1420, peers: Vec::new() }
    }

    /// Adds a peer; `more` are further lines.
    pub fn peer(mut self, number: u8, allowed: &str, more: &str) -> Self {
        let key = public_key(number);
        self.peers.push(format!("[Peer]\nPublicKey = {key}\nAllowedIPs = {allowed}\n{more}\n"));
        self
    }

    pub fn address(&self) -> IpAddr {
        v4(self.number)
    }

    /// What `wg setconf` reads.
    pub fn wg_config(&self) -> String {
        let head = format!("[Interface]\nPrivateKey = {}\nListenPort = {}\n", private_text(self.number), self.port);
        head + &self.peers.concat()
    }

    /// What `keelway-vpn` reads.
    pub fn quick_config(&self) -> String {
        let number = self.number;
        let v6 = if self.mtu >= 1280 { format!(", fd32::{number}/64") } else { String::new() };
        let extra = format!("Address = 10.232.0.{number}/24{v6}\nMTU = {}\n", self.mtu);
        let config = self.wg_config();
        let (head, peers) = config
            .split_once("[Peer]")
            .map_or((config.as_str(), String::new()), |(head, peers)| (head, format!("[Peer]{peers}")));
        format!("{head}{extra}{peers}")
    }
}

pub fn v4(number: u8) -> IpAddr {
    IpAddr::from([10, 232, 0, number])
}

pub fn v6(number: u8) -> IpAddr {
    format!("fd32::{number}").parse().unwrap()
}

/// A configuration file that only we can read.
pub struct ConfigFile(tempfile::NamedTempFile);

impl ConfigFile {
    pub fn new(text: &str) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Self(file)
    }

    pub fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

/// A device of either kind, running.
pub struct Running {
    pub process: Process,
    pub interface: String,
    _config: ConfigFile,
}

/// Interface names have 15 bytes at most, and their sockets are one directory for all tests.
fn interface_name(tag: &str) -> String {
    format!("kw{}{tag}", std::process::id() % 1_000_000)
}

fn socket(interface: &str) -> PathBuf {
    Path::new("/var/run/wireguard").join(format!("{interface}.sock"))
}

/// Starts our device.
pub fn ours(namespace: &Namespace, tag: &str, end: &End, program: &Path, options: &[&str]) -> Running {
    let interface = interface_name(tag);
    let config = ConfigFile::new(&end.quick_config());
    let args = [&["device", &interface, "--config", config.path()], options].concat();
    let mut process = namespace.spawn(program, &args, &[("RUST_LOG", "keelway_vpn=debug")]);
    wait_until("our device is up", Duration::from_secs(10), || {
        assert!(process.is_running(), "{}", process.log());
        process.log().contains(" up ") || process.log().contains("up \u{1b}")
    });
    Running { process, interface, _config: config }
}

/// Starts wireguard-go.
pub fn theirs(namespace: &Namespace, tag: &str, end: &End) -> Running {
    started(namespace, tag, end, wireguard_go(), &["-f"])
}

/// Starts any implementation that takes an interface's name and is set up by `wg` and `ip`.
pub fn started(namespace: &Namespace, tag: &str, end: &End, program: &Path, options: &[&str]) -> Running {
    let interface = interface_name(tag);
    let process = namespace.spawn(program, &[options, &[&interface]].concat(), &[("LOG_LEVEL", "error")]);
    let path = socket(&interface);
    wait_until("the device is up", Duration::from_secs(10), || path.exists());
    let config = ConfigFile::new(&end.wg_config());
    run("wg", &["setconf", &interface, config.path()]);
    namespace.ip(&["addr", "add", &format!("10.232.0.{}/24", end.number), "dev", &interface]);
    namespace.ip(&["link", "set", &interface, "up", "mtu", &end.mtu.to_string()]);
    if end.mtu >= 1280 {
        namespace.ip(&["addr", "add", &format!("fd32::{}/64", end.number), "dev", &interface, "nodad"]);
    }
    Running { process, interface, _config: config }
}

/// A tunnel's peer as `wg show .. dump` tells: endpoint, latest handshake, received and sent bytes.
pub fn dump(interface: &str, peer: u8) -> (String, u64, u64, u64) {
    let text = run("wg", &["show", interface, "dump"]);
    let key = public_key(peer).to_string();
    let line = text.lines().find(|line| line.starts_with(&key)).unwrap_or_else(|| panic!("no peer {key} in {text}"));
    let fields: Vec<&str> = line.split('\t').collect();
    (fields[2].to_owned(), fields[4].parse().unwrap(), fields[5].parse().unwrap(), fields[6].parse().unwrap())
}

/// Pseudo-random bytes that nothing compresses or predicts (xorshift64*).
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let next = self.next().to_le_bytes();
            chunk.copy_from_slice(&next[..chunk.len()]);
        }
    }
}

const CHUNK: usize = 256 * 1024;

/// Sends pseudo-random bytes; returns their digest.
pub fn send_noise(stream: &mut impl Write, bytes: usize) -> io::Result<Vec<u8>> {
    let mut noise = Noise::new(bytes as u64);
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(CHUNK);
        noise.fill(&mut chunk[..length]);
        digest.update(&chunk[..length]);
        stream.write_all(&chunk[..length])?;
        left -= length;
    }
    Ok(digest.finalize().to_vec())
}

/// Receives until the end; returns how much, and its digest.
pub fn receive(stream: &mut impl Read) -> io::Result<(usize, Vec<u8>)> {
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut total = 0;
    loop {
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            return Ok((total, digest.finalize().to_vec()));
        }
        digest.update(&chunk[..length]);
        total += length;
    }
}

const PATIENCE: Duration = Duration::from_secs(120);

/// Sends so many random bytes over TCP from one namespace to an address of the other; they must arrive as they were.
pub fn transfer(from: &Namespace, to: &Namespace, address: IpAddr, bytes: usize) -> Duration {
    let (ready, listening) = std::sync::mpsc::channel();
    let receiver = to.run(move || {
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).unwrap();
        ready.send(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        receive(&mut stream).unwrap()
    });
    let target = listening.recv_timeout(PATIENCE).unwrap();
    let started = Instant::now();
    let sent = from.within(move || {
        let mut stream = connect(target);
        send_noise(&mut stream, bytes).unwrap()
    });
    let (total, arrived) = receiver.join().unwrap();
    assert_eq!(total, bytes);
    assert_eq!(arrived, sent, "other bytes arrived than were sent");
    started.elapsed()
}

pub fn connect(target: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&target, Duration::from_secs(30)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Echoes one small message; returns how long it took, or nothing where no answer came in `patience`.
pub fn probe(from: &Namespace, to: &Namespace, address: IpAddr, patience: Duration) -> Option<Duration> {
    let echo = to.within(move || UdpSocket::bind(SocketAddr::new(address, 0)).unwrap());
    let target = echo.local_addr().unwrap();
    echo.set_read_timeout(Some(patience)).unwrap();
    let answering = std::thread::spawn(move || {
        let mut buffer = [0; 64];
        if let Ok((length, from)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(&buffer[..length], from);
        }
    });
    let took = from.within(move || {
        let any: IpAddr = if target.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        let started = Instant::now();
        socket.send_to(b"probe", target).ok()?;
        socket.recv(&mut [0; 64]).ok().map(|_| started.elapsed())
    });
    answering.join().unwrap();
    took
}
