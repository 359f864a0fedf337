//! Indexes of the documents for frequent lookups, updated with each change.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Documents, Hypervisor, Shared,
    document::DocumentName,
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
};

/// Maps machines to their components, and cluster ids to clusters.
#[derive(Default)]
pub(super) struct ComponentIndex {
    placed: BTreeMap<HypervisorName, BTreeSet<PodName>>,
    ids: Shared<BTreeMap<ClusterId, ClusterRef>>,
}

impl ComponentIndex {
    /// Applies changes of the documents.
    pub(super) fn take(&mut self, changed: &BTreeSet<DocumentName>, before: &Documents, now: &Documents) {
        for name in changed {
            match name {
                DocumentName::Component(pod) => {
                    if let Some(component) = before.components.get(pod) {
                        self.leave(&component.spec.hypervisor, pod);
                    }
                    if let Some(component) = now.components.get(pod) {
                        self.placed.entry(component.spec.hypervisor.clone()).or_default().insert(pod.clone());
                    }
                }
                DocumentName::Cluster(cluster) => {
                    let id = |of: &Documents| of.clusters.get(cluster)?.id().cloned();
                    let (old, new) = (id(before), id(now));
                    if old == new {
                        continue;
                    }
                    if let Some(old) = old {
                        self.ids.remove(&old);
                    }
                    if let Some(new) = new {
                        self.ids.insert(new, cluster.clone());
                    }
                }
                DocumentName::ClusterClass(_) | DocumentName::Hypervisor(_) | DocumentName::Secret(_) => {}
            }
        }
    }

    fn leave(&mut self, machine: &HypervisorName, pod: &PodName) {
        if let Some(pods) = self.placed.get_mut(machine) {
            pods.remove(pod);
            if pods.is_empty() {
                self.placed.remove(machine);
            }
        }
    }

    /// Returns the clusters that have components on a machine.
    pub(super) fn clusters_on<'a>(
        &self,
        documents: &'a Documents,
        machine: &HypervisorName,
    ) -> BTreeMap<&'a ClusterRef, &'a ClusterId> {
        let pods = self.placed.get(machine).into_iter().flatten();
        let here = pods.filter_map(|pod| documents.components.get(pod));
        here.map(|component| (&component.spec.cluster, &component.spec.cluster_id)).collect()
    }

    /// Returns all clusters that have an id.
    pub(super) fn ids(&self) -> &Shared<BTreeMap<ClusterId, ClusterRef>> {
        &self.ids
    }

    /// Returns the tasks that changes of documents affect.
    pub(super) fn affected_tasks(
        &self,
        changed: &BTreeSet<DocumentName>,
        before: &Documents,
        now: &Documents,
    ) -> AffectedTasks {
        let mut concerned = AffectedTasks::default();
        for name in changed {
            let id = match name {
                DocumentName::Cluster(cluster) => {
                    concerned.clusters.insert(cluster.clone());
                    continue;
                }
                DocumentName::Component(pod) => pod.cluster.clone(),
                DocumentName::Secret(secret) if secret.is_of_a_cluster() => {
                    let Some(id) = ClusterId::of_namespace(&secret.namespace) else { continue };
                    id
                }
                DocumentName::Hypervisor(machine) if means_the_same(machine, before, now) => {
                    concerned.clusters.extend(self.clusters_on(now, machine).into_keys().cloned());
                    concerned.has_unsettled |= !is_told_of_anew(machine, before, now);
                    continue;
                }
                DocumentName::ClusterClass(_) | DocumentName::Hypervisor(_) | DocumentName::Secret(_) => {
                    concerned.has_all = true;
                    continue;
                }
            };
            concerned.clusters.extend(self.ids.get(&id).cloned());
        }
        concerned
    }
}

/// The tasks that changes of documents affect.
#[derive(Default)]
pub(super) struct AffectedTasks {
    pub(super) clusters: BTreeSet<ClusterRef>,
    /// Whether clusters that wait for something are affected too: a condition of a machine changed its status.
    pub(super) has_unsettled: bool,
    pub(super) has_all: bool,
}

/// Returns whether a machine changed nothing that a settled cluster without components on it depends on.
fn means_the_same(machine: &HypervisorName, before: &Documents, now: &Documents) -> bool {
    let of = |machine: &Hypervisor| {
        let installation = machine.status.as_ref().and_then(|status| status.installation.clone());
        (machine.metadata.clone(), installation)
    };
    let (before, now) = (before.hypervisors.get(machine), now.hypervisors.get(machine));
    before.zip(now).is_some_and(|(before, now)| before.spec == now.spec && of(before) == of(now))
}

/// Returns whether the conditions of a machine have the same types and statuses as before.
fn is_told_of_anew(machine: &HypervisorName, before: &Documents, now: &Documents) -> bool {
    let truths = |machine: &Hypervisor| -> Vec<(String, String)> {
        let conditions = machine.status.iter().flat_map(|status| &status.conditions);
        conditions.map(|condition| (condition.type_.clone(), condition.status.clone())).collect()
    };
    let (before, now) = (before.hypervisors.get(machine), now.hypervisors.get(machine));
    before.zip(now).is_some_and(|(before, now)| truths(before) == truths(now))
}
