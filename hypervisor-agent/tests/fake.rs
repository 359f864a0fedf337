//! Observation and execution against the fake runtime, with a temporary directory as the machine's root.
#![expect(clippy::unwrap_used, reason = "this is all test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use keelway_api::{
    machine::{
        Container, ContainerPhase, ContainerResources, MachineConfig, MachineState, Mount, OnChange, Pod, PodFile,
        STATE_DIRECTORY, Start,
    },
    name::PodName,
};
use keelway_cri::{
    CriSandboxState, Deadlines, SandboxSpec,
    fake::{CallFault, Fake},
};
use keelway_machine::{
    layout::LOG_DIRECTORY,
    refusal::ConfigRefusal,
    report::{ApplyReport, Effect},
};
use keelway_machine_io::{
    access::MachineAccess,
    local::{ApplyError, LocalMachine},
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const IMAGES: [&str; 3] = ["example.test/etcd:1", "example.test/api:1", "example.test/pause:1"];

struct Machine {
    root: TempDir,
    fake: Fake,
    local: LocalMachine,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("keelway-fake-").tempdir().unwrap();
        for path in ["var/lib", "var/log"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let access = MachineAccess::of_root(fs::File::open(root.path()).unwrap().into());
        let fake = Fake::new();
        for image in IMAGES {
            fake.add_image(image);
        }
        let local = LocalMachine::new(access, fake.runtime(Deadlines::default()), None);
        Self { root, fake, local }
    }

    async fn with(config: &MachineConfig) -> Self {
        let machine = Self::new();
        machine.settle(config).await;
        machine
    }

    async fn apply(&self, config: &MachineConfig) -> ApplyReport {
        self.local.apply(config, &CancellationToken::new(), &|_| {}).await.unwrap()
    }

    /// Applies a config, and stops after this many effects.
    async fn apply_part(&self, config: &MachineConfig, effects: usize) -> ApplyReport {
        let (stop, done) = (CancellationToken::new(), AtomicUsize::new(0));
        if effects == 0 {
            stop.cancel();
        }
        let count = |effect: Effect<'_>| {
            if matches!(effect, Effect::Done(_)) && done.fetch_add(1, Ordering::SeqCst) + 1 == effects {
                stop.cancel();
            }
        };
        self.local.apply(config, &stop, &count).await.unwrap()
    }

    /// Applies a config completely, and checks that nothing is left to do.
    async fn settle(&self, config: &MachineConfig) {
        let report = self.apply(config).await;
        assert!(report.is_complete(), "{report:#?}");
        assert_eq!(self.apply(config).await, ApplyReport::default());
    }

    async fn observe(&self) -> MachineState {
        self.local.observe().await.unwrap()
    }

    /// Returns everything in the file system: owner, mode and content by path.
    fn tree(&self) -> BTreeMap<String, (u32, u32, String)> {
        let mut found = BTreeMap::new();
        walk(self.root.path(), "", &mut found);
        found
    }

    /// Returns the containers of each running pod, with their phases.
    async fn running(&self) -> BTreeMap<PodName, BTreeSet<(String, String)>> {
        let state = self.observe().await;
        let inside = |id: &str| {
            let of = state.containers.iter().filter(|container| container.sandbox == *id);
            of.map(|container| (container.name.clone(), format!("{:?}", container.phase))).collect()
        };
        let pods = state.sandboxes.iter().map(|sandbox| (sandbox.pod.clone(), inside(&sandbox.id)));
        let running: BTreeMap<_, _> = pods.collect();
        assert_eq!(running.len(), state.sandboxes.len(), "a pod has two sandboxes");
        running
    }
}

fn walk(directory: &Path, name: &str, found: &mut BTreeMap<String, (u32, u32, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), format!("{name}/{}", entry.file_name().to_str().unwrap()));
        let metadata = entry.metadata().unwrap();
        let content = if metadata.is_dir() {
            walk(&path, &name, found);
            String::new()
        } else {
            fs::read_to_string(&path).unwrap()
        };
        found.insert(name, (metadata.uid(), metadata.mode(), content));
    }
}

fn name(cluster: &str, component: &str) -> PodName {
    PodName { cluster: cluster.parse().unwrap(), component: component.parse().unwrap() }
}

fn pod(user: u32, image: &str, content: &str) -> Pod {
    let files = [("config", OnChange::Restart), ("pki/ca.crt", OnChange::PickedUp)];
    let container = |container: &str| Container {
        name: container.to_owned(),
        image: image.to_owned(),
        command: vec!["/bin/true".to_owned()],
        mounts: vec![
            Mount { source: "files".to_owned(), target: "/files".to_owned(), read_only: true },
            Mount { source: "data".to_owned(), target: "/data".to_owned(), read_only: false },
        ],
        resources: ContainerResources { cpu_request_millis: 100, cpu_limit_millis: None, memory_limit_bytes: 1 << 28 },
        stop_seconds: 7,
        liveness: None,
    };
    Pod {
        user,
        files: files
            .map(|(path, on_change)| PodFile { path: path.to_owned(), content: content.into(), on_change })
            .into(),
        data: vec!["data".to_owned()],
        containers: vec![container("main"), container("side")],
        pause_image: IMAGES[2].to_owned(),
        servers: None,
        start: Start::Always,
        hold: false,
        registries: std::collections::BTreeMap::new(),
        prefetch: std::collections::BTreeSet::new(),
    }
}

