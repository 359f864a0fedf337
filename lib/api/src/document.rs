//! Single documents: their names, their text, and the changes between two sets of documents.

use core::fmt;
use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::{
    Cluster, ClusterClass, Component, Documents, Hypervisor, Newer,
    across::{faults_between, missing_documents},
    cluster::ClusterStatus,
    documents::{SecretName, is_ours},
    fault::Fault,
    kind::DocumentKind,
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    newer,
    read::OriginIndex,
    schema::NewerDocumentFields,
    secret::Secret,
    shared::Shared,
    write::canonical,
};

/// The name of a document, unique among all documents.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DocumentName {
    /// Defaults and limits for Clusters.
    ClusterClass(String),
    /// A machine.
    Hypervisor(HypervisorName),
    /// A cluster.
    Cluster(ClusterRef),
    /// A component.
    Component(PodName),
    /// A Secret of Keelway or of the user.
    Secret(SecretName),
}

/// A document.
#[derive(Clone, PartialEq)]
pub enum Document {
    /// Defaults and limits for Clusters.
    ClusterClass(Shared<ClusterClass>),
    /// A machine.
    Hypervisor(Shared<Hypervisor>),
    /// A cluster.
    Cluster(Shared<Cluster>),
    /// A component.
    Component(Shared<Component>),
    /// A Secret of Keelway or of the user.
    Secret(Shared<Secret>),
}

/// A reference to a document.
#[derive(Clone, Copy, PartialEq)]
pub enum DocumentRef<'a> {
    /// Defaults and limits for Clusters.
    ClusterClass(&'a Shared<ClusterClass>),
    /// A machine.
    Hypervisor(&'a Shared<Hypervisor>),
    /// A cluster.
    Cluster(&'a Shared<Cluster>),
    /// A component.
    Component(&'a Shared<Component>),
    /// A Secret of Keelway or of the user.
    Secret(&'a Shared<Secret>),
}

/// A change that a store makes to get from one set of documents to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DocumentChange {
    /// Saves only the parts of a cluster's status on which its components depend, such as the id and the port. The rest refers to documents that are
    /// saved later.
    Introduce(DocumentName),
    /// Saves a document that is new or changed.
    Put(DocumentName),
    /// Removes a document.
    Remove(DocumentName),
}

impl DocumentName {
    pub(crate) fn of_secret(secret: &Secret) -> Self {
        let namespace = secret.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = secret.metadata.name.clone().unwrap_or_default();
        Self::Secret(SecretName { namespace, name })
    }

    /// Returns the kind, as the field `kind` contains it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ClusterClass(_) => "ClusterClass",
            Self::Hypervisor(_) => "Hypervisor",
            Self::Cluster(_) => "Cluster",
            Self::Component(_) => "Component",
            Self::Secret(_) => "Secret",
        }
    }

    /// Returns `metadata.namespace`, or `None` for kinds without a namespace.
    #[must_use]
    pub fn namespace(&self) -> Option<String> {
        match self {
            Self::ClusterClass(_) | Self::Hypervisor(_) => None,
            Self::Cluster(name) => Some(name.namespace.clone()),
            Self::Component(name) => Some(name.cluster.namespace()),
            Self::Secret(name) => Some(name.namespace.clone()),
        }
    }

    /// Returns `metadata.name`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::ClusterClass(name) => name,
            Self::Hypervisor(name) => name.as_str(),
            Self::Cluster(name) => &name.name,
            Self::Component(name) => name.component.as_str(),
            Self::Secret(name) => &name.name,
        }
    }
}

/// Formats the name for errors: `Cluster default/c1`.
impl fmt::Display for DocumentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace() {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind(), self.name()),
            None => write!(f, "{} {}", self.kind(), self.name()),
        }
    }
}

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
        match change.outcome(to) {
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

    /// Returns the document after this change on the way to `to`, or `None` if it is removed.
    #[must_use]
    pub fn outcome(&self, to: &Documents) -> Option<Document> {
        match self {
            Self::Introduce(name) => to.get(name).map(|document| document.owned().introduced()),
            Self::Put(name) => to.get(name).map(DocumentRef::owned),
            Self::Remove(_) => None,
        }
    }
}

impl<'a> DocumentRef<'a> {
    /// Returns the document as canonical YAML, without a separator.
    #[must_use]
    pub fn text(self) -> String {
        let mut json = self.json();
        newer::stamp(&mut json, self.has_newer_fields());
        canonical(self.kind(), json)
    }

    /// Returns the document as JSON, with the fields of a newer release in their places.
    #[must_use]
    pub fn json(self) -> Json {
        let mut json = self.json_of_known_fields();
        for (part, newer) in self.newer() {
            if let Some(part) = json.get_mut(part) {
                newer.restore(part);
            }
        }
        json
    }

