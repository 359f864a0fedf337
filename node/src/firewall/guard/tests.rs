//! A worker with a neighbour in its network, a tunnel and a pod. Without root, the tests do nothing.

use rustix::process::geteuid;

use super::{
    super::{FirewallConfig, FirewallKeeper, set},
    *,
};
use crate::isolated::network::NetworkMachine;

/// Translations as kube-proxy makes them, to the port 8080: of a Service and a NodePort to the pod, and of a Service to the worker itself.
const SERVICES: &str = "nft 'table ip services {
    chain prerouting {
        type nat hook prerouting priority -100;
        ip daddr 10.96.0.1 tcp dport 80 dnat to 10.244.3.2:8080
        ip daddr 192.168.7.2 tcp dport 30080 dnat to 10.244.3.2:8080
        ip daddr 10.96.0.2 tcp dport 80 dnat to 192.168.7.2:8080
    }
}'";

struct GuardedWorker {
    worker: NetworkMachine,
    neighbour: NetworkMachine,
    remote: NetworkMachine,
    pod: NetworkMachine,
}

impl GuardedWorker {
    fn start() -> Self {
        let [worker, neighbour, remote, pod] = std::array::from_fn(|_| NetworkMachine::new());
        worker.connect(("eth0", "192.168.7.2/24"), &neighbour, ("eth0", "192.168.7.1/24"));
        worker.connect(("keelway0", "100.80.0.17/32"), &remote, ("keelway0", "100.80.0.18/32"));
        worker.connect(("cni0", "10.244.3.1/24"), &pod, ("eth0", "10.244.3.2/24"));
        worker.shell("sysctl -qw net.ipv4.ip_forward=1; ip route add 100.80.0.0/16 dev keelway0");
        worker.shell("ip address add 100.80.0.1/32 dev lo");
        worker.shell(SERVICES);
        neighbour.shell(
            "for range in 10.96.0.0/16 10.244.0.0/16 100.80.0.0/16; do ip route add $range via 192.168.7.2; done",
        );
        remote.shell("ip route add 100.80.0.17 dev keelway0; ip route add default via 100.80.0.17 dev keelway0 onlink");
        pod.shell("ip route add default via 10.244.3.1");
        Self { worker, neighbour, remote, pod }
    }

    /// Sets the firewall, with these ports open to tunnels and pods.
    fn guard(&self, ports: &[(Transport, u16)]) {
        let config = config(ports);
        self.worker.within(move || set(&config).map(drop).unwrap());
    }

    fn unguard(&self) {
        self.worker.shell("nft delete table ip keelway-node");
    }
}

fn config(ports: &[(Transport, u16)]) -> FirewallConfig {
    let ranges = ["100.80.0.0/16", "10.96.0.0/16", "10.244.0.0/16"].map(|range| range.parse().unwrap());
    let outside = ExternalInterfaces::AllBut(["lo", "keelway*", "cni0"].map(str::to_owned).to_vec());
    FirewallConfig {
        pods: vec![],
        inside: vec![],
        tunnels: "keelway*".to_owned(),
        shielded: ShieldedRanges { ranges: ranges.to_vec(), outside },
        input: Some(WorkerInput {
            interfaces: ["keelway*", "cni0"].map(str::to_owned).to_vec(),
            api: vec!["100.80.0.1:6443".parse().unwrap()],
            ports: ports.iter().copied().collect(),
        }),
    }
}

#[test]
fn a_neighbour_reaches_node_ports_and_nothing_of_the_cluster() {
    if !geteuid().is_root() {
        return;
    }
    let guarded = GuardedWorker::start();
    let (_pod, _kubelet) = (guarded.pod.listen(8080), guarded.worker.listen(10250));
    let inside = ["10.96.0.1:80", "10.244.3.2:8080", "100.80.0.17:10250"];
    guarded.guard(&[]);
    assert_eq!(inside.map(|address| guarded.neighbour.reaches(address)), [false; 3]);
    assert!(guarded.neighbour.reaches("192.168.7.2:30080"), "a NodePort");
    assert!(guarded.remote.reaches("10.96.0.1:80") && guarded.remote.reaches("10.244.3.2:8080"));
    guarded.unguard();
    assert_eq!(inside.map(|address| guarded.neighbour.reaches(address)), [true; 3]);
}

