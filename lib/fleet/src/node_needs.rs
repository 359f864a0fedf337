//! On which nodes a pod may run: its node selector, its required node affinity, and its tolerations.

use alloc::collections::BTreeMap;

use serde_json::{Value as Json, json};

use crate::{NodeGroup, WorkloadTaint};

/// The taints that every pod of a DaemonSet tolerates.
const DAEMON: [&str; 6] =
    ["not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"];
/// The effect of taints that only make a node less preferred.
const PREFER: &str = "PreferNoSchedule";
/// The key in [`crate::CapacityReport::omitted_labels`] that stands for more keys.
pub(crate) const MORE_LABELS: &str = "*";

/// On which nodes a pod may run.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeNeeds {
    selector: BTreeMap<String, String>,
    /// Terms of which one has to hold. `None` allows all nodes.
    affinity: Option<Vec<Vec<NodeRequirement>>>,
    tolerations: Vec<NodeToleration>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum NodeRequirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
    Greater(String, i64),
    Less(String, i64),
    /// A requirement that no report can answer.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NodeToleration {
    key: Option<String>,
    /// `None` tolerates every value.
    value: Option<String>,
    effect: Option<String>,
}

/// Why a pod may not run on nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeMismatch {
    /// The pod does not tolerate a taint.
    Taint,
    /// The labels do not match, or are not known.
    Labels,
}

impl NodeNeeds {
    /// Reads the specification of a pod.
    pub(crate) fn read(spec: &Json) -> Self {
        let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let terms = required.is_object().then(|| items(&required["nodeSelectorTerms"]).map(term).collect());
        Self {
            selector: texts(&spec["nodeSelector"]),
            affinity: terms,
            tolerations: items(&spec["tolerations"]).filter_map(toleration).collect(),
        }
    }

    /// Adds what the DaemonSet controller adds to each pod.
    pub(crate) fn tolerate_as_daemon(&mut self) {
        let keys = DAEMON.iter().map(|key| format!("node.kubernetes.io/{key}"));
        self.tolerations.extend(keys.map(|key| NodeToleration { key: Some(key), value: None, effect: None }));
    }

    /// Returns why a pod may not run on these nodes. `omitted` are keys of labels that are not known.
    pub(crate) fn mismatch(&self, group: &NodeGroup, omitted: &[String]) -> Option<NodeMismatch> {
        let mut keeping = group.taints.iter().filter(|taint| taint.effect != PREFER);
        if keeping.any(|taint| !self.tolerations.iter().any(|toleration| toleration.covers(taint))) {
            return Some(NodeMismatch::Taint);
        }
        let is_selected = self.selector.iter().all(|(key, value)| group.labels.get(key) == Some(value));
        let holds = |term: &Vec<NodeRequirement>| {
            // An empty term selects nothing.
            !term.is_empty() && term.iter().all(|requirement| requirement.holds(&group.labels, omitted))
        };
        let is_near = self.affinity.as_ref().is_none_or(|terms| terms.iter().any(holds));
        (!(is_selected && is_near)).then_some(NodeMismatch::Labels)
    }
}

impl NodeRequirement {
    fn holds(&self, labels: &BTreeMap<String, String>, omitted: &[String]) -> bool {
        // Whether a label that the report does not contain is absent.
        let is_absent = |key: &String| {
            !labels.contains_key(key) && !omitted.iter().any(|omitted| omitted == key || omitted == MORE_LABELS)
        };
        let number = |key: &String| labels.get(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => match labels.get(key) {
                Some(value) => !values.contains(value),
                None => is_absent(key),
            },
            Self::Exists(key) => labels.contains_key(key),
            Self::DoesNotExist(key) => is_absent(key),
            Self::Greater(key, than) => number(key).is_some_and(|value| value > *than),
            Self::Less(key, than) => number(key).is_some_and(|value| value < *than),
            Self::Unknown => false,
        }
    }
}

impl NodeToleration {
    fn covers(&self, taint: &WorkloadTaint) -> bool {
        let value = taint.value.as_deref().unwrap_or_default();
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.effect.as_ref().is_none_or(|effect| *effect == taint.effect)
            && self.value.as_ref().is_none_or(|own| own == value)
    }
}

fn term(term: &Json) -> Vec<NodeRequirement> {
    let fields = items(&term["matchFields"]).map(|_| NodeRequirement::Unknown);
    items(&term["matchExpressions"]).map(requirement).chain(fields).collect()
}

fn requirement(expression: &Json) -> NodeRequirement {
    let Some(key) = expression["key"].as_str().map(str::to_owned) else { return NodeRequirement::Unknown };
    let values: Vec<String> = items(&expression["values"]).filter_map(Json::as_str).map(str::to_owned).collect();
    let number = values.first().and_then(|value| value.parse().ok());
    match (expression["operator"].as_str().unwrap_or_default(), number) {
        ("In", _) => NodeRequirement::In(key, values),
        ("NotIn", _) => NodeRequirement::NotIn(key, values),
        ("Exists", _) => NodeRequirement::Exists(key),
        ("DoesNotExist", _) => NodeRequirement::DoesNotExist(key),
        ("Gt", Some(number)) => NodeRequirement::Greater(key, number),
        ("Lt", Some(number)) => NodeRequirement::Less(key, number),
        _ => NodeRequirement::Unknown,
    }
}

