//! Our device and relay against wireguard-go, `wg`, and a bad network, in network namespaces of the tests' own.

#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a step that fails fails the test")]

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use support::{
    ConfigFile, End, Namespace, Noise, Running, chain, dump, probe, public_key, run, transfer, v4, v6, wait_until,
};

const SECOND: Duration = Duration::from_secs(1);
const MEGABYTE: usize = 1_000_000;
/// Outer frames that hold any tunnel packet.
const JUMBO: u32 = 9216;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_keelway-vpn"))
}

fn ours(namespace: &Namespace, tag: &str, end: &End, options: &[&str]) -> Running {
    support::ours(namespace, tag, end, program(), options)
}

fn left(more: &str) -> End {
    End::new(1).peer(2, "10.232.0.2/32, fd32::2/128", &format!("Endpoint = 10.231.0.2:51820\n{more}"))
}

fn right(more: &str) -> End {
    End::new(2).peer(1, "10.232.0.1/32, fd32::1/128", more)
}

fn handshakes(running: &Running) -> usize {
    running.process.log().matches("HandshakeCompleted").count()
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn both_ends_open_a_tunnel_with_wireguard_go() {
    let [a, b] = chain("open", 1500);
    let preshared = "PresharedKey = FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=\n";
    for we_initiate in [true, false] {
        let (mine, other) = if we_initiate {
            (ours(&a, "oa", &left(preshared), &[]), support::theirs(&b, "ob", &right(preshared)))
        } else {
            (ours(&b, "ob", &right(preshared), &[]), support::theirs(&a, "oa", &left(preshared)))
        };
        assert!(probe(&a, &b, v4(2), SECOND * 3).is_some(), "IPv4 inside");
        assert!(probe(&a, &b, v6(2), SECOND * 3).is_some(), "IPv6 inside");
        transfer(&a, &b, v4(2), 20 * MEGABYTE);
        transfer(&b, &a, v6(1), 20 * MEGABYTE);
        let (endpoint, handshake, received, sent) = dump(&mine.interface, if we_initiate { 2 } else { 1 });
        assert!(endpoint.starts_with("10.231.0."), "{endpoint}");
        assert!(unix_now() - handshake < 60, "a Unix time, not an age");
        assert!(received > 20_000_000 && sent > 20_000_000);
        drop(other);
    }
}

#[test]
fn the_outer_network_may_be_ipv6() {
    let [a, b] = chain("outer", 1500);
    let left = End::new(1).peer(2, "10.232.0.2/32", "Endpoint = [fd31:0::2]:51820");
    let _mine = ours(&a, "ua", &left, &[]);
    let _other = support::theirs(&b, "ub", &right(""));
    transfer(&a, &b, v4(2), 20 * MEGABYTE);
}

#[test]
fn a_key_that_is_spent_by_messages_is_renewed_with_wireguard_go() {
    let [a, b] = chain("msgs", 1500);
    let mine = ours(&a, "ma", &left(""), &["--rekey-after-messages", "1000", "--reject-after-messages", "2000"]);
    let _other = support::theirs(&b, "mb", &right(""));
    for keys in 2..=5 {
        // Some 1,080 packets. wireguard-go ignores an initiation that comes 20 ms after the last one, so each key gets its time.
        transfer(&a, &b, v4(2), 1_500_000);
        wait_until("another key", SECOND * 20, || handshakes(&mine) >= keys);
    }
}

/// Two minutes of silence but for a probe each second: a key lives no longer.
#[test]
fn a_key_that_is_old_is_renewed_with_wireguard_go() {
    let [a, b] = chain("time", 1500);
    let [c, d] = chain("time2", 1500);
    let mine = ours(&a, "ya", &left(""), &[]);
    let _their_end = support::theirs(&b, "yb", &right(""));
    let _my_end = ours(&d, "yd", &right(""), &[]);
    let theirs = support::theirs(&c, "yc", &left(""));
    assert!(probe(&a, &b, v4(2), SECOND * 3).is_some());
    assert!(probe(&c, &d, v4(2), SECOND * 3).is_some());
    let first = dump(&theirs.interface, 2).1;
    let mut lost = 0;
    wait_until("new keys on both tunnels", SECOND * 150, || {
        lost += usize::from(probe(&a, &b, v4(2), SECOND).is_none());
        lost += usize::from(probe(&c, &d, v4(2), SECOND).is_none());
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 });
        handshakes(&mine) > 1 && dump(&theirs.interface, 2).1 > first
    });
    assert_eq!(lost, 0, "no probe is lost over it");
}

