//! Conditions, as Kubernetes has them.

pub mod reason;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The schema of `status.conditions`: a list map by `type`, which a derived schema cannot express.
pub fn list_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let items = generator.subschema_for::<Condition>();
    schemars::json_schema!({
        "type": "array",
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// The current content of a condition: everything but its type and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionValue {
    /// `True`, `False` or `Unknown`.
    pub status: ConditionStatus,
    /// One CamelCase word for machines.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known.
    Unknown,
}

impl ConditionStatus {
    /// Returns the status as Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Sets one condition. `lastTransitionTime` moves only when the status does (Kubernetes API conventions, "typical status properties").
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    verdict: ConditionValue,
    observed_generation: Option<i64>,
    now: &Time,
) {
    let ConditionValue { status, reason, message } = verdict;
    let status = status.as_str();
    if let Some(found) = conditions.iter_mut().find(|c| c.type_ == kind) {
        if found.status != status {
            status.clone_into(&mut found.status);
            found.last_transition_time = now.clone();
        }
        found.reason = reason;
        found.message = message;
        found.observed_generation = observed_generation;
        return;
    }
    conditions.push(Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason,
        message,
        observed_generation,
        last_transition_time: now.clone(),
    });
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
}

/// Sets one condition as [`set`] does, or removes it if there is no verdict.
pub fn set_or_remove(
    conditions: &mut Vec<Condition>,
    kind: &str,
    verdict: Option<ConditionValue>,
    observed_generation: Option<i64>,
    now: &Time,
) {
    match verdict {
        Some(verdict) => set(conditions, kind, verdict, observed_generation, now),
        None => conditions.retain(|condition| condition.type_ != kind),
    }
}

/// Whether the condition exists.
#[must_use]
pub fn has(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|condition| condition.type_ == kind)
}

/// Whether the condition exists and is `True`.
#[must_use]
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|c| c.type_ == kind && c.status == ConditionStatus::True.as_str())
}
