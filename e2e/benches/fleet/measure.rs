//! What is measured, and the rows of the table.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use keelway_fleet::{Work, WorkloadPlacement};
use kube::{
    Api,
    api::{ListParams, PostParams},
};

use crate::{
    arrivals::Arrivals,
    bench_fleet::{BenchFleet, NAMESPACE, object},
    direct::{AT_ONCE, DirectWrites},
    programs::{anonymous, metric, reaches},
    table::{Table, median},
};

/// How many objects are submitted one after the other.
const ALONE: usize = 100;
/// How many objects each cluster has when the memory is measured.
const IN_EACH: usize = 5;
/// How long nothing happens before memory is measured, and before writes of a settled controller are counted.
const REST: Duration = Duration::from_secs(15);
/// Half of what Nova's control plane uses with a number of workload clusters, in MiB.
const HALF_OF_NOVA: [(usize, f64); 3] = [(10, 243.0), (100, 550.0), (200, 844.5)];
const DECISIONS: &str = "keelway_fleet_controller_decision_duration_seconds";

/// How large the fleet is.
pub(crate) struct FleetSizes {
    /// Numbers of clusters. The first is for times, and memory is measured with each.
    pub(crate) clusters: Vec<usize>,
    /// Numbers of objects that are submitted at once.
    pub(crate) objects: Vec<usize>,
}

/// The times of single objects in milliseconds. In pairs, the first is of the fleet, and the second of direct writes.
#[derive(Default)]
struct SingleObjects {
    placed: Vec<f64>,
    ordered: Vec<f64>,
    applied: [Vec<f64>; 2],
    decided: [Vec<f64>; 2],
}

struct Measurement {
    fleet: BenchFleet,
    direct: DirectWrites,
    placements: Arc<Arrivals>,
    works: Arc<Arrivals>,
    applied: Arc<Arrivals>,
}

/// Measures everything. Memory has a fleet of its own, with few objects.
pub(crate) async fn measure(rounds: usize, sizes: &FleetSizes, table: &mut Table) {
    let mut used = Vec::new();
    let agent = {
        let mut this = Measurement::start(sizes.first()).await;
        let agent = this.fleet.agent();
        for clusters in &sizes.clusters {
            this.fleet.grow(*clusters).await;
            used.push((*clusters, this.memory(*clusters).await));
        }
        agent
    };
    Measurement::start(sizes.first()).await.times(rounds, sizes, table).await;
    for (clusters, used) in used {
        let what = format!(
            "memory of kube-apiserver, etcd and fleet-controller with {clusters} clusters, {IN_EACH} objects in each"
        );
        match HALF_OF_NOVA.iter().find(|(of, _)| *of == clusters) {
            Some((_, half)) => table.under(&what, "MiB", &[used], *half),
            None => table.shown(&what, "MiB", &[used]),
        }
    }
    table.under("resident memory of an agent at rest", "MiB", &[agent], 20.0);
}

impl FleetSizes {
    fn first(&self) -> usize {
        *self.clusters.first().unwrap()
    }
}

impl Measurement {
    /// Starts a fleet of this many clusters, and places some objects in it.
    async fn start(clusters: usize) -> Self {
        let mut fleet = BenchFleet::start().await;
        fleet.grow(clusters).await;
        let this = Self {
            direct: DirectWrites::new(&fleet.fleet, &fleet.workload),
            placements: Arrivals::of(Api::<WorkloadPlacement>::namespaced(fleet.fleet.clone(), NAMESPACE)),
            works: Arrivals::of(Api::<Work>::all(fleet.fleet.clone())),
            applied: Arrivals::of(Api::<ConfigMap>::namespaced(fleet.workload.clone(), NAMESPACE)),
            fleet,
        };
        this.at_once("warm", 10).await;
        tokio::time::sleep(REST).await;
        this
    }

    async fn times(mut self, rounds: usize, sizes: &FleetSizes, table: &mut Table) {
        let mut alone = SingleObjects::default();
        for round in 0..rounds {
            self.one_by_one(round, ALONE.min(*sizes.objects.iter().max().unwrap()), &mut alone).await;
        }
        let clusters = sizes.first();
        alone.report(table, clusters);
        for objects in &sizes.objects {
            let mut times = [vec![], vec![]];
            for round in 0..rounds {
                let (ours, direct) = self.at_once(&format!("n{objects}-{round}"), *objects).await;
                println!("{objects} objects: {ours:.2?} s beside {direct:.2?} s");
                times[0].push(ours);
                times[1].push(direct);
            }
            let what = format!(
                "{objects} objects from nothing in {clusters} clusters, until all are applied, beside the same writes made directly to both APIs"
            );
            table.ratio(&what, "s", &times, 3.0);
        }
        self.restarts(rounds, table).await;
    }

