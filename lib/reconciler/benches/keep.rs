//! Measures continuous reconciliation without the time of store and machines, which respond at once. Each machine has components of ten clusters.
//!
//! `cargo bench -p keelway-reconciler --bench keep` prints a Markdown table.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a benchmark prints for people, and panics if it cannot continue"
)]

#[path = "../tests/kept/world.rs"]
#[expect(dead_code, reason = "tests use more")]
mod world;

use std::{
    collections::BTreeSet,
    env, fs,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use keelway_api::{
    Documents,
    machine::{MachineState, ObservedValue},
    name::HypervisorName,
};
use keelway_reconciler::{ApplyOutcome, PassError, PassOutcome, StoreError, Task, Watcher};
use tokio::time::{sleep, timeout};
use world::World;

/// The allocator of `keelway`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Numbers of clusters.
const SIZES: [usize; 2] = [100, 1000];
const CLUSTERS_PER_MACHINE: usize = 10;
/// The number of changes that are measured, one after the other.
const CHANGES: usize = 100;
/// How long idle use is measured.
const IDLE: Duration = Duration::from_secs(10);

fn main() {
    println!(
        "| Clusters | Machines | from nothing to settled | begun again, all settled | one change to the first effect, median | p99 | \
         on a processor while idle | resident with all machines |\n|---|---|---|---|---|---|---|---|"
    );
    let sizes = env::var("KEELWAY_BENCH_CLUSTERS").map_or(SIZES.to_vec(), |text| vec![text.parse().unwrap()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for clusters in sizes {
        runtime.block_on(measure(clusters));
    }
}

async fn measure(clusters: usize) {
    let machines = clusters / CLUSTERS_PER_MACHINE;
    let world = World::new(machines, clusters);
    let mut born = Duration::ZERO;
    let progress = Progress::default();
    world.kept(&mut progress.clone(), async { born = progress.settled(clusters).await }).await;
    let (mut begun, mut idle, mut changes) = (Duration::ZERO, 0.0, Vec::new());
    let progress = Progress::default();
    let before = world.counts();
    world
        .kept(&mut progress.clone(), async {
            begun = progress.settled(clusters).await;
            assert_eq!(world.counts().saves, before.saves, "what is settled is not written");
            for number in 0..CHANGES {
                changes.push(change(&world, number * clusters / CHANGES).await);
            }
            progress.settled(clusters).await;
            let (started, ran) = (Instant::now(), ran());
            sleep(IDLE).await;
            idle = self::ran().saturating_sub(ran).as_secs_f64() / started.elapsed().as_secs_f64();
        })
        .await;
    changes.sort();
    println!(
        "| {clusters} | {machines} | {:.2} s | {:.2} s | {:.1} ms | {:.1} ms | {:.2} % | {} MiB |",
        born.as_secs_f64(),
        begun.as_secs_f64(),
        changes[CHANGES / 2].as_secs_f64() * 1000.0,
        changes[CHANGES - 1 - CHANGES / 100].as_secs_f64() * 1000.0,
        idle * 100.0,
        resident() >> 20,
    );
}

/// Returns the time from a change of a cluster until a machine receives it.
async fn change(world: &World, number: usize) -> Duration {
    let applied = world.fleet.next_apply();
    let started = Instant::now();
    world.store.change(&format!("c{number}"));
    timeout(Duration::from_secs(60), applied).await.unwrap();
    let took = started.elapsed();
    // The remaining effects of the change end before the next one.
    sleep(Duration::from_millis(100)).await;
    took
}

/// The clusters that are settled.
#[derive(Clone, Default)]
struct Progress(Arc<Mutex<BTreeSet<Task>>>);

impl Progress {
    /// Returns once all clusters are settled, with the time that it took.
    async fn settled(&self, clusters: usize) -> Duration {
        let started = Instant::now();
        while self.0.lock().unwrap().len() < clusters {
            assert!(started.elapsed() < Duration::from_secs(1800), "it does not settle");
            sleep(Duration::from_millis(10)).await;
        }
        started.elapsed()
    }
}

impl Watcher for Progress {
    fn began(&mut self, _: &Task) {}
    fn passed(&mut self, task: &Task, outcome: &PassOutcome, _: Duration) {
        let mut settled = self.0.lock().unwrap();
        if matches!(task, Task::Cluster(_)) && outcome.settled {
            settled.insert(task.clone());
        } else {
            settled.remove(task);
        }
    }
    fn saved(&mut self, _: &Documents, _: &Documents) {}
    fn machine_observed(&mut self, _: &HypervisorName, _: &ObservedValue<MachineState>) {}
    fn applied(&mut self, _: &Task, _: &ApplyOutcome) {}
    fn failed(&mut self, task: &Task, error: &PassError, _: Duration) {
        panic!("{task}: {error}");
    }
    fn queued(&mut self, _: usize) {}
    fn ended(&mut self, _: &Task) {}
    fn load_failed(&mut self, error: &StoreError) {
        panic!("{error}");
    }
}

/// Returns how long this thread has run on a processor.
fn ran() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
