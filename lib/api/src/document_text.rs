//! Documents as text and JSON.

use serde_json::Value as Json;

use crate::{
    Cluster, Newer,
    cluster::ClusterStatus,
    document::{Document, DocumentRef},
    kind::DocumentKind,
    newer,
    schema::NewerDocumentFields,
    write::canonical,
};

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

    /// Returns a cluster whose status is that of `before`, with what its components depend on. The status of a cluster that exists may get its
    /// port later than its etcd, for example once it has a public machine.
    pub(crate) fn introduced(mut self, before: Option<&Cluster>) -> Self {
        if let Self::Cluster(cluster) = &mut self
            && let Some(status) = &mut cluster.status
        {
            *status = ClusterStatus {
                id: status.id.take(),
                ingress_port: status.ingress_port,
                keelway: status.keelway.take(),
                ..before.and_then(|before| before.status.clone()).unwrap_or_default()
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
