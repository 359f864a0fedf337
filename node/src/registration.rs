//! Creates the Node of a worker while its kubelet starts.
//!
//! A kubelet creates its Node only after it has inspected the machine. Only then does the cluster assign ranges to the worker's pods, and
//! the following steps depend on these one after the other: the CNI configuration, the runtime's network, the Node's readiness. If the Node
//! exists earlier, these steps are done when the kubelet is. The kubelet adopts the Node as it adopts one of an earlier start
//! (`tryRegisterWithAPIServer` in `pkg/kubelet/kubelet_node_status.go`), but does not add labels of the options. So the Node has them from
//! the beginning.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Taint},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, api::PostParams};
use tokio::time::sleep;

use crate::{api, facts, network_condition::not_reached_yet, settings::NodeOptions};

/// The pauses before each further attempt, in milliseconds. The policy of Nodes observes a worker's addresses a moment after the worker, and
/// no event reports that. If all attempts fail, the kubelet continues to try.
const PAUSES: [u64; 6] = [10, 20, 40, 80, 160, 320];

/// Creates the Node. Returns `None` if the Node exists already or cannot be created: then the kubelet creates or adopts it.
pub(crate) async fn make(nodes: &Api<Node>, options: &NodeOptions) -> Option<Node> {
    tracing::debug!(action = "Node", "begins");
    let made = try_to_make(nodes, &node(options, Timestamp::now())).await;
    tracing::debug!(action = "Node", "done");
    made
}

async fn try_to_make(nodes: &Api<Node>, wanted: &Node) -> Option<Node> {
    let mut pauses = PAUSES.into_iter();
    loop {
        let error = match nodes.create(&PostParams::default(), wanted).await {
            Ok(made) => return Some(made),
            Err(error) => error,
        };
        match (api::code(&error), pauses.next()) {
            (Some(403), Some(pause)) => sleep(Duration::from_millis(pause)).await,
            (Some(409), _) => return None,
            _ => {
                tracing::debug!(%error, "cannot create the Node; the kubelet creates it");
                return None;
            }
        }
    }
}

/// Builds the Node as the kubelet would (`initialNode`), but not ready and without capacity, so that no pod is scheduled before the kubelet runs.
pub(crate) fn node(options: &NodeOptions, now: Timestamp) -> Node {
    let architecture = facts::architecture();
    let own = [
        ("kubernetes.io/hostname", options.name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture),
    ];
    let of_options = options.labels.iter().filter_map(|label| label.split_once('='));
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    // Labels of the options come last, and therefore override others.
    let labels: BTreeMap<String, String> = own.into_iter().chain(of_options).map(owned).collect();
    let annotation = owned(("volumes.kubernetes.io/controller-managed-attach-detach", "true"));
    // Admission adds this taint, too. It stays while a condition requires it: a Node without a condition would lose it.
    let taint =
        Taint { key: "node.kubernetes.io/not-ready".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let not_ready = NodeCondition {
        type_: "Ready".to_owned(),
        status: "False".to_owned(),
        reason: Some("KubeletNotReady".to_owned()),
        message: Some("the kubelet is starting".to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    Node {
        metadata: ObjectMeta {
            name: Some(options.name.clone()),
            labels: Some(labels),
            annotations: Some([annotation].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec { taints: Some(vec![taint]), ..NodeSpec::default() }),
        status: Some(NodeStatus { conditions: Some(vec![not_ready, not_reached_yet(now)]), ..NodeStatus::default() }),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use http::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;
    use crate::samples::options;

    #[test]
    fn a_new_node_has_its_labels_and_runs_no_pods() {
        let labels = vec!["a=b".to_owned(), "kubernetes.io/os=other".to_owned()];
        let node = serde_json::to_value(node(&NodeOptions { labels, ..options() }, Timestamp::UNIX_EPOCH)).unwrap();
        let labels = &node["metadata"]["labels"];
        assert_eq!((&labels["a"], &labels["kubernetes.io/os"]), (&json!("b"), &json!("other")));
        assert_eq!(labels["kubernetes.io/hostname"], "w1");
        assert_eq!(
            node["spec"],
            json!({ "taints": [{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }] })
        );
        let conditions = node["status"]["conditions"].as_array().unwrap();
        let stated = |index: usize| (&conditions[index]["type"], &conditions[index]["status"]);
        assert_eq!(conditions.len(), 2);
        assert_eq!(stated(0), (&json!("Ready"), &json!("False")));
        assert_eq!(stated(1), (&json!("NetworkUnavailable"), &json!("True")));
        assert!(node["status"].get("allocatable").is_none());
    }

    /// Returns how often an API that responds with these codes, and then repeats the last one, is called, and whether the Node was created.
    async fn asked(codes: &'static [u16]) -> (usize, bool) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let service = tower::service_fn(move |_: Request<Body>| {
            let code = codes[counted.fetch_add(1, Ordering::Relaxed).min(codes.len() - 1)];
            let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": "" });
            let node = json!({ "kind": "Node", "apiVersion": "v1", "metadata": { "name": "w1" } });
            let body = serde_json::to_vec(if code == 201 { &node } else { &status }).unwrap();
            let response = Response::builder().status(code).body(Body::from(body)).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        let made = make(&Api::all(Client::new(service, "a")), &options()).await;
        (count.load(Ordering::Relaxed), made.is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn a_forbidden_node_is_retried_and_then_left_to_the_kubelet() {
        assert_eq!(asked(&[201]).await, (1, true));
        assert_eq!(asked(&[403, 403, 201]).await, (3, true));
        assert_eq!(asked(&[403]).await, (PAUSES.len() + 1, false));
        assert_eq!(asked(&[409]).await, (1, false));
        assert_eq!(asked(&[500]).await, (1, false));
    }
}
