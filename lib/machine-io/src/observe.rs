//! Observes the state of a machine.

use std::collections::{BTreeMap, BTreeSet};

use futures::{future::try_join_all, join, try_join};
use keelway_api::{
    machine::{
        CLUSTER_LABEL, COMPONENT_LABEL, CgroupDriver, ContainerPhase, ContainerState, DIGEST_ANNOTATION, DISK_RESERVE,
        FormatRange, MachineState, RuntimeFacts, STOP_LABEL, SandboxState,
    },
    name::PodName,
};
use keelway_cri::{self as cri, CriRuntime};

use crate::{
    figures, haproxy,
    local::{FilesError, LocalMachine},
};

/// The label that a kubelet sets on its sandboxes (`k8s.io/kubernetes/pkg/kubelet/types.KubernetesPodUIDLabel`).
const KUBELET_LABEL: &str = "io.kubernetes.pod.uid";

/// A machine could not be observed. A partial observation is not used.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The call to the runtime failed.
    #[error("cannot query the runtime")]
    Runtime {
        /// The error of the call.
        #[from]
        source: cri::CriError,
    },
    /// The files or ports cannot be read.
    #[error("cannot read the machine's files and ports")]
    Files {
        /// The error of the read.
        #[from]
        source: FilesError,
    },
}

impl ObserveError {
    /// Returns whether the machine responds and its runtime does not.
    #[must_use]
    pub fn runtime_is_silent(&self) -> bool {
        matches!(self, Self::Runtime { source } if source.retriable())
    }
}

pub(crate) async fn observe(machine: &LocalMachine) -> Result<MachineState, ObserveError> {
    let runtime = &machine.runtime;
    let (access, digests) = (&machine.access, machine.access.digests());
    let (facts, pods, images, (found, inventory), ports, addresses) = try_join!(
        async { Ok::<_, ObserveError>(observe_runtime(runtime).await?) },
        async { Ok(observe_pods(runtime).await?) },
        async { Ok(observe_images(runtime).await?) },
        async { Ok(access.with_files(move |files| Ok((files.observe(&digests)?, files.inventory()))).await?) },
        async { Ok(access.ports().await.map_err(FilesError::from)?) },
        async { Ok(access.addresses().await.map_err(FilesError::from)?) },
    )?;
    let (servers, figures) = join!(
        haproxy::observe(machine, &pods.sandboxes, &found.files),
        figures::observe(machine, &pods.sandboxes, &found.data, &found.databases),
    );
    Ok(MachineState {
        runtime: facts,
        owner: found.owner,
        applied: found.applied,
        term: 0,
        sandboxes: pods.sandboxes,
        containers: pods.containers,
        files: found.files,
        data: found.data,
        images,
        ports,
        addresses,
        servers,
        capacity: inventory.capacity,
        kubelet_pods: pods.of_kubelet,
        disk_pressure: inventory.disk.is_some_and(|disk| disk.available_bytes < DISK_RESERVE),
        disk: inventory.disk,
        system: Some(inventory.system),
        healthy: BTreeSet::new(),
        failures: Vec::new(),
        identity: None,
        agent_id: None,
        formats: FormatRange::OWN,
        restores: true,
        // Only an agent does.
        prefetches: false,
        figures,
    })
}

async fn observe_runtime(runtime: &CriRuntime) -> Result<RuntimeFacts, cri::CriError> {
    let (version, status) = try_join!(runtime.version(), runtime.status())?;
    Ok(RuntimeFacts {
        name: version.runtime,
        version: version.runtime_version,
        cgroup_driver: match status.cgroup_driver {
            cri::CriCgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
            cri::CriCgroupDriver::Systemd => CgroupDriver::Systemd,
        },
    })
}

/// The pods in the runtime.
struct Pods {
    sandboxes: Vec<SandboxState>,
    containers: Vec<ContainerState>,
    /// The number of sandboxes of a kubelet.
    of_kubelet: usize,
}

/// Lists sandboxes first. A container that is listed after them belongs to one of them, or to a newer sandbox, which the next look observes.
async fn observe_pods(runtime: &CriRuntime) -> Result<Pods, cri::CriError> {
    let everything = BTreeMap::new();
    let mut listed = runtime.list_pod_sandboxes(&everything).await?;
    listed.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created));
    let of_kubelet = listed.iter().filter(|sandbox| is_of_kubelet(sandbox)).count();
    let sandboxes: Vec<SandboxState> = listed.iter().filter_map(sandbox_state).collect();

    let ours: BTreeSet<&str> = sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect();
    let mut listed = runtime.list_containers(&everything).await?;
    listed.sort_by_key(|container| std::cmp::Reverse(container.created));
    let of_ours = listed.iter().filter(|container| ours.contains(container.sandbox_id.as_str()));
    let containers = try_join_all(of_ours.map(|container| container_state(runtime, container)));
    let containers = containers.await?.into_iter().flatten().collect();
    Ok(Pods { sandboxes, containers, of_kubelet })
}

/// A kubelet labels each of its sandboxes with the uid of its Pod.
fn is_of_kubelet(sandbox: &cri::CriSandbox) -> bool {
    sandbox.labels.contains_key(KUBELET_LABEL) && sandbox_state(sandbox).is_none()
}

/// Returns `None` for a sandbox of another program.
fn sandbox_state(sandbox: &cri::CriSandbox) -> Option<SandboxState> {
    let label = |name| sandbox.labels.get(name);
    Some(SandboxState {
        id: sandbox.id.clone(),
        pod: PodName { cluster: label(CLUSTER_LABEL)?.parse().ok()?, component: label(COMPONENT_LABEL)?.parse().ok()? },
        attempt: sandbox.attempt,
        digest: sandbox.annotations.get(DIGEST_ANNOTATION).cloned().unwrap_or_default(),
        ready: sandbox.state == cri::CriSandboxState::Ready,
    })
}

/// Returns `None` for a container that is gone.
async fn container_state(
    runtime: &CriRuntime,
    container: &cri::CriContainer,
) -> Result<Option<ContainerState>, cri::CriError> {
    let phase = match container.state {
        cri::CriContainerState::Created => ContainerPhase::Created,
        cri::CriContainerState::Running => ContainerPhase::Running,
        cri::CriContainerState::Unknown => ContainerPhase::Unknown,
        cri::CriContainerState::Exited => match runtime.container_status(&container.id).await {
            Err(cri::CriError::NotFound { .. }) => return Ok(None),
            status => ContainerPhase::Exited { code: status?.exit.map_or(0, |exit| exit.code) },
        },
    };
    let stop_seconds = container.labels.get(STOP_LABEL);
    Ok(Some(ContainerState {
        id: container.id.clone(),
        sandbox: container.sandbox_id.clone(),
        name: container.name.clone(),
        attempt: container.attempt,
        phase,
        stop_seconds: stop_seconds.and_then(|text| text.parse().ok()),
    }))
}

async fn observe_images(runtime: &CriRuntime) -> Result<BTreeSet<String>, cri::CriError> {
    let images = runtime.list_images().await?;
    Ok(images.into_iter().flat_map(|image| image.tags.into_iter().chain(image.digests)).collect())
}
