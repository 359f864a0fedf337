//! Those who use the cluster all the while.

use std::time::Duration;

use keelway_e2e::{
    gap,
    load::Load,
    prober::Prober,
    setting::{Cluster, Setting},
};

use crate::{idle, logs::Logs, watch};

/// Probers, one in each direction: by name, where it runs, and whom it asks.
const PROBERS: [(&str, &str, &str); 2] = [("from-w1", "w1", "on-w2"), ("from-w2", "w2", "on-w1")];

pub(crate) struct Clients {
    /// Reads, writes and a watch at the API's address on a worker.
    pub(crate) load: Load,
    /// Pods that connect to pods of the other worker.
    probers: Vec<Prober>,
}

/// A time in which something happens, in seconds since the Unix epoch.
pub(crate) struct Window {
    pub(crate) since: f64,
    pub(crate) until: f64,
    /// How long there may be no answer.
    pub(crate) allowed: Duration,
}

impl Clients {
    pub(crate) fn start(setting: &Setting, cluster: &Cluster) -> Self {
        let api = idle::api(cluster);
        let load = setting.worker("w1").within(|| Load::on(&[api], &cluster.kubectl));
        // The watch is of what it writes.
        load.goes_on(1);
        watch::start(cluster);
        let probers = PROBERS.map(|(name, worker, asked)| {
            let address = cluster.value(&format!("pod/{asked}"), "{.status.podIP}");
            Prober::start(cluster, name, worker, &address)
        });
        load.lap("they begin").assert_good();
        load.goes_on(100);
        load.lap("nothing is lost").assert_good();
        Self { load, probers: probers.into() }
    }

    /// Tells how long since then pods had no answer and people no logs, which must be less than is allowed, and ends the load's lap.
    pub(crate) fn went_on(&self, what: &str, since: f64, allowed: Duration, cluster: &Cluster, logs: &[Logs]) {
        let window = Window { since, until: gap::now(), allowed };
        self.load.goes_on(100);
        self.load.lap(what).assert_good();
        gaps(what, &window, cluster, &self.probers);
        for logs in logs {
            window.judge(&format!("{what}: longest gap of {logs}"), || logs.answers());
        }
    }

    /// All but the probers end. None of them, nor whom they ask, began anew meanwhile.
    pub(crate) fn end(self, cluster: &Cluster) -> Vec<Prober> {
        self.load.end().assert_good();
        let restarts = cluster.value("pods", "{.items[*].status.containerStatuses[*].restartCount}");
        assert!(restarts.split(' ').all(|count| count == "0"), "pods were restarted: {restarts}");
        self.probers
    }
}

/// Tells how long within that pods had no answer, which must be less than is allowed.
pub(crate) fn gaps(what: &str, window: &Window, cluster: &Cluster, probers: &[Prober]) {
    for prober in probers {
        let what = format!("{what}: longest gap of pods {}", prober.name());
        window.judge(&what, || prober.answers(&cluster.kubectl));
    }
}

impl Window {
    fn judge(&self, what: &str, answers: impl Fn() -> Vec<f64>) {
        let gap = gap::longest_between(self.since, self.until, answers);
        println!("{:>7} ms  {what}", gap.as_millis());
        assert!(gap < self.allowed, "{what}: {gap:?}");
    }
}
