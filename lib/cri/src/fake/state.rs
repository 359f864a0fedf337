//! The state of the fake, and how each call changes it. It has no clock and does not wait: the services do both.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use k8s_cri::v1;
use tonic::Status;

use super::{EVENTS, behaviour::FakeBehaviour};
use crate::CriCgroupDriver;

/// 128 plus the number of SIGKILL.
const KILLED: i32 = 137;

#[derive(Debug)]
pub(super) struct FakeState {
    pub(super) sandboxes: BTreeMap<String, FakeSandbox>,
    pub(super) containers: BTreeMap<String, FakeContainer>,
    pub(super) images: BTreeMap<String, v1::Image>,
    /// Images that can be pulled in addition to those on the machine.
    pub(super) registry: BTreeSet<String>,
    pub(super) cgroup_driver: Option<CriCgroupDriver>,
    /// The runtime's name and version.
    pub(super) version: (String, String),
    /// The URL of streams that `Exec` returns.
    pub(super) streams: Option<String>,
    /// Events that were not sent yet. containerd, too, keeps some for the first subscriber.
    events: VecDeque<v1::ContainerEventResponse>,
    /// How many ids were assigned.
    ids: u64,
}

#[derive(Debug)]
pub(super) struct FakeSandbox {
    pub(super) config: v1::PodSandboxConfig,
    pub(super) ready: bool,
    pub(super) created: i64,
}

#[derive(Debug)]
pub(super) struct FakeContainer {
    pub(super) sandbox_id: String,
    pub(super) config: v1::ContainerConfig,
    pub(super) log_path: String,
    pub(super) image_id: String,
    pub(super) created: i64,
    pub(super) started: i64,
    /// The time of the exit, and the exit code.
    pub(super) exit: Option<(i64, i32)>,
}

impl Default for FakeState {
    fn default() -> Self {
        Self {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            images: BTreeMap::new(),
            registry: BTreeSet::new(),
            cgroup_driver: Some(CriCgroupDriver::Cgroupfs),
            streams: None,
            version: ("keelway-cri-fake".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            events: VecDeque::new(),
            ids: 0,
        }
    }
}

impl FakeState {
    pub(super) fn add_image(&mut self, name: &str) {
        if self.image(name).is_some() {
            return;
        }
        let id = format!("sha256:{}", self.new_id());
        let image = v1::Image { id: id.clone(), repo_tags: vec![name.to_owned()], size: 1 << 20, ..Default::default() };
        self.images.insert(id, image);
    }

    pub(super) fn image(&self, name: &str) -> Option<&v1::Image> {
        let named = |image: &&v1::Image| image.repo_tags.iter().chain(&image.repo_digests).any(|tag| tag == name);
        self.images.get(name).or_else(|| self.images.values().find(named))
    }

    /// Returns the id of an image, and adds the image if it is in the registry.
    pub(super) fn pull(&mut self, name: &str) -> Option<String> {
        if self.registry.contains(name) {
            self.add_image(name);
        }
        self.image(name).map(|image| image.id.clone())
    }

    /// Adds a name to an image.
    pub(super) fn tag_image(&mut self, name: &str, other: &str) {
        let id = self.image(name).map(|image| image.id.clone());
        if let Some(image) = id.and_then(|id| self.images.get_mut(&id)) {
            image.repo_tags.push(other.to_owned());
        }
    }

    /// Removes an image with all of its names. Like containerd, also if a container uses it.
    pub(super) fn remove_image(&mut self, name: &str) {
        if let Some(id) = self.image(name).map(|image| image.id.clone()) {
            self.images.remove(&id);
        }
    }

    pub(super) fn run_sandbox(&mut self, config: v1::PodSandboxConfig, now: i64) -> Result<String, Status> {
        let metadata =
            config.metadata.clone().ok_or_else(|| Status::unknown("sandbox config must include metadata"))?;
        let taken = self.sandboxes.iter().find(|(_, sandbox)| sandbox.config.metadata.as_ref() == Some(&metadata));
        if let Some((holder, _)) = taken {
            return Err(reserved("sandbox", &sandbox_name(&metadata), holder));
        }
        let id = self.new_id();
        self.sandboxes.insert(id.clone(), FakeSandbox { config, ready: true, created: now });
        self.emit_event(&id, &id, v1::ContainerEventType::ContainerCreatedEvent, now);
        self.emit_event(&id, &id, v1::ContainerEventType::ContainerStartedEvent, now);
        Ok(id)
    }

    pub(super) fn stop_sandbox(&mut self, id: &str, now: i64) {
        for container in self.containers_of(id) {
            self.exit(&container, KILLED, now);
        }
        let Some(sandbox) = self.sandboxes.get_mut(id) else {
            return;
        };
        if std::mem::replace(&mut sandbox.ready, false) {
            self.emit_event(id, id, v1::ContainerEventType::ContainerStoppedEvent, now);
        }
    }

