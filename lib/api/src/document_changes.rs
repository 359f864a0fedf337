//! The documents by name, and the changes between two sets of documents.

use std::collections::BTreeSet;

use crate::{
    Documents,
    across::{faults_between, missing_documents},
    document::{Document, DocumentChange, DocumentName, DocumentRef},
    documents::is_ours,
    fault::Fault,
    name::{ClusterId, ClusterRef},
    origin::OriginIndex,
};

impl Documents {
    /// Returns the names of all documents, by kind and name, without Secrets of the user.
    pub fn names(&self) -> impl Iterator<Item = DocumentName> {
        let classes = self.classes.keys().cloned().map(DocumentName::ClusterClass);
        let machines = self.hypervisors.keys().cloned().map(DocumentName::Hypervisor);
        let clusters = self.clusters.keys().cloned().map(DocumentName::Cluster);
        let components = self.components.keys().cloned().map(DocumentName::Component);
        let of_group = classes.chain(machines).chain(clusters).chain(components);
        of_group.chain(self.secrets.keys().cloned().map(DocumentName::Secret))
    }

    /// Returns the names of all documents, with Secrets of the user.
    pub fn all_names(&self) -> impl Iterator<Item = DocumentName> {
        self.names().chain(self.user_secrets.keys().cloned().map(DocumentName::Secret))
    }

    /// Returns the document with this name.
    #[must_use]
    pub fn get(&self, name: &DocumentName) -> Option<DocumentRef<'_>> {
        Some(match name {
            DocumentName::ClusterClass(name) => DocumentRef::ClusterClass(self.classes.get(name)?),
            DocumentName::Hypervisor(name) => DocumentRef::Hypervisor(self.hypervisors.get(name)?),
            DocumentName::Cluster(name) => DocumentRef::Cluster(self.clusters.get(name)?),
            DocumentName::Component(name) => DocumentRef::Component(self.components.get(name)?),
            DocumentName::Secret(name) => {
                DocumentRef::Secret(self.secrets.get(name).or_else(|| self.user_secrets.get(name))?)
            }
        })
    }

    /// Inserts a document, or replaces the one with this name.
    pub fn put(&mut self, name: &DocumentName, document: Document) {
        match (name, document) {
            (DocumentName::ClusterClass(name), Document::ClusterClass(document)) => {
                self.classes.insert(name.clone(), document);
            }
            (DocumentName::Hypervisor(name), Document::Hypervisor(document)) => {
                self.hypervisors.insert(name.clone(), document);
            }
            (DocumentName::Cluster(name), Document::Cluster(document)) => {
                self.clusters.insert(name.clone(), document);
            }
            (DocumentName::Component(name), Document::Component(document)) => {
                self.components.insert(name.clone(), document);
            }
            (DocumentName::Secret(name), Document::Secret(document)) => {
                if is_ours(&document) {
                    self.user_secrets.remove(name);
                    self.secrets.insert(name.clone(), document);
                } else {
                    self.secrets.remove(name);
                    self.user_secrets.insert(name.clone(), document);
                }
            }
            _ => debug_assert!(false, "a document of another kind than its name"),
        }
    }

    /// Removes the document with this name.
    pub fn remove(&mut self, name: &DocumentName) {
        match name {
            DocumentName::ClusterClass(name) => drop(self.classes.remove(name)),
            DocumentName::Hypervisor(name) => drop(self.hypervisors.remove(name)),
            DocumentName::Cluster(name) => drop(self.clusters.remove(name)),
            DocumentName::Component(name) => drop(self.components.remove(name)),
            DocumentName::Secret(name) => drop((self.secrets.remove(name), self.user_secrets.remove(name))),
        }
    }

    /// Returns every fault between documents that are valid by themselves, with the name of its document. Line numbers are not known.
    #[must_use]
    pub fn faults_between(&self) -> Vec<(DocumentName, Fault)> {
        let seen = OriginIndex::default();
        let mut found = faults_between(self, &seen);
        found.extend(missing_documents(self, &seen));
        for (name, fault) in &mut found {
            fault.document = name.to_string();
        }
        found
    }

    /// Returns the names of documents that were changed, added or removed. Parts that both sets share are not compared.
    #[must_use]
    pub fn names_changed_since(&self, before: &Self) -> BTreeSet<DocumentName> {
        let classes = self.classes.changed_since(&before.classes).cloned().map(DocumentName::ClusterClass);
        let machines = self.hypervisors.changed_since(&before.hypervisors).cloned().map(DocumentName::Hypervisor);
        let clusters = self.clusters.changed_since(&before.clusters).cloned().map(DocumentName::Cluster);
        let components = self.components.changed_since(&before.components).cloned().map(DocumentName::Component);
        let secrets =
            self.secrets.changed_since(&before.secrets).chain(self.user_secrets.changed_since(&before.user_secrets));
        let changed =
            classes.chain(machines).chain(clusters).chain(components).chain(secrets.cloned().map(DocumentName::Secret));
        changed.filter(|name| self.get(name) != before.get(name)).collect()
    }

    /// Returns the changes from `before` to these documents. Their order allows an interruption after each step: a document exists before others
    /// refer to it and is removed after them, and the status of a cluster never lags behind its components.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<DocumentChange> {
        self.steps_since(before).into_iter().flatten().collect()
    }

    /// Returns the same changes by step. Changes of one step may be made in any order, and an interruption may leave any subset of them.
    #[must_use]
    pub fn steps_since(&self, before: &Self) -> Vec<Vec<DocumentChange>> {
        let mut changes: Vec<(u8, DocumentChange)> = Vec::new();
        for name in self.names_changed_since(before) {
            if self.get(&name).is_none() {
                let step = match &name {
                    DocumentName::Component(_) => 6,
                    DocumentName::Secret(_) => 7,
                    DocumentName::Cluster(_) => 8,
                    DocumentName::ClusterClass(_) | DocumentName::Hypervisor(_) => 9,
                };
                changes.push((step, DocumentChange::Remove(name)));
                continue;
            }
            let is_new = before.get(&name).is_none();
            let step = match &name {
                DocumentName::ClusterClass(_) | DocumentName::Hypervisor(_) => 0,
                DocumentName::Secret(_) => 2,
                DocumentName::Component(_) if is_new => 3,
                DocumentName::Cluster(cluster) => {
                    if self.identity(cluster) != before.identity(cluster) {
                        changes.push((1, DocumentChange::Introduce(name.clone())));
                    }
                    4
                }
                DocumentName::Component(_) => 5,
            };
            changes.push((step, DocumentChange::Put(name)));
        }
        changes.sort();
        let steps = changes.chunk_by(|(one, _), (other, _)| one == other);
        steps.map(|step| step.iter().map(|(_, change)| change.clone()).collect()).collect()
    }

    /// Returns the status of a cluster that its components depend on.
    fn identity(&self, cluster: &ClusterRef) -> Option<(Option<&ClusterId>, Option<u16>)> {
        let status = self.clusters.get(cluster)?.status.as_ref()?;
        Some((status.id.as_ref(), status.ingress_port))
    }

    /// Makes one of the [changes](Self::changes_since) that lead to another set of documents.
    pub fn make(&mut self, change: &DocumentChange, to: &Self) {
        match change.outcome(self, to) {
            Some(document) => self.put(change.name(), document),
            None => self.remove(change.name()),
        }
    }
}

