//! The view of events.

use keelway_api::{Time, jiff::Timestamp, machine::MachineEvent};
use serde_json::{Value as Json, json};

use super::{TableRow, age};

/// An event of a machine. Its machine and its object have the names of the documents.
pub(crate) struct EventView {
    pub(crate) hypervisor: String,
    /// `c1/etcd-0`, or the machine's name.
    pub(crate) object: String,
    pub(crate) event: MachineEvent,
    pub(crate) now: Timestamp,
}

impl TableRow for EventView {
    const HEADER: &'static [&'static str] =
        &["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE", "CONTAINER", "HYPERVISOR", "FIRST SEEN", "COUNT"];
    const NARROW: usize = 5;

    fn cells(&self) -> Vec<String> {
        let ago = |moment: Timestamp| age(Some(&Time(moment)), self.now);
        let event = &self.event;
        let last = match event.count {
            0 | 1 => ago(event.last),
            // The format of `kubectl events`.
            many => format!("{} (x{many} over {})", ago(event.last), ago(event.first)),
        };
        vec![
            last,
            self.kind().to_owned(),
            event.reason.clone(),
            self.title(),
            event.message.clone(),
            if event.container.is_empty() { "<none>".to_owned() } else { event.container.clone() },
            self.hypervisor.clone(),
            ago(event.first),
            event.count.to_string(),
        ]
    }
}

impl EventView {
    fn kind(&self) -> &'static str {
        if self.event.warning { "Warning" } else { "Normal" }
    }

    fn title(&self) -> String {
        let kind = if self.event.pod.is_some() { "component" } else { "hypervisor" };
        format!("{kind}/{}", self.object)
    }

    /// Returns a unique name from the object and the time of the first occurrence.
    pub(crate) fn name(&self) -> String {
        let about = self.event.pod.as_ref().map_or_else(|| self.hypervisor.clone(), |pod| pod.component.to_string());
        format!("{about}.{:x}", self.event.first.as_nanosecond())
    }

    /// Returns the event as a `v1` Event of Kubernetes.
    pub(crate) fn json(&self) -> Json {
        let event = &self.event;
        let involved = match &event.pod {
            Some(pod) => json!({
                "apiVersion": "keelway.dev/v1alpha1",
                "kind": "Component",
                "namespace": pod.cluster.namespace(),
                "name": pod.component,
                "fieldPath": format!("spec.containers{{{}}}", event.container),
            }),
            None => json!({"apiVersion": "keelway.dev/v1alpha1", "kind": "Hypervisor", "name": self.hypervisor}),
        };
        let namespace = event.pod.as_ref().map_or_else(|| "default".to_owned(), |pod| pod.cluster.namespace());
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.name(), "namespace": namespace},
            "involvedObject": involved,
            "type": self.kind(),
            "reason": event.reason,
            "message": event.message,
            "count": event.count,
            "firstTimestamp": event.first,
            "lastTimestamp": event.last,
            "source": {"component": "keelway-hypervisor-agent", "host": self.hypervisor},
        })
    }
}
