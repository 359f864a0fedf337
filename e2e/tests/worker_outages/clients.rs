//! Clients that use the cluster during all outages.

use std::time::Duration;

use keelway_e2e::{
    load::{Load, WINDOW},
    outage,
    prober::Prober,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{idle, logs::Logs, watch};

/// Probers, one in each direction: the name, the worker that it runs on, and the pod that it connects to.
const PROBERS: [(&str, &str, &str); 2] = [("from-w1", "w1", "on-w2"), ("from-w2", "w2", "on-w1")];

pub(crate) struct Clients {
    /// Reads, writes and a watch at the API's address on a worker.
    pub(crate) load: Load,
    /// Pods that connect to pods of the other worker.
    probers: Vec<Prober>,
}

/// The longest times without a response during an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gaps {
    /// For pods that connect to pods of the other worker.
    pub(crate) pods: Duration,
    /// For clients that read logs. Zero if there are none.
    pub(crate) logs: Duration,
    /// From the first attempt of a request to its response, at the API's address on a worker.
    pub(crate) requests: Duration,
}

/// The time of an event, in seconds since the Unix epoch.
pub(crate) struct Window {
    pub(crate) since: f64,
    pub(crate) until: f64,
}

impl Clients {
    pub(crate) fn start(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> Self {
        let api = idle::api(cluster);
        let load = worker_fleet.worker("w1").within(|| Load::on(&[api], &cluster.kubectl));
        // The pod watches an object that the load writes.
        load.wait_for_requests(1);
        watch::start(cluster);
        let probers = PROBERS.map(|(name, worker, asked)| {
            let address = cluster.value(&format!("pod/{asked}"), "{.status.podIP}");
            Prober::start(cluster, name, worker, &address)
        });
        load.lap("they begin").assert_good();
        load.wait_for_requests(100);
        load.lap("nothing is lost").assert_good();
        Self { load, probers: probers.into() }
    }

    /// Prints how long pods and readers of logs had no response since then. Ends the lap of the load, in which no request may have failed.
    pub(crate) fn went_on(&self, what: &str, since: f64, cluster: &TestCluster, logs: &[Logs]) -> Gaps {
        let window = Window { since, until: outage::now() };
        self.load.wait_for_requests(100);
        let lap = self.load.lap(what);
        lap.assert_good();
        let read = logs.iter().map(|logs| window.longest(&format!("{what}: longest gap of {logs}"), || logs.answers()));
        Gaps {
            pods: gaps(what, &window, cluster, &self.probers),
            logs: read.max().unwrap_or_default(),
            requests: lap.longest,
        }
    }

    /// Ends all clients except the probers. Asserts that no pod was restarted meanwhile.
    pub(crate) fn end(self, cluster: &TestCluster) -> Vec<Prober> {
        self.load.end().assert_good();
        let restarts = cluster.value("pods", "{.items[*].status.containerStatuses[*].restartCount}");
        assert!(restarts.split(' ').all(|count| count == "0"), "pods were restarted: {restarts}");
        self.probers
    }
}

/// Prints how long pods had no response during this time, and returns the longest.
pub(crate) fn gaps(what: &str, window: &Window, cluster: &TestCluster, probers: &[Prober]) -> Duration {
    let of = |prober: &Prober| {
        let what = format!("{what}: longest gap of pods {}", prober.name());
        window.longest(&what, || prober.answers(&cluster.kubectl))
    };
    probers.iter().map(of).max().unwrap_or_default()
}

impl Gaps {
    /// Fails the test if a gap was longer. A request counts in the lap in which it gets its response, and may have started earlier.
    pub(crate) fn assert_under(&self, limit: Duration) {
        assert!([self.pods, self.logs].iter().all(|gap| *gap < limit) && self.requests < WINDOW, "{self:?}");
    }
}

impl Window {
    fn longest(&self, what: &str, answers: impl Fn() -> Vec<f64>) -> Duration {
        let gap = outage::longest_between(self.since, self.until, answers);
        println!("{:>7} ms  {what}", gap.as_millis());
        gap
    }
}
