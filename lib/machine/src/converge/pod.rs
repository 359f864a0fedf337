//! The sandbox and the containers of one pod.

use std::collections::BTreeSet;

use keelway_api::{
    machine::{
        Container, ContainerPhase, ContainerState, MachineState, OnChange, Pod, PodDigests, SandboxState, Start,
    },
    name::PodName,
};

use super::{servers, tree};
use crate::{
    action::{NewContainer, NewSandbox, PodAction, WantedImage},
    layout::{FILES, cgroup_parent, is_named_after, pod_directory},
};

/// The grace of a container without its own: the default of Kubernetes pods.
const DEFAULT_GRACE_SECONDS: u32 = 30;

/// Images come first, because fetching takes longest and affects nothing that runs. Files follow, so that a pod whose files cannot be written
/// continues unchanged. Then the pod is changed. Files that only its predecessor read are removed last.
pub(super) fn plan_wanted(name: &PodName, wanted: (&Pod, &PodDigests), state: &MachineState) -> Vec<PodAction> {
    let (pod, digests) = wanted;
    let seen = ObservedPod::new(name, state);
    if pod.start.stops() {
        return plan_stopped(&seen, pod);
    }
    if pod.start.waits() {
        return plan_ready(name, wanted, state);
    }
    if !tree::allows_start(name, pod, state) {
        // Nothing is changed, so that the data can be examined and restored as it was found.
        return Vec::new();
    }
    if pod.hold && state.is_interrupted(name, wanted) {
        return plan_held(&seen, wanted);
    }
    let kept = state.reusable_sandbox(name, wanted);
    let old = seen.sandboxes.iter().filter(|sandbox| kept.is_none_or(|kept| kept.id != sandbox.id));
    let replacing: Vec<_> = old.flat_map(|sandbox| seen.plan_end_of(sandbox)).collect();
    let running = match kept {
        Some(sandbox) => seen.plan_containers(sandbox, pod),
        None => seen.plan_new(pod, digests),
    };

    // A haproxy that starts reads its servers from its files.
    let goes_on = replacing.is_empty() && running.is_empty();
    let servers = goes_on.then(|| plan_servers(name, pod, state)).into_iter().flatten();

    let mut steps = plan_images(pod, &running, state);
    steps.extend(tree::plan_present(name, wanted, state));
    steps.extend(replacing);
    steps.extend(running);
    steps.extend(servers);
    steps.extend(tree::plan_absent(name, pod, state));
    steps
}

/// Plans all but the start, and stops nothing that runs.
fn plan_ready(name: &PodName, (pod, digests): (&Pod, &PodDigests), state: &MachineState) -> Vec<PodAction> {
    let mut steps = fetch(pod, images_of(pod), state);
    steps.extend(tree::plan_present(name, (pod, digests), state));
    if pod.start == Start::Never {
        steps.extend(tree::plan_marks(name, pod, state));
    }
    steps.extend(tree::plan_absent(name, pod, state));
    steps
}

/// Plans the end of a pod that is not to run, and then the copies of its data. Its files and data stay as they are.
fn plan_stopped(seen: &ObservedPod<'_>, pod: &Pod) -> Vec<PodAction> {
    let mut steps: Vec<_> = seen.sandboxes.iter().flat_map(|sandbox| seen.plan_end_of(sandbox)).collect();
    if let Start::Copied(copy) = pod.start {
        steps.extend(tree::plan_copies(seen.name, pod, copy, seen.state));
    }
    steps
}

/// Plans for a pod whose replacement is held back. What runs continues, with files that it reloads by itself, and containers that have ended are
/// restarted. Files that the pod read at its start stay unchanged: a difference there shows that a replacement is pending.
fn plan_held(seen: &ObservedPod, (pod, digests): (&Pod, &PodDigests)) -> Vec<PodAction> {
    let ObservedPod { name, state, .. } = *seen;
    let files = pod.files.iter().cloned().zip(digests.files.iter().cloned());
    let (files, of_files) = files.filter(|(file, _)| file.on_change == OnChange::PickedUp).unzip();
    let now = (&Pod { files, ..pod.clone() }, &PodDigests { files: of_files, ..digests.clone() });
    let mut steps = fetch(pod, images_of(pod), state);
    steps.extend(tree::plan_present(name, now, state));
    // A sandbox of another definition stays as it is, because that definition is no longer known.
    let held = seen.sandboxes.iter().filter(|sandbox| sandbox.digest == digests.replacement);
    let held = held.filter(|sandbox| seen.holds(sandbox, pod)).flat_map(|sandbox| seen.plan_containers(sandbox, pod));
    steps.extend(held);
    steps.extend(plan_servers(name, pod, state));
    steps
}

