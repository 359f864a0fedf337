//! Parts of a schema, and what derived schemas lack.

use serde_json::{Map, Value as Json, json};

/// The part of a schema that a path leads to: `spec.network.podCIDRs[]` is an item of a list, `spec.ports{}` a value of a map.
///
/// A path to nowhere is told of by the test of the definitions: what stands in it is not in them.
pub(super) fn at<'a>(root: &'a mut Json, path: &str) -> Option<&'a mut Json> {
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

/// Adds to the part of a schema that a path leads to.
pub(super) fn extend(root: &mut Json, path: &str, more: Json) {
    let part = at(root, path).and_then(Json::as_object_mut);
    debug_assert!(part.is_some(), "{path} leads nowhere");
    if let (Some(part), Json::Object(more)) = (part, more) {
        part.extend(more);
    }
}

/// Brings derived parts into the form that API servers know: formats of OpenAPI, descriptions without line ends, and no choice of
/// fields, which a rule tells of in better words.
pub(super) fn normalize(schema: &mut Json) {
    let Json::Object(fields) = schema else { return };
    if let Some(Json::String(text)) = fields.get_mut("description") {
        *text = unwrapped(text);
    }
    format(fields);
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

/// Paragraphs stay, lines do not.
fn unwrapped(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

/// OpenAPI has no formats of numbers without a sign (`format` of the OpenAPI Specification, 3.0).
fn format(fields: &mut Map<String, Json>) {
    let (format, most) = match fields.get("format").and_then(Json::as_str) {
        Some("uint16") => ("int32", Some(json!(u16::MAX))),
        Some("uint32") => ("int64", Some(json!(u32::MAX))),
        // API servers read a bound as a float, and the largest number that this one can be is none of theirs.
        Some("uint64") => ("int64", None),
        _ => return,
    };
    fields.insert("format".to_owned(), format.into());
    if let Some(most) = most {
        fields.entry("maximum").or_insert(most);
    }
}
