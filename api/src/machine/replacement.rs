//! When a pod that runs has to be replaced.

use super::{ContainerPhase, ContainerState, MachineState, OnChange, Pod, PodDigests, SandboxState};
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
        let mut of_pod = self.sandboxes.iter().filter(|sandbox| sandbox.pod == *name);
        of_pod.any(|sandbox| self.running_in(sandbox).any(&which))
    }

    fn running_in(&self, sandbox: &SandboxState) -> impl Iterator<Item = &ContainerState> {
        let of_sandbox = self.containers.iter().filter(|container| container.sandbox == sandbox.id);
        of_sandbox.filter(|container| container.phase == ContainerPhase::Running)
    }

    /// The sandbox that can stay, if what it reads is still what is wanted: of those that are ready and were made for it the one
    /// in which the most runs, then the newest. A runtime may make an empty one long after it was asked.
    #[must_use]
    pub fn reusable_sandbox(&self, name: &PodName, (pod, digests): (&Pod, &PodDigests)) -> Option<&SandboxState> {
        let digest = &digests.replacement;
        let fits = |sandbox: &&SandboxState| sandbox.ready && sandbox.digest == *digest && sandbox.pod == *name;
        let rank = |sandbox: &&SandboxState| (self.running_in(sandbox).count(), sandbox.attempt);
        let best = self.sandboxes.iter().filter(fits).max_by_key(rank)?;
        (self.has_files_directory(name) && self.starts_as_wanted(name, (pod, digests))).then_some(best)
    }

    /// Whether what the pod is there for runs, could run on, and ends when the pod is made what it should be. One whose sandbox has
    /// ended is broken, as is one of which only runs what stands beside it: they are mended without waiting for anybody.
    #[must_use]
    pub fn is_interrupted(&self, name: &PodName, (pod, digests): (&Pod, &PodDigests)) -> bool {
        let main = pod.containers.last().map(|container| container.name.as_str());
        let runs_in = |sandbox: &SandboxState| self.running_in(sandbox).any(|found| Some(found.name.as_str()) == main);
        let mut ready = self.sandboxes.iter().filter(|sandbox| sandbox.pod == *name && sandbox.ready);
        ready.any(runs_in) && !self.reusable_sandbox(name, (pod, digests)).is_some_and(runs_in)
    }

    /// A mount of a directory that was removed stays what it was, and shows nothing of a new one.
    fn has_files_directory(&self, name: &PodName) -> bool {
        let found = self.files.get(&format!("{}/{}/{FILES}", name.cluster, name.component));
        found.is_some_and(|found| found.sha256.is_none())
    }

    /// Whether no file that is read at a start only has another content: whoever changed it may have done so before the last
    /// start.
    fn starts_as_wanted(&self, name: &PodName, (pod, digests): (&Pod, &PodDigests)) -> bool {
        let files = pod.files.iter().zip(&digests.files);
        let mut read_at_start = files.filter(|(file, _)| file.on_change == OnChange::Restart);
        read_at_start.all(|(file, digest)| {
            let path = format!("{}/{}/{FILES}/{}", name.cluster, name.component, file.path);
            // A directory in its place has another content, too.
            self.files.get(&path).is_none_or(|found| found.sha256.as_ref() == Some(digest))
        })
    }
}
