//! Everything of Keelway outside of the cluster is stopped: no agent and no pass runs.

use std::{thread, time::Duration};

use keelway_e2e::{
    deadline, process,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{FOURTH, THIRD, WORKERS, certificate};

/// A certificate that is valid for this time only is renewed immediately.
const LEFT: Duration = Duration::from_secs(60);

/// Workers still join, renew certificates and leave. When the agents run again, there is nothing to do.
pub(crate) fn is_stopped(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let token = worker_fleet.token(cluster);
    let machines = worker_fleet.fleet.machines();
    for machine in &machines {
        process::kill(machine.agent_pid());
    }
    thread::scope(|scope| {
        scope.spawn(|| renews(worker_fleet, cluster, WORKERS[1].0));
        scope.spawn(|| worker_fleet.join_one(cluster, THIRD, &token));
        scope.spawn(|| {
            worker_fleet.join_one(cluster, FOURTH, &token);
            leaves(worker_fleet, cluster, FOURTH);
        });
    });
    for machine in &machines {
        assert!(std::os::unix::net::UnixStream::connect(machine.agent_socket()).is_err(), "an agent runs");
        worker_fleet.fleet.power("start", machine.name());
    }
    deadline::until("there is nothing to do", deadline::KUBERNETES, || {
        worker_fleet.keelway(&["plan", "--exit-code"]).code() == 0
    });
}

/// The worker renews its certificate without a driver or an agent.
fn renews(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    let short = certificate::replace(worker_fleet, cluster, name, LEFT);
    let _ = worker.shell(&format!("kill {}", worker.status()["kubelet"]["pid"])).succeeded();
    let took = deadline::until("it has renewed", LEFT, || {
        let now = worker.status();
        let certificates = now["certificates"].as_array().unwrap();
        let client = certificates.iter().find(|certificate| certificate["name"] == "client");
        let ends = client.unwrap()["notAfter"].as_str().unwrap().parse::<keelway_api::jiff::Timestamp>().unwrap();
        ends > short
    });
    println!("{:>7} ms  until {name} has renewed its certificate", took.as_millis());
    deadline::until("logs of its pod are read", deadline::KUBERNETES, || {
        cluster.kubectl.run(&["logs", &format!("on-{name}"), "--request-timeout=5s"]).code() == 0
    });
}

fn leaves(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let left = worker_fleet.worker(name).run(&["keelway", "node", "leave"], &[]).succeeded();
    println!("{:>7} ms  {name} left", left.took.as_millis());
    deadline::until("neither Node nor peer is left", deadline::KUBERNETES, || {
        let found = cluster.kubectl.run(&["get", "nodes,wireguardpeers", "-o", "name"]).succeeded();
        !found.text().lines().any(|line| line.ends_with(&format!("/{name}")))
    });
}
