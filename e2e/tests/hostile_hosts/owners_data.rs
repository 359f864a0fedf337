//! Data of the machine's owner, in volumes of pods that run while the worker leaves by force or forgets its cluster. The kubelet's directory is a
//! symbolic link, the owner has mounted a directory below it, and the program of the join is in a directory that is gone afterwards.

use std::path::Path;

use keelway_e2e::worker_fleet::{AGNHOST, TestCluster, TestWorker, WorkerFleet};

/// The data is in directories and on a file system of its own, such as NFS or a disk.
const MACHINE: &str = "
mkdir -p /var/lib/disk/kubelet /var/lib/data/below /var/lib/share /run/download
ln -s disk/kubelet /var/lib/kubelet
mount -t tmpfs tmpfs /var/lib/share
for directory in /var/lib/data /var/lib/data/below /var/lib/share; do echo owner > $directory/owner; done";
/// A download of the program.
const DOWNLOAD: &str =
    "touch /run/download/keelway; mount --bind $(readlink -f $(command -v keelway)) /run/download/keelway";
const NO_DOWNLOAD: &str = "umount -l /run/download/keelway; rm /run/download/keelway";
const DOWNLOADED: &str = "/run/download/keelway";
/// The directory of programs is the default.
const INSTALLED: &str = "/usr/local/bin/keelway";
/// A mount of the owner in the kubelet's directory.
const OWNERS_MOUNT: &str = "mkdir /var/lib/kubelet/owner; mount --bind /var/lib/data /var/lib/kubelet/owner";
const SETTINGS_OF_IPV6: &str =
    "grep . /proc/sys/net/ipv6/conf/{all,default,uplink}/{forwarding,accept_ra}; ip -6 route show default";
/// The files that survive: those of the owner, and those that the pod wrote to its volumes.
const FILES: [&str; 5] = [
    "/var/lib/data/owner",
    "/var/lib/data/below/owner",
    "/var/lib/share/owner",
    "/var/lib/data/below/pod",
    "/var/lib/share/pod",
];

pub(crate) fn survives(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    let _ = worker.shell(MACHINE).succeeded();
    for leave in [&["leave", "--force", "--drain-timeout", "1s"][..], &["forget"]] {
        joins(worker_fleet, cluster, name);
        uses_volumes(cluster, name);
        let _ = worker.shell(OWNERS_MOUNT).succeeded();
        let mounts = worker.shell("grep -c ' /var/lib/disk/kubelet/pods/.*volume' /proc/mounts").succeeded();
        assert!(mounts.text().trim().parse::<u32>().unwrap() >= 4, "the pod has volumes: {}", mounts.text());
        let _ = worker.run(&[&["keelway", "node"], leave].concat(), &[]).succeeded();
        is_as_before(&worker, leave);
        let _ = cluster.kubectl.run(&["delete", "node,wireguardpeer", name, "--ignore-not-found"]).succeeded();
        let _ = cluster.kubectl.run(&["delete", "pod,pvc,pv,pdb", "-l", "app=volumes", "--force"]).succeeded();
    }
}

/// Joins with a program that is gone afterwards. The daemon starts again without it.
fn joins(worker_fleet: &WorkerFleet, cluster: &TestCluster, name: &str) {
    let worker = worker_fleet.worker(name);
    let _ = worker.shell(DOWNLOAD).succeeded();
    let settings = || worker.shell(SETTINGS_OF_IPV6).succeeded().text().to_owned();
    let before = settings();
    let command = [DOWNLOADED, "node", "join", "-", "--allow-cgroup-v1", "--service", "detached"];
    let _ = worker.run(&command, &worker_fleet.token(cluster)).succeeded();
    let _ = worker.shell(NO_DOWNLOAD).succeeded();
    let daemon = worker.status();
    let program = worker.shell(&format!("readlink /proc/{}/exe", daemon["pid"])).succeeded();
    assert_eq!(program.text().trim(), INSTALLED);
    let _ = worker.shell(&format!("kill {}", daemon["pid"])).succeeded();
    worker.start_daemon(Path::new(INSTALLED));
    let _ = worker.another_daemon(&daemon);
    assert_eq!(settings(), before, "the cluster has no ranges of IPv6");
}

/// Runs a pod that writes to its volumes, and whose eviction is not allowed.
fn uses_volumes(cluster: &TestCluster, name: &str) {
    cluster.kubectl.apply(&format!(
        "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: volumes, labels: {{app: volumes}}}}
spec: {{minAvailable: 1, selector: {{matchLabels: {{app: volumes}}}}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: volumes, labels: {{app: volumes}}}}
spec:
  capacity: {{storage: 1Mi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  local: {{path: /var/lib/share}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/os, operator: Exists}}]}}]}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: volumes, labels: {{app: volumes}}}}
spec:
  storageClassName: ''
  volumeName: volumes
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 1Mi}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: volumes, labels: {{app: volumes}}}}
spec:
  nodeName: {name}
  containers:
  - name: writes
    image: '{AGNHOST}'
    command: [/bin/bash, -c, 'echo pod > /below/pod; echo pod > /local/pod; exec /agnhost pause']
    volumeMounts:
    - {{name: data, mountPath: /data, readOnly: true}}
    - {{name: data, mountPath: /below, subPath: below}}
    - {{name: share, mountPath: /share}}
    - {{name: local, mountPath: /local}}
    - {{name: memory, mountPath: /memory}}
    - {{name: memory, mountPath: /memory-below, subPath: below}}
  volumes:
  - name: data
    hostPath: {{path: /var/lib/data}}
  - name: share
    hostPath: {{path: /var/lib/share}}
  - name: local
    persistentVolumeClaim: {{claimName: volumes}}
  - name: memory
    emptyDir: {{medium: Memory}}
"
    ));
    cluster.kubectl.wait("condition=Ready", &["pod/volumes"]);
}

/// The data is there, and nothing of the worker.
fn is_as_before(worker: &TestWorker<'_>, leave: &[&str]) {
    for file in FILES {
        let owner = if file.ends_with("owner") { "owner" } else { "pod" };
        assert_eq!(worker.shell(&format!("cat {file}")).text().trim(), owner, "{leave:?}: {file}");
    }
    let is = |script: &str, expected: &str| {
        assert_eq!(worker.shell(script).text().trim(), expected, "{leave:?}: {script}");
    };
    is("readlink /var/lib/kubelet", "disk/kubelet");
    is("ls -A /var/lib/disk/kubelet", "");
    is("grep -c /var/lib/disk/kubelet /proc/mounts || true", "0");
    is("grep -c '^tmpfs /var/lib/share ' /proc/mounts", "1");
    is(&format!("test -e {INSTALLED} || echo gone"), "gone");
}
