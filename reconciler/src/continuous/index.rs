//! What is looked up in documents again and again, kept as they change.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Documents, Hypervisor, Shared,
    document::DocumentName,
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
};

/// Where components are, and whose an id is.
#[derive(Default)]
pub(super) struct ComponentIndex {
    placed: BTreeMap<HypervisorName, BTreeSet<PodName>>,
    ids: Shared<BTreeMap<ClusterId, ClusterRef>>,
}

impl ComponentIndex {
    /// Takes changes of the documents.
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

    /// Clusters with components on a machine.
    pub(super) fn clusters_on<'a>(
        &self,
        documents: &'a Documents,
        machine: &HypervisorName,
    ) -> BTreeMap<&'a ClusterRef, &'a ClusterId> {
        let pods = self.placed.get(machine).into_iter().flatten();
        let here = pods.filter_map(|pod| documents.components.get(pod));
        here.map(|component| (&component.spec.cluster, &component.spec.cluster_id)).collect()
    }

    /// All clusters that have an id.
    pub(super) fn ids(&self) -> &Shared<BTreeMap<ClusterId, ClusterRef>> {
        &self.ids
    }

    /// Whom changes of documents concern.
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

/// Whom changes of documents concern.
#[derive(Default)]
pub(super) struct AffectedTasks {
    pub(super) clusters: BTreeSet<ClusterRef>,
    /// Those that wait for something as well: a machine came or went.
    pub(super) has_unsettled: bool,
    pub(super) has_all: bool,
}

/// Whether a machine means the same to clusters: who is settled, and has nothing there, decides nothing else.
fn means_the_same(machine: &HypervisorName, before: &Documents, now: &Documents) -> bool {
    let of = |machine: &Hypervisor| {
        let installation = machine.status.as_ref().and_then(|status| status.installation.clone());
        (machine.metadata.clone(), installation)
    };
    let (before, now) = (before.hypervisors.get(machine), now.hypervisors.get(machine));
    before.zip(now).is_some_and(|(before, now)| before.spec == now.spec && of(before) == of(now))
}

/// Whether it is also as it was, and only more is told of it.
fn is_told_of_anew(machine: &HypervisorName, before: &Documents, now: &Documents) -> bool {
    let truths = |machine: &Hypervisor| -> Vec<(String, String)> {
        let conditions = machine.status.iter().flat_map(|status| &status.conditions);
        conditions.map(|condition| (condition.type_.clone(), condition.status.clone())).collect()
    };
    let (before, now) = (before.hypervisors.get(machine), now.hypervisors.get(machine));
    before.zip(now).is_some_and(|(before, now)| truths(before) == truths(now))
}
