//! Rules in CEL, which an API server evaluates.

use serde_json::{Value as Json, json};

use super::schema::at;

/// A condition for a part of a document, and the message if it does not hold.
pub struct CelRule {
    /// The path of the part, as for [`super::schema::at`].
    pub path: String,
    /// The condition. `self` is the part.
    pub expression: String,
    /// What is wrong and how to correct it. Text in braces is another expression, which must yield a string. Numbers are not converted, because an
    /// API server estimates the length of the result at its maximum.
    pub message: String,
}

/// Returns a rule for the part at a path.
#[must_use]
pub fn rule(path: impl Into<String>, holds: impl Into<String>, says: impl Into<String>) -> CelRule {
    CelRule { path: path.into(), expression: holds.into(), message: says.into() }
}

/// Writes rules to a schema.
pub fn write(root: &mut Json, rules: Vec<CelRule>) {
    for CelRule { path, expression: holds, message: says } in rules {
        let part = at(root, &path).and_then(Json::as_object_mut);
        debug_assert!(part.is_some(), "{path} leads nowhere");
        let Some(part) = part else { continue };
        let rule = if says.contains('{') {
            json!({"rule": holds, "messageExpression": expression(&says)})
        } else {
            json!({"rule": holds, "message": says})
        };
        if let Json::Array(rules) = part.entry("x-kubernetes-validations").or_insert_with(|| json!([])) {
            rules.push(rule);
        }
    }
}

/// Converts a text with expressions in braces to one expression.
fn expression(says: &str) -> String {
    let mut parts = Vec::new();
    for part in says.split('{') {
        match part.split_once('}') {
            Some((inner, rest)) => parts.extend([inner.to_owned(), quoted(rest)]),
            None => parts.push(quoted(part)),
        }
    }
    parts.retain(|part| part != "''");
    parts.join(" + ")
}

/// Returns a text as a CEL string literal.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Returns a CEL list of string literals.
#[must_use]
pub fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    format!("[{}]", texts.into_iter().map(quoted).collect::<Vec<_>>().join(", "))
}

/// Returns the condition that a regular expression matches the entire text.
#[must_use]
pub fn is(text: &str, pattern: &str) -> String {
    format!("{text}.matches({})", quoted(&format!("^({pattern})$")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_stand_between_texts() {
        assert_eq!(expression("{self} is not a name"), "self + ' is not a name'");
        assert_eq!(expression("it's {self.name}"), r"'it\'s ' + self.name");
    }
}
