//! One machine with a real containerd, which is a process in a network and a mount namespace of its own.
#![expect(clippy::unwrap_used, reason = "this is all test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process,
};

use futures::FutureExt;
use keelway_api::{
    machine::{
        Container, ContainerPhase, ContainerResources, MachineConfig, MachineState, Mount, OnChange, Pod, PodFile,
        Start,
    },
    name::{ClusterId, PodName},
};
use keelway_cri::testing::{Containerd, ContainerdOptions, ImageArchive, PROGRAM, build_program, cache};
use keelway_machine::report::ApplyReport;
use keelway_machine_io::{image::archive_name, local::LocalMachine};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "example.test/program:1";
const PAUSE: &str = "example.test/pause:1";
const USER: u32 = 20_417;
/// Mounts directories of the test, the first two arguments, as the machine's `/var/lib` and `/var/log`.
const SETUP: &str = r#"mount --bind "$1" /var/lib && mount --bind "$2" /var/log && shift 2 && exec "$@""#;

/// The machine's file system, as the test can read it.
struct Disk(TempDir);

impl Disk {
    fn new() -> Self {
        let disk = Self(tempfile::Builder::new().prefix("keelway-agent-disk-").tempdir().unwrap());
        for directory in ["lib", "log", "archives"] {
            fs::create_dir(disk.path(directory)).unwrap();
        }
        disk
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }
}

/// The cgroups of the cluster. They are removed on drop, also if the test fails.
struct Cgroups(ClusterId);

impl Cgroups {
    fn paths(&self) -> Vec<PathBuf> {
        let root = Path::new("/sys/fs/cgroup");
        let mut hierarchies: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
        hierarchies.push(root.to_owned());
        let below = format!("keelway/{}", self.0);
        hierarchies.into_iter().map(|path| path.join(&below)).filter(|path| path.is_dir()).collect()
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for path in self.paths() {
            for inner in fs::read_dir(&path).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(inner.path());
            }
            let _ = fs::remove_dir(path);
        }
    }
}

struct Machine {
    disk: Disk,
    local: LocalMachine,
    cluster: ClusterId,
}

impl Machine {
    async fn settle(&self, config: &MachineConfig) {
        let stop = CancellationToken::new();
        let report = self.local.apply(config, &stop, &|_| {}).await.unwrap();
        assert!(report.is_complete(), "{report:#?}");
        let again = self.local.apply(config, &stop, &|_| {}).await.unwrap();
        assert_eq!(again, ApplyReport::default());
    }

    async fn observe(&self) -> MachineState {
        self.local.observe().await.unwrap()
    }

    fn pod(&self, component: &str) -> PodName {
        PodName { cluster: self.cluster.clone(), component: component.parse().unwrap() }
    }

    fn config(&self, generation: u64, components: &[&str]) -> MachineConfig {
        let pods = components.iter().map(|component| (self.pod(component), pod()));
        MachineConfig {
            format: keelway_api::machine::ConfigFormat::NEWEST,
            installation: "00000000000000ff".parse().unwrap(),
            term: 1,
            generation,
            pods: pods.collect(),
            others: BTreeSet::new(),
            removals: std::collections::BTreeMap::new(),
        }
    }
}

fn pod() -> Pod {
    let container = |name: &str| Container {
        name: name.to_owned(),
        image: IMAGE.to_owned(),
        command: vec![PROGRAM.to_owned(), "serve".to_owned()],
        mounts: vec![
            Mount { source: "files".to_owned(), target: "/etc/files".to_owned(), read_only: true },
            Mount { source: "data".to_owned(), target: "/data".to_owned(), read_only: false },
        ],
        resources: ContainerResources {
            cpu_request_millis: 50,
            cpu_limit_millis: Some(500),
            memory_limit_bytes: 32 << 20,
        },
        stop_seconds: 5,
        liveness: None,
    };
    Pod {
        user: USER,
        files: vec![PodFile { path: "pki/key".to_owned(), content: b"key".to_vec(), on_change: OnChange::PickedUp }],
        data: vec!["data".to_owned()],
        containers: vec![container("first"), container("second")],
        pause_image: PAUSE.to_owned(),
        servers: None,
        start: Start::Always,
        hold: false,
        registries: std::collections::BTreeMap::new(),
        prefetch: std::collections::BTreeSet::new(),
    }
}

#[tokio::test]
async fn one_machine_from_nothing_to_nothing() {
    let cluster: ClusterId = format!("{:016x}", process::id()).parse().unwrap();
    let cgroups = Cgroups(cluster.clone());
    let disk = Disk::new();
    let mut prefix: Vec<_> = ["unshare", "--net", "--mount", "sh", "-ec", SETUP, "sh"].map(Into::into).into();
    prefix.extend([disk.path("lib").into(), disk.path("log").into()]);
    let containerd = Containerd::start(&ContainerdOptions {
        test: "agent".to_owned(),
        binaries: cache().unwrap().join("bin"),
        sandbox_image: PAUSE.to_owned(),
        prefix,
    })
    .await
    .unwrap();
    let program = build_program(containerd.directory()).unwrap();
    for image in [IMAGE, PAUSE] {
        let archive = ImageArchive::new(image).file(&program, PROGRAM).entrypoint([PROGRAM]);
        archive.write(&disk.path("archives").join(archive_name(image))).unwrap();
    }
    let local = LocalMachine::connect(&containerd.socket(), Some(disk.path("archives"))).await.unwrap();
    let machine = Machine { disk, local, cluster };

    let outcome = std::panic::AssertUnwindSafe(Box::pin(live_through(&machine, &cgroups))).catch_unwind().await;
    if let Err(panic) = outcome {
        println!("{}", containerd.log().unwrap());
        std::panic::resume_unwind(panic);
    }
}

