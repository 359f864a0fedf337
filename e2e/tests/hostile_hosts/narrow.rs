//! A worker whose router has an MTU of 1400, and drops fragments and its own reports of that. It joins, and large transfers of each kind arrive.

use std::{path::Path, process::Command};

use keelway_e2e::{
    command::run,
    deadline,
    worker_fleet::{AGNHOST, TestCluster, WorkerFleet},
};

/// The router: both links have a small MTU, ICMP about that and fragments are dropped.
const NARROW: &str = "ip link set outside mtu 1400
ip link set inside mtu 1400
nft 'table ip narrow {
    chain reports { type filter hook output priority 0; icmp type destination-unreachable drop; }
}
table netdev narrow {
    chain outside { type filter hook egress device outside priority 0; ip frag-off & 0x3fff != 0 drop; }
    chain inside { type filter hook egress device inside priority 0; ip frag-off & 0x3fff != 0 drop; }
}'";
/// The sizes of the transfers, in bytes. A log has a line break in addition.
const LOG: usize = 1_000_000;
const BETWEEN_PODS: usize = 3_000_000;

/// The NAT in front of the machine, and nothing else.
pub(crate) const ROUTER: &str = "narrow-router";

pub(crate) fn is_passed(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let router = Path::new("/run/keelway-local").join(&worker_fleet.fleet.fleet).join(format!("nat-{ROUTER}/net"));
    let inside = format!("--net={}", router.display());
    let _ = run(Command::new("nsenter").args([&inside, "sh", "-ec", NARROW]), &[], deadline::READ).succeeded();
    worker_fleet.join_one(cluster, name, &worker_fleet.token(cluster));
    let pod = format!("on-{name}");
    cluster.start(&format!("app={pod}"), &[manifest(&pod, name)]);

    // The kubelet may not have its serving certificate yet.
    deadline::until("the whole log is read", deadline::KUBERNETES, || {
        let log = cluster.kubectl.run(&["logs", &pod]);
        log.code() == 0 && log.stdout.len() > LOG
    });
    let printed = cluster.shell(&pod, &format!("printf %0{LOG}d 0")).succeeded();
    assert_eq!(printed.stdout.len(), LOG);
    for (from, to) in [("on-clean", pod.as_str()), (pod.as_str(), "on-clean")] {
        let arrived = transfer(cluster, from, to);
        assert!(arrived > BETWEEN_PODS, "{arrived} bytes from {to} to {from}");
    }
    let _ = cluster.kubectl.run(&["delete", "pod", &pod, "--wait=false"]).succeeded();
}

/// A pod that writes a long line to its log, and serves.
fn manifest(pod: &str, worker: &str) -> String {
    let command = format!("printf '%0{LOG}d\\n' 0; exec /agnhost netexec --http-port=8080");
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {pod}, labels: {{app: {pod}}}}}
spec:
  nodeName: {worker}
  terminationGracePeriodSeconds: 1
  containers: [{{name: serves, image: '{AGNHOST}', command: [/bin/bash, -c, {command:?}]}}]
"
    )
}

/// Requests many bytes of another pod. Returns how many arrived.
pub(crate) fn transfer(cluster: &TestCluster, from: &str, of: &str) -> usize {
    let address = cluster.value(&format!("pod/{of}"), "{.status.podIP}");
    let request = format!("GET /shell?cmd=printf%20%250{BETWEEN_PODS}d%200 HTTP/1.0");
    let script = format!("exec 3<>/dev/tcp/{address}/8080; printf '%s\\r\\n\\r\\n' '{request}' >&3; cat <&3");
    cluster.shell(from, &script).succeeded().stdout.len()
}
