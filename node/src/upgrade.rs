//! Replaces the kubelet and the CNI plugins of a worker with those of another image, and restarts the kubelet. Pods continue to run.
//!
//! The programs of the image are staged beside the current ones, because only the kubelet itself reports its version. Nothing that runs changes before
//! the version is checked and, with a drain, before the pods have ended.

mod staged;

use std::{fs, path::PathBuf, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use keelway_api::release;
use keelway_base::error_chain::ErrorChain;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use self::staged::StagedPrograms;
use crate::{
    api::{self, ApiError, WaitCondition},
    cni, facts,
    files::{self, NodeFileError},
    image::{self, ImageError},
    information::{InformationError, TrustedInformation},
    kubelet,
    leave::{self, LeaveError, LeaveStep, UndrainedPods},
    settings::{Layout, NodeOptions},
    status::{self, StatusError},
    version_skew::{self, KubernetesVersion, SkewFault},
};

/// How long transient errors of the cluster are retried.
const PATIENCE: Duration = Duration::from_secs(15);

/// The programs to upgrade to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpgradeTarget {
    /// The image of the cluster's release.
    Cluster,
    /// The image of this release, without a leading `v`.
    Release(String),
    /// This image.
    Image(String),
}

/// Options of `upgrade`.
#[derive(Debug, Clone)]
pub struct UpgradeOptions {
    /// The location of the worker's files.
    pub layout: Layout,
    /// The programs to upgrade to.
    pub target: UpgradeTarget,
    /// How long pods may take to end. `None` means that they continue to run.
    pub drain: Option<Duration>,
    /// How long the Node may take to be ready.
    pub timeout: Duration,
}

/// The current step of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeUpgradeStep {
    /// Pulls this image, and reads its programs.
    Programs(String),
    /// Drains the worker.
    Drain(LeaveStep),
    /// Restarts the kubelet.
    Restart,
    /// Waits for the Node with this name.
    Wait(String),
}