#[test]
fn wireguard_go_proves_its_address_under_load() {
    let [a, b] = chain("load", 1500);
    let mine = ours(&b, "lb", &right(""), &["--handshakes-per-second", "0"]);
    let other = support::theirs(&a, "la", &left("PersistentKeepalive = 1"));
    wait_until("a handshake with a cookie", SECOND * 20, || handshakes(&mine) > 0);
    // The cookie costs one retry, which comes after five seconds.
    assert!(probe(&a, &b, v4(2), SECOND * 3).is_some());
    assert!(dump(&other.interface, 2).1 > 0);
}

#[test]
fn keepalives_arrive_from_either_side() {
    let [a, b] = chain("alive", 1500);
    let other = support::theirs(&b, "kb", &right(""));
    let mine = ours(&a, "ka", &left("PersistentKeepalive = 1"), &[]);
    wait_until("a handshake", SECOND * 10, || dump(&other.interface, 1).1 > 0);
    let received = |running: &Running, peer| dump(&running.interface, peer).2;
    let before = received(&other, 1);
    wait_until("our keepalives", SECOND * 5, || received(&other, 1) >= before + 64);
    let key = public_key(2).to_string();
    run("wg", &["set", &mine.interface, "peer", &key, "persistent-keepalive", "0"]);
    let key = public_key(1).to_string();
    run("wg", &["set", &other.interface, "peer", &key, "persistent-keepalive", "1"]);
    let before = received(&mine, 2);
    wait_until("their keepalives", SECOND * 5, || received(&mine, 2) >= before + 64);
}

#[test]
fn a_peer_that_moves_is_followed_and_so_are_we() {
    for we_move in [true, false] {
        let [a, b] = chain("roam", 1500);
        let (mine, other) = if we_move {
            (ours(&a, "ra", &left(""), &[]), support::theirs(&b, "rb", &right("")))
        } else {
            (ours(&b, "rb", &right(""), &[]), support::theirs(&a, "ra", &left("")))
        };
        assert!(probe(&a, &b, v4(2), SECOND * 3).is_some());
        a.ip(&["addr", "del", "10.231.0.1/24", "dev", "right"]);
        a.ip(&["addr", "add", "10.231.0.77/24", "dev", "right"]);
        assert!(probe(&a, &b, v4(2), SECOND * 3).is_some(), "from the new address");
        let watcher = if we_move { &other } else { &mine };
        assert!(dump(&watcher.interface, 1).0.starts_with("10.231.0.77:"));
        assert!(probe(&b, &a, v4(1), SECOND * 3).is_some(), "to the new address");
    }
}

#[test]
fn a_restarted_end_is_back_at_the_others_next_packet() {
    let [a, b] = chain("again", 1500);
    let known = right("Endpoint = 10.231.0.1:51820");
    let mine = ours(&b, "ab", &known, &[]);
    let _other = support::theirs(&a, "aa", &left(""));
    assert!(probe(&a, &b, v4(2), SECOND * 3).is_some());
    drop(mine);
    let mine = ours(&b, "ab", &known, &[]);
    // The first packet is under a key that is gone; it makes us ask for one.
    let _lost = probe(&a, &b, v4(2), SECOND / 5);
    wait_until("a new key", SECOND * 2, || handshakes(&mine) > 0);
    assert!(probe(&a, &b, v4(2), SECOND).is_some());
}

