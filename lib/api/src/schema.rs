//! Checks the structure of documents. Unknown fields, wrong types and missing fields are all reported together.

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::jiff;
use serde_json::{Map, Number, Value as Json};

use crate::{
    Newer,
    duration::Span,
    fault::{Fault, MOST_FAULTS},
    kind::DocumentKind,
    name::{ClusterId, HypervisorName, InstallationId},
    newer,
    quantity::{Cpu, Memory},
    release,
    schemas::resolve,
    tree::{Scalar, ScalarMeaning, Value, YamlNode, field, item},
};

/// Checks a document against the schema of its kind and converts it to JSON with the types of that schema.
///
/// If a field has a fault, the JSON contains the closest valid value, so that the other fields can be read: the text as written, the nearest number,
/// an empty list. An optional field with the value null counts as missing, as in kube-apiserver.
pub(crate) fn check(kind: DocumentKind, root: &YamlNode<'_>) -> (Json, Vec<Fault>) {
    let (json, faults, _) = check_stored(kind, root, false);
    (json, faults)
}

/// Checks a document as [`check`] does. If `tolerant`, returns fields of a newer release separately. The JSON does not contain them.
pub(crate) fn check_stored(
    kind: DocumentKind,
    root: &YamlNode<'_>,
    tolerant: bool,
) -> (Json, Vec<Fault>, NewerDocumentFields) {
    let mut check =
        SchemaChecker { show: kind != DocumentKind::Secret, tolerant, tolerated: false, faults: Vec::new() };
    let json = check.value(root, kind.schema(), "");
    let parts =
        if check.tolerated { NewerDocumentFields::of(&raw(root), &json) } else { NewerDocumentFields::default() };
    (json, check.faults, parts)
}

/// Fields of a newer release, by the part of the document that contains them.
#[derive(Default)]
pub(crate) struct NewerDocumentFields {
    pub(crate) spec: Newer,
    pub(crate) status: Newer,
}

impl NewerDocumentFields {
    fn of(written: &Json, known: &Json) -> Self {
        let part = |name| Newer::of(written.get(name), known.get(name));
        Self { spec: part("spec"), status: part("status") }
    }
}

/// Removes empty values whose default is empty: the status, lists and maps of metadata, and parts of a spec.
pub(crate) fn prune(kind: DocumentKind, document: &mut Json) {
    prune_defaults(document, kind.schema());
    if let Some(Json::Object(metadata)) = document.get_mut("metadata") {
        metadata.retain(|_, value| !is_empty(value));
    }
    if let Json::Object(document) = document {
        document.retain(|key, value| !(matches!(key.as_str(), "status" | "data" | "stringData") && is_empty(value)));
    }
}

fn prune_defaults(value: &mut Json, schema: &'static Json) {
    let (_, schema) = resolve(schema);
    if let (Json::Object(fields), Some(properties)) = (value, schema.get("properties")) {
        fields.retain(|key, value| {
            let Some(property) = properties.get(key) else {
                return true;
            };
            prune_defaults(value, property);
            !(is_empty(value) && property.get("default") == Some(&*value))
        });
    }
}

