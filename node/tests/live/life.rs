//! The whole life of a worker, from joining to leaving.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    time::Instant,
};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    jiff::SignedDuration,
};
use keelway_api::worker::WireGuardPeer;
use kube::{Api, api::PostParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{found, losses, machine::join, repairs, upgraded, wait, world::World};

/// Firewall rules of another program.
const OTHERS: &str = "
add table ip filter
add chain ip filter INPUT { type filter hook input priority 0; }
add chain ip filter OTHERS
add rule ip filter INPUT jump OTHERS";
/// Firewall rules that kubelets, kube-proxies and plugins of other releases or configurations leave behind.
const KUBELETS: &str = "
add chain ip filter KUBE-FIREWALL
add rule ip filter KUBE-FIREWALL counter
insert rule ip filter INPUT jump KUBE-FIREWALL
add table ip mangle
add chain ip mangle KUBE-IPTABLES-HINT
add chain ip mangle KUBE-KUBELET-CANARY
add table ip6 nat
add chain ip6 nat POSTROUTING { type nat hook postrouting priority 100; }
add chain ip6 nat CNI-HOSTPORT-MASQ
add rule ip6 nat POSTROUTING jump CNI-HOSTPORT-MASQ
add table ip cni_hostport
add chain ip cni_hostport hostports";

pub(crate) async fn whole(world: &World) {
    // The rules of other programs stay, also if the kubelet adds its own beside them.
    world.machine.output_of("nft", &[OTHERS]);
    let before = found::look(&world.machine);
    let token = world.token(SignedDuration::from_hours(1)).await.encode();
    let began = Instant::now();
    world.machine.node_well(&join(), &token).await;
    println!("{:>7} ms  from join to Ready", began.elapsed().as_millis());
    node_is_as_it_should_be(world).await;
    let pod = pod_runs(world).await;
    daemon_comes_back(world, &pod).await;
    repairs::all(world).await;
    upgraded::kubelet(world).await;
    assert_eq!(container(world).await, pod, "the container was started again");
    upgraded::as_ordered(world).await;
    upgraded::back(world).await;
    pod_runs(world).await;
    // A second join finds nothing to do, and does nothing.
    world.machine.node_well(&join(), &token).await;
    stays_what_it_is(world).await;
    losses::silent_ingress(world).await;
    losses::dead_gateway(world).await;

    world.machine.output_of("nft", &[KUBELETS]);
    let began = Instant::now();
    world.machine.node_well(&["leave", "--drain-timeout", "60s"], "").await;
    println!("{:>7} ms  left", began.elapsed().as_millis());
    let nodes: Api<Node> = Api::all(world.admin.clone());
    let peers: Api<WireGuardPeer> = Api::all(world.admin.clone());
    wait::until("the Node is gone", async || nodes.get_opt("w1").await.unwrap().is_none()).await;
    wait::until("the peer is gone", async || peers.get_opt("w1").await.unwrap().is_none()).await;
    found::same(&before, &world.machine);
    world.machine.output_of("nft", &["delete table ip filter"]);
}

/// A worker cannot join another cluster, or join under another name.
async fn stays_what_it_is(world: &World) {
    let token = world.token(SignedDuration::from_hours(1)).await;
    let mut another = token.clone();
    another.authorities = vec![format!("sha256:{}", "0".repeat(64)).parse().unwrap()];
    let renamed = [&join()[..], &["--node-name", "w9"]].concat();
    for (words, token, expected) in [
        (&join()[..], another.encode(), "this machine is a worker of another cluster"),
        (&renamed, token.encode(), "this machine has joined, or started to join, as the worker w1"),
    ] {
        let output = world.machine.node(words, &token).await;
        assert!(String::from_utf8_lossy(&output.stderr).contains(expected), "{output:?}");
    }
}

pub(crate) async fn status(world: &World) -> Value {
    // It ends with 1 if it reports a problem.
    let output = world.machine.node(&["status", "-o", "json"], "").await;
    assert!(output.status.code().is_some_and(|code| code <= 1), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn node_is_as_it_should_be(world: &World) {
    let nodes: Api<Node> = Api::all(world.admin.clone());
    let node = nodes.get("w1").await.unwrap();
    let addresses = node.status.unwrap().addresses.unwrap();
    let internal: Vec<&str> =
        addresses.iter().filter(|found| found.type_ == "InternalIP").map(|found| found.address.as_str()).collect();
    assert_eq!(internal, ["100.80.0.17"]);
    wait::until("the kubelet has its serving certificate", async || {
        status(world).await["certificates"].as_array().unwrap().len() == 2
    })
    .await;
    let kubelet = fs::metadata(world.machine.file("/var/lib/keelway-node/programs/kubelet")).unwrap();
    assert_eq!(kubelet.nlink(), 2, "the kubelet is not containerd's own file");
    all_gateways_answer(world).await;
    let now = status(world).await;
    let is = |list: &str, key: &str| now[list].as_array().unwrap().iter().filter(|entry| entry[key] == true).count();
    assert_eq!((is("tunnels", "active"), is("ingresses", "answers")), (1, 2), "{now}");
    for pid in [&now["pid"], &now["kubelet"]["pid"]] {
        let status = world.machine.output_of("grep", &["^Umask", &format!("/proc/{pid}/status")]);
        assert_eq!(status.trim(), "Umask:\t0022", "of the user's shell");
        assert_eq!(world.machine.output_of("readlink", &[&format!("/proc/{pid}/cwd")]).trim(), "/");
    }
    println!("{:>7} KiB are resident in the daemon, of which:", now["residentKib"]);
    let memory = world.machine.output_of("grep", &["^Rss", &format!("/proc/{}/status", now["pid"])]);
    memory.lines().for_each(|line| println!("        {line}"));
    let metrics = metrics(world);
    for line in ["keelway_worker_kubelet_running 1.0", "keelway_worker_ingress_up{ingress=\"203.0.113.1:20000\"} 1.0"] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    let table = world.machine.node_well(&["status"], "").await;
    assert!(table.contains("w1") && table.contains("keelway0"), "{table}");
    let listens = world.machine.output_of("ss", &["-Hltn"]);
    assert!(listens.contains("100.80.0.17:10250") && listens.contains("100.80.0.1:6443"), "{listens}");
    assert!(!listens.contains("*:10250") && !listens.contains(":10255"), "{listens}");
}

/// Reads the metrics from the socket of the daemon.
fn metrics(world: &World) -> String {
    let mut stream = UnixStream::connect(world.machine.file("/var/lib/keelway-node/metrics.sock")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

async fn all_gateways_answer(world: &World) {
    wait::until("the gateways answer in their tunnels", async || {
        let tunnels = status(world).await["tunnels"].as_array().unwrap().clone();
        tunnels.len() == 2 && tunnels.iter().all(|tunnel| tunnel["answers"] == true && tunnel["lastHandshake"].is_u64())
    })
    .await;
}

async fn pod_runs(world: &World) -> String {
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), "default");
    let pod = json!({
        "metadata": { "name": "p1" },
        "spec": {
            "nodeName": "w1",
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "c", "image": "registry.k8s.io/pause:3.10.2", "imagePullPolicy": "Never" }],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let address = wait::some("the pod runs", async || {
        let status = pods.get("p1").await.unwrap().status?;
        status.pod_ip.filter(|_| status.phase.as_deref() == Some("Running"))
    })
    .await;
    assert!(address.starts_with("10.244."), "{address}");
    container(world).await
}

/// Returns the id of the pod's container.
async fn container(world: &World) -> String {
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), "default");
    let status = pods.get("p1").await.unwrap().status.unwrap();
    status.container_statuses.unwrap().remove(0).container_id.unwrap()
}

/// The daemon is killed and started again. The kubelet and the pod are not affected.
async fn daemon_comes_back(world: &World, pod: &str) {
    let before = status(world).await;
    let daemon = i32::try_from(before["pid"].as_u64().unwrap()).unwrap();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    wait::until("the daemon has ended", async || !world.machine.node(&["status"], "").await.status.success()).await;
    let keelway = crate::built("keelway").display().to_string();
    let again = "setsid \"$1\" node run >> /var/lib/keelway-node/log/node.log 2>&1 < /dev/null &";
    world.machine.output_of("sh", &["-c", again, "sh", &keelway]);
    wait::until("the daemon is back", async || world.machine.node(&["status"], "").await.status.success()).await;
    all_gateways_answer(world).await;
    let after = status(world).await;
    assert_ne!(before["pid"], after["pid"]);
    assert_eq!(before["kubelet"]["pid"], after["kubelet"]["pid"], "the kubelet was started again");
    assert_eq!(container(world).await, pod, "the container was started again");
}
