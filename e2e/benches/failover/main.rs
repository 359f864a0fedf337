//! Measures how long workers and their clients lose service when a public machine with an ingress and a gateway is lost, when it returns, and when
//! its ingress moves to another machine: `KEELWAY_BENCH_ROUNDS=7 cargo bench -p keelway-e2e --bench failover`. It needs what live tests need.
//!
//! The test `worker_outages` defines the outages and the clients that observe them. In each round, every public machine with an ingress is lost
//! once, and each ingress moves once.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a step that fails ends the benchmark; its table is its output"
)]

#[path = "../../tests/worker_outages/clients.rs"]
mod clients;
#[path = "../../tests/hostile_hosts/direct_path.rs"]
mod direct_path;
#[path = "../../tests/worker_outages/gateways.rs"]
mod gateways;
#[path = "../../tests/hostile_hosts/home_router.rs"]
mod home_router;
#[path = "../../tests/worker_outages/idle.rs"]
mod idle;
#[path = "../../tests/worker_outages/logs.rs"]
mod logs;
#[path = "../../tests/worker_outages/moves.rs"]
mod moves;
#[path = "../../tests/worker_outages/public.rs"]
#[expect(dead_code, reason = "the test asserts, and the benchmark prints")]
mod public;
#[path = "../start/table.rs"]
#[expect(dead_code, reason = "the other benchmarks have other kinds of rows")]
mod table;
#[path = "../../tests/hostile_hosts/transport.rs"]
mod transport;
#[path = "../../tests/worker_outages/watch.rs"]
mod watch;

use std::{env, net::SocketAddr, path::Path, time::Duration};

use clients::{Clients, Gaps};
use keelway_e2e::{
    deadline,
    host::on_own_host,
    outage,
    worker_fleet::{TestCluster, WorkerFleet},
};
use table::Table;

/// The number of rounds if `$KEELWAY_BENCH_ROUNDS` is not set.
const ROUNDS: usize = 7;

/// Machines for workers, each with the NAT that it is behind.
const WORKERS: [(&str, &str); 2] = [("w1", "nat-a"), ("w2", "nat-b")];

/// The outages of each loss and each move.
#[derive(Default)]
struct Figures {
    outages: Vec<public::Outage>,
    moves: Vec<Gaps>,
    to_tls: Vec<TransportSwitch>,
    to_udp: Vec<TransportSwitch>,
    /// How long pods got no response while gateways were killed and the API server was down. Measured once, because a gateway that is killed again
    /// soon waits longer before its restart.
    gateways: Duration,
    /// Measured once, before everything else: losses of gateways would not affect a direct path.
    direct: DirectPathTimes,
}

#[derive(Default)]
struct DirectPathTimes {
    /// The time from the first packets until both workers use a direct path.
    up: Duration,
    /// The time from the end of the path until a gateway carries the packets.
    back: Duration,
}

/// A change of the transport of a worker's tunnels.
struct TransportSwitch {
    /// The time from the change of the network until all tunnels use the transport.
    took: Duration,
    /// The longest time for which pods got no response.
    pods: Duration,
}

