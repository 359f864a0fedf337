//! The measurements of `docs/performance.md`: `cargo bench -p keelway-vpn --bench vpn -- [--rounds N] [--seconds S] [--write]`.
//!
//! Rounds are interleaved, so that what else the machine does meets all that is compared; a ratio is the median of the rounds' ratios.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a step that fails ends the benchmark; its table is its output"
)]
#![expect(clippy::cast_precision_loss, reason = "figures of a table have three digits")]

#[path = "../../tests/support/mod.rs"]
mod support;

mod report;
mod swarm;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use keelway_vpn::{Limits, PeerConfig, Peers, Relay, RelayConfig};
use report::{Report, Row, median};
use support::{End, Namespace, Running, chain, private_key, public_key, v4};
use tokio::io::AsyncWriteExt;

/// The number of the relay among the ends.
const RELAY: u8 = 9;
/// Initiations a second in the flood.
const FLOOD: u128 = 10_000;

struct Plan {
    rounds: usize,
    seconds: Duration,
    write: bool,
}

fn main() {
    let plan = plan(&std::env::args().skip(1).collect::<Vec<_>>());
    let mut report = Report::new(plan.rounds, plan.seconds);
    devices(&plan, &mut report);
    relays(&plan, &mut report);
    crowds(&plan, &mut report);
    changed_peer(&mut report);
    dials(&plan, &mut report);
    flood(&plan, &mut report);
    println!("{}", report.render());
    if plan.write {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md");
        report.write_into(&path);
    }
    println!("{} passed, {} failed", report.met(), report.missed());
}

fn plan(args: &[String]) -> Plan {
    let number = |name: &str, default: u64| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)).map_or(default, |value| value.parse().expect("a number"))
    };
    Plan {
        rounds: usize::try_from(number("--rounds", 5)).expect("a small number"),
        seconds: Duration::from_secs(number("--seconds", 3)),
        write: args.iter().any(|arg| arg == "--write"),
    }
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_keelway-vpn"))
}

fn ours(namespace: &Namespace, tag: &str, end: &End) -> Running {
    support::ours(namespace, tag, end, program(), &["--userspace"])
}

/// One TCP stream for a while; Gbit/s as the receiver sees it.
fn stream(from: &Namespace, to: &Namespace, address: IpAddr, time: Duration) -> f64 {
    let (ready, listening) = std::sync::mpsc::channel();
    let receiver = to.run(move || {
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).expect("listen");
        ready.send(listener.local_addr().expect("address")).expect("a sender");
        let (mut stream, _) = listener.accept().expect("accept");
        let started = Instant::now();
        drain(&mut stream) / started.elapsed().as_secs_f64()
    });
    let target = listening.recv().expect("a listener");
    from.within(move || {
        let mut stream = support::connect(target);
        let chunk = vec![7; 128 * 1024];
        let started = Instant::now();
        while started.elapsed() < time {
            stream.write_all(&chunk).expect("send");
        }
    });
    receiver.join().expect("receiver") * 8.0 / 1e9
}

fn drain(stream: &mut impl Read) -> f64 {
    let mut chunk = vec![0; 256 * 1024];
    let mut total = 0.0;
    while let Ok(length @ 1..) = stream.read(&mut chunk) {
        total += length as f64;
    }
    total
}

fn left(endpoint: &str) -> End {
    End::new(1).peer(2, "10.232.0.2/32", &format!("Endpoint = {endpoint}:51820"))
}

fn right() -> End {
    End::new(2).peer(1, "10.232.0.1/32", "")
}

/// boringtun's own device, at the setting that is its fastest: one thread.
fn boringtun(namespace: &Namespace, tag: &str, end: &End) -> Running {
    let options = ["-f", "--disable-drop-privileges", "--threads", "1"];
    support::started(namespace, tag, end, &boringtun_program(), &options)
}

fn boringtun_program() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boringtun");
    let program = root.join("bin/boringtun-cli");
    if !program.exists() {
        let status = Command::new("cargo").args(["install", "boringtun-cli", "--locked", "--root"]).arg(&root).status();
        assert!(status.is_ok_and(|status| status.success()), "cargo install boringtun-cli");
    }
    program
}

/// A stream through two devices, and the processor time that each gigabit took.
fn device_round(plan: &Plan, start: impl Fn(&Namespace, &str, &End) -> Running) -> (f64, u64, f64) {
    let [a, b] = chain("bdev", 1500);
    let far = start(&b, "rb", &right());
    let near = start(&a, "ra", &left("10.231.0.2"));
    stream(&a, &b, v4(2), Duration::from_millis(500));
    let before = near.process.cpu() + far.process.cpu();
    let speed = stream(&a, &b, v4(2), plan.seconds);
    let cpu = (near.process.cpu() + far.process.cpu()).saturating_sub(before).as_secs_f64();
    let memory = near.process.memory().max(far.process.memory());
    (speed, memory, cpu / (speed * plan.seconds.as_secs_f64()))
}

