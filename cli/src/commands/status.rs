//! `keelway status`.

use keelway_api::{Documents, jiff::Timestamp};
use serde::Serialize;

use super::print;
use crate::{
    args::{Global, StatusArguments, StatusOutput},
    exit::{Code, Failure},
    input::Input,
    view::{ClusterView, ComponentView, HypervisorView, table},
};

pub(super) fn run(global: &Global, arguments: &StatusArguments) -> Result<Code, Failure> {
    let input = Input::read(&global.files)?;
    let view = World::of(&input.documents()?, Timestamp::now());
    let text = match arguments.output {
        StatusOutput::Table => view.tables(false),
        StatusOutput::Wide => view.tables(true),
        StatusOutput::Json => serde_json::to_string_pretty(&view).map_err(Failure::other)? + "\n",
        StatusOutput::Yaml => serde_saphyr::to_string(&view).map_err(Failure::other)?,
    };
    print(&text)?;
    Ok(Code::Done)
}

/// What the documents tell of the world.
#[derive(Serialize)]
struct World {
    clusters: Vec<ClusterView>,
    components: Vec<ComponentView>,
    hypervisors: Vec<HypervisorView>,
}

impl World {
    fn of(documents: &Documents, now: Timestamp) -> Self {
        Self {
            clusters: documents.clusters.values().map(|cluster| ClusterView::of(documents, cluster, now)).collect(),
            components: documents.components.iter().map(|(pod, component)| ComponentView::of(pod, component)).collect(),
            hypervisors: documents.hypervisors.values().map(|machine| HypervisorView::of(documents, machine)).collect(),
        }
    }

    /// What is wrong comes first, then three tables.
    fn tables(&self, wide: bool) -> String {
        let tables = [table(&self.clusters, wide), table(&self.components, wide), table(&self.hypervisors, wide)];
        let shown: Vec<String> = [self.troubles()].into_iter().chain(tables).filter(|text| !text.is_empty()).collect();
        if shown.is_empty() { "No documents.\n".to_owned() } else { shown.join("\n") }
    }

    fn troubles(&self) -> String {
        let broken = self.components.iter().filter(|component| component.ready != "True");
        let silent = self.hypervisors.iter().filter(|machine| machine.ready != "True");
        broken
            .map(|component| format!("{} waits for {}\n", component.name, component.message))
            .chain(silent.map(|machine| match machine.ready.as_str() {
                "Unknown" => format!("{} waits for {}\n", machine.name, machine.message),
                _ => format!("{} is not ready: {}\n", machine.name, machine.message),
            }))
            .collect()
    }
}
