//! Many peers.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use keelway_vpn::{PeerConfig, PeerSet, PublicKey};

use crate::relays::{RELAY, across, middle, relay};
use crate::report::{Report, Row, median};
use crate::stack::relay_here;
use crate::support::{ConfigFile, Process, Swarm, chain, public_key};
use crate::{Plan, ours, pause};

const SERVER: &str = "10.231.0.2:51820";

struct Round {
    /// In Gbit/s.
    speed: f64,
    /// In bytes, resident.
    memory: u64,
}

/// Measures the relay with 1, 100 and 1,000 peers that all have a session, and an idle device with 1,000 such peers.
pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    let mut rounds = Vec::new();
    let mut idle = Vec::new();
    for _ in 0..plan.rounds {
        rounds.push([1, 100, 1000].map(|peers| round(plan, peers)));
        idle.push(idle_round());
    }
    let speeds = |at: usize| rounds.iter().map(|round| round[at].speed).collect::<Vec<_>>();
    report.add(Row::ratio("relay with 100 peers, beside 1 peer", "Gbit/s", &speeds(1), &speeds(0), 0.9));
    report.add(Row::ratio("relay with 1,000 peers, beside 1 peer", "Gbit/s", &speeds(2), &speeds(0), 0.9));
    let memory = |[one, _, thousand]: &[Round; 3]| (thousand.memory as f64 - one.memory as f64) / 999.0 / 1000.0;
    let memory = median(rounds.iter().map(memory).collect());
    report.add(Row::at_most("memory for each of 1,000 peers with a session", "kB", memory, 20.0));
    let what = "idle device with 1,000 peers with a session, keepalive off";
    report.add(Row::at_most(what, "% of a core", median(idle), 0.2));
}

fn round(plan: &Plan, peers: usize) -> Round {
    let namespaces = chain(1500);
    let crowd = Swarm::new(peers);
    let config = ConfigFile::new(&(middle().quick_config() + &crowd.config()));
    let relay = relay(&namespaces[1], &config);
    crowd.shake_hands(&namespaces[0], SERVER, public_key(RELAY));
    let memory = relay.memory();
    Round { speed: across(&namespaces, plan), memory }
}

/// Returns the percentage of a core that an idle device uses.
fn idle_round() -> f64 {
    let [a, m] = chain(1500);
    let crowd = Swarm::new(1000);
    let mut end = middle();
    end.peers.push(crowd.config());
    let device = ours(&m, &end);
    crowd.shake_hands(&a, SERVER, public_key(RELAY));
    // The work that the last handshakes cause is done after ten seconds.
    pause(Duration::from_secs(12));
    idle_of(&device.process)
}

fn idle_of(process: &Process) -> f64 {
    const WATCH: Duration = Duration::from_secs(10);
    let before = process.cpu();
    pause(WATCH);
    process.cpu().saturating_sub(before).as_secs_f64() / WATCH.as_secs_f64() * 100.0
}

/// Measures how long the change of one peer takes.
pub(crate) fn measure_change(report: &mut Report) {
    let [m] = chain(1500);
    let relay = relay_here(&m);
    let peer = |number: u32| {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        let mut peer = PeerConfig::new(PublicKey(key));
        peer.allowed_ips.insert(IpAddr::from((0x0a40_0000 + number).to_be_bytes()).into());
        peer
    };
    let mut wanted: PeerSet = (0..1000).map(peer).collect();
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