#[test]
fn wg_sees_and_sets_a_device() {
    let [a] = chain("wg", 1500);
    let end = End::new(1).peer(2, "10.232.0.2/32", "PersistentKeepalive = 25\nEndpoint = 192.0.2.1:1\nPresharedKey = FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=").peer(3, "10.232.0.3/32, fd32::3/128", "");
    let mut mine = ours(&a, "wa", &End::new(1), &[]);
    let name = mine.interface.clone();
    let show = || {
        let text = run("wg", &["showconf", &name]);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let config = ConfigFile::new(&end.wg_config());
    run("wg", &["setconf", &name, config.path()]);
    let after_setconf = show();
    assert!(after_setconf.iter().any(|line| line == "PersistentKeepalive = 25"));
    assert_eq!(after_setconf.iter().filter(|line| line.starts_with("Endpoint")).count(), 1, "of one peer only");
    assert_eq!(after_setconf.iter().filter(|line| line.starts_with("PresharedKey")).count(), 1, "of one peer only");
    run("wg", &["syncconf", &name, config.path()]);
    assert_eq!(show(), after_setconf, "the same again changes nothing");

    let third = public_key(3).to_string();
    run("wg", &["set", &name, "peer", &third, "persistent-keepalive", "7", "allowed-ips", "10.232.0.9/32"]);
    assert!(show().contains(&"PersistentKeepalive = 7".to_owned()));
    run("wg", &["set", &name, "peer", &third, "remove"]);
    assert_eq!(run("wg", &["show", &name, "peers"]).lines().count(), 1);
    let smaller = ConfigFile::new(&End::new(1).peer(3, "10.232.0.3/32", "").wg_config());
    run("wg", &["syncconf", &name, smaller.path()]);
    assert_eq!(run("wg", &["show", &name, "peers"]).trim(), third);
    run("wg", &["set", &name, "listen-port", "51999", "fwmark", "0x20"]);
    assert_eq!(run("wg", &["show", &name, "listen-port"]).trim(), "51999");
    assert_eq!(run("wg", &["show", &name, "fwmark"]).trim(), "0x20");
    let refused = std::process::Command::new("wg").args(["set", &name, "peer", "nonsense"]).output().unwrap();
    assert!(!refused.status.success());
    assert!(mine.process.is_running());
    let socket = format!("/var/run/wireguard/{name}.sock");
    mine.process.stop();
    assert!(!Path::new(&socket).exists(), "the socket goes with the device");
}

#[test]
fn peers_may_come_before_the_private_key() {
    let [a, b] = chain("late", 1500);
    let mine = ours(&a, "ea", &End::new(1), &[]);
    let _other = support::theirs(&b, "eb", &right(""));
    let key = public_key(2).to_string();
    run("wg", &["set", &mine.interface, "private-key", "/dev/null"]);
    run("wg", &["set", &mine.interface, "peer", &key, "endpoint", "10.231.0.2:51820", "allowed-ips", "10.232.0.2/32"]);
    assert!(probe(&a, &b, v4(2), SECOND / 2).is_none());
    let private = ConfigFile::new(&support::private_text(1));
    run("wg", &["set", &mine.interface, "private-key", private.path()]);
    assert!(probe(&a, &b, v4(2), SECOND * 6).is_some());
}

fn with_mtu(mut end: End, mtu: u16) -> End {
    end.mtu = mtu;
    end
}

#[test]
fn large_transfers_arrive_as_they_were_at_any_mtu() {
    let [a, b] = chain("mtu", JUMBO);
    for mtu in [576, 1280, 1420, 8920] {
        let _left = ours(&a, "ia", &with_mtu(left(""), mtu), &[]);
        let _right = ours(&b, "ib", &with_mtu(right(""), mtu), &[]);
        transfer(&a, &b, v4(2), 400 * MEGABYTE);
        if mtu >= 1280 {
            transfer(&b, &a, v6(1), 400 * MEGABYTE);
        }
    }
}

#[test]
fn outer_packets_may_be_fragmented() {
    let [a, b] = chain("frag", 1500);
    let _left = ours(&a, "fa", &with_mtu(left(""), 8920), &[]);
    let _right = ours(&b, "fb", &with_mtu(right(""), 8920), &[]);
    transfer(&a, &b, v4(2), 20 * MEGABYTE);
}

#[test]
fn an_mtu_that_changes_is_followed() {
    let [a, b] = chain("grow", JUMBO);
    let one = ours(&a, "ga", &left(""), &[]);
    let two = ours(&b, "gb", &right(""), &[]);
    for mtu in ["8920", "576", "1420"] {
        a.ip(&["link", "set", &one.interface, "mtu", mtu]);
        b.ip(&["link", "set", &two.interface, "mtu", mtu]);
        transfer(&a, &b, v4(2), 20 * MEGABYTE);
    }
}

/// Forwards datagrams both ways, loses one in twenty, doubles one in twenty and lets one in twenty be
/// overtaken.
struct BadNetwork {
    stopping: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

const BAD_NETWORK: &str = "10.231.0.2:7000";

impl BadNetwork {
    /// Listens in `namespace` and forwards to port 51820 of the same machine.
    fn start(namespace: &Namespace) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let (ready, listening) = std::sync::mpsc::channel();
        let thread = namespace.run(move || {
            let socket = UdpSocket::bind(BAD_NETWORK).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            ready.send(()).unwrap();
            forward(&socket, &stop);
        });
        listening.recv().unwrap();
        Self { stopping, thread: Some(thread) }
    }
}

fn forward(socket: &UdpSocket, stop: &AtomicBool) {
    let server: SocketAddr = "10.231.0.2:51820".parse().unwrap();
    let mut client = server;
    let mut noise = Noise::new(5);
    let mut held: Option<(Vec<u8>, SocketAddr, u64)> = None;
    let mut buffer = vec![0; 65536];
    while !stop.load(Ordering::Acquire) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let to = if from == server { client } else { server };
            if from != server {
                client = from;
            }
            match noise.next() % 20 {
                0 => {}
                2 => {
                    let _ = socket.send_to(&buffer[..length], to);
                    let _ = socket.send_to(&buffer[..length], to);
                }
                1 if held.is_none() => {
                    held = Some((buffer[..length].to_vec(), to, noise.next() % 10));
                }
                _ => drop(socket.send_to(&buffer[..length], to)),
            }
            if let Some((_, _, overtakers)) = &mut held {
                *overtakers = overtakers.saturating_sub(1);
            }
        } else if let Some((_, _, overtakers)) = &mut held {
            *overtakers = 0;
        }
        if let Some((bytes, to, _)) = held.take_if(|(_, _, overtakers)| *overtakers == 0) {
            let _ = socket.send_to(&bytes, to);
        }
    }
}

