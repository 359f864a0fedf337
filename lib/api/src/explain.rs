//! Explains fields for people, from the schemas.

use serde_json::Value as Json;

use crate::{kind::DocumentKind, schema::suggestion, schemas::resolve};

/// The kinds that can be explained.
const KINDS: [DocumentKind; 5] = [
    DocumentKind::ClusterClass,
    DocumentKind::Hypervisor,
    DocumentKind::Cluster,
    DocumentKind::Component,
    DocumentKind::Observation,
];

/// The explanation of a field or a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The kind of the document.
    pub kind: &'static str,
    /// The path of the field in the document, such as `spec.etcd`. Empty for the document itself.
    pub path: String,
    /// The type: `string`, `integer`, `[]string`, `map[string]string`, `Object`, or the allowed words.
    pub form: String,
    /// The meaning.
    pub description: String,
    /// The default value, as JSON.
    pub default: Option<Json>,
    /// The fields below this one.
    pub fields: Vec<FieldExplanation>,
}

/// A field below an explained one.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldExplanation {
    /// The name of the field.
    pub name: &'static str,
    /// The type of the field.
    pub form: String,
    /// Whether the field is required.
    pub required: bool,
    /// The meaning.
    pub description: String,
}

/// The error for a field that cannot be explained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Unexplained {
    /// What is wrong with the question.
    pub problem: String,
    /// What to ask instead.
    pub help: String,
}

/// Returns the kinds that [`explain`] knows.
#[must_use]
pub fn kinds() -> [&'static str; 5] {
    KINDS.map(DocumentKind::name)
}

/// Explains `cluster` or `cluster.spec.etcd`. Kinds are accepted in upper and lower case, and in the plural.
///
/// # Errors
/// The kind or the field does not exist.
pub fn explain(question: &str) -> Result<Explanation, Unexplained> {
    let (kind, path) = question.split_once('.').unwrap_or((question, ""));
    let kind = kind_of(kind)?;
    let mut schema = kind.schema();
    let mut described = Property { name: "", schema, variant: None };
    let mut walked = String::new();
    for name in path.split('.').filter(|name| !name.is_empty()) {
        let fields = properties(schema);
        let Some(found) = fields.iter().find(|field| field.name == name) else {
            let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
            let whole = [kind.name(), &walked].join(if walked.is_empty() { "" } else { "." });
            let problem = format!("{whole} has no field {name:?}");
            let help = if names.is_empty() { "leave out that field".to_owned() } else { suggestion(name, &names) };
            return Err(Unexplained { problem, help });
        };
        if !walked.is_empty() {
            walked.push('.');
        }
        walked.push_str(name);
        described = *found;
        schema = found.schema;
    }
    let required = required(schema);
    let fields = properties(schema).into_iter().map(|field| FieldExplanation {
        name: field.name,
        form: form(field.schema),
        required: required.contains(&field.name),
        description: field.description(),
    });
    Ok(Explanation {
        kind: kind.name(),
        path: walked,
        form: form(described.schema),
        description: described.description(),
        default: described.schema.get("default").cloned(),
        fields: fields.collect(),
    })
}

fn kind_of(word: &str) -> Result<DocumentKind, Unexplained> {
    let lower = word.to_lowercase();
    let is_asked = |kind: &DocumentKind| {
        let name = kind.name().to_lowercase();
        lower.strip_prefix(&name).is_some_and(|ending| matches!(ending, "" | "s" | "es"))
    };
    KINDS.into_iter().find(is_asked).ok_or_else(|| Unexplained {
        problem: format!("{word:?} is not a kind of document"),
        help: suggestion(word, &kinds()),
    })
}

