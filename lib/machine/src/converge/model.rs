//! A model of a machine in memory. It panics on anything that real runtimes and file systems refuse.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "it belongs to tests, also if others use it")]

use std::collections::BTreeMap;

use keelway_api::{
    image_override::reported_name,
    machine::{
        CgroupDriver, ContainerPhase, ContainerState, FileState, MachineState, RuntimeFacts, SandboxState, sha256_hex,
    },
    name::PodName,
};

use super::servers;
use crate::{
    action::{Action, NewContainer, NewSandbox, PodAction},
    layout::{FILES, MachineDirectory, file_path, is_ours, pod_directory},
};

const TOP: u32 = 0o1711;

/// A simulated machine.
#[derive(Debug, Clone)]
pub struct MachineModel {
    /// The state of the machine.
    pub state: MachineState,
    ids: u32,
    /// Ids that this execution created. They are unknown to the next one.
    made: BTreeMap<(PodName, Option<String>), String>,
}

impl MachineModel {
    /// Returns a machine that holds nothing.
    #[must_use]
    pub fn empty() -> Self {
        let state = MachineState::empty(RuntimeFacts {
            name: "model".to_owned(),
            version: "1".to_owned(),
            cgroup_driver: CgroupDriver::Cgroupfs,
        });
        Self { state, ids: 0, made: BTreeMap::new() }
    }

