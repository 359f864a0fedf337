//! `keelway status`.

mod troubles;

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use keelway_api::{Documents, document::DocumentRef, jiff::Timestamp};
use keelway_reconciler::{CurrentStatus, current_status};
use serde_json::Value as Json;

use super::{
    print,
    session::{PipeSession, runtime_of_passes},
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
    view::{ClusterView, ComponentView, HypervisorView, RoleView, StoreMemberView, list, table},
};

#[derive(Args)]
pub(crate) struct StatusArguments {
    /// The output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: StatusOutput,
    /// Show what the documents record, without connecting to machines
    #[arg(long)]
    pub(crate) recorded: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusOutput {
    /// Tables
    Table,
    /// Tables with more columns, and a table of etcd members
    Wide,
    /// Clusters, components and hypervisors, as a v1 List in JSON
    Json,
    /// The same in YAML
    Yaml,
}

/// The number of lines of a screen.
const SCREEN: usize = 24;

pub(super) fn run(global: &GlobalArguments, arguments: &StatusArguments) -> Result<Code, CommandFailure> {
    let input = Input::read(&global.files)?;
    // Without documents there is nothing to observe.
    let status = if arguments.recorded || input.is_blank() {
        CurrentStatus { documents: input.documents()?, stores: BTreeMap::new() }
    } else {
        observed(global, input.world()?)?
    };
    let documents = &status.documents;
    let text = match arguments.output {
        StatusOutput::Table => StatusReport::of(&status, Timestamp::now()).on_a_screen(),
        StatusOutput::Wide => StatusReport::of(&status, Timestamp::now()).full_text(true),
        StatusOutput::Json => {
            serde_json::to_string_pretty(&document_list(documents)).map_err(CommandFailure::other)? + "\n"
        }
        StatusOutput::Yaml => serde_saphyr::to_string(&document_list(documents)).map_err(CommandFailure::other)?,
    };
    print(&text)?;
    Ok(Code::Done)
}

/// Observes the machines, components and stores of the documents. What does not respond is a part of the status, and no failure.
fn observed(global: &GlobalArguments, documents: Documents) -> Result<CurrentStatus, CommandFailure> {
    let mut session = PipeSession::new(global, documents);
    let status = runtime_of_passes()?.block_on(current_status(&session.context, &mut session.minter));
    drop(session.context);
    status.map_err(CommandFailure::other)
}

/// Returns the documents without Secrets.
fn document_list(documents: &Documents) -> Json {
    let clusters = documents.clusters.values().map(|cluster| DocumentRef::Cluster(cluster).json());
    let components = documents.components.values().map(|component| DocumentRef::Component(component).json());
    let machines = documents.hypervisors.values().map(|machine| DocumentRef::Hypervisor(machine).json());
    let all = clusters.chain(components).chain(machines);
    list(&all.collect::<Vec<_>>())
}

/// The status of an installation, as its machines report it or its documents record it.
struct StatusReport {
    troubles: String,
    clusters: Vec<ClusterView>,
    components: Vec<ComponentView>,
    members: Vec<StoreMemberView>,
    roles: Vec<RoleView>,
    hypervisors: Vec<HypervisorView>,
}

impl StatusReport {
    fn of(status: &CurrentStatus, now: Timestamp) -> Self {
        let documents = &status.documents;
        let mut roles: BTreeMap<String, RoleView> = BTreeMap::new();
        for component in documents.components.values() {
            roles.entry(RoleView::title(component)).or_default().add(component);
        }
        Self {
            troubles: troubles::of(documents),
            clusters: documents.clusters.values().map(|cluster| ClusterView::of(documents, cluster, now)).collect(),
            components: documents.components.iter().map(|(pod, component)| ComponentView::of(pod, component)).collect(),
            members: StoreMemberView::of_all(documents, &status.stores),
            roles: roles.into_values().collect(),
            hypervisors: documents.hypervisors.values().map(|machine| HypervisorView::of(documents, machine)).collect(),
        }
    }

    /// Returns the faults and three tables; in the wide format, also a table of etcd members.
    fn full_text(&self, wide: bool) -> String {
        self.with(&table(&self.components, wide), wide)
    }

    fn with(&self, components: &str, wide: bool) -> String {
        let clusters = table(&self.clusters, wide);
        let hypervisors = table(&self.hypervisors, wide);
        let members = if wide { table(&self.members, true) } else { String::new() };
        let tables = [self.troubles.as_str(), &clusters, components, &members, &hypervisors];
        let shown: Vec<&str> = tables.into_iter().filter(|text| !text.is_empty()).collect();
        if shown.is_empty() { "No documents.\n".to_owned() } else { shown.join("\n") }
    }

    /// Returns what fits on a screen: all components, else a row for each role, else a summary.
    fn on_a_screen(&self) -> String {
        let fits = |text: &String| text.lines().count() <= SCREEN;
        let by_role = || self.with(&table(&self.roles, false), false);
        let fitting = [self.full_text(false)].into_iter().chain(std::iter::once_with(by_role)).find(fits);
        fitting.unwrap_or_else(|| self.summary())
    }

    /// Returns the faults, and counts of the rest.
    fn summary(&self) -> String {
        let mut text = self.troubles.clone();
        if !text.is_empty() {
            text.push('\n');
        }
        let well = |all: usize, well: usize, what: &str, how: &str| {
            let others = all - well;
            let rest = if others > 0 { format!(", {others} not") } else { String::new() };
            format!("{well} of {all} {what} {how}{rest}\n")
        };
        let available = self.clusters.iter().filter(|cluster| cluster.available == "True").count();
        let ready = self.components.iter().filter(|component| component.ready == "True").count();
        let machines = self.hypervisors.iter().filter(|machine| machine.ready == "True").count();
        text += &well(self.clusters.len(), available, "clusters are", "available");
        text += &well(self.components.len(), ready, "components are", "ready");
        text += &well(self.hypervisors.len(), machines, "hypervisors are", "ready");
        text += "\n`keelway status -o wide` shows all of them.\n";
        text
    }
}
