//! After a worker leaves, its machine is as it was before the join.

use keelway_e2e::{
    MachineFacts, deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};

/// Removes a worker that ran pods of all kinds. Nothing of them remains on the machine, and the cluster has neither its Node nor its peer.
pub(crate) fn leaves_nothing(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str, before: &MachineFacts) {
    let finished = worker_fleet.worker(name).run(&["keelway", "node", "leave"], &[]).succeeded();
    println!("{:>7} ms  {name} left", finished.took.as_millis());
    let difference = before.difference(&MachineFacts::on_worker(&worker_fleet.fleet.fleet, name));
    assert!(difference.is_empty(), "not as it was found:\n{difference}");
    deadline::until("neither Node nor peer is left", deadline::KUBERNETES, || {
        let left = cluster.kubectl.run(&["get", "nodes,wireguardpeers", "-o", "name"]).succeeded();
        !left.text().lines().any(|line| line.ends_with(&format!("/{name}")))
    });
}
