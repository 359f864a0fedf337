//! The addresses outside its cluster that an API server may call.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::client::{connect, ping};
use crate::daemon::{Egress, Keys};
use crate::lan::Lan;
use crate::support::{Namespace, run, wait_until};
use crate::{PATIENCE, on_host, unguarded};

const API_SERVER: u8 = 10;
const HYPERVISOR: u8 = 20;
/// The address of a tenant's webhook.
const WEBHOOK: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 20);

const HOSTS: &str = "
127.0.0.1 localhost
127.0.0.1 loopback.test
::1 loopback6.test
169.254.169.254 metadata.test
10.231.0.20 hypervisor.test
10.231.0.10 itself.test
198.51.100.20 webhook.test
127.0.0.1 mixed.test
198.51.100.20 mixed.test
";

#[test]
fn a_control_plane_calls_webhooks_and_not_the_machines_that_it_runs_on() {
    on_host("control_plane::a_control_plane_calls_webhooks_and_not_the_machines_that_it_runs_on", || {
        std::fs::write("/run/hosts", HOSTS).unwrap();
        std::fs::write("/run/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1\n").unwrap();
        // A program sees only what is mounted when it starts.
        for name in ["hosts", "resolv.conf"] {
            run("mount", &["--bind", &format!("/run/{name}"), &format!("/etc/{name}")]);
        }
        let (lan, keys) = (Lan::new(), Keys::new());
        let hypervisor = lan.machine(HYPERVISOR);
        hypervisor.ip(&["addr", "add", &format!("{WEBHOOK}/24"), "dev", "eth0"]);
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &keys.authority(), &[]);
        egress.daemon.machine.ip(&["addr", "add", "198.51.100.10/24", "dev", "eth0"]);
        egress.start();
        let _webhook = echo(&hypervisor, 443);
        let own = echo(&egress.daemon.machine, 443);
        let socket = egress.control_plane();
        let refused = [
            "127.0.0.1:443",
            "127.1.1.1:443",
            "[::1]:443",
            "[::]:443",
            "0.0.0.0:443",
            "[::ffff:127.0.0.1]:443",
            "[::ffff:198.51.100.20]:443",
            "[64:ff9b::7f00:1]:443",
            "169.254.169.254:443",
            "[fe80::1]:443",
            "224.0.0.1:443",
            "10.231.0.20:443",
            "198.51.100.10:443",
            "localhost:443",
            "loopback.test:443",
            "loopback6.test:443",
            "metadata.test:443",
            "hypervisor.test:443",
            "itself.test:443",
            // Numbers that a resolver reads as an address.
            "2130706433:443",
            "127.1:443",
            "0x7f.1:443",
        ];
        for target in refused {
            let answer = connect(&socket, target);
            assert_eq!(answer.status, 403, "{target}: {}", answer.why);
        }
        for allowed in ["198.51.100.20:443", "webhook.test:443", "mixed.test:443"] {
            ping(&mut connect(&socket, allowed).tunnel());
        }
        for (target, status) in [("198.51.100.20:444", 502), ("nobody.test:443", 502), ("webhook.test", 400)] {
            let answer = connect(&socket, target);
            assert_eq!(answer.status, status, "{target}: {}", answer.why);
        }
        let silent = connect(&socket, "198.51.100.77:443");
        assert!([502, 504].contains(&silent.status), "{}", silent.why);

        // If a name resolves to another address each time, it leads to the permitted address, or the egress refuses it.
        let changing = Resolver::start(&egress.daemon.machine, [WEBHOOK, Ipv4Addr::LOCALHOST]);
        let statuses: Vec<u16> = (0..20)
            .map(|_| {
                let answer = connect(&socket, "changing.test:443");
                let status = answer.status;
                if status == 200 {
                    ping(&mut answer.tunnel());
                }
                status
            })
            .collect();
        assert!(statuses.contains(&200) && statuses.contains(&403), "{statuses:?}");
        assert!(changing.asked.load(Ordering::Relaxed) >= 20);
        assert_eq!(own.load(Ordering::Relaxed), 0, "the machine's own server was reached");

        // The egress dials the address that it checked. If it resolved the name again, the name would lead to the egress's own machine.
        egress.daemon.process().stop();
        unguarded::egress(&egress);
        wait_until("resolved once more, the name leads to the machine's own server", PATIENCE, || {
            let answer = connect(&socket, "changing.test:443");
            if answer.status == 200 {
                ping(&mut answer.tunnel());
            }
            own.load(Ordering::Relaxed) > 0
        });

        // Only the configured range keeps the egress from the hypervisors. No configuration lets it connect to its own machine.
        egress.config["controlPlane"]["forbiddenCIDRs"] = json!([]);
        egress.start();
        ping(&mut connect(&socket, "hypervisor.test:443").tunnel());
        assert_eq!(connect(&socket, "itself.test:443").status, 403);
        assert_eq!(connect(&egress.cluster(), "100.80.0.7:10250").status, 502, "there are no gateways");
    });
}

/// Echoes what it receives. Returns the counter of connections.
pub(crate) fn echo(machine: &Namespace, port: u16) -> Arc<AtomicUsize> {
    let listener = machine.within(move || TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))).unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut bytes = [0; 8];
                while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
            });
        }
    });
    count
}

/// A DNS server that alternates between two addresses.
struct Resolver {
    asked: Arc<AtomicUsize>,
}

impl Resolver {
    fn start(machine: &Namespace, turns: [Ipv4Addr; 2]) -> Self {
        let socket = machine.within(|| UdpSocket::bind("127.0.0.1:53").unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut query) {
                let answer = resolve(&query[..length], || turns[count.fetch_add(1, Ordering::Relaxed) % 2]);
                socket.send_to(&answer, from).unwrap();
            }
        });
        Self { asked }
    }
}

/// Returns the answer to a query with one question (RFC 1035, section 4): one address if the question is for IPv4, else none.
fn resolve(query: &[u8], next: impl FnOnce() -> Ipv4Addr) -> Vec<u8> {
    let name = query[12..].iter().position(|byte| *byte == 0).unwrap();
    let question = &query[12..12 + name + 5];
    let is_v4 = question[name + 1..name + 3] == [0, 1];
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
    answer.extend(question);
    if is_v4 {
        // The name of the question, type A, class IN, a TTL of 0, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(next().octets());
    }
    answer
}

#[test]
fn a_request_that_does_not_end_is_ended() {
    on_host("control_plane::a_request_that_does_not_end_is_ended", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &keys.authority(), &[]);
        egress.start();
        let begin = |text: &str| {
            let mut stream = std::os::unix::net::UnixStream::connect(egress.control_plane()).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        };
        assert!(!begin("CONNECT 198.51.100.20:443 HTTP/1.1\r\nHost: ").contains(" 200 "));
        let long = format!("CONNECT 198.51.100.20:443 HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(100_000));
        assert!(!begin(&long).contains(" 200 "));
        let many = format!("CONNECT 198.51.100.20:443 HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
        assert!(!begin(&many).contains(" 200 "));
        assert!(begin("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 400"));
    });
}