    /// Executes actions in order.
    pub fn execute<'a>(&mut self, actions: impl IntoIterator<Item = &'a Action>) {
        self.made.clear();
        for action in actions {
            self.apply(action);
        }
    }

    fn apply(&mut self, action: &Action) {
        match action {
            Action::WriteOwner(installation) => {
                assert_eq!(self.state.owner, None);
                self.make_top();
                self.state.owner = Some(installation.clone());
            }
            Action::Pod(pod, action) => self.apply_to_pod(pod, action),
            Action::ForgetCluster(cluster) => {
                assert!(self.state.sandboxes.iter().all(|sandbox| sandbox.pod.cluster != *cluster));
                self.remove_tree(cluster.as_str());
            }
            Action::RecordApplied(applied) => {
                self.make_top();
                self.state.applied = Some(applied.clone());
            }
            Action::Leave => {
                self.state.owner = None;
                self.state.applied = None;
                assert!(self.state.files.keys().all(String::is_empty));
                self.state.files.retain(|_, top| !is_ours(top.mode));
            }
        }
    }

    fn apply_to_pod(&mut self, pod: &PodName, action: &PodAction) {
        match action {
            PodAction::EnsureImage(image) => {
                self.state.images.insert(reported_name(&image.name).into_owned());
            }
            PodAction::MakeDirectories(directories) => {
                for directory in directories {
                    self.make_directory(directory);
                }
            }
            PodAction::WriteFile { file, user } => {
                self.put(&file_path(pod, &file.path), file_state(*user, *user, 0o600, Some(sha256_hex(&file.content))));
            }
            PodAction::MarkData { path } => {
                assert_eq!(self.state.files[path].sha256, None, "{path} is no directory");
                self.state.data.entry(path.clone()).or_default().marked = true;
            }
            PodAction::CopyData { from, to } => {
                assert!(self.state.sandboxes.iter().all(|sandbox| sandbox.pod != *pod), "the pod writes to {from}");
                let (state, data) = (self.state.files[from].clone(), self.state.data[from]);
                self.insert(to, state);
                self.state.data.insert(to.clone(), data);
            }
            PodAction::RemovePath { path } => {
                let is_directory = self.state.files[path].sha256.is_none();
                let of_files = path.starts_with(&file_path(pod, ""));
                assert!(of_files || !is_directory, "{path} is not ours to remove");
                self.remove_tree(path);
            }
            PodAction::StopContainer { id, .. } => {
                self.container(id).phase = ContainerPhase::Exited { code: 0 };
            }
            PodAction::RemoveContainer { id, .. } => {
                let phase = self.container(id).phase;
                assert!(!matches!(phase, ContainerPhase::Running | ContainerPhase::Unknown));
                self.state.containers.retain(|container| container.id != *id);
            }
            PodAction::StopSandbox { id } => self.stop_sandbox(id),
            PodAction::RemoveSandbox { id } => {
                assert!(!self.sandbox(id).ready);
                self.state.sandboxes.retain(|sandbox| sandbox.id != *id);
                self.state.containers.retain(|container| container.sandbox != *id);
            }
            PodAction::CreateSandbox(new) => self.create_sandbox(pod, new),
            PodAction::CreateContainer(new) => self.create_container(pod, new),
            PodAction::StartContainer { id, name } => {
                let made = || self.made[&(pod.clone(), Some(name.clone()))].clone();
                let id = id.clone().unwrap_or_else(made);
                let container = self.container(&id);
                assert_eq!(container.phase, ContainerPhase::Created);
                container.phase = ContainerPhase::Running;
            }
            PodAction::ChangeServer { server, change } => {
                servers::apply(self.state.servers.get_mut(pod).unwrap(), server, change);
            }
            PodAction::RemoveTree => {
                assert!(self.state.sandboxes.iter().all(|sandbox| sandbox.pod != *pod));
                self.remove_tree(&pod_directory(pod));
            }
        }
    }

    fn stop_sandbox(&mut self, id: &str) {
        let runs = |container: &ContainerState| container.sandbox == id && container.phase == ContainerPhase::Running;
        assert!(!self.state.containers.iter().any(runs), "a container had no time to drain");
        self.sandbox(id).ready = false;
    }

    fn create_sandbox(&mut self, pod: &PodName, new: &NewSandbox) {
        let others = self.state.sandboxes.iter().filter(|sandbox| sandbox.pod == *pod);
        assert_eq!(others.count(), 0, "two sandboxes on the same ports");
        assert!(self.state.files.contains_key(&format!("{}/{FILES}", pod_directory(pod))));
        let id = self.new_id();
        self.made.insert((pod.clone(), None), id.clone());
        self.state.sandboxes.insert(
            0,
            SandboxState { id, pod: pod.clone(), attempt: new.attempt, digest: new.digest.clone(), ready: true },
        );
    }

    fn create_container(&mut self, pod: &PodName, new: &NewContainer) {
        let made = || self.made[&(pod.clone(), None)].clone();
        let sandbox = new.sandbox_id.clone().unwrap_or_else(made);
        assert!(self.sandbox(&sandbox).ready);
        assert!(self.state.images.contains(&*reported_name(&new.container.image)));
        let same_name =
            |container: &ContainerState| container.sandbox == sandbox && container.name == new.container.name;
        assert!(!self.state.containers.iter().any(same_name), "two of one name");
        for mount in &new.container.mounts {
            let source = format!("{}/{}", pod_directory(pod), mount.source);
            assert_eq!(self.state.files[&source].sha256, None, "{source} cannot be mounted");
        }
        let id = self.new_id();
        self.made.insert((pod.clone(), Some(new.container.name.clone())), id.clone());
        self.state.containers.insert(
            0,
            ContainerState {
                id,
                sandbox,
                name: new.container.name.clone(),
                attempt: new.attempt,
                phase: ContainerPhase::Created,
                stop_seconds: Some(new.container.stop_seconds),
            },
        );
    }

    fn make_top(&mut self) {
        self.state.files.entry(String::new()).or_insert_with(|| file_state(0, 0, TOP, None));
    }

    fn make_directory(&mut self, directory: &MachineDirectory) {
        self.make_top();
        let there = self.state.files.get(&directory.path);
        assert!(there.is_none_or(|there| there.sha256.is_none()), "{}", directory.path);
        let MachineDirectory { path, user, group, mode } = directory;
        self.insert(path, file_state(*user, *group, *mode, None));
    }

    fn put(&mut self, path: &str, file: FileState) {
        let there = self.state.files.get(path);
        assert!(there.is_none_or(|there| there.sha256.is_some()), "{path} is a directory");
        self.insert(path, file);
    }

    fn insert(&mut self, path: &str, found: FileState) {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        assert_eq!(self.state.files[parent].sha256, None, "{parent} is no directory");
        self.state.files.insert(path.to_owned(), found);
    }

    pub(super) fn remove_tree(&mut self, path: &str) {
        let below = format!("{path}/");
        self.state.files.retain(|name, _| name != path && !name.starts_with(&below));
        self.state.data.retain(|name, _| name != path && !name.starts_with(&below));
    }

    fn container(&mut self, id: &str) -> &mut ContainerState {
        let mut containers = self.state.containers.iter_mut();
        containers.find(|container| container.id == id).expect("a container that was seen")
    }

    fn sandbox(&mut self, id: &str) -> &mut SandboxState {
        let mut sandboxes = self.state.sandboxes.iter_mut();
        sandboxes.find(|sandbox| sandbox.id == id).expect("a sandbox that was seen")
    }

    pub(super) fn new_id(&mut self) -> String {
        self.ids += 1;
        format!("id-{}", self.ids)
    }
}

pub(super) fn file_state(user: u32, group: u32, mode: u32, sha256: Option<String>) -> FileState {
    FileState { user, group, mode, sha256 }
}