const FIRST: &str = "0000000000000001";
const SECOND: &str = "0000000000000002";

fn config(generation: u64, pods: impl IntoIterator<Item = (PodName, Pod)>) -> MachineConfig {
    MachineConfig {
        format: keelway_api::machine::ConfigFormat::NEWEST,
        installation: "00000000000000ff".parse().unwrap(),
        term: 1,
        generation,
        pods: pods.into_iter().collect(),
        others: BTreeSet::new(),
        removals: std::collections::BTreeMap::new(),
    }
}

fn two_pods() -> MachineConfig {
    config(
        1,
        [
            (name(FIRST, "etcd-0"), pod(20001, IMAGES[0], "a")),
            (name(SECOND, "kube-apiserver-0"), pod(20002, IMAGES[1], "a")),
        ],
    )
}

/// One pod is changed, one is removed with its cluster, and one is new.
fn changed_pods() -> MachineConfig {
    config(
        2,
        [
            (name(FIRST, "etcd-0"), pod(20001, IMAGES[0], "b")),
            (name(FIRST, "kube-apiserver-0"), pod(20003, IMAGES[1], "a")),
        ],
    )
}

fn no_pods() -> MachineConfig {
    config(3, [])
}

#[tokio::test]
async fn a_config_is_applied_and_then_stands() {
    let machine = Machine::with(&two_pods()).await;
    let state = machine.observe().await;
    assert_eq!(state.containers.len(), 4);
    for container in &state.containers {
        assert_eq!((container.phase, container.stop_seconds), (ContainerPhase::Running, Some(7)));
    }
    let tree = machine.tree();
    let key = &tree[&format!("{STATE_DIRECTORY}/{FIRST}/etcd-0/files/pki/ca.crt")];
    assert_eq!(*key, (20001, 0o100_600, "a".to_owned()));
    assert!(tree.contains_key(&format!("{LOG_DIRECTORY}/{FIRST}/etcd-0")));
    assert_eq!(of_configs(state), of_configs(machine.observe().await));
}

/// Returns the parts of the state that depend on configs. The others, such as free disk space, belong to the test host and change.
fn of_configs(state: MachineState) -> impl PartialEq + std::fmt::Debug {
    (state.owner, state.applied, state.sandboxes, state.containers, state.files, state.data, state.images)
}

#[tokio::test]
async fn a_sandbox_has_labels_for_its_cluster_and_component() {
    let machine = Machine::with(&two_pods()).await;
    let sandboxes = machine.local.runtime().list_pod_sandboxes(&BTreeMap::new()).await.unwrap();
    let etcd = sandboxes.iter().find(|sandbox| sandbox.name == "etcd-0").unwrap();
    assert_eq!(etcd.namespace, format!("keelway-{FIRST}"));
    assert_eq!(etcd.labels["keelway.dev/cluster-id"], FIRST);
    assert_eq!(etcd.labels["keelway.dev/component"], "etcd-0");
    assert_eq!(etcd.annotations["keelway.dev/digest"], two_pods().pods[&name(FIRST, "etcd-0")].digest());
    let containers = machine.local.runtime().list_containers(&etcd.labels).await.unwrap();
    let main = containers.iter().find(|container| container.name == "main").unwrap();
    let status = machine.local.runtime().container_status(&main.id).await.unwrap();
    assert_eq!(status.log_path, format!("{LOG_DIRECTORY}/{FIRST}/etcd-0/main-0.log"));
}

#[tokio::test]
async fn an_ended_container_comes_back_beside_the_others() {
    let machine = Machine::with(&two_pods()).await;
    let before = machine.observe().await;
    assert_eq!(machine.fake.exit_container("side", 3), 2);
    let codes = |state: &MachineState| {
        state.containers.iter().filter(|container| container.phase == ContainerPhase::Exited { code: 3 }).count()
    };
    assert_eq!(codes(&machine.observe().await), 2);
    machine.settle(&two_pods()).await;
    let after = machine.observe().await;
    assert_eq!(before.sandboxes, after.sandboxes);
    let ids = |state: &MachineState, name: &str| -> BTreeSet<String> {
        let named = state.containers.iter().filter(|container| container.name == name);
        named.map(|container| container.id.clone()).collect()
    };
    assert_eq!(ids(&before, "main"), ids(&after, "main"));
    assert!(ids(&before, "side").is_disjoint(&ids(&after, "side")));
}

