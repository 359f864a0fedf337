//! Which policy decides on an object.

use alloc::collections::BTreeMap;
use core::cmp::Reverse;

use crate::{
    FailoverPolicy, FieldPath, FieldPathError, FleetObject, KindSelector, SchedulePolicy, SchedulePolicySpec,
    selector::ParsedSelector,
};

/// A policy whose parts were all understood.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ParsedPolicy {
    pub(crate) name: String,
    pub(crate) spec: SchedulePolicySpec,
    namespaces: Option<ParsedSelector>,
    labels: Vec<ParsedSelector>,
    clusters: Option<ParsedSelector>,
}

/// A part of a policy that this release does not understand. It was written past the checks of the API server, or by a later release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The policy has no name.
    #[error("the policy has no metadata.name")]
    NoName,
    /// The operator of a selector is unknown.
    #[error("{field}: the operator {operator:?} is not supported; write In, NotIn, Exists or DoesNotExist")]
    Operator {
        /// The selector.
        field: &'static str,
        /// The operator.
        operator: String,
    },
    /// The shares are not the whole.
    #[error("spec.spreadConstraints.percentageSplit: the percentages add up to {0}; they must add up to 100")]
    Shares(u64),
    /// An order of clusters has not exactly one label.
    #[error("spec.orderedClusterSelector.matchExpressions: must have exactly one label")]
    Order,
    /// A field path cannot be read.
    #[error("spec.spreadConstraints.overrides")]
    Path(#[source] FieldPathError),
    /// The document is not a policy that this release can read.
    #[error("{0}")]
    Document(String),
}

/// All policies of a fleet, in the order in which they decide.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicySet {
    readable: Vec<ParsedPolicy>,
    unreadable: BTreeMap<String, PolicyError>,
}

/// The policies that select an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SelectingPolicies<'a> {
    pub(crate) winner: Option<&'a ParsedPolicy>,
    pub(crate) losers: Vec<&'a str>,
}

/// The reason why it is not known which policy decides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPolicy {
    /// A policy cannot be read, and it may be the one that decides.
    #[error("the SchedulePolicy {name} cannot be read: {error}")]
    Unreadable {
        /// The policy.
        name: String,
        /// The reason.
        error: PolicyError,
    },
    /// The labels of the object's namespace are not known.
    #[error("the labels of the namespace {0} are not known yet")]
    Namespace(String),
}

impl PolicySet {
    /// Reads policies. Those that cannot be read are recorded.
    #[must_use]
    pub fn read(policies: impl IntoIterator<Item = SchedulePolicy>) -> Self {
        let mut set = Self::default();
        for policy in policies {
            let name = policy.metadata.name.clone().unwrap_or_default();
            match ParsedPolicy::parse(policy) {
                Ok(policy) => set.readable.push(policy),
                Err(error) => drop(set.unreadable.insert(name, error)),
            }
        }
        set.readable.sort_by(|a, b| (Reverse(a.spec.priority), &a.name).cmp(&(Reverse(b.spec.priority), &b.name)));
        set
    }

    /// Records a policy that could not be read as a document. While there is one, no object moves, and no new one is placed by a policy.
    pub fn add_unreadable(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.unreadable.insert(name.into(), PolicyError::Document(why.into()));
    }

    /// Returns the policies that cannot be read.
    #[must_use]
    pub fn unreadable(&self) -> &BTreeMap<String, PolicyError> {
        &self.unreadable
    }

    /// Returns the failover of each policy that has one.
    pub(crate) fn failovers(&self) -> impl Iterator<Item = &FailoverPolicy> {
        self.readable.iter().filter_map(|policy| policy.spec.failover.as_ref())
    }

    /// Returns the failover of a policy, if it has one.
    pub(crate) fn failover(&self, name: &str) -> Option<&FailoverPolicy> {
        self.readable.iter().find(|policy| policy.name == name)?.spec.failover.as_ref()
    }

    /// Whether a policy lets one cluster be chosen for each object.
    pub(crate) fn is_choosing(&self, name: Option<&str>) -> bool {
        self.readable
            .iter()
            .any(|policy| Some(policy.name.as_str()) == name && policy.spec.spread_constraints.is_none())
    }

    /// Whether a policy spreads each object over clusters.
    pub(crate) fn is_spreading(&self, name: Option<&str>) -> bool {
        self.readable
            .iter()
            .any(|policy| Some(policy.name.as_str()) == name && policy.spec.spread_constraints.is_some())
    }

