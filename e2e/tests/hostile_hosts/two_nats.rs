//! Two workers behind NATs of their own, which keep source ports and drop unexpected packets, as most home routers do. They send each other packets
//! directly, although neither is reachable from outside.

use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet, serves},
};

use crate::{direct_path::is_direct, home_router};

/// The NATs of both workers.
pub(crate) const FIRST_NAT: &str = "home-a";
const SECOND_NAT: &str = "home-b";

pub(crate) fn are_crossed(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let other = format!("{name}-b");
    worker_fleet.create_worker(&other, SECOND_NAT);
    let ends = [(name, FIRST_NAT), (other.as_str(), SECOND_NAT)];
    for (worker, nat) in ends {
        home_router::make(worker_fleet, nat);
        worker_fleet.join_one(cluster, worker, &worker_fleet.token(cluster));
        let pod = format!("on-{worker}");
        cluster.start(&format!("app={pod}"), &[serves(&pod, &pod, worker)]);
    }
    let [first, second] = ends.map(|(worker, _)| worker_fleet.worker(worker));
    let address = cluster.value(&format!("pod/on-{other}"), "{.status.podIP}");
    let request = format!("/agnhost connect --timeout=1s {address}:8080");
    let took = deadline::until("both ends use a direct path", deadline::KUBERNETES, || {
        let reaches = cluster.shell(&format!("on-{name}"), &request).code() == 0;
        reaches && is_direct(&first, &second) && is_direct(&second, &first)
    });
    println!("{:>7} ms  until workers behind two NATs use a direct path", took.as_millis());
    for (worker, _) in ends {
        let _ = cluster.kubectl.run(&["delete", "pod", &format!("on-{worker}"), "--wait=false"]).succeeded();
    }
    let _ = cluster.kubectl.run(&["delete", "node,wireguardpeer", &other, "--ignore-not-found"]).succeeded();
    worker_fleet.destroy_worker(&other);
}