#[test]
fn tunnels_and_pods_reach_only_what_the_cluster_needs_on_the_worker() {
    if !geteuid().is_root() {
        return;
    }
    let guarded = GuardedWorker::start();
    let _open = [22, 6443, 8080, 9100, 10250].map(|port| guarded.worker.listen(port));
    let _pod = guarded.pod.listen(8080);
    let closed = ["100.80.0.17:22", "192.168.7.2:22", "100.80.0.17:6443", "192.168.7.2:8080"];
    let needed = ["100.80.0.17:10250", "10.96.0.2:80", "100.80.0.1:6443"];
    guarded.guard(&[]);
    for from in [&guarded.pod, &guarded.remote] {
        assert_eq!(closed.map(|address| from.reaches(address)), [false; 4]);
    }
    assert_eq!(needed.map(|address| guarded.pod.reaches(address)), [true; 3]);
    assert!(guarded.remote.reaches("192.168.7.2:30080"), "a NodePort");
    assert!(guarded.remote.reaches("100.80.0.17:10250") && guarded.remote.pings("100.80.0.17"));
    assert!(guarded.worker.reaches("10.244.3.2:8080"), "a probe of the kubelet");
    assert!(guarded.neighbour.reaches("192.168.7.2:22"));
    guarded.guard(&[(Transport::Tcp, 22), (Transport::Udp, 9100)]);
    assert!(guarded.pod.reaches("100.80.0.17:22") && !guarded.pod.reaches("100.80.0.17:9100"));
    guarded.unguard();
    assert_eq!(closed.map(|address| guarded.pod.reaches(address)), [true; 4]);
}

#[test]
fn a_pod_network_that_needs_the_worker_itself_reaches_it() {
    if !geteuid().is_root() {
        return;
    }
    let guarded = GuardedWorker::start();
    let (_open, _pod) = (guarded.worker.listen(4789), guarded.pod.listen(8080));
    let mut cluster = crate::samples::cluster();
    cluster.cni.enabled = false;
    let config = crate::reachable::desired_firewall(
        cluster,
        crate::peer::PeerAssignment::default(),
        &crate::open_ports::OpenPorts::default(),
        &BTreeSet::new(),
        || vec!["eth0".to_owned()],
    );
    guarded.worker.within(move || set(&config).map(drop).unwrap());
    assert!(guarded.remote.reaches("100.80.0.17:4789") && guarded.pod.reaches("100.80.0.17:4789"));
    assert!(!guarded.neighbour.reaches("10.96.0.1:80") && !guarded.neighbour.reaches("100.80.0.17:4789"));
}

#[test]
fn the_firewall_is_set_again_only_after_a_change() {
    if !geteuid().is_root() {
        return;
    }
    let machine = NetworkMachine::new();
    let mut keeper = FirewallKeeper::default();
    let handle = |machine: &NetworkMachine| machine.shell("nft -a list table ip keelway-node | head -n 1");
    let mut keep = |ports: &[(Transport, u16)]| {
        let config = config(ports);
        let (kept, set) = machine.within({
            let mut keeper = std::mem::take(&mut keeper);
            move || {
                let set = keeper.keep(config);
                (keeper, set)
            }
        });
        keeper = kept;
        set.unwrap();
        handle(&machine)
    };
    let first = keep(&[]);
    assert_eq!(keep(&[]), first);
    let second = keep(&[(Transport::Tcp, 22)]);
    assert_ne!(second, first);
    machine.shell("nft delete table ip keelway-node");
    assert_ne!(keep(&[(Transport::Tcp, 22)]), second);
}
