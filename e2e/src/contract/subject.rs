//! The machine that the cases of the contract run on.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::LocalBoxFuture;
use keelway_api::{
    machine::{
        Container, ContainerPhase, ContainerResources, ContainerState, MachineConfig, MachineState, Mount, Pod,
        SandboxState, Start,
    },
    name::{ClusterId, PodName},
};
use keelway_machine::{
    action::{Action, NewContainer, NewSandbox, PodAction},
    converge::converge,
    layout::cgroup_parent,
    report::ApplyReport,
};

/// A user id in the range for components.
pub(super) const USER: u32 = 1_900_000_123;
/// A time limit longer than any wait of these cases.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval between polls.
const AGAIN: Duration = Duration::from_millis(100);

/// A case that holds for every subject, with its name.
pub type Case = (&'static str, for<'a> fn(&'a dyn ContractSubject) -> LocalBoxFuture<'a, ()>);

/// The behaviour of a program in a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramBehaviour {
    /// The program runs until it is asked to end, and then exits with 0.
    Serves,
    /// The program exits immediately with an error.
    Fails,
}

/// A machine with its runtime and everything that runs on it.
#[async_trait]
pub trait ContractSubject: Sync {
    /// Returns an image and a command line with this behaviour.
    fn program(&self, behaviour: ProgramBehaviour) -> (String, Vec<String>);
    /// Returns the image of etcd.
    fn etcd(&self) -> String;
    /// Returns the image of sandboxes.
    fn pause(&self) -> String;
    /// Returns an address of the machine on which its programs can listen.
    fn address(&self) -> IpAddr;
    /// Executes these actions as the real executor does.
    async fn execute(&self, actions: Vec<Action>) -> ApplyReport;
    /// Returns the current state of the machine.
    async fn observe(&self) -> MachineState;
    /// Kills the processes of a container with SIGKILL.
    async fn kill(&self, container: &str);
    /// Stops the runtime and starts it again. Containers continue to run.
    async fn restart_runtime(&self);
    /// Returns whether the etcd member at this address reports that it is ready.
    async fn is_ready(&self, member: SocketAddr) -> bool;
}

