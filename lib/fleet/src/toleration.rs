//! Tolerations of a policy: taints of clusters that do not keep its objects away.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterTaint, TaintEffect};

/// Tolerates taints of clusters, as the toleration of a pod tolerates taints of nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterToleration {
    /// The key of the taints. Without a key, and with the operator `Exists`, all taints are tolerated.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Whether the value has to be equal.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// The value of the taints, with the operator `Equal`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The effect of the taints. The default is every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

/// How the value of a taint is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// The value is equal.
    #[default]
    Equal,
    /// Every value is tolerated.
    Exists,
}

impl ClusterToleration {
    /// Whether a taint is tolerated.
    #[must_use]
    pub fn tolerates(&self, taint: &ClusterTaint) -> bool {
        let is_every_key = self.key.is_empty() && self.operator == TolerationOperator::Exists;
        let is_value = match self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal => self.value == taint.value.as_deref().unwrap_or_default(),
        };
        (is_every_key || self.key == taint.key) && is_value && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn taints_are_tolerated_as_pods_tolerate_those_of_nodes() {
        let gpu: ClusterTaint = from_value(json!({ "key": "gpu", "value": "a100", "effect": "NoSchedule" })).unwrap();
        let tolerates = |toleration| from_value::<ClusterToleration>(toleration).unwrap().tolerates(&gpu);
        for tolerated in [
            json!({ "operator": "Exists" }),
            json!({ "key": "gpu", "operator": "Exists" }),
            json!({ "key": "gpu", "value": "a100" }),
            json!({ "key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule" }),
        ] {
            assert!(tolerates(tolerated.clone()), "{tolerated}");
        }
        for other in [
            json!({ "key": "gpu" }),
            json!({ "key": "gpu", "value": "h100" }),
            json!({ "key": "disk", "operator": "Exists" }),
            json!({ "operator": "Exists", "effect": "PreferNoSchedule" }),
        ] {
            assert!(!tolerates(other.clone()), "{other}");
        }
        let without_value: ClusterTaint = from_value(json!({ "key": "gpu", "effect": "NoSchedule" })).unwrap();
        let equal: ClusterToleration = from_value(json!({ "key": "gpu" })).unwrap();
        assert!(equal.tolerates(&without_value));
    }
}
