//! The resources that the agent's program uses while strangers and the driver overload it. It runs as a process of its own, with the fake
//! runtime and with directories of the test as `/var/lib` and `/var/log`. Needs root.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use keelway_agent_api::client::{HypervisorAgentClient, channel};
use keelway_cri::fake::{self, Fake};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::{
    io::AsyncWriteExt,
    net::UnixListener,
    time::{sleep, timeout},
};
use tokio_rustls::client::TlsStream;
use tonic::transport::Channel;

use crate::{
    ALONE, WITHIN,
    bounds::{CHUNK, GIGABYTE, IDLE, ON_THE_WAY, ask_with_chunks, question},
    events,
    installation::{Installation, MACHINE, files},
    machine::config,
    refusals::{connect, tls},
};

/// The limit of its peak memory, in KiB.
const MOST: u64 = 100 << 10;
/// The beginning of a TLS record of 16 KiB (RFC 8446, 5.1). The rest is never sent.
const BEGINNING: [u8; 5] = [22, 3, 1, 0x40, 0];
/// The size of the largest message that the agent reads, in chunks.
const LARGEST: usize = 16;
/// The number of concurrent requests of each kind.
const AT_ONCE: usize = 8;
/// The size of a log in bytes: many times what the buffers between the agent and a client hold.
const LOG: usize = 32 << 20;
/// The number of concurrent connections whose client does not read the responses.
const SLOW: usize = 8;
/// The limit of its threads. Clients share a limited number of threads.
const THREADS: usize = 128;
/// The limit of concurrent requests on one connection.
const QUESTIONS: u32 = 64;
/// The polling interval.
const LOOK: Duration = Duration::from_millis(50);

struct Program {
    child: Child,
    folder: TempDir,
    address: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(installation: &mut Installation, fake: Fake) -> Self {
        let folder = tempfile::Builder::new().prefix("keelway-abuse-").tempdir().unwrap();
        let at = |path: &str| folder.path().join(path).display().to_string();
        for path in ["var/lib", "var/log", "run", "tls"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        installation.write_agent(&folder.path().join("tls"));
        let runtime = UnixListener::bind(at("run/cri.sock")).unwrap();
        tokio::spawn(async move { fake::serve(runtime, fake).await.unwrap() });
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let program = format!(
            "mount --bind {} /var/lib; mount --bind {} /var/log; exec {} run \
             --runtime-endpoint unix://{} --listen unix://{} --listen {address} \
             --tls-certificate {} --tls-key {} --tls-authority {}",
            at("var/lib"),
            at("var/log"),
            env!("CARGO_BIN_EXE_keelway-hypervisor-agent"),
            at("run/cri.sock"),
            at("run/agent.sock"),
            at("tls/tls.crt"),
            at("tls/tls.key"),
            at("tls/ca.crt"),
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &program]).stdin(Stdio::null());
        let child = command.stderr(File::create(at("log")).unwrap()).spawn().unwrap();
        Self { child, folder, address }
    }

    fn channel(&self, driver: &TempDir) -> Channel {
        let identity = Arc::new(keelway_tls::TlsClient::new(files(driver.path())).unwrap());
        channel(&self.address.to_string(), &MACHINE.parse().unwrap(), identity).unwrap()
    }

    fn client(&self, driver: &TempDir) -> HypervisorAgentClient {
        HypervisorAgentClient::on_channel(self.channel(driver))
    }

