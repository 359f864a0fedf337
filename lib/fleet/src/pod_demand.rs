//! The pods that an object asks for.

use serde_json::Value as Json;

use crate::{
    ResourceAmounts,
    node_needs::{NodeNeeds, avoids_own_kind},
    pod_requests::pod_requests,
};

/// Pods with equal needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodDemand {
    /// Their number.
    pub count: PodCount,
    /// What each of them requests.
    pub requests: ResourceAmounts,
    /// Whether no two of them may share a node.
    pub(crate) is_one_per_node: bool,
    pub(crate) nodes: NodeNeeds,
}

/// A number of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodCount {
    /// This number.
    Number(u32),
    /// One on each node that allows it.
    EachNode,
}

/// Counts equal pods together.
pub(crate) fn joined<'a>(pods: impl IntoIterator<Item = &'a PodDemand>) -> Vec<PodDemand> {
    let mut all: Vec<PodDemand> = Vec::new();
    for one in pods {
        let same = all.iter_mut().find(|other| other.is_equal_to(one));
        match (same.map(|same| &mut same.count), one.count) {
            (Some(PodCount::Number(count)), PodCount::Number(more)) => *count = count.saturating_add(more),
            (_, _) => all.push(one.clone()),
        }
    }
    all
}

/// All pods that an object asks for. An object without pods asks for none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectDemand(Vec<PodDemand>);

impl PodDemand {
    /// Reads the specification of a pod, of which there are several.
    #[must_use]
    pub fn read(spec: &Json, count: PodCount) -> Self {
        let mut nodes = NodeNeeds::read(spec);
        if count == PodCount::EachNode {
            nodes.tolerate_as_daemon();
        }
        let is_one_per_node = count == PodCount::EachNode || avoids_own_kind(spec);
        Self { count, requests: pod_requests(spec), is_one_per_node, nodes }
    }

    /// Whether pods are equal, whatever their number.
    pub(crate) fn is_equal_to(&self, other: &Self) -> bool {
        self.requests == other.requests && self.nodes == other.nodes && self.is_one_per_node == other.is_one_per_node
    }
}

impl ObjectDemand {
    /// Collects pods, and leaves out kinds without pods.
    #[must_use]
    pub fn new(pods: impl IntoIterator<Item = PodDemand>) -> Self {
        Self(pods.into_iter().filter(|pods| pods.count != PodCount::Number(0)).collect())
    }

    /// Whether the object asks for no pod.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of pods. Those of each node count as one.
    #[must_use]
    pub fn number(&self) -> u64 {
        let number = |pods: &PodDemand| match pods.count {
            PodCount::Number(number) => u64::from(number),
            PodCount::EachNode => 1,
        };
        self.0.iter().map(number).sum()
    }

    /// Returns the pods.
    pub fn pods(&self) -> impl Iterator<Item = &PodDemand> {
        self.0.iter()
    }

    /// Returns the demand without this number of pods, the first ones first.
    #[must_use]
    pub fn without(&self, number: u64) -> Self {
        let mut rest = u32::try_from(number).unwrap_or(u32::MAX);
        let mut left = self.0.clone();
        for pods in &mut left {
            let (count, there) = match pods.count {
                PodCount::Number(count) => (count - rest.min(count), rest.min(count)),
                PodCount::EachNode if rest > 0 => (0, 1),
                PodCount::EachNode => continue,
            };
            pods.count = PodCount::Number(count);
            rest -= there;
        }
        Self::new(left)
    }

    /// Returns the demand for people: `5 pods with cpu 2, memory 4Gi each`. It is empty for an object without pods.
    #[must_use]
    pub fn readable(&self) -> String {
        let one = |pods: &PodDemand| match pods.count {
            PodCount::Number(1) => format!("1 pod with {}", pods.requests.readable()),
            PodCount::Number(count) => format!("{count} pods with {} each", pods.requests.readable()),
            PodCount::EachNode => format!("a pod on each node with {}", pods.requests.readable()),
        };
        self.0.iter().map(one).collect::<Vec<_>>().join(", and ")
    }
}
