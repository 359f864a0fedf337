//! Pods of different workers that connect to each other.

use std::collections::BTreeSet;

use keelway_e2e::{
    deadline,
    worker_fleet::{AGNHOST, TestCluster},
};

/// A shell function that sends an HTTP request and prints the body of the response.
pub(crate) const GET: &str = "get() { exec 3<>/dev/tcp/$1/$2; printf 'GET %s HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n' $3 >&3; \
    while IFS= read -r line <&3; do [ \"$line\" = $'\\r' ] && break; done; cat <&3; }; ";
/// The amount of data that is sent through a Service.
const MUCH: &str = "400M";

/// Starts a pod on each worker, with a Service over all of them.
pub(crate) fn start(cluster: &TestCluster) {
    cluster.start_peers();
    cluster.kubectl.apply(
        "
apiVersion: v1
kind: Service
metadata: {name: peers}
spec: {selector: {app: peer}, ports: [{port: 80, targetPort: 8080}]}
",
    );
    cluster.kubectl.apply(&format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: store, labels: {{app: store}}}}
spec:
  nodeName: w1
  terminationGracePeriodSeconds: 1
  containers:
    - name: store
      image: {AGNHOST}
      command: [/bin/bash, -c, 'head -c {MUCH} /dev/urandom > /data/much && exec /agnhost test-webserver --port=8080']
      volumeMounts: [{{name: data, mountPath: /data}}]
      readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}
  volumes: [{{name: data, emptyDir: {{}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: store}}
spec: {{selector: {{app: store}}, ports: [{{port: 80, targetPort: 8080}}]}}
"
    ));
    cluster.kubectl.wait("condition=Ready", &["pod/store"]);
}

/// Pods reach each other by address, by the address of the Service, and by its name.
pub(crate) fn each_reaches_each(cluster: &TestCluster) {
    let service = cluster.value("service/peers", "{.spec.clusterIP}");
    by_address(cluster, cluster.workers);
    for from in cluster.workers {
        for host in [service.as_str(), "peers", "peers.default.svc.cluster.local"] {
            all_answer(cluster, &format!("on-{from}"), host);
        }
    }
}

/// Pods on these workers reach each other by address.
pub(crate) fn by_address(cluster: &TestCluster, workers: &[&str]) {
    for from in workers {
        let pod = format!("on-{from}");
        for to in workers {
            let address = cluster.value(&format!("pod/on-{to}"), "{.status.podIP}");
            let finished = cluster.shell(&pod, &format!("{GET} get {address} 8080 /hostname"));
            assert_eq!(finished.text(), format!("on-{to}"), "{pod} asks {address}: {}", finished.stderr);
        }
    }
}

fn all_answer(cluster: &TestCluster, pod: &str, host: &str) {
    deadline::until(&format!("{pod} is answered by all of {host}"), deadline::KUBERNETES, || {
        let script = format!("{GET} for i in 1 2 3 4 5 6 7 8 9 10 11 12; do get {host} 80 /hostname; echo; done");
        let finished = cluster.shell(pod, &script).succeeded();
        finished.text().lines().collect::<BTreeSet<_>>().len() == cluster.workers.len()
    });
}

pub(crate) fn much_arrives_as_it_was_sent(cluster: &TestCluster) {
    let digest = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
    let sent = cluster.shell("store", "sha256sum /data/much").succeeded();
    for from in ["on-w2", "on-w3"] {
        let got = cluster.shell(from, &format!("{GET} get store 80 /data/much | sha256sum")).succeeded();
        assert_eq!(digest(got.text()), digest(sent.text()), "{from}");
        println!("{:>7} ms  {MUCH} from w1 to {from}", got.took.as_millis());
    }
    let _ = cluster.kubectl.run(&["delete", "pod/store", "--wait=false"]).succeeded();
}
