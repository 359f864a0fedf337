//! Events on the worker's own Node.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Client, api::PostParams};

use crate::api::ApiError;

/// What an Event reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeEventText<'a> {
    pub(crate) is_warning: bool,
    pub(crate) reason: &'a str,
    pub(crate) message: &'a str,
}

/// Records an Event on the Node.
pub(crate) async fn record(client: Client, node: &str, text: NodeEventText<'_>) -> Result<(), ApiError> {
    let events: Api<Event> = Api::namespaced(client, "default");
    let recorded = events.create(&PostParams::default(), &build(node, text, Timestamp::now())).await;
    recorded.map(drop).map_err(ApiError::request("record an Event on the Node"))
}

/// Builds the Event as the kubelet does (`k8s.io/client-go/tools/record`): in the namespace `default`, with the Node's name as its uid.
fn build(node: &str, text: NodeEventText<'_>, now: Timestamp) -> Event {
    let kind = if text.is_warning { "Warning" } else { "Normal" };
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{node}.{:x}", now.as_nanosecond())),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        },
        type_: Some(kind.to_owned()),
        reason: Some(text.reason.to_owned()),
        message: Some(text.message.to_owned()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some("keelway-node".to_owned()), host: Some(node.to_owned()) }),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_on_the_node_and_no_two_have_the_same_name() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let text = |is_warning| NodeEventText { is_warning, reason: "NoGatewayResponds", message: "no" };
        let (one, two) = (build("w1", text(true), at(1)), build("w1", text(false), at(2)));
        assert_ne!(one.metadata.name, two.metadata.name);
        assert_eq!((one.type_.as_deref(), two.type_.as_deref()), (Some("Warning"), Some("Normal")));
        assert_eq!(one.involved_object.uid.as_deref(), Some("w1"));
    }
}
