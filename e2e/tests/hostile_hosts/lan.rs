//! A neighbour in a worker's own network that routes the cluster's ranges through the worker, and a program of the worker's owner.

use std::net::TcpListener;

use keelway_e2e::{
    deadline, program_directory,
    worker_fleet::{AGNHOST, TestCluster, TestWorker, WorkerFleet, serves},
};

/// Creates a machine in a network of the worker, and prints its process.
const NEIGHBOUR: &str = "
setsid unshare --net sleep 600 > /dev/null 2>&1 < /dev/null &
until [ \"$(readlink /proc/$!/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do :; done
ip link add lan0 type veth peer name eth0 netns $!
ip address add 192.168.77.1/24 dev lan0
ip link set lan0 up
nsenter -t $! -n ip address add 192.168.77.2/24 dev eth0
nsenter -t $! -n ip link set eth0 up
nsenter -t $! -n ip route add default via 192.168.77.1
echo $!";
/// The worker's address there.
const LAN: &str = "192.168.77.1";
/// The port of a program on the worker.
const PROGRAM: u16 = 22022;

/// A NodePort for the pod of the worker, and a pod with the worker's network.
fn objects(worker: &str) -> [String; 3] {
    let service = "
apiVersion: v1
kind: Service
metadata: {name: lan}
spec: {type: NodePort, selector: {app: lan}, ports: [{port: 80, targetPort: 8080}]}
";
    let on_host = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: lan-host, labels: {{app: lan-host}}}}
spec:
  nodeName: {worker}
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{{name: serves, image: '{AGNHOST}', args: [netexec, --http-port=8085, --udp-port=-1]}}]
"
    );
    [service.to_owned(), serves("on-lan", "lan", worker), on_host]
}

pub(crate) fn is_shielded(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    let token = worker_fleet.token(cluster);
    worker_fleet.join_one(cluster, name, &token);
    cluster.kubectl.apply(&objects(name).join("---"));
    cluster.kubectl.wait("condition=Ready", &["pod/on-lan", "pod/lan-host"]);
    let neighbour = worker.shell(NEIGHBOUR).succeeded().text().trim().to_owned();

    let service = format!("{} 80", cluster.value("service/lan", "{.spec.clusterIP}"));
    let node_port = format!("{LAN} {}", cluster.value("service/lan", "{.spec.ports[0].nodePort}"));
    let reaches = |address: &str| reaches(&worker, &neighbour, address);
    deadline::until("the neighbour reaches the NodePort", deadline::KUBERNETES, || reaches(&node_port));
    node_ports_are_limited(worker_fleet, cluster, || reaches(&node_port));
    assert!(!reaches(&service), "the neighbour reaches the Service");
    assert!(!reaches(&format!("{} 8080", cluster.value("pod/on-lan", "{.status.podIP}"))), "the pod");
    deadline::until("it reaches the Service where there is no table", deadline::KUBERNETES, || {
        let _ = worker.shell("nft delete table ip keelway-node || true");
        reaches(&service)
    });
    reaches_programs(cluster, &worker, &token);
    let _ = cluster.kubectl.run(&["delete", "service/lan", "pod/on-lan", "pod/lan-host"]).succeeded();
}

/// NodePorts are served at the addresses that the cluster names: at those in the VPN alone, and at all again.
fn node_ports_are_limited(worker_fleet: &WorkerFleet, cluster: &TestCluster, is_reached: impl Fn() -> bool) {
    let of = |addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        worker_fleet.change(cluster, |spec| spec.addons.kube_proxy.node_port_addresses = addresses);
    };
    of(&["primary"]);
    deadline::until("the NodePort is not served in the LAN", deadline::KUBERNETES, || !is_reached());
    of(&["0.0.0.0/0", "::/0"]);
    deadline::until("the NodePort is served in the LAN", deadline::KUBERNETES, is_reached);
}

/// A pod reaches a pod that uses the worker's network, and a program of the worker's owner only once its port is open.
fn reaches_programs(cluster: &TestCluster, worker: &TestWorker<'_>, token: &[u8]) {
    let _program = worker.within(|| TcpListener::bind(("0.0.0.0", PROGRAM)).unwrap());
    let own = cluster.value("pod/lan-host", "{.status.podIP}");
    let pod_reaches = |port: u16| {
        let connect = format!("/agnhost connect --timeout=1s {own}:{port}");
        cluster.shell("on-lan", &connect).code() == 0
    };
    deadline::until("a pod reaches a pod with the worker's network", deadline::KUBERNETES, || pod_reaches(8085));
    deadline::until("the table is there again", deadline::KUBERNETES, || !pod_reaches(PROGRAM));
    let command = ["keelway", "node", "join", "-", "--allow-cgroup-v1", "--service", "detached"];
    let options = ["--install-dir", program_directory(), "--open-ports", &PROGRAM.to_string()];
    let _ = worker.run(&[&command[..], &options].concat(), token).succeeded();
    deadline::until("a pod reaches an open port", deadline::KUBERNETES, || pod_reaches(PROGRAM));
}

fn reaches(worker: &TestWorker<'_>, neighbour: &str, address: &str) -> bool {
    let address = address.replace(' ', "/");
    let connect = format!("nsenter -t {neighbour} -n timeout 1 bash -c 'exec 3<>/dev/tcp/{address}'");
    worker.shell(&connect).code() == 0
}
