//! Label selectors, parsed.

use alloc::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// A parsed selector. All of its requirements have to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedSelector(Vec<SelectorRequirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum SelectorRequirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    DoesNotExist(String),
}

impl ParsedSelector {
    /// Reads a selector. The error is an operator that this release does not know.
    pub(crate) fn parse(selector: &LabelSelector) -> Result<Self, String> {
        let labels = selector.match_labels.iter().flatten();
        let exact =
            labels.map(|(key, value)| Ok(SelectorRequirement::In(key.clone(), BTreeSet::from([value.clone()]))));
        let expressions = selector.match_expressions.iter().flatten().map(requirement);
        exact.chain(expressions).collect::<Result<_, _>>().map(Self)
    }

    /// Whether labels match.
    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            SelectorRequirement::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            SelectorRequirement::NotIn(key, values) => !labels.get(key).is_some_and(|value| values.contains(value)),
            SelectorRequirement::Exists(key) => labels.contains_key(key),
            SelectorRequirement::DoesNotExist(key) => !labels.contains_key(key),
        })
    }

    /// Whether every set of labels matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn requirement(expression: &LabelSelectorRequirement) -> Result<SelectorRequirement, String> {
    let key = expression.key.clone();
    let values = || expression.values.iter().flatten().cloned().collect();
    match expression.operator.as_str() {
        "In" => Ok(SelectorRequirement::In(key, values())),
        "NotIn" => Ok(SelectorRequirement::NotIn(key, values())),
        "Exists" => Ok(SelectorRequirement::Exists(key)),
        "DoesNotExist" => Ok(SelectorRequirement::DoesNotExist(key)),
        other => Err(other.to_owned()),
    }
}
