//! The helper's pod on its machine.

use std::{collections::BTreeMap, path::Path};

use keelway_api::{
    machine::{HELPER_LABEL, INSTALLATION_LABEL, STATE_DIRECTORY},
    name::InstallationId,
    release,
};
use keelway_cri::{
    self as cri, ContainerSpec, CriCgroupDriver, CriContainerState, CriMount, CriResources, CriRuntime,
    CriSandboxState, SandboxSpec,
};
use keelway_machine::layout::LOG_DIRECTORY;

use super::{HelperError, HelperIdentity, run};
use crate::image;

/// The path of the program in the image.
pub(super) const PROGRAM: &str = "/keelway-helper";
const NAME: &str = "helper";
/// The name of the temporary container that creates or removes the mounted directories.
const BESIDE: &str = "tops";
/// The helper creates files and changes their owners. It needs no other capability of root.
const CAPABILITIES: [&str; 3] = ["CHOWN", "DAC_OVERRIDE", "FOWNER"];
const MEMORY: i64 = 256 << 20;
const CGROUPS: &str = "/sys/fs/cgroup";

/// A running helper.
pub(super) struct HelperPod {
    pub(super) sandbox: String,
    pub(super) container: String,
}

/// Returns the running pod, or replaces what is left of others with a new one.
pub(super) async fn ensure(
    runtime: &CriRuntime,
    archives: &Path,
    identity: &HelperIdentity,
) -> Result<HelperPod, HelperError> {
    let found = runtime.list_pod_sandboxes(&labels(identity)).await?;
    for sandbox in found.iter().filter(|sandbox| sandbox.state == CriSandboxState::Ready) {
        if let Some(container) = running(runtime, identity, &sandbox.id).await? {
            return Ok(HelperPod { sandbox: sandbox.id.clone(), container });
        }
    }
    for sandbox in &found {
        remove_sandbox(runtime, &sandbox.id).await?;
    }
    let attempt = found.iter().map(|sandbox| sandbox.attempt + 1).max().unwrap_or_default();
    make(runtime, archives, identity, attempt).await
}

async fn running(
    runtime: &CriRuntime,
    identity: &HelperIdentity,
    sandbox: &str,
) -> Result<Option<String>, HelperError> {
    let image = release::helper_image(None);
    let mut containers = runtime.list_containers(&labels(identity)).await?.into_iter();
    let found = containers.find(|container| {
        container.sandbox_id == sandbox
            && container.name == NAME
            && container.image == image
            && container.state == CriContainerState::Running
    });
    Ok(found.map(|container| container.id))
}

async fn make(
    runtime: &CriRuntime,
    archives: &Path,
    identity: &HelperIdentity,
    attempt: u32,
) -> Result<HelperPod, HelperError> {
    for image in [release::newest().pause_image(None), release::helper_image(None)] {
        let ensured = image::ensure(runtime, archives, &image).await;
        ensured.map_err(|error| HelperError::Image(Box::new(error)))?;
    }
    let sandbox = sandbox(runtime, identity, attempt).await?;
    let id = runtime.run_pod_sandbox(&sandbox).await?;
    manage_top_directories(runtime, identity, (&id, &sandbox), "make").await?;
    let mounts = [STATE_DIRECTORY, LOG_DIRECTORY, CGROUPS].map(mounted).to_vec();
    let container = start(runtime, (&id, &sandbox), &container(identity, NAME, mounts)).await?;
    Ok(HelperPod { sandbox: id, container })
}

/// Creates or removes the top directories, from a container that has their parents mounted. Removes that container afterwards.
async fn manage_top_directories(
    runtime: &CriRuntime,
    identity: &HelperIdentity,
    within: (&str, &SandboxSpec),
    what: &str,
) -> Result<(), HelperError> {
    let parent = |path: &str| path.rsplit_once('/').map_or_else(|| path.to_owned(), |(parent, _)| parent.to_owned());
    let mounts = [STATE_DIRECTORY, LOG_DIRECTORY].map(|path| mounted(parent(path))).to_vec();
    let beside = start(runtime, within, &container(identity, BESIDE, mounts)).await?;
    let done = run(runtime, &beside, &["tops".to_owned(), what.to_owned()]).await;
    runtime.remove_container(&beside).await?;
    done.map(|_| ())
}

