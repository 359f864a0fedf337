//! The documents that all clusters see beside their own. They are in memory once for any number of clusters.

use std::collections::BTreeSet;

use keelway_api::{
    Documents, Hypervisor,
    document::DocumentName,
    name::{ClusterRef, HypervisorName},
    shared::Map,
};
use keelway_planner::have_the_same_machines;

/// All documents that belong to no cluster.
#[derive(Default)]
pub(super) struct CommonDocuments {
    documents: Documents,
    /// The machines as of the last change that matters to clusters. Their status may be older.
    meant: Map<HypervisorName, Hypervisor>,
}

impl CommonDocuments {
    /// Applies changes of the documents.
    pub(super) fn take(&mut self, changed: &BTreeSet<DocumentName>, now: &Documents) {
        let is_common = |name: &DocumentName| matches!(name, DocumentName::Secret(name) if !name.is_of_a_cluster());
        if changed.iter().any(is_common) {
            self.documents = now.of_machines();
        } else {
            self.documents.classes = now.classes.clone();
            self.documents.hypervisors = now.hypervisors.clone();
            self.documents.user_secrets = now.user_secrets.clone();
        }
        if !have_the_same_machines(&self.meant, &now.hypervisors) {
            self.meant = now.hypervisors.clone();
        }
    }

    /// Returns all [documents of machines](Documents::of_machines).
    pub(super) fn documents(&self) -> &Documents {
        &self.documents
    }

    /// Returns the documents that a cluster sees: these, and its own from `documents`.
    pub(super) fn seen_by(&self, cluster: &ClusterRef, documents: &Documents) -> Documents {
        self.documents.with_cluster(documents, cluster)
    }

    /// Returns the documents of a cluster for storage until its next decision. The decision no longer needs the status of machines, which changes
    /// with everything else on them, so all clusters share older machines.
    pub(super) fn retained_documents(&self, mut documents: Documents) -> Documents {
        if have_the_same_machines(&self.meant, &documents.hypervisors) {
            documents.hypervisors = self.meant.clone();
        }
        documents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(heartbeat: u64, address: &str) -> Documents {
        let text = format!(
            "apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-1}}\nspec: {{role: Private, endpoint: {{agent: \
             {{address: '{address}:7443'}}}}, addresses: {{private: [{address}]}}}}\nstatus: {{issued: {{term: 1, generation: \
             {heartbeat}, digest: a}}}}\n"
        );
        Documents::read(text.as_bytes()).unwrap()
    }

    /// Returns the documents that are retained after these changes.
    fn kept(changes: &[&Documents], documents: &Documents) -> Documents {
        let mut common = CommonDocuments::default();
        let mut before = Documents::default();
        for now in changes {
            common.take(&now.names_changed_since(&before), now);
            before = (*now).clone();
        }
        common.retained_documents(documents.clone())
    }

    #[test]
    fn the_status_of_machines_is_kept_once() {
        let (first, later) = (world(1, "10.0.0.1"), world(2, "10.0.0.1"));
        assert!(kept(&[&first, &later], &later).hypervisors.ptr_eq(&first.hypervisors));
    }

    #[test]
    fn decisions_use_the_machines_that_were_observed() {
        let (first, later) = (world(1, "10.0.0.1"), world(2, "10.0.0.2"));
        assert!(kept(&[&first, &later], &first).hypervisors.ptr_eq(&first.hypervisors));
        assert!(kept(&[&first, &later], &later).hypervisors.ptr_eq(&later.hypervisors));
    }
}