/// Restarts what has ended of a pod whose files are unknown, from the definition that it was created from. What runs stays as it is, and so does what
/// was created from another definition.
pub(super) fn plan_revival(name: &PodName, wanted: (&Pod, &PodDigests), state: &MachineState) -> Vec<PodAction> {
    let (pod, digests) = wanted;
    let seen = ObservedPod::new(name, state);
    let was_made_of_it = seen.sandboxes.iter().all(|sandbox| sandbox.digest == digests.replacement);
    let has_files = state.files.contains_key(&format!("{}/{FILES}", pod_directory(name)));
    let was_started = !seen.sandboxes.is_empty() && was_made_of_it && has_files;
    if !was_started || pod.start.waits() || pod.start.stops() || !tree::allows_start(name, pod, state) {
        return Vec::new();
    }
    let (ended, running) = if let Some(sandbox) = state.reusable_sandbox(name, wanted) {
        (Vec::new(), seen.plan_containers(sandbox, pod))
    } else {
        let ended = seen.sandboxes.iter().flat_map(|sandbox| seen.plan_end_of(sandbox)).collect();
        (ended, seen.plan_new(pod, digests))
    };
    let mut steps = plan_images(pod, &running, state);
    steps.extend(ended);
    steps.extend(running);
    steps
}

fn plan_servers(name: &PodName, pod: &Pod, state: &MachineState) -> Vec<PodAction> {
    pod.servers.iter().flat_map(|wanted| servers::plan_servers(name, wanted, state)).collect()
}

/// Stops and removes a pod completely, its data last.
pub(super) fn plan_removal(name: &PodName, state: &MachineState) -> Vec<PodAction> {
    let seen = ObservedPod::new(name, state);
    let mut steps: Vec<_> = seen.sandboxes.iter().flat_map(|sandbox| seen.plan_end_of(sandbox)).collect();
    if !seen.sandboxes.is_empty() || state.files.contains_key(&pod_directory(name)) {
        steps.push(PodAction::RemoveTree);
    }
    steps
}

/// Fetches only images that the steps use. A pod that runs needs none, and its images may have been removed since.
fn plan_images(pod: &Pod, steps: &[PodAction], state: &MachineState) -> Vec<PodAction> {
    let mut images = BTreeSet::new();
    for step in steps {
        if let PodAction::CreateSandbox(_) = step {
            images.insert(&pod.pause_image);
        }
        if let PodAction::CreateContainer(new) = step {
            images.insert(&new.container.image);
        }
    }
    fetch(pod, images, state)
}

fn images_of(pod: &Pod) -> BTreeSet<&String> {
    pod.containers.iter().map(|container| &container.image).chain([&pod.pause_image]).collect()
}

fn fetch(pod: &Pod, images: BTreeSet<&String>, state: &MachineState) -> Vec<PodAction> {
    let missing = images.into_iter().filter(|image| !state.has_image(image));
    let wanted = |name: &String| WantedImage { name: name.clone(), credentials: pod.registries.get(name).cloned() };
    missing.map(|name| PodAction::EnsureImage(wanted(name))).collect()
}

/// The observed state of one pod.
struct ObservedPod<'a> {
    name: &'a PodName,
    state: &'a MachineState,
    sandboxes: Vec<&'a SandboxState>,
}

impl<'a> ObservedPod<'a> {
    fn new(name: &'a PodName, state: &'a MachineState) -> Self {
        let of_pod = |sandbox: &&SandboxState| sandbox.pod == *name;
        Self { name, state, sandboxes: state.sandboxes.iter().filter(of_pod).collect() }
    }