fn is_empty(value: &Json) -> bool {
    match value {
        Json::Null => true,
        Json::Array(items) => items.is_empty(),
        Json::Object(fields) => fields.is_empty(),
        Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}

/// The checks of types whose texts have a specific form, by their name in the schema. A check returns what is wrong with a text.
type TextCheck = fn(&str) -> Option<String>;
const FORMS: [(&str, TextCheck); 6] = [
    ("Span", |text| wrong(text.parse::<Span>())),
    ("Memory", |text| wrong(text.parse::<Memory>())),
    ("Cpu", |text| wrong(text.parse::<Cpu>())),
    ("ClusterId", |text| wrong(text.parse::<ClusterId>())),
    ("InstallationId", |text| wrong(text.parse::<InstallationId>())),
    ("HypervisorName", |text| wrong(text.parse::<HypervisorName>())),
];

fn wrong<T, E: core::fmt::Display>(parsed: Result<T, E>) -> Option<String> {
    parsed.err().map(|error| error.to_string())
}

struct SchemaChecker {
    /// Whether messages may contain values. Those of a Secret may not.
    show: bool,
    /// Whether a newer release may have written the document.
    tolerant: bool,
    /// Whether an unknown field was accepted.
    tolerated: bool,
    faults: Vec<Fault>,
}

impl SchemaChecker {
    fn fault(&mut self, line: u64, path: &str, problem: String, help: impl Into<String>) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(Fault { line, ..Fault::of(path, problem, help) });
        }
    }

    fn value(&mut self, node: &YamlNode<'_>, schema: &'static Json, path: &str) -> Json {
        let (name, schema) = resolve(schema);
        if let Some(choices) = schema.get("anyOf").and_then(Json::as_array) {
            let wanted = choices.iter().find(|choice| type_of(choice) != "null");
            return wanted.map_or(Json::Null, |wanted| self.value(node, wanted, path));
        }
        if let Some(variants) = schema.get("oneOf").and_then(Json::as_array) {
            return self.variants(node, variants, path);
        }
        match type_of(schema) {
            "object" => self.object(node, schema, path),
            "array" => self.list(node, schema, path),
            "string" => self.text(node, name, schema, path),
            "integer" => self.integer(node, schema, path),
            "boolean" => self.boolean(node, path),
            _ => raw(node),
        }
    }

    fn mismatch(&mut self, node: &YamlNode<'_>, path: &str, wanted: &str, help: &str) -> Json {
        let found = describe(node, self.show);
        self.fault(node.line, path, format!("must be {wanted}, not {found}"), help);
        Json::Null
    }

    fn object(&mut self, node: &YamlNode<'_>, schema: &'static Json, path: &str) -> Json {
        let Value::Map(entries) = &node.value else {
            self.mismatch(node, path, "a map of fields", "write its fields below it, indented");
            return Json::Object(Map::new());
        };
        let properties = schema.get("properties").and_then(Json::as_object);
        let others = schema.get("additionalProperties").filter(|s| s.is_object());
        // A type without fields has no properties, but allows no others either.
        let is_free = schema.get("additionalProperties") != Some(&Json::Bool(false));
        if properties.is_none() && others.is_none() && is_free {
            return raw(node);
        }
        let required = required(schema);
        let mut fields = Map::new();
        for entry in entries {
            let path = field(path, &entry.key);
            let known = properties.and_then(|properties| properties.get(entry.key.as_ref()));
            let Some(schema) = known.or(others) else {
                self.unknown(&entry.key, entry.line, &path, properties);
                continue;
            };
            let optional = known.is_some() && !required.contains(&entry.key.as_ref());
            if !(optional && entry.node.is_null()) {
                let value = self.value(&entry.node, schema, &path);
                fields.insert(entry.key.as_ref().to_owned(), value);
            }
        }
        for name in required {
            if node.get(name).is_none() {
                let path = field(path, name);
                self.fault(node.line, &path, "is required".to_owned(), "add it");
            }
        }
        Json::Object(fields)
    }

    fn unknown(&mut self, key: &str, line: u64, path: &str, known: Option<&Map<String, Json>>) {
        if self.tolerant && key != "<<" && newer::may_hold(path) {
            self.tolerated = true;
            return;
        }
        let names: Vec<&str> = known.into_iter().flat_map(Map::keys).map(String::as_str).collect();
        let help = if key == "<<" {
            "write the fields out: merge keys are not supported".to_owned()
        } else {
            removal(key, &names)
        };
        self.fault(line, path, "unknown field".to_owned(), help);
    }

    fn list(&mut self, node: &YamlNode<'_>, schema: &'static Json, path: &str) -> Json {
        let Value::List(items) = &node.value else {
            self.mismatch(node, path, "a list", "write a list: [..]");
            return Json::Array(Vec::new());
        };
        let Some(schema) = schema.get("items") else {
            return raw(node);
        };
        let values = items.iter().enumerate();
        Json::Array(values.map(|(index, node)| self.value(node, schema, &item(path, index))).collect())
    }

    fn text(&mut self, node: &YamlNode<'_>, name: &str, schema: &Json, path: &str) -> Json {
        let Value::Scalar(scalar) = &node.value else {
            return self.mismatch(node, path, "a string", "write a string");
        };
        match scalar.meaning() {
            ScalarMeaning::Text => {}
            ScalarMeaning::Null => return self.mismatch(node, path, "a string", "write a string"),
            ScalarMeaning::Bool(_) | ScalarMeaning::Integer(_) | ScalarMeaning::Number(_) => {
                let help = match path {
                    "spec.version" => format!("supported values: {}", release::names()),
                    _ if self.show => format!("quote it: \"{}\"", short(&scalar.text)),
                    _ => "quote it".to_owned(),
                };
                self.mismatch(node, path, "a string", &help);
                return Json::String(scalar.text.as_ref().to_owned());
            }
        }
        if let Some(problem) = self.ill_formed(name, schema, &scalar.text) {
            self.fault(node.line, path, problem, "write it in that form");
        }
        Json::String(scalar.text.as_ref().to_owned())
    }

    fn ill_formed(&self, name: &str, schema: &Json, text: &str) -> Option<String> {
        let form = FORMS.iter().find(|(known, _)| *known == name);
        if let Some((_, form)) = form {
            return form(text);
        }
        match schema.get("format").and_then(Json::as_str)? {
            "byte" => STANDARD
                .decode(text)
                .is_err()
                .then(|| "the value is not base64 (RFC 4648, section 4, with padding)".to_owned()),
            "date-time" => text.parse::<jiff::Timestamp>().is_err().then(|| {
                let shown = if self.show { text } else { "the value" };
                format!("{shown:?} is not a time such as 2026-01-31T12:00:00Z (RFC 3339)")
            }),
            _ => None,
        }
    }

    fn integer(&mut self, node: &YamlNode<'_>, schema: &Json, path: &str) -> Json {
        let range = Range::of(schema);
        let meaning = match &node.value {
            Value::Scalar(scalar) => scalar.meaning(),
            Value::List(_) | Value::Map(_) => ScalarMeaning::Null,
        };
        let nearest = match meaning {
            ScalarMeaning::Integer(number) => number.clamp(range.from, range.to),
            ScalarMeaning::Null | ScalarMeaning::Bool(_) | ScalarMeaning::Number(_) | ScalarMeaning::Text => {
                range.from.max(0)
            }
        };
        match (meaning, &node.value) {
            (ScalarMeaning::Integer(number), _) if number == nearest => {}
            (ScalarMeaning::Integer(number), _) => {
                let size = if number < nearest { "small" } else { "large" };
                self.fault(node.line, path, format!("{number} is too {size}"), range.help());
            }
            (ScalarMeaning::Text, Value::Scalar(scalar)) if is_whole(&scalar.text) => {
                self.mismatch(node, path, "an integer", "remove the quotes");
            }
            (_, _) => {
                self.mismatch(node, path, "an integer", &range.help());
            }
        }
        Number::from_i128(nearest).map_or(Json::Null, Json::Number)
    }

    fn boolean(&mut self, node: &YamlNode<'_>, path: &str) -> Json {
        let meaning = match &node.value {
            Value::Scalar(scalar) => scalar.meaning(),
            Value::List(_) | Value::Map(_) => ScalarMeaning::Null,
        };
        match meaning {
            ScalarMeaning::Bool(value) => Json::Bool(value),
            ScalarMeaning::Null | ScalarMeaning::Integer(_) | ScalarMeaning::Number(_) | ScalarMeaning::Text => {
                self.mismatch(node, path, "true or false", "write true or false, without quotes")
            }
        }
    }

    /// Checks one of several words, or a map with one of several fields.
    fn variants(&mut self, node: &YamlNode<'_>, variants: &'static [Json], path: &str) -> Json {
        let words: Vec<&str> =
            variants.iter().filter_map(|variant| variant.get("const").and_then(Json::as_str)).collect();
        if words.is_empty() {
            return self.tagged(node, variants, path);
        }
        match &node.value {
            Value::Map(_) if words.len() < variants.len() => self.tagged(node, variants, path),
            Value::Scalar(scalar) if words.contains(&scalar.text.as_ref()) => {
                Json::String(scalar.text.as_ref().to_owned())
            }
            Value::Scalar(scalar) if scalar.meaning() == ScalarMeaning::Text => {
                self.fault(
                    node.line,
                    path,
                    format!("{:?} is not supported", short(&scalar.text)),
                    suggestion(&scalar.text, &words),
                );
                Json::Null
            }
            Value::Scalar(_) | Value::List(_) | Value::Map(_) => {
                self.mismatch(node, path, "a string", &format!("supported values: {}", words.join(", ")))
            }
        }
    }

    fn tagged(&mut self, node: &YamlNode<'_>, variants: &'static [Json], path: &str) -> Json {
        let known: Vec<(&str, &Json)> = variants
            .iter()
            .filter_map(|variant| variant.get("properties")?.as_object()?.iter().next())
            .map(|(name, schema)| (name.as_str(), schema))
            .collect();
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let help = format!("set exactly one of {}", names.join(", "));
        let Value::Map(entries) = &node.value else {
            return self.mismatch(node, path, "a map with one field", &help);
        };
        let mut fields = Map::new();
        for entry in entries {
            let path = field(path, &entry.key);
            if let Some((name, schema)) = known.iter().find(|(name, _)| *name == entry.key) {
                let value = self.value(&entry.node, schema, &path);
                fields.insert((*name).to_owned(), value);
            } else {
                let problem = "unknown field".to_owned();
                self.fault(entry.line, &path, problem, removal(&entry.key, &names));
            }
        }
        if fields.len() > 1 || entries.is_empty() {
            let count = if fields.is_empty() { "no field is" } else { "several fields are" };
            let problem = format!("{count} set, but exactly one is required");
            self.fault(node.line, path, problem, help);
        }
        Json::Object(fields)
    }
}