async fn start(
    runtime: &CriRuntime,
    (id, sandbox): (&str, &SandboxSpec),
    container: &ContainerSpec,
) -> Result<String, HelperError> {
    let made = runtime.create_container(id, sandbox, container).await?;
    runtime.start_container(&made).await?;
    Ok(made)
}

/// Removes the pod, and the top directories if they are empty.
pub(super) async fn remove(
    runtime: &CriRuntime,
    identity: &HelperIdentity,
    id: &str,
    container: &str,
) -> Result<(), HelperError> {
    // A mounted directory cannot be removed.
    runtime.remove_container(container).await?;
    let sandbox = sandbox(runtime, identity, runtime.pod_sandbox_status(id).await?.attempt).await?;
    manage_top_directories(runtime, identity, (id, &sandbox), "leave").await?;
    remove_sandbox(runtime, id).await
}

/// Removes the pods of other installations.
pub(super) async fn remove_others(runtime: &CriRuntime, own: &InstallationId) -> Result<(), HelperError> {
    for sandbox in runtime.list_pod_sandboxes(&BTreeMap::new()).await? {
        let labels = &sandbox.labels;
        if labels.contains_key(HELPER_LABEL) && labels.get(INSTALLATION_LABEL).map(String::as_str) != Some(own.as_str())
        {
            remove_sandbox(runtime, &sandbox.id).await?;
        }
    }
    Ok(())
}

async fn remove_sandbox(runtime: &CriRuntime, id: &str) -> Result<(), HelperError> {
    runtime.stop_pod_sandbox(id).await?;
    Ok(runtime.remove_pod_sandbox(id).await?)
}

/// Without the label of a cluster: the helper is no component, and outlives all of them.
fn labels(identity: &HelperIdentity) -> BTreeMap<String, String> {
    BTreeMap::from([
        (INSTALLATION_LABEL.to_owned(), identity.installation.to_string()),
        (HELPER_LABEL.to_owned(), identity.machine.to_string()),
    ])
}

async fn sandbox(runtime: &CriRuntime, identity: &HelperIdentity, attempt: u32) -> Result<SandboxSpec, cri::CriError> {
    // Runtimes never remove the parent cgroups that they create, and nothing would be left that could: so the pod has no parent. With the driver
    // systemd, a parent must be a slice.
    let cgroup_parent = match runtime.status().await?.cgroup_driver {
        CriCgroupDriver::Cgroupfs => "/".to_owned(),
        CriCgroupDriver::Systemd => "keelway-helper.slice".to_owned(),
    };
    Ok(SandboxSpec {
        name: NAME.to_owned(),
        namespace: identity.installation.namespace(),
        uid: format!("{}-{}", identity.installation, identity.machine),
        attempt,
        cgroup_parent,
        labels: labels(identity),
        ..SandboxSpec::default()
    })
}

fn container(identity: &HelperIdentity, name: &str, mounts: Vec<CriMount>) -> ContainerSpec {
    ContainerSpec {
        name: name.to_owned(),
        image: release::helper_image(None),
        command: vec![PROGRAM.to_owned(), "wait".to_owned()],
        mounts,
        capabilities: CAPABILITIES.map(str::to_owned).to_vec(),
        resources: CriResources { memory_limit: MEMORY, ..CriResources::default() },
        labels: labels(identity),
        ..ContainerSpec::default()
    }
}

/// Mounts a directory of the machine under its own path.
fn mounted(path: impl AsRef<str>) -> CriMount {
    let path = path.as_ref().to_owned();
    CriMount { host_path: path.clone(), container_path: path, read_only: false }
}