fn devices(plan: &Plan, report: &mut Report) {
    let (mut mine, mut go, mut boring) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        mine.push(device_round(plan, ours));
        go.push(device_round(plan, support::theirs));
        boring.push(device_round(plan, boringtun));
    }
    let speeds = |rounds: &[(f64, u64, f64)]| rounds.iter().map(|round| round.0).collect::<Vec<_>>();
    report.add(Row::ratio(
        "one TCP stream, two devices, beside wireguard-go",
        "Gbit/s",
        &speeds(&mine),
        &speeds(&go),
        1.5,
    ));
    report.add(Row::ratio(
        "the same, beside boringtun's device (one thread)",
        "Gbit/s",
        &speeds(&mine),
        &speeds(&boring),
        4.0,
    ));
    let memory = mine.iter().map(|round| round.1).max().unwrap_or_default() as f64 / 1e6;
    report.add(Row::at_most("memory of a device under that load", "MB", memory, 10.0));
    let cpu = |rounds: &[(f64, u64, f64)]| median(rounds.iter().map(|round| round.2 * 1000.0).collect());
    report.note(format!(
        "Processor time of both devices for each gigabit of that stream: ours {:.0} ms, wireguard-go {:.0} ms, boringtun {:.0} ms.",
        cpu(&mine), cpu(&go), cpu(&boring)
    ));
}

fn towards_relay(number: u8, relay: &str) -> End {
    let endpoint = format!("Endpoint = {relay}:51820\nPersistentKeepalive = 1");
    End::new(number).peer(RELAY, "10.232.0.0/24", &endpoint)
}

fn middle() -> End {
    let end = End::new(RELAY).peer(1, "10.232.0.1/32", "");
    end.peer(2, "10.232.0.2/32", "")
}

/// A stream between two of our devices, each of which knows only what is in the middle.
fn through(plan: &Plan, start_middle: impl FnOnce(&Namespace) -> support::Process) -> f64 {
    let [a, m, b] = chain("brel", 1500);
    let _middle = start_middle(&m);
    let _near = ours(&a, "ra", &towards_relay(1, "10.231.0.2"));
    let _far = ours(&b, "rb", &towards_relay(2, "10.231.1.1"));
    support::wait_until("a way through", Duration::from_secs(10), || {
        support::probe(&a, &b, v4(2), Duration::from_millis(300)).is_some()
    });
    stream(&a, &b, v4(2), plan.seconds)
}

fn relay_process(namespace: &Namespace, config: &support::ConfigFile) -> support::Process {
    namespace.spawn(program(), &["relay", "relay", "--config", config.path()], &[])
}

fn relays(plan: &Plan, report: &mut Report) {
    let (mut mine, mut go) = (Vec::new(), Vec::new());
    let config = support::ConfigFile::new(&middle().quick_config());
    for _ in 0..plan.rounds {
        mine.push(through(plan, |m| relay_process(m, &config)));
        go.push(through(plan, |m| {
            m.within(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding"));
            support::theirs(m, "rm", &middle()).process
        }));
    }
    report.add(Row::ratio("relay between two peers, beside wireguard-go and the kernel", "Gbit/s", &mine, &go, 1.5));
}

/// The relay with more and more peers, all of them with a session.
fn crowds(plan: &Plan, report: &mut Report) {
    let (mut speeds, mut memories, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let rounds = [1, 100, 1000].map(|peers| crowd_round(plan, peers));
        speeds.push(rounds.iter().map(|round| round.0).collect::<Vec<_>>());
        memories.push((rounds[2].1 as f64 - rounds[0].1 as f64) / 999.0 / 1000.0);
        idle.push(rounds[2].2);
    }
    let column = |at: usize| speeds.iter().map(|round| round[at]).collect::<Vec<_>>();
    report.add(Row::ratio("relay with 100 peers, beside 1 peer", "Gbit/s", &column(1), &column(0), 0.9));
    report.add(Row::ratio("relay with 1,000 peers, beside 1 peer", "Gbit/s", &column(2), &column(0), 0.9));
    report.add(Row::at_most("memory for each of 1,000 peers with a session", "kB", median(memories), 20.0));
    report.add(Row::at_most("idle with 1,000 peers with a session, keepalive off", "% of a core", median(idle), 0.2));
}

/// Throughput, memory, and processor time while idle in percent.
fn crowd_round(plan: &Plan, peers: usize) -> (f64, u64, f64) {
    let [a, m, b] = chain("bcrd", 1500);
    let crowd = swarm::Swarm::new(peers);
    let config = support::ConfigFile::new(&(middle().quick_config() + &crowd.config()));
    let relay = relay_process(&m, &config);
    crowd.shake_hands(&a, "10.231.0.2:51820", public_key(RELAY));
    let idle_from = relay.cpu();
    let watch = Duration::from_secs(10);
    pause(watch);
    let idle = relay.cpu().saturating_sub(idle_from).as_secs_f64() / watch.as_secs_f64() * 100.0;
    let memory = relay.memory();
    let _near = ours(&a, "ca", &towards_relay(1, "10.231.0.2"));
    let _far = ours(&b, "cb", &towards_relay(2, "10.231.1.1"));
    support::wait_until("a way through", Duration::from_secs(10), || {
        support::probe(&a, &b, v4(2), Duration::from_millis(300)).is_some()
    });
    (stream(&a, &b, v4(2), plan.seconds), memory, idle)
}

fn pause(time: Duration) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(time)).expect("a timeout");
    let _ = socket.recv(&mut [0]);
}

