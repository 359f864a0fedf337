//! `kubeadm upgrade` of one node, and Keelway's upgrades of a cluster of the same size and of a highly available one: one after the other, from the
//! second newest minor version to the newest, with the same images, the same clients and the same host.

use std::{
    fs, thread,
    time::{Duration, SystemTime},
};

use keelway_api::jiff::Timestamp;
use keelway_api::{
    release::{MINORS, MinorRelease, Release},
    role::Role,
};
use keelway_e2e::{
    Kubectl, deadline,
    load::{Load, Report},
    machine::millis,
    worker_fleet::{TestWorker, WorkerFleet},
};

use crate::{archives, steps};

/// The machine of kubeadm's node, and therefore the name of the Node.
const NODE: &str = "kubeadm";
/// Numbers of replicas of Keelway's clusters.
const KEELWAY: [(&str, [&str; 6]); 2] = [
    (
        "Keelway, one API server and one etcd member",
        ["--etcd-replicas", "1", "--control-plane-replicas", "1", "--ingress-replicas", "1"],
    ),
    (
        "Keelway, two API servers and three etcd members",
        ["--etcd-replicas", "3", "--control-plane-replicas", "2", "--ingress-replicas", "2"],
    ),
];
/// The roles that both replace. An upgrade has one phase for each.
const PHASES: [Role; 4] = [Role::Etcd, Role::KubeApiserver, Role::KubeControllerManager, Role::KubeScheduler];
/// Requests before an upgrade begins, so that clients have their connections and the watch.
const WARM_UP: usize = 100;

/// kubeadm and its kubelet come before the newer kubelet among the programs of the test.
const PATH: &str = "PATH=/usr/local/bin:$PATH";
/// A Node is ready only with a pod network, and kubeadm runs a Job before it upgrades anything.
const POD_NETWORK: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [{
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]}
  }]
}"#;
/// The kubelet as its systemd unit from kubeadm's packages starts it. The host of a test has no systemd, so kubeadm only warns that it cannot do that.
const KUBELET: &str = ". /var/lib/kubelet/kubeadm-flags.env
setsid kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS \
  > /var/log/kubelet.log 2>&1 < /dev/null &";

/// An upgrade, and what clients saw meanwhile.
struct ComparedUpgrade {
    what: &'static str,
    took: Duration,
    /// The times from the start of the upgrade to the creation of the last new container of each role.
    phases: [Duration; PHASES.len()],
    load: Report,
}

/// A control plane that kubeadm created.
struct KubeadmNode<'a> {
    worker: TestWorker<'a>,
    kubectl: Kubectl,
}

pub(crate) fn compare(tag: &str) {
    let [.., previous, newest] = MINORS.each_ref().map(MinorRelease::newest_tested);
    let worker_fleet = WorkerFleet::with_private(tag, "2", "3");
    archives::import_on_hypervisors(&worker_fleet, previous);
    let mut upgrades = vec![of_kubeadm(&worker_fleet, previous, newest)];
    for (what, replicas) in KEELWAY {
        upgrades.push(of_keelway(&worker_fleet, what, &replicas, [previous, newest]));
    }
    let phases = PHASES.map(|role| role.row().name).join(" | ");
    println!(
        "| {previous} to {newest} | {phases} | Time | Requests | Failed | Longest request | Longest time without response |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for upgrade in &upgrades {
        println!("{}", upgrade.row());
    }
    // With one API server, requests may fail.
    upgrades.last().unwrap().load.assert_good();
}

fn of_kubeadm(worker_fleet: &WorkerFleet, from: Release, to: Release) -> ComparedUpgrade {
    worker_fleet.create_worker(NODE, "");
    archives::import_for_kubeadm(worker_fleet, NODE, [from, to]);
    let node = KubeadmNode::create(worker_fleet, from);
    let started = SystemTime::now();
    let (took, load) = under_load(&node.kubectl, || node.upgrade(to));
    node.is_ready();
    let phases = PHASES.map(|role| since(started, node.created(role)));
    let version = node.kubectl.run(&["get", "--raw=/version"]).succeeded().json();
    assert_eq!(version["gitVersion"], format!("v{to}"));
    worker_fleet.destroy_worker(NODE);
    ComparedUpgrade { what: "kubeadm, one node", took, phases, load }
}

fn of_keelway(
    worker_fleet: &WorkerFleet,
    what: &'static str,
    replicas: &[&str],
    [from, to]: [Release; 2],
) -> ComparedUpgrade {
    let version = from.to_string();
    worker_fleet.write(&[&["cluster", "inject", "--name", "c1", "--version", &version][..], replicas].concat());
    worker_fleet.reconcile();
    let cluster = worker_fleet.cluster("c1", &[]);
    let started = SystemTime::now();
    let (took, load) = under_load(&cluster.kubectl, || steps::upgrade(worker_fleet, to));
    steps::control_plane_runs(worker_fleet, &cluster, to);
    let created = |role| worker_fleet.each(&cluster, role, |component, machine| machine.of(component).unwrap().created);
    let phases = PHASES.map(|role| since(started, created(role).into_iter().max().unwrap()));
    worker_fleet.write(&["cluster", "delete", "--name", "c1"]);
    worker_fleet.reconcile();
    ComparedUpgrade { what, took, phases, load }
}

/// Returns the time of a phase. Fails the test if its last container is older than the upgrade.
fn since(started: SystemTime, created: SystemTime) -> Duration {
    created.duration_since(started).unwrap()
}

/// Returns how long an upgrade took, and what clients saw meanwhile.
fn under_load(kubectl: &Kubectl, upgrade: impl FnOnce() -> Duration) -> (Duration, Report) {
    let load = Load::start(kubectl);
    load.wait_for_requests(WARM_UP);
    let _ = load.lap("before the upgrade");
    let took = upgrade();
    (took, load.end())
}