    pub(super) fn remove_sandbox(&mut self, id: &str, now: i64) {
        self.stop_sandbox(id, now);
        for container in self.containers_of(id) {
            self.remove_container(&container, now);
        }
        if self.sandboxes.remove(id).is_some() {
            self.emit_event(id, id, v1::ContainerEventType::ContainerDeletedEvent, now);
        }
    }

    pub(super) fn create_container(&mut self, request: v1::CreateContainerRequest, now: i64) -> Result<String, Status> {
        let sandbox_id = request.pod_sandbox_id;
        let Some(sandbox) = self.sandboxes.get(&sandbox_id) else {
            return Err(Status::not_found(format!("failed to find sandbox id {sandbox_id:?}: not found")));
        };
        if !sandbox.ready {
            return Err(Status::unknown(format!("sandbox container {sandbox_id:?} is not running")));
        }
        let config = request.config.unwrap_or_default();
        let metadata =
            config.metadata.clone().ok_or_else(|| Status::unknown("container config must include metadata"))?;
        let taken = self.containers.iter().find(|(_, container)| {
            container.sandbox_id == sandbox_id && container.config.metadata.as_ref() == Some(&metadata)
        });
        if let Some((holder, _)) = taken {
            return Err(reserved("container", &container_name(&metadata, &sandbox.config), holder));
        }
        let image = config.image.clone().unwrap_or_default().image;
        let Some(image_id) = self.image(&image).map(|image| image.id.clone()) else {
            return Err(Status::not_found(format!("failed to resolve image {image:?}: not found")));
        };
        let log_path = log_path(&sandbox.config.log_directory, &config.log_path);
        let id = self.new_id();
        let container = FakeContainer {
            sandbox_id: sandbox_id.clone(),
            config,
            log_path,
            image_id,
            created: now,
            started: 0,
            exit: None,
        };
        self.containers.insert(id.clone(), container);
        self.emit_event(&id, &sandbox_id, v1::ContainerEventType::ContainerCreatedEvent, now);
        Ok(id)
    }

    pub(super) fn start_container(&mut self, id: &str, now: i64) -> Result<(), Status> {
        let container = self.containers.get_mut(id).ok_or_else(|| no_container(id))?;
        if container.state() != v1::ContainerState::ContainerCreated {
            let state = container.state().as_str_name();
            let words = format!("failed to set starting state for container {id:?}: container is in {state} state");
            return Err(Status::unknown(words));
        }
        let sandbox_id = container.sandbox_id.clone();
        if !self.sandboxes.get(&sandbox_id).is_some_and(|sandbox| sandbox.ready) {
            return Err(Status::unknown(format!("sandbox container {sandbox_id:?} is not running")));
        }
        container.started = now;
        let behaviour = container.behaviour();
        self.emit_event(id, &sandbox_id, v1::ContainerEventType::ContainerStartedEvent, now);
        if let FakeBehaviour::Exit(code) = behaviour {
            self.exit(id, code, now);
        }
        Ok(())
    }

    pub(super) fn check_running(&self, id: &str) -> Result<(), Status> {
        let container = self.containers.get(id).ok_or_else(|| no_container(id))?;
        let runs = container.state() == v1::ContainerState::ContainerRunning;
        if runs { Ok(()) } else { Err(Status::unknown("container is not running")) }
    }

    /// Sends the stop signal to a container, and returns whether the container has ended.
    pub(super) fn terminate(&mut self, id: &str, now: i64) -> bool {
        let Some(container) = self.containers.get(id) else {
            return true;
        };
        if container.state() == v1::ContainerState::ContainerRunning && container.behaviour() == FakeBehaviour::Stubborn
        {
            return false;
        }
        self.exit(id, 0, now);
        true
    }

    pub(super) fn kill(&mut self, id: &str, now: i64) {
        self.exit(id, KILLED, now);
    }

    pub(super) fn remove_container(&mut self, id: &str, now: i64) {
        self.exit(id, KILLED, now);
        if let Some(container) = self.containers.remove(id) {
            self.emit_event(id, &container.sandbox_id, v1::ContainerEventType::ContainerDeletedEvent, now);
        }
    }

    pub(super) fn exit_by_name(&mut self, name: &str, code: i32, now: i64) -> usize {
        let named = |container: &FakeContainer| {
            container.config.metadata.as_ref().is_some_and(|metadata| metadata.name == name)
        };
        let running: Vec<String> = self
            .containers
            .iter()
            .filter(|(_, container)| named(container) && container.state() == v1::ContainerState::ContainerRunning)
            .map(|(id, _)| id.clone())
            .collect();
        for id in &running {
            self.exit(id, code, now);
        }
        running.len()
    }

    /// Ends a container if it runs.
    fn exit(&mut self, id: &str, code: i32, now: i64) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.state() == v1::ContainerState::ContainerRunning {
            container.exit = Some((now, code));
            let sandbox_id = container.sandbox_id.clone();
            self.emit_event(id, &sandbox_id, v1::ContainerEventType::ContainerStoppedEvent, now);
        }
    }

