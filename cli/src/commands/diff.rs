//! `keelway diff`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    path::{Path, PathBuf},
};

use clap::Args;
use keelway_api::{Documents, document::DocumentRef};
use serde_json::Value as Json;

use super::print;
use crate::{
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct DiffArguments {
    /// The documents before; `-` reads stdin
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,
    /// The documents after; `-` reads stdin
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
    /// Exit with 4 if they differ
    #[arg(long)]
    pub(crate) exit_code: bool,
}

pub(super) fn run(arguments: &DiffArguments) -> Result<Code, CommandFailure> {
    if [&arguments.before, &arguments.after].iter().all(|path| path.as_os_str() == "-") {
        return Err(CommandFailure::usage("BEFORE and AFTER cannot both be stdin", "save one of them to a file"));
    }
    let read = |path: &Path| Input::read(&[PathBuf::from(path)])?.documents();
    let text = render(&DocumentFields::of(&read(&arguments.before)?), &DocumentFields::of(&read(&arguments.after)?));
    print(&text)?;
    Ok(if arguments.exit_code && !text.is_empty() { Code::SomethingToDo } else { Code::Done })
}

/// The fields of each document, by path.
struct DocumentFields(BTreeMap<String, BTreeMap<String, String>>);

impl DocumentFields {
    fn of(documents: &Documents) -> Self {
        let mut world = BTreeMap::new();
        for (name, machine) in &documents.hypervisors {
            add(&mut world, format!("Hypervisor {name}"), DocumentRef::Hypervisor(machine));
        }
        for (name, cluster) in &documents.clusters {
            add(&mut world, format!("Cluster {name}"), DocumentRef::Cluster(cluster));
        }
        for (pod, component) in &documents.components {
            let title = format!("Component {}/{}", component.spec.cluster, pod.component);
            add(&mut world, title, DocumentRef::Component(component));
        }
        for (name, secret) in &documents.secrets {
            let values = secret.data.iter().flatten();
            let hidden = values.map(|(key, value)| (format!("data[{key}]"), fingerprint(&value.0))).collect();
            world.insert(format!("Secret {}/{}", name.namespace, name.name), hidden);
        }
        Self(world)
    }
}

fn add(world: &mut BTreeMap<String, BTreeMap<String, String>>, title: String, document: DocumentRef<'_>) {
    let mut fields = BTreeMap::new();
    flatten(&document.json(), "", &mut fields);
    world.insert(title, fields);
}

/// Flattens a value into paths. Conditions are identified by type, other items of lists by position.
fn flatten(value: &Json, path: &str, fields: &mut BTreeMap<String, String>) {
    match value {
        Json::Object(entries) => {
            for (name, value) in entries {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(value, &path, fields);
            }
        }
        Json::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                let key = value.get("type").and_then(Json::as_str).map_or_else(|| index.to_string(), str::to_owned);
                flatten(value, &format!("{path}[{key}]"), fields);
            }
        }
        Json::Null => {}
        Json::Bool(_) | Json::Number(_) | Json::String(_) => {
            fields.insert(path.to_owned(), value.to_string());
        }
    }
}

/// Returns a hash that distinguishes two values of a Secret without revealing them.
fn fingerprint(value: &[u8]) -> String {
    use std::hash::{BuildHasher, RandomState};
    thread_local! {
        static KEY: RandomState = RandomState::new();
    }
    KEY.with(|key| format!("{:016x}", key.hash_one(value)))
}

/// Renders `+` and `-` for added and removed documents and fields, and `~` for changes.
fn render(before: &DocumentFields, after: &DocumentFields) -> String {
    let mut text = String::new();
    for name in before.0.keys().chain(after.0.keys()).collect::<BTreeSet<_>>() {
        // Writing to a String cannot fail.
        match (before.0.get(name), after.0.get(name)) {
            (Some(_), None) => drop(writeln!(text, "- {name}")),
            (None, Some(_)) => drop(writeln!(text, "+ {name}")),
            (Some(one), Some(other)) if one != other => {
                let _ = writeln!(text, "~ {name}");
                fields(&mut text, one, other, name.starts_with("Secret "));
            }
            (_, _) => {}
        }
    }
    text
}

fn fields(text: &mut String, before: &BTreeMap<String, String>, after: &BTreeMap<String, String>, hidden: bool) {
    for path in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let line = match (before.get(path), after.get(path)) {
            (Some(_), None) if hidden => format!("  - {path}"),
            (None, Some(_)) if hidden => format!("  + {path}"),
            (Some(one), None) => format!("  - {path}: {one}"),
            (None, Some(other)) => format!("  + {path}: {other}"),
            (Some(one), Some(other)) if one != other && hidden => format!("  ~ {path}"),
            (Some(one), Some(other)) if one != other => format!("  ~ {path}: {one} -> {other}"),
            (_, _) => continue,
        };
        text.push_str(&line);
        text.push('\n');
    }
}
