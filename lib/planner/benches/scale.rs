//! Measures how decisions scale, with ten clusters for each machine: up to 10,000 clusters on 1,000 machines.
//!
//! `cargo bench -p keelway-planner --bench scale` prints a Markdown table: the creation of all clusters, and passes with nothing to do. A
//! decision does not wait, so its processor time is its duration on an idle machine. The table has the wall-clock time beside it.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints for people, and panics if it cannot continue"
)]

#[path = "../tests/model.rs"]
#[expect(dead_code, reason = "tests need more of it")]
mod model;

use std::{
    collections::BTreeMap,
    fmt::Write,
    mem::take,
    time::{Duration, Instant},
};

use keelway_api::{
    Documents,
    documents::SecretName,
    jiff::Timestamp,
    machine::{MachineConfig, MachineState, ObservedValue},
    name::HypervisorName,
};
use keelway_planner::{
    CertificateSeen, ComponentHealth, FirstBindings, PassObservation, Plan, configure, plan, probes,
};
use model::{apply, identified, mint};

/// As in `keelway`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Numbers of machines. A tenth of them is public.
const SIZES: [usize; 4] = [125, 250, 500, 1000];
const CLUSTERS_PER_MACHINE: usize = 10;
/// The limit of passes until every cluster is created and settled.
const MOST_PASSES: usize = 12;

fn main() {
    println!(
        "| Clusters | Machines | from nothing | by the wall clock | nothing to do | by the wall clock | one document changed | \
         resident with the model |\n|---|---|---|---|---|---|---|---|"
    );
    for machines in SIZES {
        let clusters = machines * CLUSTERS_PER_MACHINE;
        let mut world = World::new(machines, clusters);
        let born = world.pass(Then::Apply).1;
        let idle = world.settle();
        let changed = world.change();
        let mebibytes = resident() / (1 << 20);
        println!(
            "| {clusters} | {machines} | {:.2} s | {:.2} s | {:.2} s | {:.2} s | {:.2} ms | {mebibytes} MiB |",
            born.on_a_processor.as_secs_f64(),
            born.by_the_clock.as_secs_f64(),
            idle.on_a_processor.as_secs_f64(),
            idle.by_the_clock.as_secs_f64(),
            changed.on_a_processor.as_secs_f64() * 1000.0,
        );
    }
}

/// The duration of an operation.
#[derive(Default)]
struct Took {
    on_a_processor: Duration,
    by_the_clock: Duration,
}

impl Took {
    fn add<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (started, ran) = (Instant::now(), ran());
        let done = work();
        self.by_the_clock += started.elapsed();
        self.on_a_processor += self::ran().saturating_sub(ran);
        done
    }
}

/// The time that this thread has run on a processor. Time in which it waited for a processor does not count.
fn ran() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

struct World {
    documents: Documents,
    machines: BTreeMap<HypervisorName, MachineState>,
    certificates: BTreeMap<(SecretName, String), CertificateSeen>,
}

impl World {
    fn new(machines: usize, clusters: usize) -> Self {
        let mut text = String::new();
        for number in 0..machines {
            let (high, low) = (number / 250, number % 250 + 1);
            let (role, public) = if number % 10 == 0 {
                ("Public", format!(", public: [198.18.{high}.{low}]"))
            } else {
                ("Private", String::new())
            };
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-{number}, labels: \
                 {{topology.kubernetes.io/zone: zone-{}}}}}\nspec:\n  role: {role}\n  endpoint: {{unix: {{path: \
                 /run/{number}.sock}}}}\n  addresses: {{private: [10.0.{high}.{low}]{public}}}\n  portRange: {{from: 1024, \
                 to: 32767}}\n",
                number % 3,
            );
        }
        for number in 0..clusters {
            let _ = write!(
                text,
                "---\napiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: c{number}, namespace: \
                 default}}\nspec: {{version: 1.37.0}}\n"
            );
        }
        let (documents, machines) = identified(&text);
        Self { documents, machines, certificates: BTreeMap::new() }
    }

    fn observe(&self) -> PassObservation {
        let runs = self.machines.values().flat_map(|state| &state.sandboxes);
        let ids = self.documents.clusters.values().filter_map(|cluster| cluster.id());
        PassObservation {
            machines: self
                .machines
                .iter()
                .map(|(name, state)| (name.clone(), ObservedValue::Known(state.clone())))
                .collect(),
            refused: BTreeMap::new(),
            health: runs.map(|sandbox| (sandbox.pod.clone(), ComponentHealth::Healthy)).collect(),
            bindings: ids.map(|id| (id.clone(), ObservedValue::Known(FirstBindings::Cluster.digest()))).collect(),
            certificates: self.certificates.clone(),
            ..PassObservation::default()
        }
    }

    /// One pass. Returns the duration of its decisions: probes, the plan, and the config of each machine.
    fn pass(&mut self, then: Then) -> (Plan, Took) {
        let seen = self.observe();
        let mut took = Took::default();
        let mut plan = took.add(|| {
            drop(probes(&self.documents).unwrap());
            plan(take(&mut self.documents), &seen, Timestamp::UNIX_EPOCH).unwrap()
        });
        mint(&mut plan, &mut self.certificates);
        let mut configs = Vec::new();
        took.add(|| {
            let each = |name: &HypervisorName, config: MachineConfig| match then {
                Then::Apply => configs.push((name.clone(), config)),
                Then::Nothing => drop(config),
            };
            configure(&mut plan, &seen, each).unwrap();
        });
        for (name, config) in &configs {
            apply(self.machines.get_mut(name).unwrap(), config);
        }
        self.documents = take(&mut plan.documents);
        (plan, took)
    }

    /// Repeats passes until one has nothing to do, and returns the duration of the next one.
    fn settle(&mut self) -> Took {
        for _ in 0..MOST_PASSES {
            if self.is_idle(Then::Apply).is_some() {
                return self.is_idle(Then::Nothing).unwrap();
            }
        }
        unreachable!("it does not settle")
    }

    /// The work that one changed document causes besides its decision: the part of its cluster, the documents with the change, and what to write.
    fn change(&self) -> Took {
        let component = self.documents.components.keys().nth(self.documents.components.len() / 2).unwrap();
        let cluster = &self.documents.components[component].spec.cluster;
        let mut took = Took::default();
        let changes = took.add(|| {
            let mut part = self.documents.of_cluster(cluster);
            part.components.get_mut(component).unwrap().spec.placement.push_str(", changed");
            let mut next = self.documents.clone();
            for change in part.changes_since(&self.documents.of_cluster(cluster)) {
                next.make(&change, &part);
            }
            next.changes_since(&self.documents)
        });
        assert_eq!(changes.len(), 1);
        took
    }

    /// Returns the duration of a pass if the pass had nothing to do.
    fn is_idle(&mut self, then: Then) -> Option<Took> {
        let before = self.documents.clone();
        let (plan, took) = self.pass(then);
        let is_idle = plan.decisions.is_empty() && plan.waiting.is_empty() && plan.mint.is_empty();
        (is_idle && before == self.documents).then_some(took)
    }
}

/// Whether the machines apply their configs. Machines in their desired state are sent nothing.
#[derive(Clone, Copy)]
enum Then {
    Apply,
    Nothing,
}

/// The resident memory of this process in bytes, including the model of all machines.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
