//! A manager of a directory of documents, killed repeatedly while clusters are created, changed and deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use keelway_api::{Documents, condition::is_true, release};
use keelway_cri::{CriContainerState, CriSandboxState};
use keelway_e2e::{deadline, manager::documents_in, process};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::{
    machine::Machine,
    world::{hypervisor, program},
};

const CLUSTERS: usize = 10;
const KILLS: usize = 100;
/// The number of clusters that are changed, and of clusters that are deleted. One cluster is created in each of the first rounds.
const CHANGED: usize = 5;
/// The longest time in milliseconds that a manager runs. Creating a cluster takes longer on two processors.
const LIFE: u64 = 600;

/// All clusters converge, nothing remains of deleted clusters, and no pod is created twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_is_killed_again_and_again() {
    let seed = env::var("KEELWAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u64>);
    println!("KEELWAY_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = Managed::start(3).await;
    for round in 0..KILLS {
        if let Some(cluster) = (round < CLUSTERS).then_some(round) {
            world.ask_for(cluster);
        }
        if round == KILLS / 2 {
            // Changes and deletions start with all clusters available.
            world.begin();
            world.settles().await;
            world.kill().await;
        }
        let after = round.checked_sub(KILLS / 2).filter(|after| *after < 2 * CHANGED);
        if let Some(changed) = after.filter(|after| *after < CHANGED) {
            world.change(changed);
        }
        world.begin();
        if let Some(deleted) = after.and_then(|after| after.checked_sub(CHANGED)) {
            world.delete(CHANGED + deleted).await;
        }
        sleep(Duration::from_millis(random.random_range(0..LIFE))).await;
        world.kill().await;
    }
    world.begin();
    world.settles().await;
    world.is_as_asked_for().await;
}

/// A machine that hangs delays only the clusters that use it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_machine_delays_no_other() {
    let mut world = Managed::start(3).await;
    world.ask_for(0);
    world.ask_for(1);
    world.begin();
    world.settles().await;
    let documents = world.documents();
    let on = |cluster: &str| -> BTreeSet<String> {
        let found = documents.components.values().filter(|component| component.spec.cluster.name == cluster);
        found.map(|component| component.spec.hypervisor.to_string()).collect()
    };
    let hangs = on("c0").difference(&on("c1")).next().expect("a machine that only one of them uses").clone();
    let hanging = world.machine(&hangs).pid();
    process::signal(hanging, Signal::STOP);
    world.touch("c0");
    world.change(1);
    let took = world.until("what was asked for runs", || {
        let documents = world.documents();
        let schedulers = documents.components.values().filter(|component| {
            component.spec.cluster.name == "c1" && component.spec.role == keelway_api::role::Role::KubeScheduler
        });
        schedulers.filter(|one| one.status.as_ref().is_some_and(|status| is_true(&status.conditions, "Ready"))).count()
            == 2
    });
    println!("{} ms  until a cluster beside the machine that hangs was changed", took.await.as_millis());
    let machine = &world.documents().hypervisors[&hangs.parse().unwrap()];
    assert!(
        is_true(&machine.status.as_ref().unwrap().conditions, "Ready"),
        "it was done before anybody had given up on the machine that hangs"
    );
    process::signal(hanging, Signal::CONT);
}

/// Fake machines in one network, and their manager.
struct Managed {
    /// The private machines, then the public machine.
    machines: Vec<Machine>,
    directory: TempDir,
    manager: Option<Child>,
}

impl Managed {
    async fn start(private: u8) -> Self {
        let prefix = format!("keelway-managed-on-fake-{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let mut addresses: Vec<String> = (0..=private).map(|number| format!("--address={}", inner(number))).collect();
        addresses.push(format!("--address={}", outer(private)));
        let mut machines: Vec<Machine> = Vec::new();
        for number in 0..=private {
            let folder = directory.path().join(format!("machine-{number}"));
            fs::create_dir(&folder).unwrap();
            let network = machines.first().map(|first| vec![format!("--beside={}", first.pid())]);
            machines.push(Machine::start(&folder, &network.unwrap_or_else(|| addresses.clone())).await);
        }
        let world = Self { machines, directory, manager: None };
        for number in 0..private {
            let name = format!("hv-{number}");
            let socket = &world.machines[usize::from(number)].socket;
            let document = hypervisor(&name, "Private", socket, &inner(number), "");
            // The machines share a loopback interface, so each gets a port range of its own.
            let from = 20_000 + 1_000 * u16::from(number);
            let ports = format!("  portRange: {{from: {from}, to: {}}}\n", from + 999);
            world.write(&format!("hypervisors/{name}.yaml"), &format!("{document}{ports}"));
        }
        let socket = &world.machines[usize::from(private)].socket;
        let public = hypervisor("hv-public", "Public", socket, &inner(private), &outer(private));
        let ports = "  portRange: {from: 30000, to: 30999}\n";
        world.write("hypervisors/hv-public.yaml", &format!("{public}{ports}"));
        world
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("manager.sock")
    }

    fn machine(&self, name: &str) -> &Machine {
        let number = name.strip_prefix("hv-").and_then(|number| number.parse().ok());
        &self.machines[number.unwrap_or(self.machines.len() - 1)]
    }

    /// Replaces a file by a rename.
    fn write(&self, path: &str, text: &str) {
        let file = self.store().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let beside = file.with_extension("swp");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, file).unwrap();
    }