/// The kubelet was not upgraded, or is not ready.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The machine is not a worker, or its daemon does not run.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// Keelway does not know the release.
    #[error("Kubernetes {0} is not a release that this program knows ({known}); set another one, or --image", known = release::names())]
    Release(String),
    /// The version skew policy does not allow the kubelet.
    #[error(transparent)]
    Skew(#[from] SkewFault),
    /// The kubelet of the image does not report a version.
    #[error(
        "the kubelet of {image} cannot run on this machine: `kubelet --version` failed: {reason}; choose another image"
    )]
    Version {
        /// The image.
        image: String,
        /// What the kubelet wrote, or why it does not start.
        reason: String,
    },
    /// The API server does not report a version.
    #[error("cannot parse the version {0:?} of the API server")]
    ApiServer(String),
    /// A request to the API failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The cluster's information cannot be read.
    #[error(transparent)]
    Information(#[from] InformationError),
    /// The runtime failed.
    #[error("cannot use containerd")]
    Runtime(#[source] keelway_cri::CriError),
    /// The programs cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// Pods did not end in time.
    #[error("{0}; the kubelet was not upgraded; increase --drain-timeout, or upgrade without --drain")]
    Pods(UndrainedPods),
    /// The worker could not be drained.
    #[error("cannot drain the worker; the kubelet was not upgraded")]
    Drain(#[source] Box<LeaveError>),
    /// The Node did not become ready in time.
    #[error("the kubelet was upgraded, but its Node is not ready yet; see `keelway node status` and {log}")]
    NotReady {
        /// The location of the logs.
        log: String,
        /// The error of the wait.
        #[source]
        source: ApiError,
    },
}

/// What an upgrade did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeOutcome {
    /// The Node's name.
    pub node: String,
    /// The image of the programs.
    pub image: String,
    /// The version of the kubelet.
    pub version: String,
    /// Whether the kubelet was restarted. It is not if it already runs the programs of the image.
    pub has_changed: bool,
}

/// Upgrades the kubelet of this worker.
pub async fn upgrade(
    options: &UpgradeOptions,
    mut on_step: impl FnMut(&NodeUpgradeStep),
) -> Result<UpgradeOutcome, UpgradeError> {
    let layout = &options.layout;
    // Without the daemon, nothing would start the kubelet again.
    let before = status::ask(layout).await?;
    let Some(node) = layout.read_options()? else {
        return Err(StatusError::NoWorker(layout.options().display().to_string()).into());
    };
    let client = connect(layout).await?;
    let image = target_image(&options.target, &TrustedInformation::fetch(client.clone()).await?)?;
    on_step(&NodeUpgradeStep::Programs(image.clone()));
    let runtime = facts::client(&node.containerd_socket).map_err(UpgradeError::Runtime)?;
    let settings = image::settings(&runtime).await.completed(&node.containerd_socket).await;
    let staged = StagedPrograms::take(layout, &runtime, &settings, &image).await?;
    let version = staged.version(&image)?;
    version_skew::check(&image, version, server_version(&client).await?)?;
    let outcome = |has_changed| UpgradeOutcome {
        node: node.name.clone(),
        image: image.clone(),
        version: version.to_string(),
        has_changed,
    };
    if before.kubelet.image.as_deref() == Some(image.as_str()) && before.kubelet.pid.is_some() {
        staged.remove()?;
        uncordon(layout, &node.name).await?;
        return Ok(outcome(false));
    }

    if let Some(limit) = options.drain {
        drain(async || connect(layout).await, (layout, &node.name), limit, &mut on_step).await?;
    }
    staged.adopt(layout, &image)?;
    let stored = NodeOptions { image: stored_image(&options.target, &image), ..node.clone() };
    files::write_json(&layout.options(), &stored)?;
    cni::install(layout, &settings.directories(&node).plugins)?;
    on_step(&NodeUpgradeStep::Restart);
    let restarted = Timestamp::now();
    kubelet::stop(layout).await?;
    on_step(&NodeUpgradeStep::Wait(node.name.clone()));
    wait(options, &node.name, version, restarted).await?;
    uncordon(layout, &node.name).await?;
    Ok(outcome(true))
}

async fn connect(layout: &Layout) -> Result<Client, ApiError> {
    leave::client(layout).await?.ok_or(ApiError::NoIdentity)
}

fn target_image(target: &UpgradeTarget, known: &TrustedInformation) -> Result<String, UpgradeError> {
    let version = match target {
        UpgradeTarget::Image(image) => return Ok(image.clone()),
        UpgradeTarget::Release(version) => version,
        UpgradeTarget::Cluster => &known.cluster.version,
    };
    let release = release::find(version).ok_or_else(|| UpgradeError::Release(version.clone()))?;
    Ok(known.cluster.node_image(&release))
}

/// Returns the image of the worker's options. `None` means that of the cluster's release.
fn stored_image(target: &UpgradeTarget, image: &str) -> Option<String> {
    (*target != UpgradeTarget::Cluster).then(|| image.to_owned())
}

async fn server_version(client: &Client) -> Result<KubernetesVersion, UpgradeError> {
    let version = client.apiserver_version().await.map_err(ApiError::request("read the version of the API server"))?;
    KubernetesVersion::parse(&version.git_version).ok_or(UpgradeError::ApiServer(version.git_version))
}

/// Drains the worker. If that fails, pods are scheduled on it again.
async fn drain(
    connect: impl AsyncFn() -> Result<Client, ApiError>,
    (layout, name): (&Layout, &str),
    limit: Duration,
    on_step: &mut impl FnMut(&NodeUpgradeStep),
) -> Result<(), UpgradeError> {
    note_cordon(&connect, (layout, name)).await?;
    let drained = leave::drain(&connect, name, limit, &mut |step| {
        on_step(&NodeUpgradeStep::Drain(step.clone()));
    })
    .await;
    let Err(error) = drained else { return Ok(()) };
    if let Err(error) = uncordon_through(&connect, (layout, name)).await {
        tracing::warn!("cannot uncordon the Node; run `kubectl uncordon {name}`: {}", ErrorChain(&error));
    }
    Err(match error {
        LeaveError::Pods { pods, .. } => UpgradeError::Pods(pods),
        LeaveError::Cluster { source, .. } => UpgradeError::Api(source),
        other @ (LeaveError::NoWorker(_) | LeaveError::Service(_) | LeaveError::File(_) | LeaveError::Undo(_)) => {
            UpgradeError::Drain(Box::new(other))
        }
    })
}

/// Records that this command cordons the Node, unless a user did before. An interrupted upgrade that is repeated uncordons it, too.
async fn note_cordon(
    connect: &impl AsyncFn() -> Result<Client, ApiError>,
    (layout, name): (&Layout, &str),
) -> Result<(), UpgradeError> {
    let node = api::persist(PATIENCE, async || {
        let nodes: Api<Node> = Api::all(connect().await?);
        nodes.get(name).await.map_err(ApiError::request(format!("get the Node {name}")))
    });
    if !is_cordoned(&node.await?) {
        files::write(&layout.cordoned(), "", 0o600)?;
    }
    Ok(())
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default()
}

/// Uncordons the Node if an upgrade cordoned it.
pub(crate) async fn uncordon(layout: &Layout, name: &str) -> Result<(), UpgradeError> {
    uncordon_through(&async || connect(layout).await, (layout, name)).await
}

async fn uncordon_through(
    connect: &impl AsyncFn() -> Result<Client, ApiError>,
    (layout, name): (&Layout, &str),
) -> Result<(), UpgradeError> {
    if !layout.cordoned().exists() {
        return Ok(());
    }
    let uncordon = json!({ "spec": { "unschedulable": null } });
    api::persist(PATIENCE, async || {
        let nodes: Api<Node> = Api::all(connect().await?);
        let patched = nodes.patch(name, &PatchParams::default(), &Patch::Merge(&uncordon)).await;
        patched.map(drop).map_err(ApiError::request(format!("uncordon the Node {name}")))
    })
    .await?;
    Ok(files::remove(&layout.cordoned())?)
}

async fn wait(
    options: &UpgradeOptions,
    name: &str,
    version: KubernetesVersion,
    restarted: Timestamp,
) -> Result<(), UpgradeError> {
    let nodes: Api<Node> = Api::all(connect(&options.layout).await?);
    let what = format!("the Node {name} is ready with kubelet {version}");
    let wait = WaitCondition { what: &what, help: "the kubelet continues to start", deadline: options.timeout };
    let look = |node: Node| is_upgraded(&node, version, restarted).then_some(());
    let log = PathBuf::from(options.layout.root()).join("log").display().to_string();
    let ended = api::wait_for(&nodes, name, wait, None, look).await;
    ended.map_err(|source| UpgradeError::NotReady { log: format!("{log}, or `journalctl -u keelway-node`"), source })
}

/// Whether the kubelet has reported since its restart that it is ready and has this version. Times in conditions have no fractions of a second.
fn is_upgraded(node: &Node, version: KubernetesVersion, restarted: Timestamp) -> bool {
    let status = node.status.as_ref();
    let reported = status.and_then(|status| KubernetesVersion::parse(&status.node_info.as_ref()?.kubelet_version));
    let mut conditions = status.into_iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True");
    let heard = ready.and_then(|ready| Some(ready.last_heartbeat_time.as_ref()?.0.as_second()));
    reported == Some(version) && heard.is_some_and(|heard| heard >= restarted.as_second())
}

/// Removes the staged programs of an upgrade that was interrupted.
fn remove_directory(path: &std::path::Path) -> Result<(), NodeFileError> {
    files::gone(fs::remove_dir_all(path)).map_err(NodeFileError::new("remove", path))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::Value;

    use super::*;
    use crate::samples::cluster;

    /// A fake API with two workers and a pod of one of them, which a PodDisruptionBudget holds. It stores what is set in `unschedulable`.
    fn api_with_budget(cordoned: bool, set: &Arc<Mutex<Vec<Value>>>) -> Client {
        let set = Arc::clone(set);
        let service = tower::service_fn(move |request: Request<Body>| {
            let set = Arc::clone(&set);
            async move {
                let (parts, body) = request.into_parts();
                let node = json!({ "metadata": { "name": "w1" }, "spec": { "unschedulable": cordoned } });
                let peer = |name: &str| json!({ "metadata": { "name": name }, "spec": { "publicKey": "" } });
                let pod = json!({ "metadata": { "name": "web", "namespace": "default" } });
                let held = json!({ "kind": "Status", "status": "Failure", "code": 429, "message": "no", "reason": "TooManyRequests",
                    "details": { "causes": [{ "reason": "DisruptionBudget", "message": "held" }] } });
                let path = parts.uri.path();
                let (code, answer) = match parts.method {
                    Method::PATCH => {
                        let change: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                        set.lock().unwrap().push(change["spec"]["unschedulable"].clone());
                        (200, node)
                    }
                    Method::POST => (429, held),
                    _ if path.ends_with("/nodes/w1") => (200, node),
                    _ if path.ends_with("/wireguardpeers") => {
                        (200, json!({ "metadata": {}, "items": [peer("w1"), peer("w2")] }))
                    }
                    _ => (200, json!({ "metadata": {}, "items": [pod] })),
                };
                let body = Body::from(serde_json::to_vec(&answer).unwrap());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_a_budget_blocks_ends_in_time_and_uncordons_the_node() {
        for (cordoned, expected) in [(false, vec![json!(true), Value::Null]), (true, vec![json!(true)])] {
            let (directory, set) = (tempfile::tempdir().unwrap(), Arc::default());
            let layout = Layout::new(directory.path());
            let client = api_with_budget(cordoned, &set);
            let (connect, limit) = (async || Ok(client.clone()), Duration::from_secs(300));
            let begun = tokio::time::Instant::now();
            let error = drain(connect, (&layout, "w1"), limit, &mut |_| {}).await.unwrap_err();
            assert_eq!(begun.elapsed().as_secs(), 300);
            let text = error.to_string();
            assert!(
                text.starts_with(
                    "after 300 s, pods are held by PodDisruptionBudgets: default/web; the kubelet was not upgraded"
                ),
                "{text}"
            );
            assert_eq!(*set.lock().unwrap(), expected, "a Node that a user cordoned stays cordoned");
            assert!(!layout.cordoned().exists());
        }
    }

    fn known() -> TrustedInformation {
        TrustedInformation { cluster: cluster(), authorities: String::new() }
    }

    #[test]
    fn the_image_is_that_of_the_target() {
        let image = |target| target_image(&target, &known());
        assert_eq!(image(UpgradeTarget::Cluster).unwrap(), "registry.keelway.dev/node:v1.37.0");
        assert_eq!(image(UpgradeTarget::Release("1.36.3".into())).unwrap(), "registry.keelway.dev/node:v1.36.3");
        assert_eq!(image(UpgradeTarget::Image("r.example/n:1".into())).unwrap(), "r.example/n:1");
        let unknown = image(UpgradeTarget::Release("1.2.3".into())).unwrap_err().to_string();
        assert!(unknown.contains("1.2.3") && unknown.contains("1.36.x"), "{unknown}");
    }

    #[test]
    fn only_an_image_that_was_chosen_is_kept() {
        assert_eq!(stored_image(&UpgradeTarget::Cluster, "a"), None);
        assert_eq!(stored_image(&UpgradeTarget::Image("a".into()), "a").as_deref(), Some("a"));
    }

    #[test]
    fn a_worker_is_upgraded_once_the_new_kubelet_reports_that_it_is_ready() {
        let restarted: Timestamp = "2030-01-01T00:00:10.7Z".parse().unwrap();
        let version = KubernetesVersion::parse("1.37.0").unwrap();
        let node = |status: &str, heard: &str, version: &str| -> Node {
            serde_json::from_value(json!({ "status": {
                "conditions": [{ "type": "Ready", "status": status, "lastHeartbeatTime": heard }],
                "nodeInfo": { "kubeletVersion": version, "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "" },
            } }))
            .unwrap()
        };
        let is = |node: Node| is_upgraded(&node, version, restarted);
        assert!(is(node("True", "2030-01-01T00:00:10Z", "v1.37.0")));
        assert!(!is(node("True", "2030-01-01T00:00:09Z", "v1.37.0")), "the kubelet before it reported this");
        assert!(!is(node("False", "2030-01-01T00:00:12Z", "v1.37.0")));
        assert!(!is(node("True", "2030-01-01T00:00:12Z", "v1.36.3")));
        assert!(!is(Node::default()));
    }
}
