//! Where a workload cluster is: what its token states, and its Cluster gets when it registers.

use alloc::collections::BTreeMap;

use serde_json::{Value, json};

use crate::names::{PROVIDER_LABEL, REGION_LABEL, ZONE_LABEL};

/// The longest value of a label.
const LONGEST_LABEL: usize = 63;

/// The provider, the region and the zone of a workload cluster, as far as its token states them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterLocation {
    /// The provider.
    pub provider: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// The zone.
    pub zone: Option<String>,
}

impl ClusterLocation {
    fn parts(&self) -> impl Iterator<Item = (&'static str, &'static str, &String)> {
        let all = [
            (PROVIDER_LABEL, "provider", &self.provider),
            (REGION_LABEL, "region", &self.region),
            (ZONE_LABEL, "zone", &self.zone),
        ];
        all.into_iter().filter_map(|(label, field, value)| Some((label, field, value.as_ref()?)))
    }

    /// Returns the annotations of the Secret of a token.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.parts().map(|(label, _, value)| (label.to_owned(), value.clone())).collect()
    }

    /// Reads the annotations of the Secret of a token. Values that a Cluster cannot have are left out.
    #[must_use]
    pub fn of_annotations(annotations: &BTreeMap<String, String>) -> Self {
        let value = |label: &str| annotations.get(label).filter(|value| is_label_value(value)).cloned();
        Self { provider: value(PROVIDER_LABEL), region: value(REGION_LABEL), zone: value(ZONE_LABEL) }
    }

    /// Returns the fields of `spec` of a Cluster. `None`: no field is set.
    #[must_use]
    pub fn spec(&self) -> Option<Value> {
        let fields: serde_json::Map<String, Value> =
            self.parts().map(|(_, field, value)| (field.to_owned(), json!(value))).collect();
        (!fields.is_empty()).then_some(Value::Object(fields))
    }
}

/// Whether a text can be the value of a label, and is not empty.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LONGEST_LABEL
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'))
}