    fn ask_for(&self, number: usize) {
        let version = release::newest_version();
        let text = format!(
            "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: c{number}}}\nspec: {{version: {version}}}\n"
        );
        self.write(&format!("clusters/default/c{number}.yaml"), &text);
    }

    /// Changes a cluster to two schedulers.
    fn change(&self, number: usize) {
        let path = format!("clusters/default/c{number}.yaml");
        let text = fs::read_to_string(self.store().join(&path)).unwrap();
        let changed = text.replacen("  controlPlane:\n", "  controlPlane:\n    kubeScheduler: {replicas: 2}\n", 1);
        assert_ne!(text, changed);
        self.write(&path, &changed);
    }

    /// Changes a label, so that the manager runs a pass for the cluster.
    fn touch(&self, name: &str) {
        let path = format!("clusters/default/{name}.yaml");
        let text = fs::read_to_string(self.store().join(&path)).unwrap();
        self.write(&path, &text.replacen("metadata:\n", "metadata:\n  labels: {touched: again}\n", 1));
    }

    async fn delete(&self, number: usize) {
        self.until("the manager listens", || std::os::unix::net::UnixStream::connect(self.socket()).is_ok()).await;
        let mut command = Command::new(program());
        command.args(["delete", "cluster", &format!("c{number}"), "--wait=false", "--server"]).arg(self.socket());
        let deleted = command.env_clear().stdin(Stdio::null()).output().await.unwrap();
        assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    }

    fn begin(&mut self) {
        let log = fs::File::create(self.directory.path().join("log")).unwrap();
        // The manager is killed when the test process exits, however that happens.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program().with_file_name("keelway-manager"));
        command.arg("run").arg(format!("--store=dir:{}", self.store().display()));
        command
            .arg("--listen")
            .arg(self.socket())
            .arg("--images")
            .arg(self.directory.path())
            .arg("--metrics-listen=off");
        command.env_clear().stdin(Stdio::null()).stderr(log).kill_on_drop(true);
        self.manager = Some(command.spawn().unwrap());
    }

    async fn kill(&mut self) {
        self.manager.take().unwrap().kill().await.unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    async fn settles(&self) {
        let took = self.until("it is settled", || self.log().contains("\"settled\"") && self.is_available()).await;
        println!("{} ms  until it was settled", took.as_millis());
    }

    /// Polls a condition that has no notification.
    async fn until(&self, what: &str, holds: impl Fn() -> bool) -> Duration {
        let started = std::time::Instant::now();
        let waiting = async {
            while !holds() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = timeout(deadline::SETTLE, waiting).await.is_ok();
        assert!(in_time, "{what}: not within {} s\n{}", deadline::SETTLE.as_secs(), self.log());
        started.elapsed()
    }

    fn documents(&self) -> Documents {
        self.read().unwrap_or_default()
    }

    /// Returns none while a document is being replaced.
    fn read(&self) -> Option<Documents> {
        documents_in(&self.store())
    }

    fn is_available(&self) -> bool {
        let Some(documents) = self.read() else { return false };
        let is_available = |cluster: &keelway_api::Cluster| {
            cluster.status.as_ref().is_some_and(|status| is_true(&status.conditions, "Available"))
        };
        !documents.clusters.is_empty()
            && documents.clusters.values().all(|cluster| is_available(cluster) && !cluster.deleted())
    }

    /// Asserts that the machines run what the documents say, and that each pod was created once per cluster.
    async fn is_as_asked_for(&self) {
        let documents = self.documents();
        let clusters: Vec<&str> = documents.clusters.keys().map(|name| name.name.as_str()).collect();
        assert_eq!(clusters, ["c0", "c1", "c2", "c3", "c4"]);
        let mut made: BTreeMap<String, usize> = BTreeMap::new();
        for (name, document) in &documents.hypervisors {
            let machine = self.machine(name.as_str());
            let seen = machine.seen("").await;
            let wanted = documents.components.values().filter(|component| component.spec.hypervisor == *name);
            assert_eq!(seen.sandboxes.len(), wanted.count(), "{name}: {:?}", seen.sandboxes);
            assert!(seen.sandboxes.iter().all(|(_, state)| *state == CriSandboxState::Ready), "{:?}", seen.sandboxes);
            let runs = |state: &CriContainerState| *state == CriContainerState::Running;
            assert!(seen.containers.iter().all(|(_, state)| runs(state)), "{:?}", seen.containers);
            let ids =
                |path: &Path| path.strip_prefix("var/lib/keelway").ok()?.iter().next()?.to_str().map(str::to_owned);
            let known: Vec<String> =
                documents.clusters.values().map(|cluster| cluster.id().unwrap().to_string()).collect();
            let others = seen.files.keys().filter_map(|path| ids(path)).filter(|id| id.len() == known[0].len());
            let others: Vec<String> = others.filter(|id| !known.contains(id)).collect();
            assert!(others.is_empty(), "{name} keeps files of clusters that are gone: {others:?}");
            assert!(document.status.is_some());
            for call in machine.calls().into_iter().filter(|call| call.starts_with("RunPodSandbox ")) {
                *made.entry(call).or_default() += 1;
            }
        }
        println!("{made:?}");
        let second = made.remove("RunPodSandbox kube-scheduler-1");
        assert_eq!(second, Some(CHANGED));
        assert!(made.values().all(|count| *count == CLUSTERS), "a pod was made twice, or never: {made:?}");
    }
}

fn inner(number: u8) -> String {
    format!("198.19.0.{}", 11 + number)
}

fn outer(number: u8) -> String {
    format!("198.18.0.{}", 11 + number)
}