/// Stops the execution of the second config of each pair after each number of effects, and applies it again.
#[tokio::test]
async fn an_execution_that_was_stopped_anywhere_is_gone_on_with() {
    for (before, config) in [(no_pods(), two_pods()), (two_pods(), changed_pods()), (two_pods(), no_pods())] {
        let uncut = Machine::with(&before).await;
        let all = uncut.apply(&config).await;
        assert!(all.is_complete());
        for effects in 0..all.done.len() {
            let machine = Machine::with(&before).await;
            let cut = machine.apply_part(&config, effects).await;
            assert!(cut.failed.is_empty() && !cut.left_out.is_empty(), "{effects}: {cut:#?}");
            assert!(cut.done.len() >= effects);
            assert_eq!(cut.done.len() + cut.left_out.len(), all.done.len());
            machine.settle(&config).await;
            assert_eq!(machine.tree(), uncut.tree(), "after {effects} effects");
            assert_eq!(machine.running().await, uncut.running().await, "after {effects} effects");
        }
    }
}

/// Makes each change fail in turn: the runtime refuses it, or executes it and the response is lost.
#[tokio::test]
async fn a_call_that_failed_anywhere_is_made_good() {
    let uncut = Machine::with(&two_pods()).await;
    let before = uncut.fake.calls().iter().filter(|call| call.change).count();
    assert!(uncut.apply(&changed_pods()).await.is_complete());
    let changes = uncut.fake.calls().iter().filter(|call| call.change).count() - before;
    for nth in 1..=changes {
        for fault in [CallFault::Fail, CallFault::LoseAnswer] {
            let machine = Machine::with(&two_pods()).await;
            machine.fake.inject(nth, fault);
            let report = machine.apply(&changed_pods()).await;
            assert_eq!(report.failed.len(), 1, "{nth} {fault:?}");
            assert!(machine.observe().await.applied.is_some_and(|applied| applied.generation == 1));
            machine.settle(&changed_pods()).await;
            assert_eq!(machine.tree(), uncut.tree(), "{nth} {fault:?}");
            assert_eq!(machine.running().await, uncut.running().await, "{nth} {fault:?}");
        }
    }
}

#[tokio::test]
async fn a_pod_that_fails_holds_up_no_other() {
    let machine = Machine::new();
    let mut config = two_pods();
    for container in &mut config.pods.get_mut(&name(FIRST, "etcd-0")).unwrap().containers {
        container.image = "example.test/missing:1".to_owned();
    }
    let report = machine.apply(&config).await;
    let [failure] = report.failed.as_slice() else { panic!("{report:#?}") };
    assert_eq!(failure.action.to_string(), "fetch image example.test/missing:1");
    assert_eq!(failure.action.pod(), Some(&name(FIRST, "etcd-0")));
    assert!(failure.error.contains("not found"), "{}", failure.error);
    assert_eq!(machine.running().await.keys().collect::<Vec<_>>(), [&name(SECOND, "kube-apiserver-0")]);
    let left_out: Vec<_> = report.left_out.iter().map(ToString::to_string).collect();
    assert_eq!(left_out.last().map(String::as_str), Some("record config 1.1 as applied"));

    machine.fake.add_image("example.test/missing:1");
    machine.settle(&config).await;
}

#[tokio::test]
async fn a_machine_is_left_as_it_was_found() {
    let machine = Machine::new();
    let found = machine.tree();
    machine.settle(&two_pods()).await;
    assert_ne!(machine.tree(), found);
    machine.settle(&no_pods()).await;
    assert_eq!(machine.tree(), found);
    assert!(machine.local.runtime().list_pod_sandboxes(&BTreeMap::new()).await.unwrap().is_empty());
    assert_eq!(machine.observe().await.images.len(), IMAGES.len());
}

#[tokio::test]
async fn pods_of_others_are_not_touched() {
    let machine = Machine::new();
    let theirs = SandboxSpec {
        name: "theirs".to_owned(),
        namespace: "default".to_owned(),
        uid: "1".to_owned(),
        labels: BTreeMap::from([("keelway.dev/component".to_owned(), "etcd-0".to_owned())]),
        ..SandboxSpec::default()
    };
    let id = machine.local.runtime().run_pod_sandbox(&theirs).await.unwrap();
    for config in [two_pods(), changed_pods(), no_pods()] {
        machine.settle(&config).await;
    }
    let status = machine.local.runtime().pod_sandbox_status(&id).await.unwrap();
    assert_eq!(status.state, CriSandboxState::Ready);
}

#[tokio::test]
async fn a_machine_refuses_a_stale_config() {
    let machine = Machine::with(&changed_pods()).await;
    let stale = machine.local.apply(&two_pods(), &CancellationToken::new(), &|_| {}).await;
    assert!(matches!(stale, Err(ApplyError::Refused(ConfigRefusal::Stale { .. }))), "{stale:?}");
    assert_eq!(machine.apply(&changed_pods()).await, ApplyReport::default());
}
