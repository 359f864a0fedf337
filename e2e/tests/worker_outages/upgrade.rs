//! The daemon of a worker is replaced by another program.

use std::{path::Path, time::Duration};

use keelway_e2e::{
    outage,
    prober::Prober,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{
    WORKERS,
    clients::{self, Window},
    pods,
};

/// Three times the stated limit, which is less than a second.
pub(crate) const GAP: Duration = Duration::from_secs(3);
/// The path of the new program.
const NEXT: &str = "/opt/keelway-next";

/// Returns the longest time for which pods had no response.
pub(crate) fn of_the_daemon(worker_fleet: &WorkerFleet, cluster: &TestCluster, probers: &[Prober]) -> Duration {
    let [(name, _), _] = WORKERS;
    let worker = worker_fleet.worker(name);
    let (before, containers) = (worker.status(), pods::on(cluster, name));
    let pid = before["pid"].to_string();
    let _ = worker.shell(&format!("cp /proc/{pid}/exe {NEXT}")).succeeded();

    let began = outage::now();
    let _ = worker.shell(&format!("kill {pid}")).succeeded();
    worker.start_daemon(Path::new(NEXT));
    let after = worker.another_daemon(&before);
    let window = Window { since: began, until: outage::now() };
    let gap = clients::gaps("the daemon was upgraded", &window, cluster, probers);

    let program = worker.shell(&format!("readlink /proc/{}/exe", after["pid"])).succeeded();
    assert_eq!(program.text().trim(), NEXT);
    assert_eq!(after["kubelet"]["pid"], before["kubelet"]["pid"], "the kubelet was started again");
    assert_eq!(pods::on(cluster, name), containers, "containers were started again");
    gap
}
