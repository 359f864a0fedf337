//! Two clusters with the same ranges behind the same public machines: an address always leads to the client's own cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    thread,
};

use keelway_e2e::{
    deadline,
    worker_fleet::{AGNHOST, TestCluster, serves},
};

use crate::pods::GET;

/// The port on which a pod in each worker's host network returns its name, at the worker's address in the VPN.
const PORT: u16 = 8090;
/// The port on which other pods return their names.
const POD_PORT: u16 = 8080;

/// Names by address and port.
type Known = BTreeMap<(Ipv4Addr, u16), String>;

/// All workers of both clusters send requests at the same time. Each response is from the own cluster.
pub(crate) fn nobody_meets_the_other(c1: &TestCluster, c2: &TestCluster) {
    for cluster in [c1, c2] {
        start(cluster);
    }
    let (mut of_c1, mut of_c2) = (workers(c1), workers(c2));
    let twins = twins(c1, c2);
    of_c1.insert((twins.address, POD_PORT), twins.names[0].clone());
    of_c2.insert((twins.address, POD_PORT), twins.names[1].clone());
    let places = |known: &Known| known.keys().copied().collect::<BTreeSet<_>>();
    let both = places(&of_c1).intersection(&places(&of_c2)).count();
    assert_eq!(both, c2.workers.len() + 1, "the same addresses in both: {of_c1:?}, {of_c2:?}");
    thread::scope(|scope| {
        for (cluster, known) in [(c1, &of_c1), (c2, &of_c2)] {
            for worker in cluster.workers {
                scope.spawn(move || meets_its_own(cluster, worker, known));
            }
        }
    });
    for (address, port) in places(&of_c1).difference(&places(&of_c2)) {
        let asks = format!("/agnhost connect --timeout=2s {address}:{port}");
        let finished = c2.shell(&asker(c2.workers[0]), &asks);
        assert_ne!(finished.code(), 0, "{address} is in {} only, and answers in {}", c1.name, c2.name);
    }
}

fn asker(worker: &str) -> String {
    format!("host-{worker}")
}

/// Starts a pod with the host network on each worker.
fn start(cluster: &TestCluster) {
    let pod = |worker: &&str| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {}, labels: {{app: host}}}}
spec:
  nodeName: {worker}
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{{name: host, image: '{AGNHOST}', args: [netexec, --http-port={PORT}]}}]
",
            asker(worker)
        )
    };
    cluster.start("app=host", &cluster.workers.iter().map(pod).collect::<Vec<_>>());
    are_reachable(cluster);
}

/// Waits until the workers have opened the ports of the pods to each other.
fn are_reachable(cluster: &TestCluster) {
    let known = workers(cluster);
    for (worker, (address, port)) in cluster.workers.iter().flat_map(|worker| known.keys().map(move |to| (worker, to)))
    {
        let connect = format!("/agnhost connect --timeout=1s {address}:{port}");
        deadline::until(&format!("{worker} reaches {address}"), deadline::KUBERNETES, || {
            cluster.shell(&asker(worker), &connect).code() == 0
        });
    }
}

/// Returns the workers by address.
fn workers(cluster: &TestCluster) -> Known {
    let of = |worker: &str| cluster.value(&format!("wireguardpeer/{worker}"), "{.status.addresses[0]}");
    cluster.workers.iter().map(|worker| ((of(worker).parse().unwrap(), PORT), (*worker).to_owned())).collect()
}

/// Requests the name at each address five times.
fn meets_its_own(cluster: &TestCluster, worker: &str, known: &Known) {
    let asks: Vec<_> = known.keys().map(|(address, port)| format!("get {address} {port} /hostname; echo;")).collect();
    let asks = asks.join(" ");
    let finished = cluster.shell(&asker(worker), &format!("{GET} for i in 1 2 3 4 5; do {asks} done")).succeeded();
    let once: Vec<&str> = known.values().map(String::as_str).collect();
    assert_eq!(finished.text().lines().collect::<Vec<_>>(), once.repeat(5), "{worker} of {}", cluster.name);
}

/// A pod in each of two clusters, with the same address.
struct Twins {
    address: Ipv4Addr,
    names: [String; 2],
}

/// Pods of one worker, by address.
struct Siblings<'a> {
    cluster: &'a TestCluster,
    worker: &'a str,
    pods: BTreeMap<Ipv4Addr, String>,
}

/// Returns two pods with the same address. A worker assigns addresses in order, so the cluster with the lower address starts more pods.
fn twins(c1: &TestCluster, c2: &TestCluster) -> Twins {
    let ranges = |cluster: &TestCluster| -> BTreeSet<String> {
        cluster.workers.iter().map(|worker| range(cluster, worker)).collect()
    };
    // A cluster may skip a range, if an assignment of it was not recorded.
    let (of_c1, of_c2) = (ranges(c1), ranges(c2));
    let range = of_c1.intersection(&of_c2).next().unwrap_or_else(|| panic!("{of_c1:?} and {of_c2:?} share no range"));
    let (mut one, mut other) = (Siblings::of(c1, range), Siblings::of(c2, range));
    one.more(1);
    other.more(1);
    for _ in 0..10 {
        if let Some((address, name)) = one.pods.iter().find(|(address, _)| other.pods.contains_key(address)) {
            return Twins { address: *address, names: [name.clone(), other.pods[address].clone()] };
        }
        match (one.last(), other.last()) {
            (first, second) if first < second => one.more(second - first),
            (first, second) => other.more(first - second),
        }
    }
    panic!("no address is in both: {:?}, {:?}", one.pods, other.pods);
}

fn range(cluster: &TestCluster, worker: &str) -> String {
    cluster.value(&format!("node/{worker}"), "{.spec.podCIDR}")
}

impl<'a> Siblings<'a> {
    /// Selects the worker with this range for pods.
    fn of(cluster: &'a TestCluster, range: &str) -> Self {
        let worker = cluster.workers.iter().find(|worker| self::range(cluster, worker) == range);
        Self { cluster, worker: worker.unwrap(), pods: BTreeMap::new() }
    }

    fn last(&self) -> u32 {
        self.pods.keys().next_back().unwrap().to_bits()
    }

    /// Starts this many more pods.
    fn more(&mut self, count: u32) {
        let first = u32::try_from(self.pods.len()).unwrap();
        let (cluster, worker) = (self.cluster, self.worker);
        let pod = |number: u32| serves(&format!("{}-twin-{number}", cluster.name), "twin", worker);
        cluster.start("app=twin", &(first..first + count).map(pod).collect::<Vec<_>>());
        let path = "jsonpath={range .items[*]}{.status.podIP} {.metadata.name}{\"\\n\"}{end}";
        let finished = cluster.kubectl.run(&["get", "pods", "-l", "app=twin", "-o", path]).succeeded();
        let lines = finished.text().lines().filter_map(|line| line.split_once(' '));
        self.pods = lines.map(|(address, name)| (address.parse().unwrap(), name.to_owned())).collect();
    }
}