impl dyn ContractSubject + '_ {
    /// Executes one action for a pod.
    pub(super) async fn act(&self, pod: &PodName, action: PodAction) -> Result<(), String> {
        self.execute_all(pod, vec![action]).await
    }

    pub(super) async fn execute_all(&self, pod: &PodName, actions: Vec<PodAction>) -> Result<(), String> {
        let actions = actions.into_iter().map(|action| Action::Pod(pod.clone(), action)).collect();
        let report = self.execute(actions).await;
        report.failed.into_iter().next().map_or(Ok(()), |failure| Err(failure.error))
    }

    /// Makes the machine run exactly these pods of a cluster.
    pub(super) async fn apply_pods(&self, pods: &[(PodName, Pod)]) {
        let state = self.observe().await;
        let installation = state.owner.clone().unwrap_or_else(|| "00000000000000ff".parse().unwrap());
        let generation = state.applied.as_ref().map_or(1, |applied| applied.generation + 1);
        let pods = pods.iter().cloned().collect();
        let config = MachineConfig {
            format: keelway_api::machine::ConfigFormat::NEWEST,
            installation,
            term: 1,
            generation,
            pods,
            others: BTreeSet::new(),
            removals: std::collections::BTreeMap::new(),
        };
        let report = self.execute(converge(&config, &state).unwrap()).await;
        assert!(report.is_complete(), "{report:#?}");
    }

    pub(super) async fn sandboxes(&self, pod: &PodName) -> Vec<SandboxState> {
        self.observe().await.sandboxes.into_iter().filter(|found| found.pod == *pod).collect()
    }

    pub(super) async fn containers(&self, pod: &PodName) -> Vec<ContainerState> {
        let state = self.observe().await;
        let of_pod = |id: &str| state.sandboxes.iter().any(|sandbox| sandbox.id == id && sandbox.pod == *pod);
        state.containers.iter().filter(|found| of_pod(&found.sandbox)).cloned().collect()
    }

    pub(super) async fn container(&self, pod: &PodName) -> ContainerState {
        let all = self.containers(pod).await;
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    /// Waits until the only container of the pod has exited, and returns its exit code.
    pub(super) async fn exit_code(&self, pod: &PodName) -> i32 {
        let started = tokio::time::Instant::now();
        loop {
            if let ContainerPhase::Exited { code } = self.container(pod).await.phase {
                return code;
            }
            assert!(started.elapsed() < PATIENCE, "{pod} does not end");
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Waits until the only sandbox of the pod is not ready. containerd 2 responds to `StopPodSandbox` when the sandbox has ended, and changes its state
    /// when it handles that event (`internal/cri/server/sandbox_stop.go`).
    pub(super) async fn until_stopped(&self, pod: &PodName) {
        let started = tokio::time::Instant::now();
        while self.sandboxes(pod).await[0].ready {
            assert!(started.elapsed() < PATIENCE, "the sandbox of {pod} does not end");
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Waits until a member is ready, or until it is not ready.
    pub(super) async fn until_ready(&self, member: SocketAddr, ready: bool) {
        let started = tokio::time::Instant::now();
        while self.is_ready(member).await != ready {
            assert!(started.elapsed() < PATIENCE, "{member} is not as it should be: ready {ready}");
            tokio::time::sleep(AGAIN).await;
        }
    }

    pub(super) async fn new_sandbox(&self, pod: &PodName, attempt: u32) -> NewSandbox {
        let driver = self.observe().await.runtime.cgroup_driver;
        let parent = cgroup_parent(&pod.cluster, driver);
        NewSandbox { attempt, digest: format!("digest of {pod}"), cgroup_parent: parent, user: USER }
    }

    pub(super) fn new_container(
        &self,
        sandbox: &NewSandbox,
        behaviour: ProgramBehaviour,
        attempt: u32,
    ) -> NewContainer {
        let (image, command) = self.program(behaviour);
        let container = container(image, command, Vec::new());
        NewContainer { sandbox_id: None, sandbox: sandbox.clone(), attempt, container }
    }

    /// Returns the actions that run one container with this behaviour.
    pub(super) async fn steps(&self, pod: &PodName, behaviour: ProgramBehaviour) -> Vec<PodAction> {
        let sandbox = self.new_sandbox(pod, 0).await;
        let container = self.new_container(&sandbox, behaviour, 0);
        vec![
            PodAction::EnsureImage(self.pause().into()),
            PodAction::EnsureImage(container.container.image.clone().into()),
            PodAction::CreateSandbox(sandbox),
            PodAction::CreateContainer(Box::new(container)),
            PodAction::StartContainer { id: None, name: "one".to_owned() },
        ]
    }

    /// Stops and removes all sandboxes and files of a pod.
    pub(super) async fn remove(&self, pod: &PodName) {
        for sandbox in self.sandboxes(pod).await {
            self.act(pod, PodAction::StopSandbox { id: sandbox.id.clone() }).await.unwrap();
            self.act(pod, PodAction::RemoveSandbox { id: sandbox.id }).await.unwrap();
        }
        self.act(pod, PodAction::RemoveTree).await.unwrap();
        assert_eq!(self.sandboxes(pod).await, []);
    }
}

pub(super) fn container(image: String, command: Vec<String>, mounts: Vec<Mount>) -> Container {
    Container {
        name: "one".to_owned(),
        image,
        command,
        mounts,
        resources: ContainerResources { cpu_request_millis: 50, cpu_limit_millis: None, memory_limit_bytes: 512 << 20 },
        stop_seconds: 5,
        liveness: None,
    }
}

pub(super) fn pod_of(container: Container, data: Vec<String>, pause: String) -> Pod {
    Pod {
        user: USER,
        files: Vec::new(),
        data,
        containers: vec![container],
        pause_image: pause,
        servers: None,
        start: Start::Always,
        hold: false,
        registries: std::collections::BTreeMap::new(),
        prefetch: std::collections::BTreeSet::new(),
    }
}

/// Returns the name of a pod that no other case uses.
pub(super) fn pod(component: &str) -> PodName {
    let cluster: ClusterId = "00000000000000c0".parse().unwrap();
    PodName { cluster, component: component.parse().unwrap() }
}
