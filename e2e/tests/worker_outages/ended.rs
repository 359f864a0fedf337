//! A worker that is away for longer than its certificates are valid.

use std::{path::Path, time::Duration};

use keelway_api::jiff::Timestamp;
use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{THIRD, certificate};

/// Long enough for a daemon to start and to notice that it reaches no ingress.
const LIFE: Duration = Duration::from_secs(5);
/// The remedy that the daemon reports.
const MEND: &str = "run `keelway node forget`, and `keelway node join` with a new token";

pub(crate) fn comes_back_with_a_token(setting: &WorkerFleet, cluster: &TestCluster) {
    let worker = setting.worker(THIRD);
    let (status, uid) = (worker.status(), format!("wireguardpeer/{THIRD}"));
    let peer = cluster.value(&uid, "{.metadata.uid}");
    worker.local("unplug");
    let until = certificate::give(setting, cluster, THIRD, LIFE);
    let _ = worker.shell(&format!("kill -KILL {} {}", status["pid"], status["kubelet"]["pid"])).succeeded();
    worker.start_daemon(Path::new("keelway"));
    let _ = worker.another_daemon(&status);
    assert!(!told(setting, "status").contains(MEND), "it says so before its certificate has ended");
    let said = |what: &str| told(setting, what).contains(MEND);
    deadline::until("status and log say what is to be done", deadline::KUBERNETES, || said("status") && said("log"));
    assert!(Timestamp::now() >= until, "it holds until {until}");

    worker.local("plug");
    deadline::until("it is told so by a cluster that it reaches", deadline::KUBERNETES, || {
        let now = worker.status();
        now["ingresses"].as_array().unwrap().iter().any(|ingress| ingress["answers"] == true)
    });
    assert!(said("status"), "a worker that reaches its cluster says so, too");
    let _ = worker.run(&["keelway", "node", "forget"], &[]).succeeded();
    setting.join_one(cluster, THIRD, &setting.token(cluster));
    cluster.kubectl.wait("condition=Ready", &[&format!("node/{THIRD}")]);
    assert_ne!(cluster.value(&uid, "{.metadata.uid}"), peer, "it is another worker of that name");
    assert!(!told(setting, "status").contains(MEND));
}

/// Returns the status of the worker, or the log of its daemon.
fn told(setting: &WorkerFleet, what: &str) -> String {
    let command = match what {
        // It ends with 1 if it reports a problem.
        "status" => "keelway node status || test $? = 1",
        _ => "cat /var/lib/keelway-node/log/node.log",
    };
    setting.worker(THIRD).shell(command).succeeded().text().to_owned()
}
