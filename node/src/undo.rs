//! Restores a machine to its state before it was a worker.

use std::{collections::BTreeMap, fs, io, os::unix::ffi::OsStrExt};

use keelway_base::error_chain::ErrorChain;
use keelway_cri::CriRuntime;
use keelway_vpn::netlink::{NetlinkError, interface::Interface};

use crate::{
    cgroups,
    changes::{BRIDGE, Changes},
    facts,
    files::{self, NodeFileError},
    firewall::{self, FirewallError},
    forwarders::Forwarders,
    image,
    information::TrustedInformation,
    kubelet,
    mounts::{self, MountBaseline},
    peer::PeerAssignment,
    pod_probe,
    removal::RemovalError,
    service::{self, ServiceError},
    settings::{Layout, NodeOptions},
    sysctl, tunnels,
};

/// The label that a kubelet sets on its sandboxes.
pub(crate) const KUBELET_LABEL: &str = "io.kubernetes.pod.uid";

/// The machine could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The machine is not a worker.
    #[error("this machine is not a worker: {0} does not exist")]
    NoWorker(String),
    /// Pods do not end.
    #[error("containerd cannot stop {} pods: {}; fix the cause and run the command again", .0.len(), .0.join(", "))]
    Pods(Vec<String>),
    /// The daemon does not stop.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// A directory cannot be removed.
    #[error(transparent)]
    Removal(#[from] RemovalError),
    /// The kernel refused to remove an interface, an address or a route.
    #[error("cannot remove the worker's network")]
    Network(#[source] NetlinkError),
    /// The firewall cannot be changed.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}

/// Ends kubelet and pods, while the daemon may still run. It can be repeated.
pub(crate) async fn end_pods(layout: &Layout, options: &NodeOptions) -> Result<(), UndoError> {
    files::write(&layout.leaving(), "", 0o600)?;
    kubelet::stop(layout).await?;
    let Ok(runtime) = facts::client(&options.containerd_socket) else { return Ok(()) };
    end_sandboxes(&runtime).await
}

/// Ends all sandboxes of a kubelet, and continues after an error. If the runtime does not respond, it only logs that.
async fn end_sandboxes(runtime: &CriRuntime) -> Result<(), UndoError> {
    let sandboxes = match runtime.list_pod_sandboxes(&BTreeMap::new()).await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            tracing::warn!("cannot list pods; some may remain: {}", ErrorChain(&error));
            return Ok(());
        }
    };
    let mut left = Vec::new();
    for sandbox in sandboxes.iter().filter(|sandbox| sandbox.labels.contains_key(KUBELET_LABEL)) {
        let ended = async {
            runtime.stop_pod_sandbox(&sandbox.id).await?;
            runtime.remove_pod_sandbox(&sandbox.id).await
        };
        if let Err(error) = ended.await {
            tracing::warn!(sandbox = sandbox.id, "cannot remove a pod: {}", ErrorChain(&error));
            left.push(sandbox.id.clone());
        }
    }
    if left.is_empty() { Ok(()) } else { Err(UndoError::Pods(left)) }
}

/// Restores the machine, without contacting the cluster. It can be repeated until it succeeds. Returns the name of the worker.
pub async fn forget(layout: &Layout) -> Result<Option<String>, UndoError> {
    if !layout.root().exists() {
        return Err(UndoError::NoWorker(layout.root().display().to_string()));
    }
    let changes = Changes::read(layout)?;
    let options = layout.read_options()?;
    if let Some(options) = &options {
        end_pods(layout, options).await?;
        service::stop(options.service, layout).await?;
        clear_runtime(options, &changes, layout).await?;
        clear_network(layout, &changes)?;
        cgroups::remove(options.cgroup_root.as_deref());
    }
    restore_settings(&changes)?;
    put_back_files(&changes)?;
    image::clear_mount(layout);
    remove_state(layout)?;
    Ok(options.map(|options| options.name))
}

/// Removes the images that were pulled for the worker. If the runtime does not respond, it only logs that.
async fn clear_runtime(options: &NodeOptions, changes: &Changes, layout: &Layout) -> Result<(), NodeFileError> {
    let Ok(runtime) = facts::client(&options.containerd_socket) else { return Ok(()) };
    image::clear(layout, &runtime, &options.containerd_socket).await;
    let Some(before) = &changes.images else { return Ok(()) };
    let mut pulled = image::records(&options.kubelet_root_dir)?;
    pulled.extend(changes.pulled.iter().cloned());
    match image::remove_pulled(&runtime, before, pulled).await {
        Ok(stay) if stay.is_empty() => {}
        Ok(stay) => tracing::warn!(
            "images stay in containerd that were added since the join, but not by the kubelet, or that containers use: {}",
            stay.join(", ")
        ),
        Err(status) => tracing::warn!(%status, "cannot remove images from containerd; some may remain"),
    }
    Ok(())
}

/// Restores kernel settings, except those that other programs need now.
fn restore_settings(changes: &Changes) -> Result<(), UndoError> {
    if changes.sysctls.is_empty() {
        return Ok(());
    }
    let others = Forwarders::observe()?.since(changes.forwarders.as_ref());
    let stay = sysctl::restore(changes, !others.is_empty())?;
    if !stay.is_empty() {
        tracing::warn!("{} stay as they are, because other programs need them: {}", stay.join(", "), others.join(", "));
    }
    Ok(())
}

fn clear_network(layout: &Layout, changes: &Changes) -> Result<(), UndoError> {
    if let Some(known) = TrustedInformation::load(layout)? {
        let assignment: PeerAssignment = files::read_json(&layout.peer())?.unwrap_or_default();
        tunnels::clear(&known.cluster, &assignment).map_err(UndoError::Network)?;
    }
    // A killed daemon leaves its sockets.
    tunnels::sockets().try_for_each(|socket| files::remove(&socket))?;
    pod_probe::remove().map_err(UndoError::Network)?;
    if !changes.has_bridge
        && let Ok(bridge) = Interface::find(BRIDGE)
    {
        bridge.delete().map_err(UndoError::Network)?;
    }
    Ok(firewall::clear(&changes.firewall)?)
}

fn put_back_files(changes: &Changes) -> Result<(), UndoError> {
    let before = changes.trees_before();
    for tree in &changes.trees {
        mounts::remove(tree, &before)?;
    }
    for path in &changes.files {
        files::remove(&files::temporary_path(path))?;
        files::remove(path)?;
    }
    for path in changes.empty.iter().filter(|path| fs::metadata(path).is_ok_and(|found| found.len() == 0)) {
        files::remove(path)?;
    }
    for path in changes.directories.iter().rev() {
        match fs::remove_dir(path) {
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
                return Err(NodeFileError::new("remove", path)(error).into());
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Removes the worker's directory. The files that are needed to repeat all of this are removed last.
fn remove_state(layout: &Layout) -> Result<(), UndoError> {
    let (root, last) = (layout.root(), [layout.options(), layout.changes()]);
    let names = last.iter().filter_map(|path| path.file_name()).map(|name| name.as_bytes().to_vec());
    // The directory may be a file system of its own.
    let own = mounts::resolved(root)?.into_iter().map(|root| root.as_os_str().as_bytes().to_vec());
    let before = MountBaseline { directories: [(root.to_owned(), names.collect())].into(), mounts: own.collect() };
    mounts::remove(root, &before)?;
    last.iter().try_for_each(|path| files::remove(path))?;
    match fs::remove_dir(root) {
        // A link or a mount point was not created by the join.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::ResourceBusy) => Ok(()),
        removed => Ok(files::gone(removed).map_err(NodeFileError::new("remove", root))?),
    }
}