fn relay_here(namespace: &Namespace) -> Relay {
    namespace.within(|| {
        let config = RelayConfig {
            name: "bench".to_owned(),
            private_key: Some(private_key(RELAY)),
            listen_port: 51820,
            addresses: vec![v4(RELAY)],
            mtu: 1420,
            limits: Limits::default(),
        };
        Relay::start(config).expect("a relay")
    })
}

fn changed_peer(report: &mut Report) {
    let [m] = chain("bchg", 1500);
    let relay = relay_here(&m);
    let peer = |number: u32| {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        let mut peer = PeerConfig::new(keelway_vpn::PublicKey(key));
        peer.allowed_ips.insert(IpAddr::from((0x0a40_0000 + number).to_be_bytes()).into());
        peer
    };
    let mut wanted: Peers = (0..1000).map(peer).collect();
    relay.set_peers(&wanted);
    let times = (0..1000).map(|number| {
        let mut changed = peer(number);
        changed.persistent_keepalive = 25;
        wanted.insert(changed);
        let started = Instant::now();
        assert_eq!(relay.set_peers(&wanted).len(), 1);
        started.elapsed().as_secs_f64() * 1000.0
    });
    report.add(Row::at_most("a changed peer among 1,000 (median)", "ms", median(times.collect()), 1.0));
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// A stream from the relay's own TCP/IP stack into a device.
fn dial_round(plan: &Plan) -> f64 {
    let [a, m] = chain("bdia", 1500);
    let relay = relay_here(&m);
    let mut peer = PeerConfig::new(public_key(1));
    peer.allowed_ips.insert(v4(1).into());
    relay.set_peers(&[peer].into_iter().collect());
    let _device = ours(&a, "da", &towards_relay(1, "10.231.0.2"));
    support::wait_until("the device", Duration::from_secs(10), || relay.stats()[0].last_handshake.is_some());
    let (ready, listening) = std::sync::mpsc::channel();
    let receiver = a.run(move || {
        let listener = TcpListener::bind(SocketAddr::new(v4(1), 0)).expect("listen");
        ready.send(listener.local_addr().expect("address")).expect("a sender");
        let (mut stream, _) = listener.accept().expect("accept");
        let started = Instant::now();
        drain(&mut stream) / started.elapsed().as_secs_f64()
    });
    let target = listening.recv().expect("a listener");
    let time = plan.seconds;
    block_on(async {
        let mut stream = relay.dialer().dial(target, Duration::from_secs(5)).await.expect("dial");
        let chunk = vec![7; 128 * 1024];
        let started = Instant::now();
        while started.elapsed() < time {
            stream.write_all(&chunk).await.expect("send");
        }
        stream.shutdown().await.expect("shutdown");
    });
    receiver.join().expect("receiver") * 8.0 / 1e9
}

fn dials(plan: &Plan, report: &mut Report) {
    let (mut dialled, mut device) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        dialled.push(dial_round(plan));
        device.push(device_round(plan, ours).0);
    }
    report.add(Row::ratio(
        "one stream dialled through the stack, beside two devices",
        "Gbit/s",
        &dialled,
        &device,
        0.5,
    ));
}

fn flood(plan: &Plan, report: &mut Report) {
    let (mut calm, mut flooded) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let [a, b] = chain("bfld", 1500);
        let _far = ours(&b, "fb", &right());
        let _near = ours(&a, "fa", &left("10.231.0.2"));
        calm.push(stream(&a, &b, v4(2), plan.seconds));
        let strangers = swarm::Swarm::new(200).initiations("10.231.0.2:51820", public_key(2));
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let sender = a.run(move || send_flood(&strangers, &until));
        flooded.push(stream(&a, &b, v4(2), plan.seconds));
        stop.store(true, Ordering::Release);
        sender.join().expect("flood");
    }
    report.add(Row::ratio(
        "a stream under 10,000 strangers' handshakes a second, beside none",
        "Gbit/s",
        &flooded,
        &calm,
        0.8,
    ));
}

fn send_flood(initiations: &[Vec<u8>], stop: &AtomicBool) {
    let socket = UdpSocket::bind("10.231.0.1:0").expect("a socket");
    let started = Instant::now();
    let mut sent = 0;
    while !stop.load(Ordering::Acquire) {
        let due = started.elapsed().as_micros() * FLOOD / 1_000_000;
        while sent < due {
            let at = usize::try_from(sent).unwrap_or_default() % initiations.len();
            let _ = socket.send_to(&initiations[at], "10.231.0.2:51820");
            sent += 1;
        }
        pause(Duration::from_millis(1));
    }
}