    /// Returns the policies that select an object, given the labels of its namespace.
    pub(crate) fn selecting(
        &self,
        object: &FleetObject,
        namespaces: &BTreeMap<String, BTreeMap<String, String>>,
    ) -> Result<SelectingPolicies<'_>, UnknownPolicy> {
        if let Some((name, error)) = self.unreadable.first_key_value() {
            return Err(UnknownPolicy::Unreadable { name: name.clone(), error: error.clone() });
        }
        let mut selecting = SelectingPolicies::default();
        for policy in &self.readable {
            if policy.selects_object(object) && policy.selects_namespace(object, namespaces)? {
                match selecting.winner {
                    None => selecting.winner = Some(policy),
                    Some(_) => selecting.losers.push(&policy.name),
                }
            }
        }
        Ok(selecting)
    }
}

impl ParsedPolicy {
    fn parse(policy: SchedulePolicy) -> Result<Self, PolicyError> {
        let SchedulePolicy { metadata, spec } = policy;
        let read = |field, selector| {
            ParsedSelector::parse(selector).map_err(|operator| PolicyError::Operator { field, operator })
        };
        let namespaces = spec.namespace_selector.as_ref().map(|selector| read("spec.namespaceSelector", selector));
        let clusters = spec.cluster_selector.as_ref().map(|selector| read("spec.clusterSelector", selector));
        let labels = spec.resource_selectors.label_selectors.iter();
        let labels = labels.map(|selector| read("spec.resourceSelectors.labelSelectors", selector));
        check_spread(&spec)?;
        if spec.ordered_cluster_selector.as_ref().is_some_and(|ordered| ordered.match_expressions.len() != 1) {
            return Err(PolicyError::Order);
        }
        Ok(Self {
            name: metadata.name.ok_or(PolicyError::NoName)?,
            namespaces: namespaces.transpose()?,
            clusters: clusters.transpose()?,
            labels: labels.collect::<Result<_, _>>()?,
            spec,
        })
    }

    /// Returns the place of a cluster in the order of the policy, or `None` if it has none. Without an order, all clusters are equal.
    pub(crate) fn place_of(&self, labels: &BTreeMap<String, String>) -> Option<usize> {
        let Some(ordered) = &self.spec.ordered_cluster_selector else { return Some(0) };
        let order = ordered.match_expressions.first()?;
        let value = labels.get(&order.key)?;
        order.values.iter().position(|listed| listed == value)
    }

    fn selects_object(&self, object: &FleetObject) -> bool {
        let selectors = &self.spec.resource_selectors;
        // A policy without any selector selects nothing. API servers refuse it.
        let any = !self.labels.is_empty() || !selectors.kinds.is_empty();
        let by_label = self.labels.is_empty() || self.labels.iter().any(|selector| selector.matches(&object.labels));
        let by_kind = selectors.kinds.is_empty() || selectors.kinds.iter().any(|kind| kind.selects(object));
        any && by_label && by_kind
    }

    /// Objects without a namespace are selected whatever the selector of namespaces is.
    fn selects_namespace(
        &self,
        object: &FleetObject,
        namespaces: &BTreeMap<String, BTreeMap<String, String>>,
    ) -> Result<bool, UnknownPolicy> {
        let (Some(selector), Some(namespace)) = (&self.namespaces, &object.reference.namespace) else {
            return Ok(true);
        };
        if selector.is_empty() {
            return Ok(true);
        }
        let labels = namespaces.get(namespace).ok_or_else(|| UnknownPolicy::Namespace(namespace.clone()))?;
        Ok(selector.matches(labels))
    }

    /// Whether objects of the policy may run in a cluster with these labels.
    pub(crate) fn selects_cluster(&self, labels: &BTreeMap<String, String>) -> bool {
        self.clusters.as_ref().is_none_or(|selector| selector.matches(labels))
    }
}

impl KindSelector {
    fn selects(&self, object: &FleetObject) -> bool {
        let of = &object.reference;
        is_group(&self.group, &of.group)
            && self.kind == of.kind
            && self.version.as_ref().is_none_or(|version| *version == of.version)
    }
}

/// Whether a group as policies write it is this group.
pub(crate) fn is_group(written: &str, group: &str) -> bool {
    written == group || (written == "core" && group.is_empty())
}

fn check_spread(spec: &SchedulePolicySpec) -> Result<(), PolicyError> {
    let Some(spread) = &spec.spread_constraints else { return Ok(()) };
    let whole = spread.percentage_split.iter().map(|share| u64::from(share.percentage)).sum();
    if !spread.percentage_split.is_empty() && whole != 100 {
        return Err(PolicyError::Shares(whole));
    }
    let resources = spread.overrides.iter().flat_map(|domain| &domain.resources);
    let fields = resources.flat_map(|resource| &resource.fields);
    fields
        .map(|field| FieldPath::parse(&field.field_path))
        .try_for_each(|path| path.map(drop).map_err(PolicyError::Path))
}
