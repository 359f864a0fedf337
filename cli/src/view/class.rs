//! The view of classes.

use keelway_api::{ClusterClass, Documents};

use super::TableRow;

pub(crate) struct ClassView {
    name: String,
    default: bool,
    clusters: usize,
    registry: String,
    namespaces: String,
}

impl TableRow for ClassView {
    const HEADER: &'static [&'static str] = &["CLUSTERCLASS", "DEFAULT", "CLUSTERS", "REGISTRY", "NAMESPACES"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        let or_none = |text: &str| if text.is_empty() { "<none>".to_owned() } else { text.to_owned() };
        let namespaces = if self.namespaces.is_empty() { "<all>" } else { &self.namespaces };
        vec![
            self.name.clone(),
            self.default.to_string(),
            self.clusters.to_string(),
            or_none(&self.registry),
            namespaces.to_owned(),
        ]
    }
}

impl ClassView {
    pub(crate) fn of(documents: &Documents, class: &ClusterClass) -> Self {
        let name = class.metadata.name.clone().unwrap_or_default();
        let is_of_it =
            |cluster: &&keelway_api::Shared<keelway_api::Cluster>| documents.class_name(cluster) == Some(name.as_str());
        Self {
            default: class.is_default(),
            clusters: documents.clusters.values().filter(is_of_it).count(),
            registry: class.spec.images.registry.clone().unwrap_or_default(),
            namespaces: class.spec.namespaces.join(","),
            name,
        }
    }
}