fn main() {
    on_own_host("failover", || {
        let rounds = env::var("KEELWAY_BENCH_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
        let table = measure(rounds).table(rounds);
        println!("{table}");
        if let Some(page) = env::var_os("KEELWAY_BENCH_PAGE") {
            table::write_into(Path::new(&page), "failover", &table);
        }
    });
}

fn measure(rounds: usize) -> Figures {
    let worker_fleet = WorkerFleet::new("e2ebfo", "3", &WORKERS);
    worker_fleet.inject("c1", &[]);
    worker_fleet.reconcile();
    let mut cluster = worker_fleet.cluster("c1", &["w1", "w2"]);
    worker_fleet.join(&[&cluster]);
    cluster.start_peers();
    let mut figures = Figures { direct: use_direct_path(&worker_fleet, &cluster), ..Figures::default() };
    let clients = Clients::start(&worker_fleet, &cluster);
    for _ in 0..rounds {
        let machines = public::all(&worker_fleet, &cluster);
        for (lost, other) in [(&machines[0], &machines[1]), (&machines[1], &machines[0])] {
            let cluster = cluster.by(&other.context);
            figures.outages.push(public::is_lost_and_comes_back(&worker_fleet, &cluster, &clients, lost, other));
        }
        let (moved, gaps) = moves::each_ingress(&worker_fleet, &cluster, &clients);
        figures.moves.extend(gaps);
        cluster = moved;
        let [to_tls, to_udp] = switch_transport(&worker_fleet, &cluster, &clients);
        figures.to_tls.push(to_tls);
        figures.to_udp.push(to_udp);
    }
    watch::missed_nothing(&cluster, &clients.load);
    let probers = clients.end(&cluster);
    figures.gateways = gateways::come_back_from_disk(&worker_fleet, &cluster, &probers);
    figures
}

/// Lets the workers use a direct path through their NATs, and breaks it for good.
fn use_direct_path(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> DirectPathTimes {
    let [worker, other] = WORKERS.map(|(name, _)| worker_fleet.worker(name));
    let address = cluster.value(&format!("pod/on-{}", WORKERS[1].0), "{.status.podIP}");
    let request = format!("/agnhost connect --timeout=1s {address}:8080");
    let reaches = || cluster.shell(&format!("on-{}", WORKERS[0].0), &request).code() == 0;
    for (_, nat) in WORKERS {
        home_router::make(worker_fleet, nat);
    }
    let up = deadline::until("both workers use a direct path", deadline::KUBERNETES, || {
        reaches() && direct_path::is_direct(&worker, &other) && direct_path::is_direct(&other, &worker)
    });
    let path = direct_path::path(&worker, &other).unwrap();
    let endpoint: SocketAddr = path["endpoint"].as_str().unwrap().parse().unwrap();
    direct_path::cut(&worker, endpoint.ip());
    let back = deadline::until("a gateway carries the packets", deadline::KUBERNETES, reaches);
    DirectPathTimes { up, back }
}

/// Blocks the UDP of one worker until its tunnels use TLS, and lets it through until they use UDP.
fn switch_transport(worker_fleet: &WorkerFleet, cluster: &TestCluster, clients: &Clients) -> [TransportSwitch; 2] {
    let worker = worker_fleet.worker(WORKERS[0].0);
    let since = outage::now();
    let endpoint: SocketAddr = worker.status()["ingresses"][0]["address"].as_str().unwrap().parse().unwrap();
    transport::block_all_but(endpoint.port(), &worker);
    let took = transport::uses_tls(&worker);
    let to_tls = TransportSwitch { took, pods: clients.went_on("UDP is blocked", since, cluster, &[]).pods };
    let since = outage::now();
    transport::unblock(&worker);
    let took = transport::uses_udp(&worker);
    let to_udp = TransportSwitch { took, pods: clients.went_on("UDP gets through again", since, cluster, &[]).pods };
    [to_tls, to_udp]
}

impl Figures {
    fn table(&self, rounds: usize) -> String {
        let mut table = Table::new("failover", rounds);
        let of = |what: fn(&public::Outage) -> Duration| self.outages.iter().map(what).collect::<Vec<_>>();
        table.worst(
            "a public machine is lost: until idle connections through it are reset",
            &of(|seen| seen.reset),
            4.0,
        );
        table.worst("the same: pods of two workers without each other", &of(|seen| seen.lost.pods), 6.0);
        table.worst("the same: `kubectl logs` without an answer", &of(|seen| seen.lost.logs), 6.0);
        table.worst(
            "the same: a request at the API's address on a worker, with its repeats",
            &of(|seen| seen.lost.requests),
            6.0,
        );
        let back = self.outages.iter().map(|seen| [seen.back.pods, seen.back.logs, seen.back.requests]);
        let back: Vec<Duration> = back.map(|all| all.into_iter().max().unwrap_or_default()).collect();
        table.worst("it comes back: the longest of these", &back, 1.0);
        let pods: Vec<Duration> = self.moves.iter().map(|gaps| gaps.pods).collect();
        table.worst("an ingress and its gateway move to another machine: pods without each other", &pods, 6.0);
        let requests: Vec<Duration> = self.moves.iter().map(|gaps| gaps.requests).collect();
        table.worst("the same: a request at the API's address on a worker", &requests, 6.0);
        let times = |switches: &[TransportSwitch], of: fn(&TransportSwitch) -> Duration| {
            switches.iter().map(of).collect::<Vec<Duration>>()
        };
        table.worst("a worker's UDP is blocked: until its tunnels use TLS", &times(&self.to_tls, |one| one.took), 6.0);
        table.worst("the same: pods without each other", &times(&self.to_tls, |one| one.pods), 6.0);
        table.worst(
            "its UDP gets through again: until its tunnels use UDP, which they try every 30 s",
            &times(&self.to_udp, |one| one.took),
            35.0,
        );
        table.worst("the same: pods without each other", &times(&self.to_udp, |one| one.pods), 1.0);
        table.worst("all gateways are killed while the API is down: pods without each other", &[self.gateways], 6.0);
        table.worst("two workers behind NATs that keep ports: until they use a direct path", &[self.direct.up], 15.0);
        table.worst("their direct path breaks: pods without each other", &[self.direct.back], 5.0);
        table.finish()
    }
}