impl Drop for BadNetwork {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn transfers_survive_loss_and_reordering() {
    let [a, b] = chain("bad", JUMBO);
    let _network = BadNetwork::start(&b);
    let left = || End::new(1).peer(2, "10.232.0.2/32, fd32::2/128", &format!("Endpoint = {BAD_NETWORK}"));
    for mtu in [576, 1280, 1420, 8920] {
        let _left = ours(&a, "ba", &with_mtu(left(), mtu), &[]);
        let _right = ours(&b, "bb", &with_mtu(right(""), mtu), &[]);
        transfer(&a, &b, v4(2), 10 * MEGABYTE);
        if mtu >= 1280 {
            transfer(&a, &b, v6(2), 10 * MEGABYTE);
        }
    }
    let _left = ours(&a, "ba", &left(), &[]);
    let _right = support::theirs(&b, "bb", &right(""));
    transfer(&a, &b, v4(2), 10 * MEGABYTE);
}

#[test]
fn a_flood_of_strangers_handshakes_stops_nobody() {
    let [a, b] = chain("flood", 1500);
    let _left = ours(&a, "sa", &left(""), &[]);
    let mine = ours(&b, "sb", &right(""), &[]);
    assert!(probe(&a, &b, v4(2), SECOND * 3).is_some());
    let stop = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&stop);
    let flood = a.run(move || support_flood(&until));
    let memory = mine.process.memory();
    transfer(&a, &b, v4(2), 100 * MEGABYTE);
    wait_until("enough of the flood", SECOND * 5, || flood.is_finished() || dump(&mine.interface, 1).2 > 0);
    stop.store(true, Ordering::Release);
    let sent = flood.join().unwrap();
    assert!(sent > 1000, "{sent} initiations");
    assert!(mine.process.memory() < memory + 4_000_000, "memory is bounded");
    assert!(probe(&a, &b, v4(2), SECOND * 3).is_some());
}

/// Ten thousand initiations a second from strangers that know our public key.
fn support_flood(stop: &AtomicBool) -> usize {
    let socket = UdpSocket::bind("10.231.0.1:0").unwrap();
    let stranger = stranger_initiations(200);
    let started = Instant::now();
    let mut sent = 0;
    while !stop.load(Ordering::Acquire) && started.elapsed() < SECOND * 60 {
        let due = usize::try_from(started.elapsed().as_micros() / 100).unwrap();
        while sent < due {
            let _ = socket.send_to(&stranger[sent % stranger.len()], "10.231.0.2:51820");
            sent += 1;
        }
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
    }
    sent
}

/// Right initiations in every way, but for who sends them.
fn stranger_initiations(count: usize) -> Vec<Vec<u8>> {
    use keelway_vpn::{Clock, Config, Core, Limits, Output, PeerConfig, Route};
    (0..count)
        .map(|number| {
            let now = Clock.now();
            let mut bytes = [7; 32];
            bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
            let key = keelway_vpn::PrivateKey::from_bytes(bytes);
            let config = Config { private_key: Some(key), route: Route::Local, mtu: 1420 };
            let mut core = Core::new(config, Limits::default(), 1, now);
            let mut victim = PeerConfig::new(public_key(2));
            victim.endpoint = Some("10.231.0.2:51820".parse().unwrap());
            victim.persistent_keepalive = 1;
            core.set_peers(&[victim].into_iter().collect(), now);
            let mut out = Output::new();
            core.poll_timers(now, &mut out);
            out.datagrams().next().unwrap().1.to_vec()
        })
        .collect()
}
