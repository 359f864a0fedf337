//! When a pod that runs has to be replaced.

use super::{ContainerPhase, ContainerState, MachineState, OnChange, Pod, SandboxState, sha256_hex};
use crate::name::PodName;

/// The directory of a pod that its containers read from, relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`.
pub const FILES: &str = "files";

impl MachineState {
    /// Whether a container of the pod runs.
    #[must_use]
    pub fn runs(&self, name: &PodName) -> bool {
        self.any_runs(name, |_| true)
    }

    /// Whether the container of this name of the pod runs.
    #[must_use]
    pub fn runs_container(&self, name: &PodName, container: &str) -> bool {
        self.any_runs(name, |found| found.name == container)
    }

    fn any_runs(&self, name: &PodName, which: impl Fn(&ContainerState) -> bool) -> bool {
        let running = |id: &str| {
            let mut of_sandbox = self.containers.iter().filter(|container| container.sandbox == id);
            of_sandbox.any(|container| container.phase == ContainerPhase::Running && which(container))
        };
        self.sandboxes.iter().filter(|sandbox| sandbox.pod == *name).any(|sandbox| running(&sandbox.id))
    }

    /// The sandbox that can stay: the newest one that runs and was made for what is wanted, if what it reads is still that.
    #[must_use]
    pub fn lasting_sandbox(&self, name: &PodName, pod: &Pod) -> Option<&SandboxState> {
        let digest = pod.digest();
        let fits = |sandbox: &&SandboxState| sandbox.pod == *name && sandbox.ready && sandbox.digest == digest;
        let newest = self.sandboxes.iter().filter(fits).max_by_key(|sandbox| sandbox.attempt)?;
        (self.has_files_directory(name) && self.starts_as_wanted(name, pod)).then_some(newest)
    }

    /// Whether what runs of the pod, and could run on, ends when the pod is made what it should be. One whose sandbox has
    /// ended is broken, and mended without waiting for anybody.
    #[must_use]
    pub fn is_interrupted(&self, name: &PodName, pod: &Pod) -> bool {
        let is_whole = self.sandboxes.iter().any(|sandbox| sandbox.pod == *name && sandbox.ready);
        is_whole && self.runs(name) && self.lasting_sandbox(name, pod).is_none()
    }

    /// A mount of a directory that was removed stays what it was, and shows nothing of a new one.
    fn has_files_directory(&self, name: &PodName) -> bool {
        let found = self.files.get(&format!("{}/{}/{FILES}", name.cluster, name.component));
        found.is_some_and(|found| found.sha256.is_none())
    }

    /// Whether no file that is read at a start only has another content: whoever changed it may have done so before the last
    /// start.
    fn starts_as_wanted(&self, name: &PodName, pod: &Pod) -> bool {
        let mut read_at_start = pod.files.iter().filter(|file| file.on_change == OnChange::Restart);
        read_at_start.all(|file| {
            let path = format!("{}/{}/{FILES}/{}", name.cluster, name.component, file.path);
            // A directory in its place has another content, too.
            self.files.get(&path).is_none_or(|found| found.sha256.as_deref() == Some(&sha256_hex(&file.content)))
        })
    }
}
