//! Watches the worker's Node, and creates it again if it was deleted while the worker is still in the cluster.
//!
//! A kubelet creates its Node only when it starts. If a user deletes the Node later, pods cannot be scheduled on the worker until its kubelet is
//! restarted. A worker leaves its cluster by its `WireGuardPeer`: without it, the Node stays deleted.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use keelway_api::worker::{KubeletOrder, WireGuardPeer};
use keelway_base::error_chain::ErrorChain;
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Duration, sleep},
};

use crate::{
    api::{self, ApiError},
    files, kubelet,
    node_event::{self, NodeEventText},
    node_record::NodeRecord,
    peer, registration,
    settings::{Layout, NodeOptions},
    trust_report::TrustReport,
};

/// The pause after a Node was absent. It limits how often a Node is created that another program deletes each time.
const PAUSE: Duration = Duration::from_secs(5);
/// The reason of the Event.
const REGISTERED_AGAIN: &str = "NodeRegisteredAgain";

/// What the daemon knows about the worker's Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedNode {
    /// How often this daemon created the Node again.
    pub(crate) registrations: u32,
    /// Why the worker has no Node, and what to do.
    pub(crate) problem: Option<String>,
    /// The version that the kubelet reports, such as `v1.37.0`.
    pub(crate) kubelet_version: Option<String>,
    /// What the Node reports about the authorities. `None` until the Node was read.
    pub(crate) trust: Option<TrustReport>,
    /// The order to upgrade its kubelet.
    pub(crate) order: Option<KubeletOrder>,
}

impl ObservedNode {
    /// Returns the order, unless the kubelet follows it already.
    pub(crate) fn pending_order(&self) -> Option<&KubeletOrder> {
        let version = self.kubelet_version.as_deref()?;
        self.order.as_ref().filter(|order| !order.is_of(version))
    }
}

/// What to do about an absent Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AbsentNodeAction {
    Register,
    /// The worker was evicted, or another machine has its name.
    Report(&'static str),
}

/// Decides by the worker's peer in the cluster, which is `None` if the API server does not have it.
fn decide(peer: Option<&WireGuardPeer>, own_key: &str) -> AbsentNodeAction {
    match peer.filter(|peer| peer.metadata.deletion_timestamp.is_none()) {
        None => AbsentNodeAction::Report(
            "the cluster has no Node and no WireGuardPeer of this worker, because it was evicted or deleted; run `keelway node forget`",
        ),
        Some(peer) if peer.spec.public_key != own_key => AbsentNodeAction::Report(
            "the cluster has no Node of this worker, and its WireGuardPeer has the key of another machine; run `keelway node forget`",
        ),
        Some(_) => AbsentNodeAction::Register,
    }
}

/// Keeps the Node of this worker registered.
pub(crate) struct NodeKeeper<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) options: &'a NodeOptions,
    pub(crate) state: &'a watch::Sender<ObservedNode>,
}

