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
const MEND: &str = "run `keelway node forget`, and `keelway node join` with a new token";

/// The worker proves its key to a gateway, and continues under its name, with its peer.
pub(crate) fn renews_by_its_key(setting: &WorkerFleet, cluster: &TestCluster) {
    let peer = peer(cluster);
    goes_away(setting, cluster);
    let worker = setting.worker(THIRD);
    worker.local("plug");
    deadline::until("the certificate is renewed", deadline::KUBERNETES, || !told(setting, "status").contains(MEND));
    cluster.kubectl.wait("condition=Ready", &[&format!("node/{THIRD}")]);
    assert_eq!(self::peer(cluster), peer, "it is the same worker");
    let pod = "after-the-end";
    cluster.start(&format!("app={pod}"), &[serves(pod, pod, THIRD)]);
    cluster.wait_for_log(pod, "Started HTTP server on port 8080");
    let _ = cluster.kubectl.run(&["delete", "pod", pod, "--wait=false"]).succeeded();
}

/// Without the grace, the worker joins with a token.
pub(crate) fn comes_back_with_a_token(setting: &WorkerFleet, cluster: &TestCluster) {
    setting.change(cluster, |spec| spec.certificates.worker_grace = Span::of_seconds(0));
    let peer = peer(cluster);
    goes_away(setting, cluster);
    let worker = setting.worker(THIRD);
    worker.local("plug");
    deadline::until("it is denied a certificate", deadline::KUBERNETES, || told(setting, "log").contains("Unproven"));
    assert!(told(setting, "status").contains(MEND), "a worker that reaches its cluster says so, too");
    let _ = worker.run(&["keelway", "node", "forget"], &[]).succeeded();
    setting.join_one(cluster, THIRD, &setting.token(cluster));
    cluster.kubectl.wait("condition=Ready", &[&format!("node/{THIRD}")]);
    assert_ne!(self::peer(cluster), peer, "it is another worker of that name");
    assert!(!told(setting, "status").contains(MEND));
}

fn peer(cluster: &TestCluster) -> String {
    cluster.value(&format!("wireguardpeer/{THIRD}"), "{.metadata.uid}")
}

/// Unplugs the worker. Its certificate expires, which its daemon reports.
fn goes_away(setting: &WorkerFleet, cluster: &TestCluster) {
    let worker = setting.worker(THIRD);
    let status = worker.status();
    worker.local("unplug");
    let until = certificate::give(setting, cluster, THIRD, LIFE);
    let _ = worker.shell(&format!("kill -KILL {} {}", status["pid"], status["kubelet"]["pid"])).succeeded();
    worker.start_daemon(Path::new("keelway"));
    let _ = worker.another_daemon(&status);
    assert!(!told(setting, "status").contains(MEND), "it says so before its certificate has ended");
    let said = |what: &str| told(setting, what).contains(MEND);
    deadline::until("status and log say what is to be done", deadline::KUBERNETES, || said("status") && said("log"));
    assert!(Timestamp::now() >= until, "it holds until {until}");
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