    /// Returns the name of a pod for the journal, or the id if there is no such pod.
    pub(super) fn name_of_sandbox(&self, id: &str) -> String {
        let metadata = self.sandboxes.get(id).and_then(|sandbox| sandbox.config.metadata.as_ref());
        metadata.map_or_else(|| id.to_owned(), |metadata| metadata.name.clone())
    }

    /// Returns `pod/container` for the journal, or the id if there is no such container.
    pub(super) fn name_of_container(&self, id: &str) -> String {
        let Some(container) = self.containers.get(id) else {
            return id.to_owned();
        };
        let name = container.config.metadata.clone().unwrap_or_default().name;
        format!("{}/{name}", self.name_of_sandbox(&container.sandbox_id))
    }

    pub(super) fn take_events(&mut self) -> VecDeque<v1::ContainerEventResponse> {
        std::mem::take(&mut self.events)
    }

    fn containers_of(&self, sandbox_id: &str) -> Vec<String> {
        let of = |(id, container): (&String, &FakeContainer)| (container.sandbox_id == sandbox_id).then(|| id.clone());
        self.containers.iter().filter_map(of).collect()
    }

    fn emit_event(&mut self, id: &str, sandbox_id: &str, kind: v1::ContainerEventType, now: i64) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: now,
            pod_sandbox_status: self.sandboxes.get(sandbox_id).map(|sandbox| sandbox.status(sandbox_id)),
            containers_statuses: Vec::new(),
        });
    }

    /// Returns an id as long as containerd's. Like containerd's, ids differ in their first characters.
    fn new_id(&mut self) -> String {
        self.ids += 1;
        format!("{:0<64}", format!("{:012x}", self.ids.wrapping_mul(0x9e37_79b9_7f4a) & 0xffff_ffff_ffff))
    }
}

impl FakeSandbox {
    pub(super) fn state(&self) -> v1::PodSandboxState {
        if self.ready { v1::PodSandboxState::SandboxReady } else { v1::PodSandboxState::SandboxNotready }
    }

    pub(super) fn status(&self, id: &str) -> v1::PodSandboxStatus {
        v1::PodSandboxStatus {
            id: id.to_owned(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            ..Default::default()
        }
    }

    pub(super) fn listed(&self, id: &str) -> v1::PodSandbox {
        v1::PodSandbox {
            id: id.to_owned(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: String::new(),
        }
    }
}

impl FakeContainer {
    pub(super) fn state(&self) -> v1::ContainerState {
        match (self.started, &self.exit) {
            (0, _) => v1::ContainerState::ContainerCreated,
            (_, None) => v1::ContainerState::ContainerRunning,
            (_, Some(_)) => v1::ContainerState::ContainerExited,
        }
    }

    fn behaviour(&self) -> FakeBehaviour {
        let words: Vec<String> = self.config.command.iter().chain(&self.config.args).cloned().collect();
        FakeBehaviour::of(&words)
    }

    pub(super) fn status(&self, id: &str) -> v1::ContainerStatus {
        let (finished_at, exit_code) = self.exit.unwrap_or_default();
        let reason = match self.exit {
            None => "",
            Some((_, 0)) => "Completed",
            Some(_) => "Error",
        };
        v1::ContainerStatus {
            id: id.to_owned(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created,
            started_at: self.started,
            finished_at,
            exit_code,
            image: self.config.image.clone(),
            image_ref: self.image_id.clone(),
            image_id: self.image_id.clone(),
            reason: reason.into(),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: self.log_path.clone(),
            ..Default::default()
        }
    }

    pub(super) fn listed(&self, id: &str) -> v1::Container {
        v1::Container {
            id: id.to_owned(),
            pod_sandbox_id: self.sandbox_id.clone(),
            metadata: self.config.metadata.clone(),
            image: self.config.image.clone(),
            image_ref: self.image_id.clone(),
            image_id: self.image_id.clone(),
            state: self.state().into(),
            created_at: self.created,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
        }
    }
}

/// Returns whether `labels` contains all labels of the selector.
pub(super) fn selected(labels: &HashMap<String, String>, selector: &HashMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

pub(super) fn no_container(id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find container {id:?}: not found"))
}

pub(super) fn no_sandbox(id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find sandbox {id:?}: not found"))
}

/// Returns the error with containerd's message and code for a name that is in use.
fn reserved(kind: &str, name: &str, holder: &str) -> Status {
    Status::unknown(format!("failed to reserve {kind} name {name:?}: name {name:?} is reserved for {holder:?}"))
}

fn sandbox_name(metadata: &v1::PodSandboxMetadata) -> String {
    format!("{}_{}_{}_{}", metadata.name, metadata.namespace, metadata.uid, metadata.attempt)
}

fn container_name(metadata: &v1::ContainerMetadata, sandbox: &v1::PodSandboxConfig) -> String {
    let pod = sandbox.metadata.clone().unwrap_or_default();
    format!("{}_{}_{}_{}_{}", metadata.name, pod.name, pod.namespace, pod.uid, metadata.attempt)
}

fn log_path(directory: &str, file: &str) -> String {
    if directory.is_empty() || file.is_empty() { String::new() } else { format!("{directory}/{file}") }
}