    /// Returns the document as JSON, without the fields of a newer release.
    #[must_use]
    pub fn json_of_known_fields(self) -> Json {
        let json = match self {
            Self::ClusterClass(document) => serde_json::to_value(document),
            Self::Hypervisor(document) => serde_json::to_value(document),
            Self::Cluster(document) => serde_json::to_value(document),
            Self::Component(document) => serde_json::to_value(document),
            Self::Secret(document) => serde_json::to_value(document),
        };
        // Serializing plain data with strings as keys cannot fail.
        json.unwrap_or_default()
    }

    /// Returns the paths of fields that this release does not know. They are from a newer release, are kept, and have no effect.
    #[must_use]
    pub fn newer_fields(self) -> Vec<String> {
        self.newer().flat_map(|(part, newer)| newer.paths(part)).collect()
    }

    /// Returns whether there are fields of a newer release.
    #[must_use]
    pub fn has_newer_fields(self) -> bool {
        self.newer().next().is_some()
    }

    /// Returns the fields of a newer release, by the part of the document that contains them.
    fn newer(self) -> impl Iterator<Item = (&'a str, &'a Newer)> {
        let (spec, status) = match self {
            Self::ClusterClass(class) => (Some(&class.spec.newer), None),
            Self::Hypervisor(machine) => {
                (Some(&machine.spec.newer), machine.status.as_ref().map(|status| &status.newer))
            }
            Self::Cluster(cluster) => (Some(&cluster.spec.newer), cluster.status.as_ref().map(|status| &status.newer)),
            Self::Component(part) => (Some(&part.spec.newer), part.status.as_ref().map(|status| &status.newer)),
            Self::Secret(_) => (None, None),
        };
        let parts = [("spec", spec), ("status", status)];
        parts.into_iter().filter_map(|(part, newer)| Some((part, newer.filter(|newer| !newer.is_empty())?)))
    }

    fn kind(self) -> DocumentKind {
        match self {
            Self::ClusterClass(_) => DocumentKind::ClusterClass,
            Self::Hypervisor(_) => DocumentKind::Hypervisor,
            Self::Cluster(_) => DocumentKind::Cluster,
            Self::Component(_) => DocumentKind::Component,
            Self::Secret(_) => DocumentKind::Secret,
        }
    }

    /// Returns a copy.
    #[must_use]
    pub fn owned(self) -> Document {
        match self {
            Self::ClusterClass(document) => Document::ClusterClass(document.clone()),
            Self::Hypervisor(document) => Document::Hypervisor(document.clone()),
            Self::Cluster(document) => Document::Cluster(document.clone()),
            Self::Component(document) => Document::Component(document.clone()),
            Self::Secret(document) => Document::Secret(document.clone()),
        }
    }
}

impl Document {
    /// Returns the document with fields that this release does not know.
    pub(crate) fn with_newer(mut self, newer: NewerDocumentFields) -> Self {
        match &mut self {
            Self::ClusterClass(class) => class.spec.newer = newer.spec,
            Self::Hypervisor(machine) => {
                machine.spec.newer = newer.spec;
                if !newer.status.is_empty() {
                    machine.status.get_or_insert_default().newer = newer.status;
                }
            }
            Self::Cluster(cluster) => {
                cluster.spec.newer = newer.spec;
                if !newer.status.is_empty() {
                    cluster.status.get_or_insert_default().newer = newer.status;
                }
            }
            Self::Component(component) => {
                component.spec.newer = newer.spec;
                if !newer.status.is_empty() {
                    component.status.get_or_insert_default().newer = newer.status;
                }
            }
            Self::Secret(_) => {}
        }
        self
    }

    /// Returns a cluster whose status contains only what its components depend on.
    fn introduced(mut self) -> Self {
        if let Self::Cluster(cluster) = &mut self
            && let Some(status) = &mut cluster.status
        {
            *status = ClusterStatus {
                id: status.id.take(),
                ingress_port: status.ingress_port,
                keelway: status.keelway.take(),
                ..ClusterStatus::default()
            };
        }
        self
    }

    /// Returns a reference to the document.
    #[must_use]
    pub fn as_ref(&self) -> DocumentRef<'_> {
        match self {
            Self::ClusterClass(document) => DocumentRef::ClusterClass(document),
            Self::Hypervisor(document) => DocumentRef::Hypervisor(document),
            Self::Cluster(document) => DocumentRef::Cluster(document),
            Self::Component(document) => DocumentRef::Component(document),
            Self::Secret(document) => DocumentRef::Secret(document),
        }
    }
}