    async fn serves(&self, driver: &TempDir) -> bool {
        self.client(driver).state(WITHIN).await.is_ok()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Returns the peak memory in KiB, and prints it with what caused it.
    fn most(&self, after: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let most = line.trim().trim_end_matches(" kB").parse().unwrap();
        println!("{most:>7} KiB at most, after {after}");
        most
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Polls until the process has no more than this many descriptors.
    async fn lets_go(&self, descriptors: usize) {
        let letting = async {
            while self.descriptors() > descriptors {
                sleep(LOOK).await;
            }
        };
        timeout(WITHIN, letting).await.unwrap();
    }
}

#[tokio::test]
async fn an_agent_that_is_abused_stays_small_and_serves() {
    let _alone = ALONE.lock().await;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let mut installation = Installation::new(1);
    let fake = Fake::new();
    for image in ["example.test/etcd:1", "example.test/pause:1"] {
        fake.add_image(image);
    }
    let program = Program::start(&mut installation, fake);
    let driver = installation.driver(|_| {});
    let begun = async { while !program.serves(&driver).await {} };
    timeout(WITHIN, begun).await.unwrap();
    timeout(WITHIN, program.client(&driver).apply(&config(1, "a"), &|_| {})).await.unwrap().unwrap();
    program.most("a config");
    let quiet = program.descriptors();

    for says in [&[][..], &[&BEGINNING[..], &[0; 12 << 10]].concat()] {
        let idle = say(program.address, says);
        assert!(program.serves(&driver).await);
        assert!(program.most(&format!("{} connections that say {} bytes", idle.len(), says.len())) < MOST);
    }
    gigabytes(&program, &driver).await;
    assert!(program.most("messages of a gigabyte") < MOST);
    largest(&program, &driver).await;
    assert!(program.most("the largest config that is taken") < MOST);
    let unread = unread(&program, &driver).await;
    program.lets_go(quiet).await;
    assert!(program.most(&format!("{} connections whose answers nobody reads", unread.len())) < MOST);

    assert!(program.serves(&driver).await);
    let log = program.log();
    assert!(log.contains("refused a connection"), "{log}");
    let key = fs::read_to_string(program.folder.path().join("tls/tls.key")).unwrap();
    assert!(key.lines().filter(|line| !line.starts_with('-')).all(|line| !log.contains(line)), "{log}");
}

/// Opens connections and sends only these bytes on each.
fn say(address: SocketAddr, says: &[u8]) -> Vec<TcpStream> {
    let begin = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        // The agent may have closed the connection already, in favour of another one.
        if let Err(error) = stream.write_all(says) {
            assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
        }
        stream
    };
    (0..IDLE).map(begin).collect()
}

/// Sends messages of a gigabyte to every method that reads messages.
async fn gigabytes(program: &Program, driver: &TempDir) {
    for path in [
        "/keelway.agent.v1.Agent/Apply",
        "/keelway.agent.v1.Agent/GiveIdentity",
        "/keelway.agent.v1.Agent/Dial",
        "/keelway.agent.v1.Agent/ReadLog",
        "/keelway.agent.v1.Exchange/Call",
        "/runtime.v1.RuntimeService/ExecSync",
        "/runtime.v1.ImageService/PullImage",
    ] {
        let asking = (0..AT_ONCE).map(|_| ask_with_chunks(program.channel(driver), path, GIGABYTE));
        for (status, taken) in join_all(asking).await {
            assert!(status.as_deref().is_none_or(|status| status != "0"), "{path}: {status:?}");
            assert!(taken < ON_THE_WAY, "{path}: {taken} bytes were taken");
        }
        assert!(program.serves(driver).await, "after {path}");
    }
}

/// Sends the largest message that the agent reads. It is refused after that, because its content is invalid.
async fn largest(program: &Program, driver: &TempDir) {
    let ask = |chunks| ask_with_chunks(program.channel(driver), "/keelway.agent.v1.Agent/Apply", chunks);
    let (status, taken) = ask(LARGEST).await;
    assert_eq!((status.as_deref(), taken), (Some("13"), LARGEST * CHUNK + 5));
    let (status, _) = ask(LARGEST + 1).await;
    assert!(status.as_deref().is_none_or(|status| status == "11"), "{status:?}");
}

/// Encodes a field of a message that consists of bytes (Protocol Buffers, encoding).
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// Requests endless logs and events on connections that announce unlimited windows and read nothing.
async fn unread(program: &Program, driver: &TempDir) -> Vec<TlsStream<tokio::net::TcpStream>> {
    let logs = program.folder.path().join("var/log/keelway/0123456789abcdef/etcd-0");
    write_log(&logs.join("main-0.log"));
    let stuck = join_all((0..SLOW).map(|_| ask_and_read_nothing(program, driver))).await;
    let mut runtime = events::Runtime::new(program.channel(driver));
    for attempt in 0..events::MANY {
        events::live_and_die(&mut runtime, attempt, events::SIZE).await;
    }
    assert!(program.serves(driver).await);
    let threads = fs::read_dir(format!("/proc/{}/task", program.child.id())).unwrap().count();
    assert!(threads < THREADS, "{threads} threads");
    stuck
}

async fn ask_and_read_nothing(program: &Program, driver: &TempDir) -> TlsStream<tokio::net::TcpStream> {
    let pod = [field(1, b"0123456789abcdef"), field(2, b"etcd-0")].concat();
    let log = [field(1, &pod), field(2, &field(1, b"main"))].concat();
    let asked = [
        ("/keelway.agent.v1.Agent/ReadLog", &log[..]),
        ("/keelway.agent.v1.Agent/WatchState", &[]),
        ("/runtime.v1.RuntimeService/GetContainerEvents", &[]),
    ];
    // SETTINGS_INITIAL_WINDOW_SIZE and WINDOW_UPDATE of the connection, as large as they can be (RFC 9113, 6.5.2 and 6.9).
    let room = [
        &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff][..],
        &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0, 0],
    ]
    .concat();
    let mut stuck = connect(program.address, &tls(Some(driver))).await.unwrap();
    stuck.write_all(&room).await.unwrap();
    for nth in 0..QUESTIONS {
        let (path, message) = asked[nth as usize % asked.len()];
        stuck.write_all(&question(nth, path, message)).await.unwrap();
    }
    stuck.flush().await.unwrap();
    stuck
}

fn write_log(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let line = format!("2026-01-01T00:00:00Z stdout F {}\n", "x".repeat(1000));
    fs::write(path, line.repeat(LOG / line.len())).unwrap();
}
