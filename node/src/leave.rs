//! How a machine is a worker no more: the cluster forgets it, and then it is as it was.

use std::{collections::BTreeMap, fs, io, net::SocketAddr, path::Path, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use keelway_api::worker::WireGuardPeer;
use keelway_vpn::{error::Chain, netlink::NetlinkError, netlink::interface::Interface};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use rustix::mount::{UnmountFlags, unmount};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::{
    api::{self, ApiError, Identity},
    certificate, cgroups, facts,
    files::{self, FileError},
    image,
    information::Known,
    kubelet,
    masquerade::{self, FirewallError},
    peer::Given,
    service::{self, ServiceError},
    settings::{Layout, NodeOptions},
    sysctl::{self, Changes},
    tunnels,
};

/// The bridge of the default CNI configuration.
const BRIDGE: &str = "cni0";
/// Tables of kube-proxy on this machine, which end with its pod.
const KUBE_PROXY: &str = "kube-proxy";
/// The label that a kubelet gives to its sandboxes.
const KUBELET_LABEL: &str = "io.kubernetes.pod.uid";
/// How soon a pod is evicted again that its PodDisruptionBudget held, or that is still ending.
const AGAIN: Duration = Duration::from_secs(1);

/// What `leave` is asked for.
#[derive(Debug, Clone)]
pub struct LeaveOptions {
    /// Where the worker's files are.
    pub layout: Layout,
    /// How long pods may take to end.
    pub drain_timeout: Duration,
    /// Leaves also where pods do not end, or the cluster cannot be reached.
    pub force: bool,
}

/// The machine is still a worker.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// It is none.
    #[error("this machine is no worker: there is nothing in {0}")]
    NoWorker(String),
    /// The cluster cannot be asked.
    #[error(
        "the cluster cannot be told: mend that, or leave with --force, or run `keelway node forget` and delete the Node and WireGuardPeer {node} there"
    )]
    Cluster {
        /// The Node.
        node: String,
        /// Why.
        #[source]
        source: ApiError,
    },
    /// Pods do not end.
    #[error("{} pods did not end within {} s: {}; the Node stays cordoned; give --drain-timeout more, or say --force", .pods.len(), .limit.as_secs(), .pods.join(", "))]
    Pods {
        /// Which.
        pods: Vec<String>,
        /// For how long they had.
        limit: Duration,
    },
    /// The daemon does not stop.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kernel refused.
    #[error("cannot take the worker's network away")]
    Network(#[source] NetlinkError),
    /// The firewall refused.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}

/// Leaves the cluster, and makes the machine what it was.
pub async fn leave(options: &LeaveOptions) -> Result<(), LeaveError> {
    let layout = &options.layout;
    let Some(node) = layout.read_options()? else {
        if !layout.root().exists() {
            return Err(LeaveError::NoWorker(layout.root().display().to_string()));
        }
        return forget(layout).await;
    };
    let told = match client(layout) {
        // A join that was cut off before it had a certificate has nothing in the cluster.
        Ok(None) => Ok(None),
        Ok(Some(client)) => drain(&client, &node.name, options).await.map(|()| Some(client)),
        Err(source) => Err(LeaveError::Cluster { node: node.name.clone(), source }),
    };
    let client = unless_forced(options.force, told)?.flatten();
    service::stop(node.service, layout).await?;
    kubelet::stop(layout).await?;
    if let Some(client) = client {
        let gone = unregister(client, &node.name).await;
        unless_forced(options.force, gone.map_err(|source| LeaveError::Cluster { node: node.name.clone(), source }))?;
    }
    forget(layout).await
}

/// What failed, unless it does not matter.
fn unless_forced<T>(force: bool, outcome: Result<T, LeaveError>) -> Result<Option<T>, LeaveError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if force => {
            tracing::warn!("{}", Chain(&error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The API as this node, by an ingress: the worker's own balancer is about to go. None where it never had a certificate.
fn client(layout: &Layout) -> Result<Option<Client>, ApiError> {
    let Some(known) = Known::kept(layout).map_err(ApiError::File)? else { return Ok(None) };
    if !layout.identity().exists() {
        return Ok(None);
    }
    let held = certificate::held(layout, Timestamp::now()).map_err(ApiError::File)?.ok_or(ApiError::NoIdentity)?;
    let identity = Identity::Certificate { certificate: &held.certificate, key: held.key.expose() };
    let reachable = known.cluster.endpoints.iter().map(|endpoint| endpoint.address).find(is_reachable);
    let first = known.cluster.endpoints.first().map(|endpoint| endpoint.address);
    let Some(address) = reachable.or(first) else { return Err(ApiError::NoIdentity) };
    api::client(address, api::certificates(&known.authorities)?, &identity).map(Some)
}

fn is_reachable(address: &SocketAddr) -> bool {
    std::net::TcpStream::connect_timeout(address, Duration::from_secs(3)).is_ok()
}

/// Lets no more pods come, and those that are there end elsewhere.
async fn drain(client: &Client, name: &str, options: &LeaveOptions) -> Result<(), LeaveError> {
    let failed = |source| LeaveError::Cluster { node: name.to_owned(), source };
    let nodes: Api<Node> = Api::all(client.clone());
    let cordon = json!({ "spec": { "unschedulable": true } });
    match nodes.patch(name, &PatchParams::default(), &Patch::Merge(&cordon)).await {
        Err(error) if api::code(&error) == Some(404) => return Ok(()),
        Err(error) => return Err(failed(ApiError::request(format!("cordon the Node {name}"))(error))),
        Ok(_) => {}
    }
    let mut left = Vec::new();
    let drained = timeout(options.drain_timeout, async {
        loop {
            left = evict(client, name).await?;
            if left.is_empty() {
                return Ok(());
            }
            // A budget that holds a pod tells nobody when it lets go.
            sleep(AGAIN).await;
        }
    });
    match drained.await {
        Ok(outcome) => outcome.map_err(failed),
        Err(_) if options.force => Ok(()),
        Err(_) => Err(LeaveError::Pods { pods: left, limit: options.drain_timeout }),
    }
}

/// Evicts what is to be evicted, and returns what is still there of it.
async fn evict(client: &Client, node: &str) -> Result<Vec<String>, ApiError> {
    let all: Api<Pod> = Api::all(client.clone());
    let selector = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = all.list(&selector).await.map_err(ApiError::request("list the pods of this worker"))?;
    let mut left = Vec::new();
    for pod in pods.items.iter().filter(|pod| is_drained(pod)) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        left.push(format!("{namespace}/{name}"));
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        match pods.evict(&name, &EvictParams::default()).await {
            // 404: it is gone; 429: its budget holds it.
            Err(error) if !matches!(api::code(&error), Some(404 | 429)) => {
                return Err(ApiError::request(format!("evict the pod {namespace}/{name}"))(error));
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(left)
}

/// Pods of a DaemonSet would come again, and those of files of the machine are not the cluster's.
fn is_drained(pod: &Pod) -> bool {
    let is_static = pod.annotations().contains_key("kubernetes.io/config.mirror");
    let is_daemon = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    !is_static && !is_daemon
}

async fn unregister(client: Client, name: &str) -> Result<(), ApiError> {
    delete::<Node>(Api::all(client.clone()), "Node", name).await?;
    delete::<WireGuardPeer>(Api::all(client), "WireGuardPeer", name).await
}

async fn delete<K>(api: Api<K>, kind: &str, name: &str) -> Result<(), ApiError>
where
    K: Clone + DeserializeOwned + core::fmt::Debug,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(error) if api::code(&error) != Some(404) => {
            Err(ApiError::request(format!("delete the {kind} {name}"))(error))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes the machine what it was, whatever the cluster knows of it. It can be done again until it is done.
pub async fn forget(layout: &Layout) -> Result<(), LeaveError> {
    if !layout.root().exists() {
        return Err(LeaveError::NoWorker(layout.root().display().to_string()));
    }
    let changes = Changes::read(layout)?;
    if let Some(options) = layout.read_options()? {
        service::stop(options.service, layout).await?;
        kubelet::stop(layout).await?;
        clear_runtime(&options, &changes).await;
        unmount_below(&options.kubelet_root_dir);
        clear_network(layout)?;
        cgroups::remove(options.cgroup_root.as_deref());
        files::remove_tree(&options.kubelet_root_dir)?;
    }
    sysctl::put_back(&changes)?;
    put_back_files(&changes)?;
    image::clear_mount(layout);
    // What tells of all the others goes last.
    remove_but(layout, &[layout.options(), layout.changes()])?;
    Ok(files::remove_tree(layout.root())?)
}

/// Ends the pods that the kubelet left, and removes the image that was pulled. A runtime that is gone has neither.
async fn clear_runtime(options: &NodeOptions, changes: &Changes) {
    let Ok(runtime) = facts::client(&options.containerd_socket) else { return };
    let cleared = async {
        let sandboxes = runtime.list_pod_sandboxes(&BTreeMap::new()).await?;
        for sandbox in sandboxes.iter().filter(|sandbox| sandbox.labels.contains_key(KUBELET_LABEL)) {
            runtime.stop_pod_sandbox(&sandbox.id).await?;
            runtime.remove_pod_sandbox(&sandbox.id).await?;
        }
        Ok::<(), keelway_cri::Error>(())
    };
    if let Err(error) = cleared.await {
        tracing::warn!("pods may be left in containerd: {}", Chain(&error));
    }
    if let Some(name) = &changes.image
        && let Err(status) = image::remove(&runtime, name).await
    {
        tracing::warn!(%status, image = name, "the image stays");
    }
}

fn clear_network(layout: &Layout) -> Result<(), LeaveError> {
    if let Some(known) = Known::kept(layout)? {
        let given: Given = files::read_json(&layout.peer())?.unwrap_or_default();
        tunnels::clear(&known.cluster, &given).map_err(LeaveError::Network)?;
    }
    if let Ok(bridge) = Interface::find(BRIDGE) {
        bridge.delete().map_err(LeaveError::Network)?;
    }
    Ok(masquerade::remove(&[masquerade::TABLE, KUBE_PROXY])?)
}

/// Takes away what is mounted in a directory, the innermost first.
fn unmount_below(directory: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let targets = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(|path| path.replace("\\040", " "));
    let mut below: Vec<String> = targets.filter(|path| Path::new(path).starts_with(directory)).collect();
    below.sort();
    for path in below.iter().rev() {
        if let Err(error) = unmount(path.as_str(), UnmountFlags::DETACH) {
            tracing::warn!(%error, path, "a mount stays");
        }
    }
}

fn put_back_files(changes: &Changes) -> Result<(), FileError> {
    for path in &changes.trees {
        unmount_below(path);
        files::remove_tree(path)?;
    }
    for path in &changes.files {
        files::remove(path)?;
    }
    for path in changes.directories.iter().rev() {
        match fs::remove_dir(path) {
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
                return Err(FileError::new("remove", path)(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn remove_but(layout: &Layout, kept: &[std::path::PathBuf]) -> Result<(), FileError> {
    for entry in fs::read_dir(layout.root()).map_err(FileError::new("list", layout.root()))?.flatten() {
        let path = entry.path();
        if kept.contains(&path) {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files::remove_tree(&path)?;
        } else {
            files::remove(&path)?;
        }
    }
    Ok(())
}