    fn containers_in(&self, sandbox: &SandboxState) -> impl Iterator<Item = &'a ContainerState> {
        let id = sandbox.id.clone();
        self.state.containers.iter().filter(move |container| container.sandbox == id)
    }

    /// Returns whether the main container of the pod runs in a sandbox and can continue.
    fn holds(&self, sandbox: &SandboxState, pod: &Pod) -> bool {
        let main = pod.containers.last().map(|container| container.name.as_str());
        let runs = |found: &ContainerState| found.phase == ContainerPhase::Running && Some(found.name.as_str()) == main;
        sandbox.ready && self.containers_in(sandbox).any(runs)
    }

    /// Stops the containers before the sandbox, because stopping a sandbox grants no time to drain. The container that the component is named after
    /// stops first, because it relies on the others.
    fn plan_end_of(&self, sandbox: &SandboxState) -> Vec<PodAction> {
        let mut containers: Vec<_> = self.containers_in(sandbox).collect();
        containers.sort_by_key(|container| !is_named_after(self.name, &container.name));
        let mut steps: Vec<_> = containers.into_iter().filter_map(plan_stop).collect();
        steps.push(PodAction::StopSandbox { id: sandbox.id.clone() });
        steps.push(PodAction::RemoveSandbox { id: sandbox.id.clone() });
        steps
    }

    /// Creates a new sandbox with all its containers.
    fn plan_new(&self, pod: &Pod, digests: &PodDigests) -> Vec<PodAction> {
        let attempt = next(self.sandboxes.iter().map(|sandbox| sandbox.attempt));
        let sandbox = self.sandbox(attempt, digests.replacement.clone(), pod.user);
        let containers = pod.containers.iter().flat_map(|container| self.plan_container(None, &sandbox, container));
        let create = PodAction::CreateSandbox(sandbox.clone());
        std::iter::once(create).chain(containers).collect()
    }

    fn sandbox(&self, attempt: u32, digest: String, user: u32) -> NewSandbox {
        NewSandbox {
            attempt,
            digest,
            cgroup_parent: cgroup_parent(&self.name.cluster, self.state.runtime.cgroup_driver),
            user,
        }
    }

    /// Repairs the containers of a sandbox that matches the config.
    fn plan_containers(&self, sandbox: &SandboxState, pod: &Pod) -> Vec<PodAction> {
        let made_from = self.sandbox(sandbox.attempt, sandbox.digest.clone(), pod.user);
        let mut steps = Vec::new();
        let is_wanted = |name: &str| pod.containers.iter().any(|wanted| wanted.name == name);
        for stray in self.containers_in(sandbox).filter(|found| !is_wanted(&found.name)) {
            steps.extend(plan_end_of_container(stray));
        }
        for wanted in &pod.containers {
            let found: Vec<_> = self.containers_in(sandbox).filter(|found| found.name == wanted.name).collect();
            let kept = pick(&found);
            for other in found.iter().filter(|found| kept.is_none_or(|kept| kept.id != found.id)) {
                steps.extend(plan_end_of_container(other));
            }
            match kept {
                None => steps.extend(self.plan_container(Some(&sandbox.id), &made_from, wanted)),
                Some(kept) if kept.phase == ContainerPhase::Created => {
                    steps.push(PodAction::StartContainer { id: Some(kept.id.clone()), name: kept.name.clone() });
                }
                Some(_) => {}
            }
        }
        steps
    }

    /// Creates and starts a container. Runtimes identify a container by pod, name and attempt, across sandboxes.
    fn plan_container(&self, sandbox_id: Option<&str>, sandbox: &NewSandbox, container: &Container) -> [PodAction; 2] {
        let in_pod = self.sandboxes.iter().flat_map(|sandbox| self.containers_in(sandbox));
        let of_name = in_pod.filter(|found| found.name == container.name);
        let create = PodAction::CreateContainer(Box::new(NewContainer {
            sandbox_id: sandbox_id.map(str::to_owned),
            sandbox: sandbox.clone(),
            attempt: next(of_name.map(|found| found.attempt)),
            container: container.clone(),
        }));
        let start = PodAction::StartContainer { id: None, name: container.name.clone() };
        [create, start]
    }
}

fn next(attempts: impl Iterator<Item = u32>) -> u32 {
    attempts.max().map_or(0, |highest| highest.saturating_add(1))
}

/// Returns the container to keep: a running one before one that never started, and the newest of its kind. A container that ended, or whose state the
/// runtime does not know, cannot be kept.
fn pick<'a>(found: &[&'a ContainerState]) -> Option<&'a ContainerState> {
    let rank = |container: &ContainerState| match container.phase {
        ContainerPhase::Running => Some(2),
        ContainerPhase::Created => Some(1),
        ContainerPhase::Exited { .. } | ContainerPhase::Unknown => None,
    };
    found
        .iter()
        .copied()
        .filter_map(|container| Some((rank(container)?, container.attempt, container)))
        .max_by_key(|(rank, attempt, _)| (*rank, *attempt))
        .map(|(_, _, container)| container)
}

fn plan_end_of_container(container: &ContainerState) -> Vec<PodAction> {
    let remove = PodAction::RemoveContainer { id: container.id.clone(), name: container.name.clone() };
    plan_stop(container).into_iter().chain([remove]).collect()
}

/// A container in unknown state may still run.
fn plan_stop(container: &ContainerState) -> Option<PodAction> {
    match container.phase {
        ContainerPhase::Running | ContainerPhase::Unknown => Some(PodAction::StopContainer {
            id: container.id.clone(),
            name: container.name.clone(),
            grace_seconds: container.stop_seconds.unwrap_or(DEFAULT_GRACE_SECONDS),
        }),
        ContainerPhase::Created | ContainerPhase::Exited { .. } => None,
    }
}