impl NodeKeeper<'_> {
    /// Watches the Node until the watch ends or the Node is absent. In the second case it creates the Node again, if the worker is still in the cluster.
    pub(crate) async fn follow(&self, client: Client) -> Result<Option<()>, ApiError> {
        let nodes: Api<Node> = Api::all(client.clone());
        let absent = api::follow(&nodes, &self.options.name, |node| match node {
            Some(node) => {
                self.observe(&node);
                None
            }
            None => Some(()),
        });
        // A join creates the Node for the first time, and there is no record until then.
        if absent.await?.is_some()
            && let Some(record) = files::read_json(&self.layout.node_record()).map_err(ApiError::File)?
            && !self.layout.leaving().exists()
        {
            self.handle_absence(client, record).await?;
            sleep(PAUSE).await;
        }
        Ok(None)
    }

    fn observe(&self, node: &Node) {
        let kubelet_version =
            node.status.as_ref().and_then(|status| Some(status.node_info.as_ref()?.kubelet_version.clone()));
        self.state.send_if_modified(|state| {
            let trust = Some(TrustReport::of(node));
            let order = KubeletOrder::of(&node.metadata);
            let now = ObservedNode { problem: None, kubelet_version, trust, order, ..state.clone() };
            let differs = *state != now;
            *state = now;
            differs
        });
        let Some(record) = NodeRecord::of(node) else { return };
        let path = self.layout.node_record();
        if files::read_json(&path).is_ok_and(|stored| stored.as_ref() == Some(&record)) {
            return;
        }
        if let Err(error) = files::write_json(&path, &record) {
            tracing::error!("cannot store what the Node has: {}", ErrorChain(&error));
        }
    }

    /// Reads Node and peer again by name: only a response that an object does not exist counts as its absence.
    async fn handle_absence(&self, client: Client, record: NodeRecord) -> Result<(), ApiError> {
        let name = self.options.name.as_str();
        let nodes: Api<Node> = Api::all(client.clone());
        let found = nodes.get_opt(name).await.map_err(ApiError::request(format!("get the Node {name}")))?;
        let peers: Api<WireGuardPeer> = Api::all(client.clone());
        let peer = peers.get_opt(name).await.map_err(ApiError::request(format!("get the WireGuardPeer {name}")))?;
        let key = match peer::load_key(self.layout) {
            Ok(Some(key)) => key.public().to_string(),
            Ok(None) | Err(_) => return Ok(()),
        };
        if found.is_some() {
            return Ok(());
        }
        match decide(peer.as_ref(), &key) {
            AbsentNodeAction::Register => self.register(client, record).await,
            AbsentNodeAction::Report(problem) => {
                self.report(problem);
                Ok(())
            }
        }
    }

    fn report(&self, problem: &str) {
        self.state.send_if_modified(|state| {
            let is_new = state.problem.as_deref() != Some(problem);
            if is_new {
                tracing::error!("{problem}");
                state.problem = Some(problem.to_owned());
            }
            is_new
        });
    }

    /// Creates the Node, and then restarts the kubelet, which registers what depends on the Node, such as its CSI drivers.
    async fn register(&self, client: Client, record: NodeRecord) -> Result<(), ApiError> {
        let name = self.options.name.as_str();
        let mut node = registration::node(self.options, Timestamp::now());
        let lost = record.restore(&mut node);
        let nodes: Api<Node> = Api::all(client.clone());
        let created = nodes.create(&PostParams::default(), &node).await;
        created.map_err(ApiError::request(format!("create the Node {name} again")))?;
        let message = message(name, &lost);
        tracing::warn!("{message}");
        self.state.send_modify(|state| {
            state.registrations = state.registrations.saturating_add(1);
            state.problem = None;
            state.trust = Some(TrustReport::default());
        });
        kubelet::stop(self.layout).await.map_err(ApiError::File)?;
        let event = NodeEventText { is_warning: true, reason: REGISTERED_AGAIN, message: &message };
        node_event::record(client, name, event).await
    }
}

