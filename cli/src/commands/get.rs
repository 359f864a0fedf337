//! `keelway hypervisor get`, `cluster get` and `component get`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
};

use keelway_api::{Documents, document::DocumentRef, documents::SecretName, jiff::Timestamp, name::ClusterRef};
use serde_json::Value as Json;

use super::{named::missing_document_error, print};
use crate::{
    args::{GetArguments, GlobalArguments, KindName, OutputFormat},
    exit::{Code, CommandFailure},
    input::Input,
    view::{ClassView, ClusterView, ComponentView, InventoryView, SecretView, TableRow, list, table},
};

/// Shows documents of the input.
pub(super) fn run(kind: KindName, global: &GlobalArguments, arguments: &GetArguments) -> Result<Code, CommandFailure> {
    of_kind(kind, &Input::read(&global.files)?.documents()?, arguments)
}

/// Shows documents from any source.
pub(super) fn of_kind(kind: KindName, documents: &Documents, arguments: &GetArguments) -> Result<Code, CommandFailure> {
    match kind {
        KindName::ClusterClass => classes(documents, arguments),
        KindName::Hypervisor => hypervisors(documents, arguments),
        KindName::Cluster => clusters(documents, arguments),
        KindName::Component => components(documents, arguments),
        KindName::Secret => secrets(documents, arguments),
    }
}

fn classes(documents: &Documents, arguments: &GetArguments) -> Result<Code, CommandFailure> {
    let wanted = GetSelection::of("ClusterClass", documents.classes.keys().cloned().collect(), arguments)?;
    let mut shown = Documents::default();
    shown.classes = documents.classes.clone();
    shown.classes.retain(|name, _| wanted.has(name));
    let views = shown.classes.values().map(|class| ClassView::of(documents, class)).collect::<Vec<_>>();
    show(&shown, &views, || all_json(&shown), &wanted)
}

fn hypervisors(documents: &Documents, arguments: &GetArguments) -> Result<Code, CommandFailure> {
    let names = documents.hypervisors.keys().map(ToString::to_string).collect();
    let wanted = GetSelection::of("Hypervisor", names, arguments)?;
    let mut shown = Documents::default();
    shown.hypervisors = documents.hypervisors.clone();
    shown.hypervisors.retain(|name, _| wanted.has(name.as_str()));
    let now = Timestamp::now();
    let views = shown.hypervisors.iter().map(|(name, machine)| InventoryView::of(documents, name, machine, now));
    let views = views.collect::<Vec<_>>();
    show(&shown, &views, || all_json(&shown), &wanted)
}

fn clusters(documents: &Documents, arguments: &GetArguments) -> Result<Code, CommandFailure> {
    let names = documents.clusters.keys().map(ToString::to_string).collect();
    let wanted = GetSelection::of("Cluster", names, arguments)?;
    let mut shown = Documents::default();
    shown.clusters = documents.clusters.clone();
    shown.clusters.retain(|name, _| wanted.has(&name.to_string()));
    let now = Timestamp::now();
    let views = shown.clusters.values().map(|cluster| ClusterView::of(documents, cluster, now)).collect::<Vec<_>>();
    show(&shown, &views, || all_json(&shown), &wanted)
}

fn components(documents: &Documents, arguments: &GetArguments) -> Result<Code, CommandFailure> {
    let title = |cluster: &ClusterRef, name: &str| format!("{cluster}/{name}");
    let names =
        documents.components.iter().map(|(pod, found)| title(&found.spec.cluster, pod.component.as_str())).collect();
    let wanted = GetSelection::of("Component", names, arguments)?;
    let mut shown = Documents::default();
    shown.components = documents.components.clone();
    shown.components.retain(|pod, found| wanted.has(&title(&found.spec.cluster, pod.component.as_str())));
    let views = shown.components.iter().map(|(pod, found)| ComponentView::of(pod, found)).collect::<Vec<_>>();
    show(&shown, &views, || all_json(&shown), &wanted)
}

/// Shows the names of Secrets and their number of values. A table contains no values.
fn secrets(documents: &Documents, arguments: &GetArguments) -> Result<Code, CommandFailure> {
    let title = |name: &SecretName| format!("{}/{}", name.namespace, name.name);
    let all: BTreeMap<_, _> = documents.secrets.iter().chain(&documents.user_secrets).collect();
    let names = all.keys().map(|name| title(name)).collect();
    let wanted = GetSelection::of("Secret", names, arguments)?;
    let mut shown = Documents::default();
    for (name, secret) in all.into_iter().filter(|(name, _)| wanted.has(&title(name))) {
        shown.secrets.insert(name.clone(), secret.clone());
    }
    let now = Timestamp::now();
    let views: Vec<_> = shown.secrets.iter().map(|(name, secret)| SecretView::of(title(name), secret, now)).collect();
    show(&shown, &views, || all_json(&shown), &wanted)
}

/// The selected documents of a kind, and the output format.
struct GetSelection {
    kind: &'static str,
    names: BTreeSet<String>,
    output: OutputFormat,
    /// Whether exactly one document was named. It is then printed itself, not in a list.
    single: bool,
}

impl GetSelection {
    /// Selects all documents or the named ones. A name that does not exist is an error.
    fn of(kind: &'static str, there: BTreeSet<String>, arguments: &GetArguments) -> Result<Self, CommandFailure> {
        let asked: BTreeSet<String> = arguments.names.iter().cloned().collect();
        let missing: Vec<&str> = asked.difference(&there).map(String::as_str).collect();
        if !missing.is_empty() {
            return Err(missing_document_error(kind, &missing.join(", "), &there));
        }
        let single = asked.len() == 1;
        let names = if asked.is_empty() { there } else { asked };
        Ok(Self { kind, names, output: arguments.output, single })
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }
}

fn all_json(documents: &Documents) -> Vec<Json> {
    documents.names().filter_map(|name| documents.get(&name).map(DocumentRef::json)).collect()
}

fn show<V: TableRow>(
    shown: &Documents,
    views: &[V],
    found: impl Fn() -> Vec<Json>,
    wanted: &GetSelection,
) -> Result<Code, CommandFailure> {
    let text = match wanted.output {
        OutputFormat::Table | OutputFormat::Wide if views.is_empty() => {
            let _ = writeln!(std::io::stderr(), "the documents contain no {}", wanted.kind);
            String::new()
        }
        OutputFormat::Table => table(views, false),
        OutputFormat::Wide => table(views, true),
        OutputFormat::Yaml => shown.write(),
        OutputFormat::Json => {
            let value = match found().as_slice() {
                [single] if wanted.single => single.clone(),
                items => list(items),
            };
            serde_json::to_string_pretty(&value).map_err(CommandFailure::other)? + "\n"
        }
        OutputFormat::Name => {
            let kind = wanted.kind.to_lowercase();
            let group = if wanted.kind == "Secret" { "/" } else { ".keelway.dev/" };
            wanted.names.iter().flat_map(|name| [kind.as_str(), group, name, "\n"]).collect()
        }
    };
    print(&text)?;
    Ok(Code::Done)
}