async fn live_through(machine: &Machine, cgroups: &Cgroups) {
    let config = machine.config(1, &["etcd-0", "kube-apiserver-0"]);
    machine.settle(&config).await;
    let first = machine.observe().await;
    assert_eq!(first.containers.len(), 4);
    assert!(!cgroups.paths().is_empty());
    containers_have_no_privilege(machine, &first).await;
    logs_and_files_are_on_the_machine(machine);

    a_killed_container_comes_back(machine, &config).await;
    a_killed_sandbox_comes_back(machine, &config).await;

    let data = machine.disk.path(&format!("lib/keelway/{}/etcd-0/data/kept", machine.cluster));
    fs::write(&data, "").unwrap();
    machine.settle(&machine.config(2, &["etcd-0"])).await;
    assert!(data.exists());
    machine.settle(&machine.config(3, &[])).await;
    for directory in ["lib", "log"] {
        assert_eq!(fs::read_dir(machine.disk.path(directory)).unwrap().count(), 0, "{directory}");
    }
    assert_eq!(cgroups.paths(), [""; 0].map(PathBuf::from));
    let images = machine.observe().await.images;
    assert!(images.is_superset(&BTreeSet::from([IMAGE.to_owned(), PAUSE.to_owned()])), "{images:?}");
}

async fn pid(machine: &Machine, container: &str) -> u32 {
    machine.local.runtime().container_pid(container).await.unwrap().unwrap()
}

async fn containers_have_no_privilege(machine: &Machine, state: &MachineState) {
    for container in &state.containers {
        let pid = pid(machine, &container.id).await;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")).unwrap();
            value.split('\t').map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(field("Uid"), vec![USER.to_string(); 4]);
        assert_eq!(field("Gid"), vec![USER.to_string(); 4]);
        assert_eq!(field("CapBnd"), ["0000000000000000"]);
        assert_eq!(field("NoNewPrivs"), ["1"]);
        assert_eq!(field("Seccomp"), ["2"]);
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        let options = |target: &str| {
            let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            lines.find(|words| words[4] == target).unwrap()[5].to_owned()
        };
        for (target, option) in [("/", "ro"), ("/etc/files", "ro"), ("/data", "rw")] {
            assert!(options(target).split(',').any(|found| found == option), "{target} {}", options(target));
        }
    }
}

fn logs_and_files_are_on_the_machine(machine: &Machine) {
    let pod = format!("keelway/{}/etcd-0", machine.cluster);
    for name in ["first-0.log", "second-0.log"] {
        assert!(machine.disk.path(&format!("log/{pod}/{name}")).is_file(), "{name}");
    }
    let key = fs::metadata(machine.disk.path(&format!("lib/{pod}/files/pki/key"))).unwrap();
    assert_eq!((key.uid(), key.gid(), key.mode() & 0o7777), (USER, USER, 0o600));
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
}

/// Returns the ids of the containers of each pod.
fn ids(state: &MachineState) -> BTreeMap<PodName, BTreeSet<String>> {
    let of = |id: &str| {
        let inside = state.containers.iter().filter(|container| container.sandbox == *id);
        inside.map(|container| container.id.clone()).collect()
    };
    state.sandboxes.iter().map(|sandbox| (sandbox.pod.clone(), of(&sandbox.id))).collect()
}

/// Polls the machine until its state matches. A runtime reports the end of a process with a delay.
async fn until(machine: &Machine, seen: impl Fn(&MachineState) -> bool) {
    let mut again = tokio::time::interval(std::time::Duration::from_millis(20));
    let looking = async {
        while !seen(&machine.observe().await) {
            again.tick().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), looking).await.unwrap();
}

async fn a_killed_container_comes_back(machine: &Machine, config: &MachineConfig) {
    let before = machine.observe().await;
    let victim = before.containers[0].clone();
    kill(pid(machine, &victim.id).await);
    let exited = |state: &MachineState| {
        let found = state.containers.iter().find(|container| container.id == victim.id).unwrap();
        found.phase == ContainerPhase::Exited { code: 137 }
    };
    until(machine, exited).await;
    machine.settle(config).await;
    let after = machine.observe().await;
    assert_eq!(before.sandboxes, after.sandboxes);
    let kept = after.containers.iter().filter(|found| before.containers.contains(found));
    assert_eq!((kept.count(), after.containers.len()), (3, 4));
}

async fn a_killed_sandbox_comes_back(machine: &Machine, config: &MachineConfig) {
    let before = machine.observe().await;
    let victim = before.sandboxes[0].clone();
    kill(machine.local.runtime().pod_sandbox_pid(&victim.id).await.unwrap().unwrap());
    until(machine, |state| state.sandboxes.iter().any(|sandbox| sandbox.id == victim.id && !sandbox.ready)).await;
    machine.settle(config).await;
    let (before, after) = (ids(&before), ids(&machine.observe().await));
    for (pod, containers) in &after {
        assert_eq!(containers.len(), 2);
        assert_eq!(before[pod] == *containers, *pod != victim.pod, "{pod}");
    }
}