fn message(name: &str, lost: &[String]) -> String {
    let labels = if lost.is_empty() {
        String::new()
    } else {
        format!("; set the labels {} again, which a kubelet may not set", lost.join(", "))
    };
    format!(
        "the Node {name} was deleted, and the worker created it again{labels}; to remove the worker, run `keelway node leave` on it, or `keelway node evict {name} --cluster NAME`"
    )
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::samples::options;

    /// A worker of which the API server has these objects, and what the worker created.
    struct AbsentNode {
        state: tempfile::TempDir,
        peer: (u16, Value),
        node: u16,
    }

    impl AbsentNode {
        fn new() -> Self {
            let state = tempfile::tempdir().unwrap();
            let layout = Layout::new(state.path());
            let key = peer::key(&layout).unwrap().public().to_string();
            let record = json!({ "labels": { "rack": "r1" }, "capacity": { "pods": "110" } });
            files::write_json(&layout.node_record(), &record).unwrap();
            let peer = json!({ "apiVersion": "keelway.dev/v1alpha1", "kind": "WireGuardPeer", "metadata": { "name": "w1" }, "spec": { "publicKey": key } });
            Self { state, peer: (200, peer), node: 404 }
        }

        /// Returns what was created, and the state.
        async fn handle(self) -> (Vec<Value>, Result<(), ApiError>, ObservedNode) {
            let (created, layout) = (Arc::new(Mutex::new(Vec::new())), Layout::new(self.state.path()));
            let (all, peer, node) = (Arc::clone(&created), self.peer, self.node);
            let service = tower::service_fn(move |request: Request<Body>| {
                let (all, peer) = (Arc::clone(&all), peer.clone());
                async move {
                    let (parts, body) = request.into_parts();
                    let (code, answer) = if parts.method == http::Method::POST {
                        let object: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                        all.lock().unwrap().push(object.clone());
                        (201, object)
                    } else if parts.uri.path().ends_with("/wireguardpeers/w1") {
                        peer
                    } else {
                        (node, json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "w1" } }))
                    };
                    let reason = if code == 404 { "NotFound" } else { "" };
                    let failure = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": reason });
                    let body = serde_json::to_vec(if code < 300 { &answer } else { &failure }).unwrap();
                    Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(body)).unwrap())
                }
            });
            let (state, options) = (watch::Sender::default(), options());
            let keeper = NodeKeeper { layout: &layout, options: &options, state: &state };
            let record = files::read_json(&layout.node_record()).unwrap().unwrap();
            let outcome = keeper.handle_absence(Client::new(service, "a"), record).await;
            let created = created.lock().unwrap().clone();
            (created, outcome, state.borrow().clone())
        }
    }

    #[tokio::test]
    async fn a_deleted_node_is_created_again_while_the_peer_exists() {
        let (created, outcome, state) = AbsentNode::new().handle().await;
        outcome.unwrap();
        let [node, event] = created.as_slice() else { panic!("{created:?}") };
        assert_eq!((&node["kind"], &node["metadata"]["labels"]["rack"]), (&json!("Node"), &json!("r1")));
        assert_eq!((&event["kind"], &event["reason"]), (&json!("Event"), &json!(REGISTERED_AGAIN)));
        assert_eq!((state.registrations, state.problem), (1, None));
    }

    #[tokio::test]
    async fn the_node_of_an_evicted_worker_stays_deleted() {
        let none = AbsentNode { peer: (404, Value::Null), ..AbsentNode::new() };
        let mut ends = AbsentNode::new();
        ends.peer.1["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        let mut other = AbsentNode::new();
        other.peer.1["spec"]["publicKey"] = json!("AAAA");
        for absent in [none, ends, other] {
            let (created, outcome, state) = absent.handle().await;
            outcome.unwrap();
            assert_eq!(created, Vec::<Value>::new());
            assert!(state.problem.unwrap().contains("keelway node forget"));
        }
    }

    #[tokio::test]
    async fn an_error_is_not_absence() {
        for absent in [
            AbsentNode { peer: (500, Value::Null), ..AbsentNode::new() },
            AbsentNode { peer: (403, Value::Null), ..AbsentNode::new() },
            AbsentNode { node: 500, ..AbsentNode::new() },
        ] {
            let (created, outcome, state) = absent.handle().await;
            assert!(outcome.is_err() && created.is_empty() && state == ObservedNode::default());
        }
        let (created, outcome, state) = AbsentNode { node: 200, ..AbsentNode::new() }.handle().await;
        outcome.unwrap();
        assert!(created.is_empty() && state == ObservedNode::default(), "the Node exists");
    }

    #[test]
    fn labels_that_cannot_be_restored_are_named() {
        let text = message("w1", &["node-role.kubernetes.io/worker".to_owned()]);
        assert!(text.contains("set the labels node-role.kubernetes.io/worker again"), "{text}");
        assert!(!message("w1", &[]).contains("labels"));
    }
}
