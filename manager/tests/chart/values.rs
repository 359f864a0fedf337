//! The values of the chart, in its schema and in its defaults.

use std::collections::BTreeSet;

use serde_json::Value;

/// Returns the path of every property in a schema.
pub(crate) fn of_schema(schema: &Value, path: &str) -> BTreeSet<String> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.flat_map(|(name, schema)| below(path, name, |path| of_schema(schema, path))).collect()
}

/// Returns the path of every value that the schema names. Below the properties that it names, names are free.
pub(crate) fn of_values(schema: &Value, values: &Value, path: &str) -> BTreeSet<String> {
    let named = schema["properties"].is_object();
    let values = values.as_object().filter(|_| named).into_iter().flatten();
    let each = |(name, value): (&String, &Value)| {
        below(path, name, |path| of_values(&schema["properties"][name], value, path))
    };
    values.flat_map(each).collect()
}

fn below(path: &str, name: &str, inner: impl FnOnce(&str) -> BTreeSet<String>) -> BTreeSet<String> {
    let path = format!("{path}.{name}");
    let mut found = inner(&path);
    found.insert(path);
    found
}

/// Returns the first line of each group of lines that contains no comment.
pub(crate) fn unexplained(text: &str) -> Vec<String> {
    let groups = text.trim().split("\n\n").filter(|group| !group.lines().any(|line| line.trim().starts_with('#')));
    groups.map(|group| group.lines().next().unwrap_or_default().to_owned()).collect()
}
