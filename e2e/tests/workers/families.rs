//! A cluster with ranges of both families: IPv6 works like IPv4.

use keelway_e2e::{
    deadline,
    worker_fleet::{AGNHOST, TestCluster},
};

use crate::pods::GET;

/// The default ranges, each with an IPv6 range beside it.
pub(crate) const RANGES: [&str; 6] = [
    "--vpn-cidr=198.19.128.0/18",
    "--vpn-cidr=fd00:80::/64",
    "--pod-cidr=10.244.0.0/16",
    "--pod-cidr=fd00:244::/56",
    "--service-cidr=10.96.0.0/16",
    "--service-cidr=fd00:96::/108",
];
/// Many times the size of a packet.
const MUCH: &str = "20M";

pub(crate) fn both_carry(cluster: &TestCluster) {
    for worker in cluster.workers {
        let addresses =
            cluster.value(&format!("node/{worker}"), "{.status.addresses[?(@.type=='InternalIP')].address}");
        let peer = cluster.value(&format!("wireguardpeer/{worker}"), "{.status.addresses[*]}");
        assert_eq!(addresses, peer, "{worker} has the addresses of its peer");
        assert_eq!(addresses.split(' ').filter(|address| address.starts_with("fd00:80::")).count(), 1, "{addresses}");
    }
    start(cluster);
    let service = cluster.value("service/six", "{.spec.clusterIPs[1]}");
    assert!(service.starts_with("fd00:96::"), "{service}");
    for from in cluster.workers {
        for to in cluster.workers {
            let address = cluster.value(&format!("pod/six-{to}"), "{.status.podIPs[1].ip}");
            assert!(address.starts_with("fd00:244:"), "{address}");
            let get = |path: &str| format!("{GET} get {address} 8080 {path}");
            let finished = cluster.shell(&format!("six-{from}"), &get("/data/name")).succeeded();
            assert_eq!(finished.text(), format!("six-{to}"), "{from} asks {address}");
            let sent = cluster.shell(&format!("six-{to}"), "sha256sum < /data/much").succeeded();
            let got = cluster.shell(&format!("six-{from}"), &format!("{} | sha256sum", get("/data/much"))).succeeded();
            assert_eq!(got.text(), sent.text(), "{MUCH} from {to} to {from}");
        }
        deadline::until(&format!("six-{from} is answered by all of {service}"), deadline::KUBERNETES, || {
            let asks = format!("{GET} for i in 1 2 3 4 5 6 7 8 9 10; do get {service} 80 /data/name; echo; done");
            let finished = cluster.shell(&format!("six-{from}"), &asks).succeeded();
            cluster.workers.iter().all(|worker| finished.text().lines().any(|line| line == format!("six-{worker}")))
        });
    }
}

/// Starts a pod on each worker that serves its name and random bytes, and a Service over all of them.
fn start(cluster: &TestCluster) {
    let service = "
apiVersion: v1
kind: Service
metadata: {name: six}
spec: {ipFamilyPolicy: RequireDualStack, selector: {app: six}, ports: [{port: 80, targetPort: 8080}]}
";
    let pod = |worker: &&str| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: six-{worker}, labels: {{app: six}}}}
spec:
  nodeName: {worker}
  terminationGracePeriodSeconds: 1
  containers:
    - name: six
      image: {AGNHOST}
      command:
        - /bin/bash
        - -c
        - echo -n six-{worker} > /data/name; head -c {MUCH} /dev/urandom > /data/much; exec /agnhost test-webserver --port=8080
      volumeMounts: [{{name: data, mountPath: /data}}]
      readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}
  volumes: [{{name: data, emptyDir: {{}}}}]
"
        )
    };
    cluster.kubectl.apply(service);
    cluster.start("app=six", &cluster.workers.iter().map(pod).collect::<Vec<_>>());
}
