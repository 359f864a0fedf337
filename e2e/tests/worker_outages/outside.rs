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
pub(crate) fn is_stopped(setting: &WorkerFleet, cluster: &TestCluster) {
    let token = setting.token(cluster);
    let machines = setting.fleet.machines();
    for machine in &machines {
        process::kill(machine.agent_pid());
    }
    thread::scope(|scope| {
        scope.spawn(|| renews(setting, cluster, WORKERS[1].0));
        scope.spawn(|| setting.join_one(cluster, THIRD, &token));
        scope.spawn(|| {
            setting.join_one(cluster, FOURTH, &token);
            leaves(setting, cluster, FOURTH);
        });
    });
    for machine in &machines {
        assert!(std::os::unix::net::UnixStream::connect(machine.agent_socket()).is_err(), "an agent runs");
        setting.fleet.power("start", machine.name());
    }
    deadline::until("there is nothing to do", deadline::KUBERNETES, || {
        setting.keelway(&["plan", "--exit-code"]).code() == 0
    });
}

/// The worker renews its certificate without a driver or an agent.
fn renews(setting: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = setting.worker(name);
    let short = certificate::give(setting, cluster, name, LEFT);
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

fn leaves(setting: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let left = setting.worker(name).run(&["keelway", "node", "leave"], &[]).succeeded();
    println!("{:>7} ms  {name} left", left.took.as_millis());
    deadline::until("neither Node nor peer is left", deadline::KUBERNETES, || {
        let found = cluster.kubectl.run(&["get", "nodes,wireguardpeers", "-o", "name"]).succeeded();
        !found.text().lines().any(|line| line.ends_with(&format!("/{name}")))
    });
}