    async fn submit(&self, name: &str, number: usize) {
        let api = Api::<ConfigMap>::namespaced(self.fleet.fleet.clone(), NAMESPACE);
        let object = object(name, Some(number % self.fleet.clusters()));
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Submits objects one after the other, with a direct write after each.
    async fn one_by_one(&self, round: usize, objects: usize, figures: &mut SingleObjects) {
        let socket = self.fleet.metrics();
        let decisions = async || {
            let value = async |end: &str| metric(&socket, &format!("{DECISIONS}_{end}")).await.unwrap();
            (value("sum").await, value("count").await)
        };
        let (sum, count) = decisions().await;
        let (mut placed, mut ordered, mut applied) = (vec![], vec![], vec![]);
        let (mut submits, mut both) = (vec![], vec![]);
        for number in 0..objects {
            let name = format!("alone-{round}-{number}");
            let began = Instant::now();
            self.submit(&name, number).await;
            applied.push(milliseconds(self.applied.when(&name).await - began));
            placed.push(milliseconds(self.placements.when(&name).await - began));
            ordered.push(milliseconds(self.works.when(&name).await - began));
            let name = format!("direct-{name}");
            let submit = self.direct.submit(&name).await;
            submits.push(milliseconds(submit));
            both.push(milliseconds(submit + self.direct.apply(&name).await));
        }
        let (sum, count) = {
            let after = decisions().await;
            (after.0 - sum, after.1 - count)
        };
        figures.decided[0].push(sum / count * 1000.0);
        figures.decided[1].push(median(&submits));
        figures.placed.push(nearly_all(&placed));
        figures.ordered.push(nearly_all(&ordered));
        figures.applied[0].push(nearly_all(&applied));
        figures.applied[1].push(nearly_all(&both));
    }

    /// Submits objects at once, and waits until all are applied. Then makes the same writes directly. Returns both times in seconds.
    async fn at_once(&self, name: &str, objects: usize) -> (f64, f64) {
        let names: Vec<String> = (0..objects).map(|number| format!("{name}-{number}")).collect();
        let began = Instant::now();
        stream::iter(names.iter().enumerate())
            .for_each_concurrent(AT_ONCE, async |(number, name)| self.submit(name, number).await)
            .await;
        let ours = self.applied.last(&names).await - began;
        let names: Vec<String> = names.iter().map(|name| format!("direct-{name}")).collect();
        (ours.as_secs_f64(), self.direct.all(&names).await.as_secs_f64())
    }

    /// Restarts the controller, until it has decided about each object again, beside listing these objects once.
    async fn restarts(&mut self, rounds: usize, table: &mut Table) {
        let (mut times, mut writes, mut objects) = ([vec![], vec![]], vec![], 0);
        for _ in 0..rounds {
            // The reports about the last objects are written by then.
            tokio::time::sleep(REST).await;
            let (listed, took) = self.list().await;
            objects = listed;
            let began = Instant::now();
            self.fleet.start_controller();
            let socket = self.fleet.metrics();
            #[expect(clippy::cast_precision_loss, reason = "some thousands")]
            reaches(&socket, &format!("{DECISIONS}_count"), listed as f64).await;
            times[0].push(began.elapsed().as_secs_f64());
            times[1].push(took.as_secs_f64());
            tokio::time::sleep(REST).await;
            writes.push(metric(&socket, "keelway_fleet_controller_writes_total").await.unwrap());
        }
        let what = format!(
            "the fleet-controller restarts with {objects} placed objects: until it has decided about each, beside listing them once"
        );
        table.ratio(&what, "s", &times, 3.0);
        table.under("the same: documents that it writes", "writes", &writes, 1.0);
    }

    /// Lists all objects, Placements and Works. Returns the number of Placements, and how long that takes.
    async fn list(&self) -> (usize, Duration) {
        let (client, all, began) = (self.fleet.fleet.clone(), ListParams::default(), Instant::now());
        let objects = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE).list(&all).await.unwrap();
        let placements = Api::<WorkloadPlacement>::namespaced(client.clone(), NAMESPACE).list(&all).await.unwrap();
        let works = Api::<Work>::all(client).list(&all).await.unwrap();
        assert_eq!((objects.items.len(), works.items.len()), (placements.items.len(), placements.items.len()));
        (placements.items.len(), began.elapsed())
    }

    /// Places objects in each cluster, and returns the memory of the fleet's control plane at rest.
    async fn memory(&self, clusters: usize) -> f64 {
        self.at_once(&format!("memory-{clusters}"), clusters * IN_EACH).await;
        tokio::time::sleep(REST).await;
        anonymous(&["fleet.etcd", "fleet.server.crt", "keelway-fleet-controller"].map(str::to_owned))
    }
}

impl SingleObjects {
    fn report(&self, table: &mut Table, clusters: usize) {
        let decision = format!(
            "a decision about one object with {clusters} clusters and as many policies, beside one write to the fleet's API"
        );
        table.ratio(&decision, "ms", &self.decided, 1.0);
        table.shown("from the submission of one object until a watch shows its Placement, p99", "ms", &self.placed);
        table.shown("the same until its Work", "ms", &self.ordered);
        let applied =
            "the same until it is in the workload cluster, p99, beside one direct write to each of the two APIs";
        table.ratio(applied, "ms", &self.applied, 3.0);
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Returns the value that 99 of 100 do not exceed.
fn nearly_all(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get((values.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
