//! A worker that is away for longer than its certificates are valid: it renews them when it is back, or joins with a token.

use std::{path::Path, time::Duration};

use keelway_api::{duration::Span, jiff::Timestamp};
use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet, serves},
};

use crate::{THIRD, certificate};

/// Long enough for a daemon to start and to notice that it reaches no ingress.
const LIFE: Duration = Duration::from_secs(5);
/// The remedy that the daemon reports.
const REMEDY: &str = "run `keelway node forget`, and `keelway node join` with a new token";

/// The worker proves its key to a gateway, and continues under its name, with its peer.
pub(crate) fn renews_by_its_key(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let peer = peer(cluster);
    goes_away(worker_fleet, cluster);
    let worker = worker_fleet.worker(THIRD);
    worker.local("plug");
    deadline::until("the certificate is renewed", deadline::KUBERNETES, || {
        !node_output(worker_fleet, "status").contains(REMEDY)
    });
    cluster.kubectl.wait("condition=Ready", &[&format!("node/{THIRD}")]);
    assert_eq!(self::peer(cluster), peer, "it is the same worker");
    let pod = "after-the-end";
    cluster.start(&format!("app={pod}"), &[serves(pod, pod, THIRD)]);
    cluster.wait_for_log(pod, "Started HTTP server on port 8080");
    let _ = cluster.kubectl.run(&["delete", "pod", pod, "--wait=false"]).succeeded();
}

/// Without the grace, the worker joins with a token.
pub(crate) fn comes_back_with_a_token(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    worker_fleet.change(cluster, |spec| spec.certificates.worker_grace = Span::of_seconds(0));
    let peer = peer(cluster);
    goes_away(worker_fleet, cluster);
    let worker = worker_fleet.worker(THIRD);
    worker.local("plug");
    deadline::until("it is denied a certificate", deadline::KUBERNETES, || {
        node_output(worker_fleet, "log").contains("Unproven")
    });
    assert!(
        node_output(worker_fleet, "status").contains(REMEDY),
        "a worker that reaches its cluster reports the remedy, too"
    );
    let _ = worker.run(&["keelway", "node", "forget"], &[]).succeeded();
    worker_fleet.join_one(cluster, THIRD, &worker_fleet.token(cluster));
    cluster.kubectl.wait("condition=Ready", &[&format!("node/{THIRD}")]);
    assert_ne!(self::peer(cluster), peer, "it is another worker of that name");
    assert!(!node_output(worker_fleet, "status").contains(REMEDY));
}

fn peer(cluster: &TestCluster) -> String {
    cluster.value(&format!("wireguardpeer/{THIRD}"), "{.metadata.uid}")
}

/// Unplugs the worker. Its certificate expires, which its daemon reports.
fn goes_away(worker_fleet: &WorkerFleet, cluster: &TestCluster) {
    let worker = worker_fleet.worker(THIRD);
    let status = worker.status();
    worker.local("unplug");
    let until = certificate::replace(worker_fleet, cluster, THIRD, LIFE);
    let _ = worker.shell(&format!("kill -KILL {} {}", status["pid"], status["kubelet"]["pid"])).succeeded();
    worker.start_daemon(Path::new("keelway"));
    let _ = worker.another_daemon(&status);
    assert!(
        !node_output(worker_fleet, "status").contains(REMEDY),
        "it reports the remedy before its certificate has expired"
    );
    let has_remedy = |what: &str| node_output(worker_fleet, what).contains(REMEDY);
    deadline::until("status and log contain the remedy", deadline::KUBERNETES, || {
        has_remedy("status") && has_remedy("log")
    });
    assert!(Timestamp::now() >= until, "it holds until {until}");
}

/// Returns the status of the worker, or the log of its daemon.
fn node_output(worker_fleet: &WorkerFleet, what: &str) -> String {
    let command = match what {
        // It ends with 1 if it reports a problem.
        "status" => "keelway node status || test $? = 1",
        _ => "cat /var/lib/keelway-node/log/node.log",
    };
    worker_fleet.worker(THIRD).shell(command).succeeded().text().to_owned()
}
