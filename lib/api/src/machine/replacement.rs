//! Decides whether a running pod must be replaced.

use super::{ContainerPhase, ContainerState, MachineState, OnChange, Pod, PodDigests, SandboxState};
use crate::name::PodName;

/// The directory with the files of a pod's containers, relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`.
pub const FILES: &str = "files";

impl MachineState {
    /// Returns whether a container of the pod runs.
    #[must_use]
    pub fn runs(&self, name: &PodName) -> bool {
        self.any_runs(name, |_| true)
    }

    /// Returns whether this container of the pod runs.
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

    /// Returns the sandbox to keep, if the files that it reads at start match the config. Of the sandboxes that are ready and were created for this
    /// pod, it is the one with the most running containers, then the newest. A runtime may create an empty sandbox long after the request.
    #[must_use]
    pub fn reusable_sandbox(&self, name: &PodName, (pod, digests): (&Pod, &PodDigests)) -> Option<&SandboxState> {
        let digest = &digests.replacement;
        let fits = |sandbox: &&SandboxState| sandbox.ready && sandbox.digest == *digest && sandbox.pod == *name;
        let rank = |sandbox: &&SandboxState| (self.running_in(sandbox).count(), sandbox.attempt);
        let best = self.sandboxes.iter().filter(fits).max_by_key(rank)?;
        (self.has_files_directory(name) && self.starts_as_wanted(name, (pod, digests))).then_some(best)
    }

    /// Returns whether applying the config would interrupt the pod: its main container runs in a ready sandbox, and that sandbox cannot be kept. A
    /// pod whose sandbox has exited, or in which only an auxiliary container runs, is already interrupted and is repaired without waiting.
    #[must_use]
    pub fn is_interrupted(&self, name: &PodName, (pod, digests): (&Pod, &PodDigests)) -> bool {
        let mut ready = self.sandboxes.iter().filter(|sandbox| sandbox.pod == *name && sandbox.ready);
        ready.any(|sandbox| self.runs_main_in(sandbox, pod)) && !self.runs_as_wanted(name, (pod, digests))
    }

    /// Returns whether the pod runs as the config specifies, with every file, those included that a program reads again without a restart.
    #[must_use]
    pub fn runs_with_files(&self, name: &PodName, (pod, digests): (&Pod, &PodDigests)) -> bool {
        self.runs_as_wanted(name, (pod, digests)) && self.has_files(name, (pod, digests))
    }

    /// Returns whether the main container runs in a sandbox that can be kept.
    fn runs_as_wanted(&self, name: &PodName, (pod, digests): (&Pod, &PodDigests)) -> bool {
        let kept = self.reusable_sandbox(name, (pod, digests));
        kept.is_some_and(|sandbox| self.runs_main_in(sandbox, pod))
    }

    fn runs_main_in(&self, sandbox: &SandboxState, pod: &Pod) -> bool {
        let main = pod.containers.last().map(|container| container.name.as_str());
        self.running_in(sandbox).any(|found| Some(found.name.as_str()) == main)
    }

    fn has_files(&self, name: &PodName, (pod, digests): (&Pod, &PodDigests)) -> bool {
        pod.files.iter().zip(&digests.files).all(|(file, digest)| {
            let found = self.files.get(&file_path(name, &file.path));
            found.is_some_and(|found| found.sha256.as_ref() == Some(digest))
        })
    }

    /// If a directory is removed, an existing mount keeps the old one and does not show a new directory of the same name.
    fn has_files_directory(&self, name: &PodName) -> bool {
        let found = self.files.get(&format!("{}/{}/{FILES}", name.cluster, name.component));
        found.is_some_and(|found| found.sha256.is_none())
    }

    /// Returns whether every file that is read at start has the content of the config. If one differs, it may have been changed before the last
    /// start.
    fn starts_as_wanted(&self, name: &PodName, (pod, digests): (&Pod, &PodDigests)) -> bool {
        let files = pod.files.iter().zip(&digests.files);
        let mut read_at_start = files.filter(|(file, _)| file.on_change == OnChange::Restart);
        read_at_start.all(|(file, digest)| {
            // A directory in place of a file also counts as different.
            self.files.get(&file_path(name, &file.path)).is_none_or(|found| found.sha256.as_ref() == Some(digest))
        })
    }
}

fn file_path(name: &PodName, path: &str) -> String {
    format!("{}/{}/{FILES}/{path}", name.cluster, name.component)
}
