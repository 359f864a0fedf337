//! Two workers behind NATs of their own, which drop unexpected packets. If the NATs keep source ports, they send each other packets directly, although
//! neither is reachable from outside.

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, TestWorker, WorkerFleet, serves},
};

use crate::{
    direct_path::{is_direct, path},
    home_router,
};

/// The NATs of both workers.
pub(crate) const FIRST_NAT: &str = "home-a";
const SECOND_NAT: &str = "home-b";

/// Two workers with a pod each. The pod of the first one sends requests to the other.
struct TwoWorkers<'a> {
    cluster: &'a TestCluster,
    workers: [TestWorker<'a>; 2],
    request: [String; 2],
}

impl TwoWorkers<'_> {
    fn reaches(&self) -> bool {
        let [pod, request] = &self.request;
        self.cluster.shell(pod, request).code() == 0
    }
}

pub(crate) fn are_crossed(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    behind_nats(worker_fleet, cluster, name, home_router::make, |two| {
        let [first, second] = &two.workers;
        let took = deadline::until("both ends use a direct path", deadline::KUBERNETES, || {
            two.reaches() && is_direct(first, second) && is_direct(second, first)
        });
        println!("{:>7} ms  until workers behind two NATs use a direct path", took.as_millis());
    });
}

/// Neither end finds the port of the other. A gateway carries their packets.
pub(crate) fn are_symmetric(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    behind_nats(worker_fleet, cluster, name, make_symmetric, |two| {
        let [first, second] = &two.workers;
        let has_given_up = |worker, other| path(worker, other).is_some_and(|path| path["state"] == "backoff");
        let took = deadline::until("both ends have tried every endpoint", deadline::KUBERNETES, || {
            assert!(!is_direct(first, second) && !is_direct(second, first));
            two.reaches() && has_given_up(first, second) && has_given_up(second, first)
        });
        println!("{:>7} ms  until workers behind symmetric NATs had tried every endpoint", took.as_millis());
        assert!(two.reaches());
    });
}

/// Makes a NAT use another port for each destination, as those of many companies and mobile networks do.
fn make_symmetric(worker_fleet: &WorkerFleet, nat: &str) {
    home_router::set(worker_fleet, nat, &home_router::RULES.replace("masquerade;", "masquerade fully-random;"));
}

fn behind_nats(
    worker_fleet: &WorkerFleet,
    cluster: &TestCluster,
    name: &str,
    make: fn(&WorkerFleet, &str),
    check: impl Fn(&TwoWorkers<'_>),
) {
    let other = format!("{name}-b");
    worker_fleet.create_worker(&other, SECOND_NAT);
    let ends = [(name, FIRST_NAT), (other.as_str(), SECOND_NAT)];
    for (worker, nat) in ends {
        make(worker_fleet, nat);
        worker_fleet.join_one(cluster, worker, &worker_fleet.token(cluster));
        let pod = format!("on-{worker}");
        cluster.start(&format!("app={pod}"), &[serves(&pod, &pod, worker)]);
    }
    let address = cluster.value(&format!("pod/on-{other}"), "{.status.podIP}");
    let request = [format!("on-{name}"), format!("/agnhost connect --timeout=1s {address}:8080")];
    let workers = ends.map(|(worker, _)| worker_fleet.worker(worker));
    check(&TwoWorkers { cluster, workers, request });
    for (worker, _) in ends {
        let _ = cluster.kubectl.run(&["delete", "pod", &format!("on-{worker}"), "--wait=false"]).succeeded();
    }
    let _ = cluster.kubectl.run(&["delete", "node,wireguardpeer", &other, "--ignore-not-found"]).succeeded();
    worker_fleet.destroy_worker(&other);
}