impl DocumentChange {
    /// Returns the name of the changed document.
    #[must_use]
    pub fn name(&self) -> &DocumentName {
        match self {
            Self::Introduce(name) | Self::Put(name) | Self::Remove(name) => name,
        }
    }

    /// Returns the document after this change on the way from `since` to `to`, or `None` if it is removed.
    #[must_use]
    pub fn outcome(&self, since: &Documents, to: &Documents) -> Option<Document> {
        match self {
            Self::Introduce(name) => {
                let before = match since.get(name) {
                    Some(DocumentRef::Cluster(before)) => Some(&**before),
                    _ => None,
                };
                to.get(name).map(|document| document.owned().introduced(before))
            }
            Self::Put(name) => to.get(name).map(DocumentRef::owned),
            Self::Remove(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::{ClusterStatus, EtcdStatus};

    const WORLD: &str = include_str!("../tests/good/world.yaml");

    /// A cluster gets its port late if its first public machine is late.
    #[test]
    fn a_port_that_comes_late_costs_no_other_status_at_any_step() {
        let mut before = Documents::read(WORLD.as_bytes()).unwrap();
        let name = before.clusters.keys().next().unwrap().clone();
        let status = |documents: &mut Documents, change: &dyn Fn(&mut ClusterStatus)| {
            let cluster = documents.clusters.get_mut(&name).unwrap();
            change(cluster.status.as_mut().unwrap());
        };
        let etcd = json!({ "bornAt": "2026-11-21T10:00:00Z", "initialCluster": {} });
        let etcd: Option<EtcdStatus> = serde_json::from_value(etcd).unwrap();
        status(&mut before, &|status| status.etcd.clone_from(&etcd));
        let mut after = before.clone();
        status(&mut after, &|status| status.ingress_port = Some(20_099));
        let mut reached = before.clone();
        let changes = after.changes_since(&before);
        assert!(matches!(changes.as_slice(), [DocumentChange::Introduce(_), DocumentChange::Put(_)]), "{changes:?}");
        for change in &changes {
            reached.make(change, &after);
            let status = reached.clusters.get(&name).and_then(|cluster| cluster.status.as_ref()).unwrap();
            assert_eq!((status.ingress_port, &status.etcd), (Some(20_099), &etcd));
        }
        assert_eq!(reached, after);
    }
}
