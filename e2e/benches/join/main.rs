//! Measures how long a machine takes to become a worker, compared with the kubelet alone, and the memory of the worker's daemon:
//! `KEELWAY_BENCH_ROUNDS=7 cargo bench -p keelway-e2e --bench join`. It needs what live tests need.
//!
//! Both sides have the same machine, program, configuration and images. The kubelet alone has its certificates, addresses and CNI configuration
//! ready, and connects to the ingress itself. Rounds are interleaved. The first round is not counted.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a step that fails ends the benchmark; its table is its output"
)]

mod cluster;
mod plain;
#[path = "../start/table.rs"]
#[expect(dead_code, reason = "the other benchmark has other kinds of rows")]
mod table;

use std::{
    env,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use cluster::Cluster;
use keelway_e2e::{TestFleet, deadline, host::on_own_host, process, program_directory};
use plain::Plain;
use table::Table;

/// The number of rounds if `$KEELWAY_BENCH_ROUNDS` is not set.
const ROUNDS: usize = 7;
/// After this time, the daemon has finished its first requests. Its memory is then sampled for as long again.
const CALM: Duration = Duration::from_secs(10);
/// The interval between samples.
const LOOK: Duration = Duration::from_millis(200);
/// The name of the worker's machine.
const MACHINE: &str = "w1";

/// Measurements, one value per round.
#[derive(Debug, Default)]
struct Figures {
    /// Time until the Node is ready, in seconds: with Keelway, and with the kubelet alone.
    ready: [Vec<f64>; 2],
    /// Peak resident memory of the daemon, in MiB.
    resident: Vec<f64>,
}

fn main() {
    on_own_host("join", || {
        let rounds = env::var("KEELWAY_BENCH_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
        let figures = measure(rounds);
        let mut table = Table::new("join", rounds);
        let what =
            "from `keelway node join` until the Node is ready, beside the kubelet alone with ready-made certificates";
        table.ratio(what, "s", &figures.ready, 1.2);
        table.under(
            "resident memory of `keelway node run`, one gateway: the most in ten seconds",
            "MiB",
            &figures.resident,
            15.0,
        );
        let table = table.finish();
        println!("{table}");
        if let Some(page) = env::var_os("KEELWAY_BENCH_PAGE") {
            table::write_into(Path::new(&page), "join", &table);
        }
    });
}

fn measure(rounds: usize) -> Figures {
    let mut world = TestFleet::new("e2ebjn");
    let made = world.create_two();
    let create = ["node", "local", "create", "--fleet", &world.fleet, "--name", MACHINE];
    let _ = world.keelway.run(&create, &[]).succeeded();
    let cluster = Cluster::new(&world, &made);
    let mut figures = Figures::default();
    for round in 0..=rounds {
        let name = format!("{MACHINE}-{round}");
        let mut seen = Figures::default();
        join(&cluster, &name, &mut seen);
        let plain = Plain::of(&cluster, &name);
        let _ = cluster.on_machine(&["keelway", "node", "forget"], &[]).succeeded();
        cluster.forget(&name);
        seen.ready[1].push(plain.ready(&cluster, &name));
        cluster.forget(&name);
        println!("round {round}: {seen:.2?}");
        if round > 0 {
            figures.ready.iter_mut().zip(seen.ready).for_each(|(all, seen)| all.extend(seen));
            figures.resident.extend(seen.resident);
        }
    }
    figures
}

fn join(cluster: &Cluster<'_>, name: &str, seen: &mut Figures) {
    let command = ["keelway", "node", "join", "-", "--allow-cgroup-v1", "--service", "detached", "--node-name", name];
    let installed = ["--install-dir", program_directory()];
    let joined = cluster.on_machine(&[&command[..], &installed].concat(), &cluster.token).succeeded();
    seen.ready[0].push(joined.took.as_secs_f64());
    pause(CALM);
    let status = cluster.on_machine(&["keelway", "node", "status", "-o", "json"], &[]).succeeded().json();
    let daemon = u32::try_from(status["pid"].as_u64().unwrap()).unwrap();
    let field = |name: &str| {
        let text = process::status(daemon, name).unwrap();
        text.trim_end_matches(" kB").trim().parse::<f64>().unwrap() / 1024.0
    };
    let end = Instant::now() + CALM;
    let mut most = ["VmRSS", "RssAnon", "RssFile"].map(field);
    while Instant::now() < end {
        pause(LOOK);
        let now = ["VmRSS", "RssAnon", "RssFile"].map(field);
        most = if now[0] > most[0] { now } else { most };
    }
    println!("anonymous {:.2}, of files {:.2} MiB", most[1], most[2]);
    seen.resident.push(most[0]);
}

/// A fixed wait, because a daemon does not report when it has finished.
fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        thread::park_timeout(left);
    }
}

/// Waits until a symbolic link exists. Its target is a path on its machine, so it cannot be followed from here.
fn there(path: &Path) {
    deadline::until(&path.display().to_string(), deadline::KUBERNETES, || path.is_symlink());
}
