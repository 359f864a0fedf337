//! Functions for parts of a schema, and the corrections that derived schemas need.

use serde_json::{Map, Value as Json, json};

/// Returns the part of a schema at a path: `spec.network.podCIDRs[]` is an item of a list, `spec.ports{}` a value of a map.
///
/// A path that does not exist is found by the test of the definitions, because its content is missing from them.
pub fn at<'a>(root: &'a mut Json, path: &str) -> Option<&'a mut Json> {
    path.split('.').filter(|name| !name.is_empty()).try_fold(root, |schema, name| {
        let (name, below) = match name {
            name if name.ends_with("[]") => (name.trim_end_matches("[]"), Some("items")),
            name if name.ends_with("{}") => (name.trim_end_matches("{}"), Some("additionalProperties")),
            name => (name, None),
        };
        let schema = schema.get_mut("properties")?.get_mut(name)?;
        match below {
            Some(below) => schema.get_mut(below),
            None => Some(schema),
        }
    })
}

/// Adds fields to the part of a schema at a path.
pub fn extend(root: &mut Json, path: &str, more: Json) {
    let part = at(root, path).and_then(Json::as_object_mut);
    debug_assert!(part.is_some(), "{path} leads nowhere");
    if let (Some(part), Json::Object(more)) = (part, more) {
        part.extend(more);
    }
}

/// Converts a derived schema to the form that API servers accept: formats of OpenAPI, descriptions without line breaks, and no `oneOf`. A rule
/// replaces `oneOf` because its message is clearer.
pub(super) fn normalize(schema: &mut Json) {
    let Json::Object(fields) = schema else { return };
    if let Some(Json::String(text)) = fields.get_mut("description") {
        *text = unwrapped(text);
    }
    format(fields);
    // A type without fields. API servers refuse `false`, and reject other fields by themselves.
    if fields.get("additionalProperties") == Some(&Json::Bool(false)) {
        fields.remove("additionalProperties");
    }
    if fields.get("properties").is_some() {
        fields.remove("oneOf");
    }
    for below in ["items", "additionalProperties"] {
        fields.get_mut(below).into_iter().for_each(normalize);
    }
    if let Some(Json::Object(properties)) = fields.get_mut("properties") {
        properties.values_mut().for_each(normalize);
    }
}

/// Removes line breaks within paragraphs.
fn unwrapped(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

/// Replaces formats of unsigned numbers, which OpenAPI does not have (`format` of the OpenAPI Specification, 3.0).
fn format(fields: &mut Map<String, Json>) {
    let (format, most) = match fields.get("format").and_then(Json::as_str) {
        Some("uint16") => ("int32", Some(json!(u16::MAX))),
        Some("uint32") => ("int64", Some(json!(u32::MAX))),
        // API servers read a maximum as a float, which cannot represent the maximum of this type exactly.
        Some("uint64") => ("int64", None),
        _ => return,
    };
    fields.insert("format".to_owned(), format.into());
    if let Some(most) = most {
        fields.entry("maximum").or_insert(most);
    }
}