impl ComparedUpgrade {
    fn row(&self) -> String {
        let Report { requests, failures, longest, longest_outage, .. } = &self.load;
        let (took, longest, outage) = (self.took.as_secs_f64(), longest.as_millis(), longest_outage.as_millis());
        let phases = self.phases.map(|phase| format!("{:.0} s", phase.as_secs_f64())).join(" | ");
        format!(
            "| {} | {phases} | {took:.0} s | {requests} | {} | {longest} ms | {outage} ms |",
            self.what,
            failures.len()
        )
    }
}

impl<'a> KubeadmNode<'a> {
    fn create(worker_fleet: &'a WorkerFleet, release: Release) -> Self {
        let worker = worker_fleet.worker(NODE);
        copy(&worker, &release.node_image(None), "opt/cni/bin/*", "/opt/cni/bin");
        copy(&worker, &release.node_image(None), "usr/local/bin/kubelet", "/usr/local/bin");
        copy(&worker, &archives::kubeadm(release), "usr/local/bin/kubeadm", "/usr/local/bin");
        let network =
            "mkdir -p /etc/cni/net.d; cat > /etc/cni/net.d/pods.conflist; echo 1 > /proc/sys/net/ipv4/ip_forward";
        let _ = worker.run(&["bash", "-ec", network], POD_NETWORK.as_bytes()).succeeded();
        initialize(&worker, release);
        let kubeconfig = worker.shell("cat /etc/kubernetes/admin.conf").succeeded().stdout;
        let file = worker_fleet.fleet.keelway.directory().join("kubeadm.kubeconfig");
        fs::write(&file, kubeconfig).unwrap();
        let node = Self { worker, kubectl: Kubectl::new(&file) };
        node.is_ready();
        node
    }

    /// Waits until the Node and its static pods are ready. The kubelet creates their mirrors in the API when it can.
    fn is_ready(&self) {
        let pods = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
        let pods = pods.map(|component| format!("pod/{component}-{NODE}"));
        let node = format!("node/{NODE}");
        let wait = ["wait", "--for=condition=Ready", "--timeout=10s", "--namespace=kube-system", &node];
        let wait: Vec<&str> = wait.into_iter().chain(pods.iter().map(String::as_str)).collect();
        let took = deadline::until("kubeadm's control plane is ready", deadline::KUBERNETES, || {
            self.kubectl.run(&wait).code() == 0
        });
        println!("{}  until kubeadm's control plane was ready", millis(took));
    }

    /// Returns when the container of a static pod was started.
    fn created(&self, role: Role) -> SystemTime {
        let pod = format!("{}-{NODE}", role.row().name);
        let path = "jsonpath={.status.containerStatuses[0].state.running.startedAt}";
        let started = self.kubectl.run(&["get", "pod", &pod, "--namespace=kube-system", "--output", path]).succeeded();
        started.text().parse::<Timestamp>().unwrap().into()
    }

    /// Upgrades the control plane, and returns how long the command of kubeadm took. The kubelet stays, because its upgrade is another step.
    fn upgrade(&self, to: Release) -> Duration {
        copy(&self.worker, &archives::kubeadm(to), "usr/local/bin/kubeadm", "/usr/local/bin");
        // The system verification refuses version 1 of cgroups. The other two are about the Corefile of CoreDNS, which this cluster does not have.
        let ignored = "--ignore-preflight-errors=SystemVerification,CoreDNSUnsupportedPlugins,CoreDNSMigration";
        let upgraded = self.worker.shell(&format!("{PATH} kubeadm upgrade apply v{to} --yes {ignored}")).succeeded();
        println!("{}", upgraded.text());
        upgraded.took
    }
}

/// Runs `kubeadm init`, and starts the kubelet in the middle of it, once kubeadm has written its configuration.
fn initialize(worker: &TestWorker<'_>, release: Release) {
    let address = worker.shell("hostname -I").succeeded();
    let config = config(address.text().split_whitespace().next().unwrap(), release);
    // The system verification refuses version 1 of cgroups.
    let init = format!("{PATH} kubeadm init --config=/dev/stdin --ignore-preflight-errors=SystemVerification");
    thread::scope(|scope| {
        let init = scope.spawn(|| worker.run(&["bash", "-ec", &init], config.as_bytes()));
        deadline::until("kubeadm has configured the kubelet", deadline::KUBERNETES, || {
            init.is_finished() || worker.shell("test -s /var/lib/kubelet/config.yaml").code() == 0
        });
        let _ = worker.shell(&format!("export {PATH}\n{KUBELET}")).succeeded();
        let _ = init.join().unwrap().succeeded();
    });
}

/// Returns kubeadm's configuration. Keelway's clusters of this comparison have no workers, and therefore no pods of add-ons: kubeadm installs and upgrades
/// none, either. The kubelet runs with the cgroups and the rights of the host, as the kubelets of workers do.
fn config(address: &str, release: Release) -> String {
    format!(
        "
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {{advertiseAddress: {address}}}
nodeRegistration:
  criSocket: unix:///run/containerd/containerd.sock
  kubeletExtraArgs: [{{name: node-ip, value: {address}}}]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v{release}
dns: {{disabled: true}}
proxy: {{disabled: true}}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
"
    )
}

/// Copies files of an image to a directory of the machine. The image stays mounted until the machine is removed.
fn copy(worker: &TestWorker<'_>, image: &str, files: &str, to: &str) {
    let script = format!(
        "mkdir -p /run/{image} {to}
mountpoint -q /run/{image} || ctr --namespace k8s.io images mount {image} /run/{image}
cp /run/{image}/{files} {to}"
    );
    let _ = worker.shell(&script).succeeded();
}
