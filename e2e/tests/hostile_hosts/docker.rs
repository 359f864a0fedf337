//! Firewalls of other programs: Docker, which drops forwarded packets of others, before and after the join, and one that the worker cannot repair.

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet, serves},
};

use crate::{CLEAN, udp::status_code};

/// What Docker writes when it starts.
const DOCKER: &str = "nft -f - <<END
table ip filter {
    chain FORWARD { type filter hook forward priority 0; policy drop;
        counter jump DOCKER-USER
        oifname docker0 ct state established,related counter accept
        iifname docker0 counter accept
    }
    chain DOCKER-USER { counter return; }
}
END";
const OWNERS: &str =
    "nft 'table inet owner { chain f { type filter hook forward priority 0; iifname cni0 counter drop; }; }'";

pub(crate) fn is_there_before(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    let _ = worker.shell(DOCKER).succeeded();
    let joined = worker_fleet.try_to_join(&worker, &worker_fleet.token(cluster));
    assert!(joined.code() == 0 && joined.stderr.contains("chain ip filter FORWARD drops"), "{}", joined.stderr);
    pods_meet(cluster, name);
    let _ = worker.run(&["keelway", "node", "leave", "--force"], &[]).succeeded();
    let rules = worker.shell("nft list ruleset").succeeded();
    assert!(rules.text().contains("DOCKER-USER") && !rules.text().contains("keelway"), "{}", rules.text());
}

pub(crate) fn is_there_after(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    let _ = worker.shell(DOCKER).succeeded();
    deadline::until("the worker's rules are in Docker's chain", deadline::KUBERNETES, || {
        worker.shell("nft list chain ip filter DOCKER-USER").succeeded().text().contains("keelway")
    });
    pods_meet(cluster, name);
    assert_eq!(status_code(&worker), 0);
}

pub(crate) fn is_its_owners(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let (worker, node) = (worker_fleet.worker(name), format!("node/{name}"));
    let _ = worker.shell(OWNERS).succeeded();
    let joined = worker_fleet.try_to_join(&worker, &worker_fleet.token(cluster));
    assert!(joined.code() == 2 && joined.stderr.contains("inet owner f drops"), "{}", joined.stderr);
    let remove = || drop(worker.shell("nft delete table inet owner").succeeded());
    remove();
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    let _ = worker.shell(OWNERS).succeeded();
    cluster.kubectl.wait("condition=NetworkUnavailable=True", &[&node]);
    let status = worker.run(&["keelway", "node", "status"], &[]);
    assert!(status.code() == 1 && status.text().contains("inet owner f drops"), "{}", status.text());
    remove();
    cluster.kubectl.wait("condition=NetworkUnavailable=False", &[&node]);
    healthy(&worker);
}

fn healthy(worker: &TestWorker<'_>) {
    deadline::until("the status is good", deadline::KUBERNETES, || status_code(worker) == 0);
}

/// A pod of this worker and the one of the clean worker connect to each other.
fn pods_meet(cluster: &TestCluster, name: &str) {
    let (own, other) = (format!("on-{name}"), format!("on-{CLEAN}"));
    cluster.kubectl.apply(&serves(&own, "docker", name));
    cluster.kubectl.wait("condition=Ready", &[&format!("pod/{own}")]);
    for (from, to) in [(&own, &other), (&other, &own)] {
        let address = cluster.value(&format!("pod/{to}"), "{.status.podIP}");
        let connect = format!("/agnhost connect --timeout=2s {address}:8080");
        deadline::until(&format!("{from} reaches {to}"), deadline::KUBERNETES, || {
            cluster.shell(from, &connect).code() == 0
        });
    }
    let _ = cluster.kubectl.run(&["delete", "pod", &own]).succeeded();
}