/// Returns the schema behind a reference, an optional value, or the items of a list.
fn inner(schema: &'static Json) -> &'static Json {
    let (_, schema) = resolve(schema);
    if let Some(choices) = schema.get("anyOf").and_then(Json::as_array)
        && let Some(wanted) = choices.iter().find(|choice| choice.get("type").and_then(Json::as_str) != Some("null"))
    {
        return inner(wanted);
    }
    match schema.get("items") {
        Some(items) => inner(items),
        None => schema,
    }
}

/// A field of a schema.
#[derive(Clone, Copy)]
struct Property {
    name: &'static str,
    schema: &'static Json,
    /// The variant that contains the field, if the schema has several exclusive ones.
    variant: Option<&'static Json>,
}

impl Property {
    /// Returns the description of the field, or else of its variant or its type, on one line.
    fn description(self) -> String {
        let schemas = [Some(self.schema), self.variant, Some(inner(self.schema))];
        let found = schemas.into_iter().flatten().find_map(|schema| schema.get("description")?.as_str());
        found.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn properties(schema: &'static Json) -> Vec<Property> {
    let schema = inner(schema);
    let variants = schema.get("oneOf").and_then(Json::as_array).into_iter().flatten();
    let sources = core::iter::once((schema, None)).chain(variants.map(|variant| (variant, Some(variant))));
    let fields = sources.flat_map(|(source, variant)| {
        let properties = source.get("properties").and_then(Json::as_object).into_iter().flatten();
        properties.map(move |(name, schema)| Property { name, schema, variant })
    });
    fields.collect()
}

fn required(schema: &'static Json) -> Vec<&'static str> {
    let names = inner(schema).get("required").and_then(Json::as_array);
    names.into_iter().flatten().filter_map(Json::as_str).collect()
}

/// Returns the type in the notation of `kubectl explain`.
fn form(schema: &'static Json) -> String {
    let (_, schema) = resolve(schema);
    if let Some(choices) = schema.get("anyOf").and_then(Json::as_array)
        && let Some(wanted) = choices.iter().find(|choice| choice.get("type").and_then(Json::as_str) != Some("null"))
    {
        return form(wanted);
    }
    if let Some(items) = schema.get("items") {
        return format!("[]{}", form(items));
    }
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        return format!("map[string]{}", form(values));
    }
    let variants = schema.get("oneOf").and_then(Json::as_array);
    let words: Vec<&str> =
        variants.into_iter().flatten().filter_map(|variant| variant.get("const").and_then(Json::as_str)).collect();
    if !words.is_empty() {
        return words.join(" | ");
    }
    let kind = match schema.get("type") {
        Some(Json::String(name)) => name.as_str(),
        Some(Json::Array(names)) => {
            names.iter().filter_map(Json::as_str).find(|name| *name != "null").unwrap_or_default()
        }
        _ => "object",
    };
    if kind == "object" { "Object".to_owned() } else { kind.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field of every kind must have a description.
    #[test]
    fn every_field_of_ours_is_described() {
        fn walk(path: &str, bare: &mut Vec<String>) {
            let explanation = explain(path).unwrap();
            for field in explanation.fields {
                let path = format!("{path}.{}", field.name);
                if field.description.is_empty() {
                    bare.push(path.clone());
                }
                if !path.contains(".metadata") {
                    walk(&path, bare);
                }
            }
        }
        let mut bare = Vec::new();
        for kind in kinds() {
            walk(kind, &mut bare);
        }
        assert_eq!(bare, Vec::<String>::new());
    }

    #[test]
    fn a_field_is_explained_with_its_form_and_default() {
        let found = explain("clusters.spec.etcd.replicas").unwrap();
        assert_eq!(
            (found.kind, found.path.as_str(), found.form.as_str()),
            ("Cluster", "spec.etcd.replicas", "integer")
        );
        assert!(!found.description.is_empty() && found.fields.is_empty());
        assert_eq!(explain("Hypervisor.spec.role").unwrap().form, "Public | Private");
        assert_eq!(explain("cluster.spec.network.podCIDRs").unwrap().form, "[]string");
    }

    #[test]
    fn an_invalid_question_gets_a_correction() {
        assert_eq!(explain("clutser").unwrap_err().help, "did you mean Cluster?");
        let error = explain("cluster.spec.etdc").unwrap_err();
        assert_eq!(
            (error.problem.as_str(), error.help.as_str()),
            ("Cluster.spec has no field \"etdc\"", "did you mean etcd?")
        );
    }
}
