//! The measurements, one after the other.

use std::{
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use futures::future::{join, join_all};
use keelway_api::jiff::Timestamp;
use keelway_e2e::Kubectl;
use tokio::time::sleep;

use crate::{
    config::Config, effects::Effects, fleet::Fleet, manager::Manager, objects::Objects, plane::Plane, shares::Shares,
    table::Table,
};

/// The number of clusters that are created first.
const FEW: usize = 100;
const CLUSTERS_PER_MACHINE: usize = 10;
/// One public and two private machines.
const LEAST_MACHINES: usize = 3;
/// How long the benchmark does nothing while it measures the idle manager.
const IDLE: Duration = Duration::from_secs(60);
/// After this time, the consequences of the last effects are over and their memory is freed.
const PAUSE: Duration = Duration::from_secs(10);
/// The number of clusters that are created at a time after the first ones.
const STEP: usize = 100;
/// The number of documents that are changed in each round, one after the other.
const CHANGES: usize = 100;

/// The number of slowest changes that are printed.
const SLOWEST: usize = 10;

#[derive(Default)]
struct Measured {
    created: Duration,
    /// The time for the same documents and configs without the manager.
    without: Duration,
    resident_with_few: f64,
    idle: Vec<Idle>,
    /// Milliseconds from each change to its first effect, sorted, for each round.
    changes: Vec<Vec<f64>>,
    /// The time of each restart, and the number of effects on machines meanwhile.
    restarts: Vec<(Duration, usize)>,
}

pub(crate) async fn measure(rounds: usize, clusters: usize, table: &mut Table) {
    let mut plane = Plane::start().await;
    let kubeconfig = plane.kubeconfig("admin", &["system:masters"]);
    define(&kubeconfig);
    let effects = Effects::new();
    let few = FEW.min(clusters);
    let mut fleet = Fleet::start(machines_for(few), &kubeconfig, &effects);
    let objects = Objects::new(plane.admin().await);
    let mut manager = Manager::start("first", &kubeconfig);
    manager.settles(0, None).await;
    println!("        resident without clusters: {:.1} MiB", manager.resident());

    let mut measured =
        Measured { created: create_clusters(&objects, &mut manager, 0..few).await, ..Measured::default() };
    sleep(PAUSE).await;
    measured.resident_with_few = manager.resident();
    for from in (few..clusters).step_by(STEP) {
        let all = (from + STEP).min(clusters);
        let since = Timestamp::now();
        fleet.grow(machines_for(all), &objects).await;
        manager.settles(from, Some(since)).await;
        create_clusters(&objects, &mut manager, from..all).await;
    }
    for round in 0..rounds {
        measured.idle.push(rest(&manager, &objects).await);
        measured.changes.push(change(&objects, &effects, &mut manager, (clusters, round)).await);
        manager.stop();
        let before = effects.count();
        manager = Manager::start(&format!("after-{round}"), &kubeconfig);
        let took = manager.settles(clusters, None).await;
        print_time("until it was settled again", took);
        measured.restarts.push((took, effects.count() - before));
    }
    manager.stop();
    measured.without = without(&mut plane, &fleet, 0..few).await;
    measured.add_rows((few, clusters), table);
}

/// Half of what k0smotron needs for a hundred clusters, in MiB (`docs/performance.md`).
const HALF_OF_K0SMOTRON: f64 = 41.5;

/// Returns the number of machines for this number of clusters.
fn machines_for(clusters: usize) -> usize {
    clusters.div_ceil(CLUSTERS_PER_MACHINE).max(LEAST_MACHINES)
}

impl Measured {
    fn add_rows(&self, (few, clusters): (usize, usize), table: &mut Table) {
        let idle = |of: fn(&Idle) -> f64| self.idle.iter().map(of).collect::<Vec<_>>();
        let what =
            format!("resident memory of the manager with {few} settled clusters on {} machines", machines_for(few));
        table.under(&what, "MiB", &[self.resident_with_few], HALF_OF_K0SMOTRON);
        table.under(
            &format!("the same with {clusters} on {}", machines_for(clusters)),
            "MiB",
            &idle(|idle| idle.resident),
            250.0,
        );
        let what = format!("its time on a processor over 60 s in which nothing happens, with {clusters}");
        table.under(&what, "% of a core", &idle(|idle| idle.percent), 1.0);
        table.under("documents that are written meanwhile", "", &idle(|idle| idle.written), 1.0);
        let nth = |nth: fn(&[f64]) -> f64| self.changes.iter().map(|times| nth(times)).collect::<Vec<_>>();
        let what = format!(
            "one changed document to the first effect on a machine, with {clusters} clusters there: 99 of 100 are as fast"
        );
        table.under(&what, "ms", &nth(|times| times[times.len() * 99 / 100 - 1]), 50.0);
        table.shown("the same: median", "ms", &nth(|times| times[times.len() / 2]));
        let what = format!(
            "{few} clusters from nothing to all settled, beside the same documents and configs without a manager"
        );
        let [created, without] = [self.created, self.without].map(|took| vec![took.as_secs_f64()]);
        table.ratio(&what, "s", &[created, without], 2.5);
        let took = self.restarts.iter().map(|(took, _)| took.as_secs_f64()).collect::<Vec<_>>();
        let what = format!("begun again with {clusters} clusters, until all are watched and settled");
        table.under(&what, "s", &took, 10.0);
        #[expect(clippy::cast_precision_loss, reason = "a few at most")]
        let effects = self.restarts.iter().map(|(_, effects)| *effects as f64).collect::<Vec<_>>();
        table.under("effects on machines meanwhile", "", &effects, 1.0);
    }
}

/// Returns the time from the first request for these clusters until all are settled.
async fn create_clusters(objects: &Objects, manager: &mut Manager, numbers: Range<usize>) -> Duration {
    let before = Shares::now(objects).await;
    let (since, all) = (Timestamp::now(), numbers.end);
    objects.ask_for(numbers).await;
    let took = manager.settles(all, Some(since)).await;
    print_time(&format!("until {all} clusters were settled"), took);
    Shares::now(objects).await.print_since(&before);
    println!("        resident: {:.1} MiB", manager.resident());
    took
}

/// Measures the same result without a manager: the API server stores the documents of these clusters, each once, and at the same time the machines
/// apply their configs, each once, starting without pods. The API server has just been restarted, like the one that the manager used: its caches are
/// cold.
async fn without(plane: &mut Plane, fleet: &Fleet, numbers: Range<usize>) -> Duration {
    let copies = Objects::new(plane.admin().await).copies(numbers).await;
    let configs = fleet.cleared(&copies.clusters).await;
    plane.start_api().await;
    sleep(PAUSE).await;
    let objects = Objects::new(plane.admin().await);
    let before = Shares::now(&objects).await;
    let began = Instant::now();
    join(objects.write_again(&copies), join_all(configs.iter().map(Config::give))).await;
    let took = began.elapsed();
    print_time(&format!("for the same of {} clusters without a manager", copies.clusters.len()), took);
    Shares::now(&objects).await.print_since(&before);
    took
}

fn define(kubeconfig: &str) {
    let kubectl = Kubectl::new(Path::new(kubeconfig));
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/crds");
    let _ = kubectl.run(&["apply", "--server-side", "-f", definitions.to_str().unwrap()]).succeeded();
    let kinds = ["clusters", "components", "hypervisors"].map(|kind| format!("crd/{kind}.keelway.dev"));
    kubectl.wait("condition=Established", &kinds.each_ref().map(String::as_str));
}

/// Measurements of the manager while nothing happens.
struct Idle {
    resident: f64,
    percent: f64,
    written: f64,
}

async fn rest(manager: &Manager, objects: &Objects) -> Idle {
    sleep(PAUSE).await;
    let before = objects.versions().await;
    let (before_idle, began) = (manager.processor_seconds(), Instant::now());
    sleep(IDLE).await;
    let percent = 100.0 * (manager.processor_seconds() - before_idle) / began.elapsed().as_secs_f64();
    let resident = manager.resident();
    let after = objects.versions().await;
    let written = after.iter().filter(|(name, version)| before.get(*name) != Some(*version)).count();
    println!("        {} documents, of which {written} are written in a minute", after.len());
    #[expect(clippy::cast_precision_loss, reason = "a few at most")]
    Idle { resident, percent, written: written as f64 }
}

/// Returns the time of each change to its first effect in milliseconds, sorted.
async fn change(
    objects: &Objects,
    effects: &Effects,
    manager: &mut Manager,
    (clusters, round): (usize, usize),
) -> Vec<f64> {
    let mut times = Vec::new();
    for number in 0..CHANGES {
        // The value differs from the previous one, also if the same cluster is changed again.
        let verbosity = 1 + (round * CHANGES + number) % 7;
        let since = Timestamp::now();
        let took = effects.first_of(objects.change(number * clusters / CHANGES, verbosity)).await;
        times.push((took.as_secs_f64() * 1000.0, number));
        // The consequences of one change must not count for the next.
        manager.rests(since).await;
        effects.end().await;
    }
    times.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let slowest = times.iter().rev().take(SLOWEST).map(|(took, number)| format!("{took:.0} (the {}.)", number + 1));
    println!("        the slowest changes, in ms: {}", slowest.collect::<Vec<_>>().join(", "));
    times.into_iter().map(|(took, _)| took).collect()
}

fn print_time(what: &str, took: Duration) {
    println!("{:>7} ms  {what}", took.as_millis());
}