/// Reads a toleration. One with an unknown operator tolerates nothing.
fn toleration(toleration: &Json) -> Option<NodeToleration> {
    let text = |field: &str| toleration[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let value = match toleration["operator"].as_str().unwrap_or("Equal") {
        "Exists" => None,
        "Equal" | "" => Some(text("value").unwrap_or_default()),
        _ => return None,
    };
    Some(NodeToleration { key: text("key"), value, effect: text("effect") })
}

fn texts(map: &Json) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

fn items(list: &Json) -> impl Iterator<Item = &Json> {
    list.as_array().into_iter().flatten()
}

/// Whether no two of these pods may share a node: a required rule against pods of the same node.
pub(crate) fn avoids_own_kind(spec: &Json) -> bool {
    let rules = &spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    items(rules).any(|rule| rule["topologyKey"] == json!("kubernetes.io/hostname"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> NodeGroup {
        let labels = [("zone", "a"), ("cores", "8")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let taint = |effect: &str| WorkloadTaint {
            key: "gpu".to_owned(),
            value: Some("yes".to_owned()),
            effect: effect.to_owned(),
        };
        NodeGroup { labels: labels.into(), taints: vec![taint("NoSchedule"), taint(PREFER)], rooms: Vec::new() }
    }

    fn mismatch(spec: &Json) -> Option<NodeMismatch> {
        NodeNeeds::read(spec).mismatch(&nodes(), &["host".to_owned()])
    }

    fn affine(expressions: &Json) -> Json {
        let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": expressions }] });
        json!({
            "tolerations": [{ "operator": "Exists" }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } },
        })
    }

    #[test]
    fn taints_are_tolerated_by_key_value_and_effect() {
        for (toleration, is_tolerated) in [
            (json!({ "operator": "Exists" }), true),
            (json!({ "key": "gpu", "operator": "Exists" }), true),
            (json!({ "key": "gpu", "value": "yes" }), true),
            (json!({ "key": "gpu", "value": "yes", "effect": "NoSchedule" }), true),
            (json!({ "key": "gpu", "value": "no" }), false),
            (json!({ "key": "gpu" }), false),
            (json!({ "key": "other", "operator": "Exists" }), false),
            (json!({ "key": "gpu", "operator": "Exists", "effect": "NoExecute" }), false),
            (json!({ "key": "gpu", "operator": "Gt", "value": "1" }), false),
        ] {
            let found = mismatch(&json!({ "tolerations": [toleration] }));
            assert_eq!(found, (!is_tolerated).then_some(NodeMismatch::Taint), "{toleration}");
        }
    }

    #[test]
    fn labels_are_required_by_selector_and_affinity() {
        let selected = |zone: &str| {
            mismatch(&json!({ "tolerations": [{ "operator": "Exists" }], "nodeSelector": { "zone": zone } }))
        };
        assert_eq!((selected("a"), selected("b")), (None, Some(NodeMismatch::Labels)));
        for (expression, holds) in [
            (json!({ "key": "zone", "operator": "In", "values": ["a", "b"] }), true),
            (json!({ "key": "zone", "operator": "NotIn", "values": ["a"] }), false),
            (json!({ "key": "disk", "operator": "NotIn", "values": ["a"] }), true),
            (json!({ "key": "disk", "operator": "DoesNotExist" }), true),
            (json!({ "key": "zone", "operator": "Exists" }), true),
            (json!({ "key": "cores", "operator": "Gt", "values": ["4"] }), true),
            (json!({ "key": "cores", "operator": "Lt", "values": ["4"] }), false),
            (json!({ "key": "zone", "operator": "Like", "values": ["a"] }), false),
        ] {
            assert_eq!(mismatch(&affine(&json!([expression]))).is_none(), holds, "{expression}");
        }
    }

    /// A report leaves out labels that differ from node to node. That such a label is absent is not known.
    #[test]
    fn a_label_that_is_not_reported_is_not_absent() {
        for operator in ["Exists", "DoesNotExist"] {
            assert!(mismatch(&affine(&json!([{ "key": "host", "operator": operator }]))).is_some(), "{operator}");
        }
        let other = affine(&json!([{ "key": "disk", "operator": "DoesNotExist" }]));
        let more = [MORE_LABELS.to_owned()];
        assert!(NodeNeeds::read(&other).mismatch(&nodes(), &more).is_some());
        let by_name = json!({ "nodeSelectorTerms": [{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n"] }] }] });
        let spec = json!({
            "tolerations": [{ "operator": "Exists" }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": by_name } },
        });
        assert!(mismatch(&spec).is_some());
    }

    #[test]
    fn a_daemon_tolerates_conditions_of_its_node() {
        let mut group = nodes();
        group.taints = vec![WorkloadTaint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            value: None,
            effect: "NoSchedule".to_owned(),
        }];
        let mut needs = NodeNeeds::default();
        assert_eq!(needs.mismatch(&group, &[]), Some(NodeMismatch::Taint));
        needs.tolerate_as_daemon();
        assert_eq!(needs.mismatch(&group, &[]), None);
    }
}
