//! Quantities and taints as agents report them.

use alloc::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::{QuantityRounding, text, thousandths};

/// Quantities of resources by name, such as `cpu: "4"`, `memory: 16Gi` or `nvidia.com/gpu: "1"`.
pub type ResourceQuantities = BTreeMap<String, String>;

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadTaint {
    /// The key of the taint.
    pub key: String,
    /// The value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What happens to pods that do not tolerate the taint.
    pub effect: String,
}

/// Returns the sum of quantities by name. A sum is in thousandths if one of its parts is. A part that is no quantity is left out.
#[must_use]
pub fn total<'a>(parts: impl IntoIterator<Item = &'a ResourceQuantities>) -> ResourceQuantities {
    let mut sums: BTreeMap<&str, i128> = BTreeMap::new();
    for (name, quantity) in parts.into_iter().flatten() {
        if let Some(thousandths) = thousandths(quantity, QuantityRounding::Down) {
            *sums.entry(name).or_default() += thousandths;
        }
    }
    sums.into_iter().map(|(name, sum)| (name.to_owned(), text(sum))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_summed_whatever_their_suffix() {
        let node = |cpu: &str, memory: &str| {
            BTreeMap::from([("cpu".to_owned(), cpu.to_owned()), ("memory".to_owned(), memory.to_owned())])
        };
        let nodes = [node("4", "16Gi"), node("1500m", "1024Ki"), node("0.5", "1e3"), node("2", "broken")];
        let sum = total(&nodes);
        assert_eq!(sum["cpu"], "8");
        assert_eq!(sum["memory"], (16 * 1024 * 1024 * 1024_i64 + 1024 * 1024 + 1000).to_string());
        assert_eq!(total(&[node("1", "1"), node("1m", "0")])["cpu"], "1001m");
    }
}