struct Range {
    from: i128,
    to: i128,
}

impl Range {
    fn of(schema: &Json) -> Self {
        let (low, high) = match schema.get("format").and_then(Json::as_str) {
            Some("uint16") => (0, i128::from(u16::MAX)),
            Some("uint32") => (0, i128::from(u32::MAX)),
            Some("uint64") => (0, i128::from(u64::MAX)),
            Some("int32") => (i128::from(i32::MIN), i128::from(i32::MAX)),
            _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
        };
        let bound = |name| schema.get(name).and_then(Json::as_i64).map(i128::from);
        Self { from: bound("minimum").unwrap_or(low).max(low), to: bound("maximum").unwrap_or(high).min(high) }
    }

    fn help(&self) -> String {
        format!("write an integer from {} to {}", self.from, self.to)
    }
}

fn is_whole(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

fn type_of(schema: &Json) -> &str {
    match schema.get("type") {
        Some(Json::String(name)) => name,
        Some(Json::Array(names)) => {
            names.iter().filter_map(Json::as_str).find(|name| *name != "null").unwrap_or_default()
        }
        _ => "",
    }
}

fn required(schema: &'static Json) -> Vec<&'static str> {
    let names = schema.get("required").and_then(Json::as_array);
    names.into_iter().flatten().filter_map(Json::as_str).collect()
}

/// Suggests a replacement for an unknown word.
pub(crate) fn suggestion(word: &str, known: &[&str]) -> String {
    match closest(word, known) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("supported values: {}", known.join(", ")),
    }
}

/// Suggests a replacement for an unknown word, or to remove it.
pub(crate) fn removal(word: &str, known: &[&str]) -> String {
    match closest(word, known) {
        None if known.is_empty() => "remove it".to_owned(),
        None => format!("remove it; supported fields: {}", known.join(", ")),
        Some(_) => suggestion(word, known),
    }
}

fn closest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let distances = known.iter().map(|name| (strsim::damerau_levenshtein(&lower, &name.to_lowercase()), *name));
    let (distance, name) = distances.min()?;
    (distance <= 1 + name.len() / 4).then_some(name)
}

