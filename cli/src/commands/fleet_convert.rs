//! `keelway fleet convert`.

mod nova;

use clap::Args;
use serde_json::Value;

use super::{fleet_api::read_or_stdin, note, print};
use crate::exit::{Code, CommandFailure};

#[derive(Args)]
pub(crate) struct FleetConvertArguments {
    /// The file of the documents, or - for stdin
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) documents: String,
}

pub(super) fn run(arguments: &FleetConvertArguments) -> Result<Code, CommandFailure> {
    let text = read_or_stdin(&arguments.documents)?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|error| CommandFailure::usage(format!("not YAML: {error}"), "pass documents of Kubernetes objects"))?;
    let mut output = String::new();
    let (mut notes, mut faults) = (Vec::new(), Vec::new());
    for (index, document) in documents.iter().flat_map(items).filter(|document| !document.is_null()).enumerate() {
        let converted = nova::convert(document);
        let subject = format!("document {} ({})", index + 1, title(document));
        notes.extend(converted.notes.iter().map(|note| format!("{subject}: {note}")));
        faults.extend(converted.faults.iter().map(|fault| format!("{subject}: {fault}")));
        if let Some(document) = converted.document {
            output.push_str("---\n");
            output.push_str(&serde_saphyr::to_string(&document).map_err(CommandFailure::other)?);
        }
    }
    if !faults.is_empty() {
        return Err(CommandFailure::usage(faults.join("\n"), "correct the documents; nothing was converted"));
    }
    print(&output)?;
    for text in &notes {
        note(text);
    }
    Ok(Code::Done)
}

/// Returns the items of a List, or the document.
fn items(document: &Value) -> Vec<&Value> {
    match document["items"].as_array() {
        Some(items) if document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => items.iter().collect(),
        _ => vec![document],
    }
}

fn title(document: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!("{} {}", text(&document["kind"]), text(&document["metadata"]["name"]))
}
