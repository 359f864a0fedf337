//! What a workload cluster can run, as its agent reports it.

use alloc::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Quantities of resources by name, such as `cpu: "4"`, `memory: 16Gi` or `nvidia.com/gpu: "1"`.
pub type ResourceQuantities = BTreeMap<String, String>;

/// What a node of a workload cluster can run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The resources that pods can use on the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: ResourceQuantities,
    /// The taints of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<WorkloadTaint>,
}

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
        if let Some(thousandths) = thousandths(quantity) {
            *sums.entry(name).or_default() += thousandths;
        }
    }
    sums.into_iter().map(|(name, sum)| (name.to_owned(), text(sum))).collect()
}

fn text(thousandths: i128) -> String {
    match thousandths % 1000 {
        0 => (thousandths / 1000).to_string(),
        _ => format!("{thousandths}m"),
    }
}

/// Reads a quantity of Kubernetes: `4`, `500m`, `16Gi`, `1.5`, `1e3`. Fractions of a thousandth are rounded up.
fn thousandths(quantity: &str) -> Option<i128> {
    let (number, factor) = split(quantity)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let product = digits.checked_mul(factor)?;
    Some(product.div_euclid(scale) + i128::from(product.rem_euclid(scale) != 0))
}

/// Returns the number of a quantity, and the factor of its suffix in thousandths.
fn split(quantity: &str) -> Option<(&str, i128)> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let end = quantity.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+')));
    let (number, suffix) = quantity.split_at(end.unwrap_or(quantity.len()));
    let power = |base: i128, exponent: usize| base.checked_pow(u32::try_from(exponent).ok()?)?.checked_mul(1000);
    if suffix == "m" {
        return Some((number, 1));
    }
    if let Some(index) = BINARY.iter().position(|known| *known == suffix) {
        return Some((number, power(1024, index + 1)?));
    }
    if let Some(index) = DECIMAL.iter().position(|known| *known == suffix) {
        return Some((number, power(1000, index)?));
    }
    let exponent: usize = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some((number, power(10, exponent)?))
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
