//! Templates are plain YAML. `${name}` is replaced inside parsed texts only, so that no value can change the structure.

use serde_json::Value;

use super::ObjectError;

/// Returns the objects of a template.
pub(super) fn fill(
    name: &'static str,
    template: &str,
    values: &[(&'static str, String)],
) -> Result<Vec<Value>, ObjectError> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(template)
        .map_err(|source| ObjectError::Template { name, source: Box::new(source) })?;
    let mut objects: Vec<Value> = documents.into_iter().filter(|document| !document.is_null()).collect();
    for object in &mut objects {
        replace(object, values);
    }
    Ok(objects)
}

fn replace(value: &mut Value, values: &[(&'static str, String)]) {
    match value {
        Value::String(text) => {
            for (name, replacement) in values {
                let placeholder = format!("${{{name}}}");
                if text.contains(&placeholder) {
                    *text = text.replace(&placeholder, replacement);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, values)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace(field, values)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