fn describe(node: &YamlNode<'_>, show: bool) -> String {
    let scalar = match &node.value {
        Value::List(_) => return "a list".to_owned(),
        Value::Map(_) => return "a map".to_owned(),
        Value::Scalar(scalar) => scalar,
    };
    match scalar.meaning() {
        ScalarMeaning::Null => "null".to_owned(),
        ScalarMeaning::Bool(value) => value.to_string(),
        ScalarMeaning::Integer(_) | ScalarMeaning::Number(_) if show => format!("the number {}", short(&scalar.text)),
        ScalarMeaning::Integer(_) | ScalarMeaning::Number(_) => "a number".to_owned(),
        ScalarMeaning::Text if show => format!("the string {:?}", short(&scalar.text)),
        ScalarMeaning::Text => "a string".to_owned(),
    }
}

/// Shortens a text for a message.
pub(crate) fn short(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}..", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Returns a node as it was written.
pub(crate) fn raw(node: &YamlNode<'_>) -> Json {
    match &node.value {
        Value::Scalar(scalar) => raw_scalar(scalar),
        Value::List(items) => Json::Array(items.iter().map(raw).collect()),
        Value::Map(entries) => {
            Json::Object(entries.iter().map(|entry| (entry.key.as_ref().to_owned(), raw(&entry.node))).collect())
        }
    }
}

fn raw_scalar(scalar: &Scalar<'_>) -> Json {
    let text = || Json::String(scalar.text.as_ref().to_owned());
    match scalar.meaning() {
        ScalarMeaning::Null => Json::Null,
        ScalarMeaning::Bool(value) => Json::Bool(value),
        ScalarMeaning::Integer(number) => Number::from_i128(number).map_or_else(text, Json::Number),
        ScalarMeaning::Number(number) => Number::from_f64(number).map_or_else(text, Json::Number),
        ScalarMeaning::Text => text(),
    }
}
