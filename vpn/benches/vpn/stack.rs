//! Connections through the relay's own TCP/IP stack.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use keelway_vpn::relay::Dialer;
use keelway_vpn::{CoreLimits, PeerConfig, Relay, RelayConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::relays::{RELAY, towards_relay};
use crate::report::{Report, Row, median};
use crate::streams::Receiver;
use crate::support::{Namespace, Running, chain, private_key, public_key, v4, wait_until};
use crate::{Plan, devices, ours};

const PATIENCE: Duration = Duration::from_secs(30);
const CONNECTIONS: u32 = 1000;
/// The number of connections at a time.
const AT_ONCE: usize = 50;

/// Starts a relay in this process.
pub(crate) fn relay_here(namespace: &Namespace) -> Relay {
    namespace.within(|| {
        let config = RelayConfig {
            name: "bench".to_owned(),
            private_key: Some(private_key(RELAY)),
            listen_port: 51820,
            addresses: vec![v4(RELAY)],
            mtu: 1420,
            limits: CoreLimits::default(),
        };
        Relay::start(config).unwrap()
    })
}

/// Starts a relay, and a device that has completed a handshake with it.
fn relay_and_device(a: &Namespace, m: &Namespace) -> (Relay, Running) {
    let relay = relay_here(m);
    let mut peer = PeerConfig::new(public_key(1));
    peer.allowed_ips.insert(v4(1).into());
    relay.set_peers(&[peer].into_iter().collect());
    let device = ours(a, &towards_relay(1, "10.231.0.2"));
    wait_until("the device", PATIENCE, || relay.stats()[0].last_handshake.is_some());
    (relay, device)
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    let (mut dialled, mut device, mut short) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        dialled.push(stream_round(plan));
        device.push(devices::round(plan, ours).speed);
        short.push(short_round());
    }
    let what = "one stream dialled through the stack, beside two devices";
    report.add(Row::ratio(what, "Gbit/s", &dialled, &device, 0.5));
    let failures: usize = short.iter().map(|round| round.0).sum();
    report.add(Row::none("1,000 short connections dialled in each round, 50 at once", "failures", failures));
    let times = short.iter().map(|round| round.1.as_secs_f64() * 1000.0).collect();
    report.note(format!("1,000 short connections took {:.0} ms.", median(times)));
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Returns the speed of a stream from the stack to a device, in Gbit/s.
fn stream_round(plan: &Plan) -> f64 {
    let [a, m] = chain(1500);
    let (relay, _device) = relay_and_device(&a, &m);
    let receiver = Receiver::start(&a, v4(1));
    block_on(async {
        let mut stream = relay.dialer().dial(receiver.address, PATIENCE).await.unwrap();
        let chunk = vec![7; 128 * 1024];
        let started = Instant::now();
        while started.elapsed() < plan.seconds {
            stream.write_all(&chunk).await.unwrap();
        }
        stream.shutdown().await.unwrap();
    });
    receiver.speed()
}

/// Returns how many of a thousand short connections fail, and how long all of them take.
fn short_round() -> (usize, Duration) {
    let [a, m] = chain(1500);
    let (relay, _device) = relay_and_device(&a, &m);
    let target = answering(&a);
    let started = Instant::now();
    let failures = block_on(async {
        let (mut tasks, mut failures) = (JoinSet::<io::Result<()>>::new(), 0);
        for number in 0..CONNECTIONS {
            if tasks.len() >= AT_ONCE {
                failures += usize::from(tasks.join_next().await.unwrap().unwrap().is_err());
            }
            tasks.spawn(ask(relay.dialer(), target, number));
        }
        failures + tasks.join_all().await.into_iter().filter(Result::is_err).count()
    });
    (failures, started.elapsed())
}

async fn ask(dialer: Dialer, target: SocketAddr, number: u32) -> io::Result<()> {
    let mut stream = dialer.dial(target, PATIENCE).await?;
    stream.write_u32(number).await?;
    assert_eq!(stream.read_u32().await?, number);
    Ok(())
}

/// Starts a server that echoes one message of each connection.
fn answering(namespace: &Namespace) -> SocketAddr {
    let listener = namespace.within(|| TcpListener::bind(SocketAddr::new(v4(1), 0)).unwrap());
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(CONNECTIONS as usize) {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 4];
                if stream.read_exact(&mut bytes).is_ok() {
                    let _ = stream.write_all(&bytes);
                }
            });
        }
    });
    address
}
