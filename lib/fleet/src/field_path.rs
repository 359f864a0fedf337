//! Paths of fields in overrides: `spec.template.spec.containers[0].env[0].value`, `metadata.labels['example.com/net']`.

use core::fmt;

use serde_json::{Map, Value as Json};

/// The longest list that an override may name an item of.
const MOST_ITEMS: usize = 1_000_000;

/// A parsed path of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath(Vec<FieldPathStep>);

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FieldPathStep {
    Key(String),
    Item(usize),
}

/// A path cannot be read, or leads nowhere in an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldPathError {
    /// The text is not a path.
    #[error(
        "{0:?} is not a field path: separate names by dots, write [0] for an item of a list, and ['a.b/c'] for a key with dots or slashes"
    )]
    Form(String),
    /// The list has no such item.
    #[error("{path} has no item [{item}]: write an item that the object has")]
    NoItem {
        /// The path of the list.
        path: String,
        /// The item.
        item: usize,
    },
    /// A step does not fit the value.
    #[error(
        "{path} is {actual}, and the field path expects {expected}: correct spec.spreadConstraints.overrides of the policy"
    )]
    Mismatch {
        /// The path of the value.
        path: String,
        /// What the value is.
        actual: &'static str,
        /// What the path expects.
        expected: &'static str,
    },
}

impl FieldPath {
    /// Reads a path.
    pub fn parse(text: &str) -> Result<Self, FieldPathError> {
        let fault = || FieldPathError::Form(text.to_owned());
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (step, after) = if let Some(inner) = rest.strip_prefix('[') {
                bracketed(inner).ok_or_else(fault)?
            } else if steps.is_empty() {
                named(rest).ok_or_else(fault)?
            } else {
                rest.strip_prefix('.').and_then(named).ok_or_else(fault)?
            };
            steps.push(step);
            rest = after;
        }
        match steps.first() {
            Some(FieldPathStep::Key(_)) => Ok(Self(steps)),
            Some(FieldPathStep::Item(_)) | None => Err(fault()),
        }
    }

    /// Sets the field in an object. Maps on the way are created, lists are not.
    pub fn set(&self, object: &mut Json, value: Json) -> Result<(), FieldPathError> {
        let mut place = object;
        for (depth, step) in self.0.iter().enumerate() {
            let path = || Self(self.0[..depth].to_vec()).to_string();
            place = match step {
                FieldPathStep::Key(key) => key_of(place, key, path)?,
                FieldPathStep::Item(item) => item_of(place, *item, path)?,
            };
        }
        *place = value;
        Ok(())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                FieldPathStep::Item(item) => write!(f, "[{item}]")?,
                FieldPathStep::Key(key) if !key.chars().all(is_plain) => write!(f, "['{key}']")?,
                FieldPathStep::Key(key) if index == 0 => f.write_str(key)?,
                FieldPathStep::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '$')
}

/// Reads a name, and returns what is after it.
fn named(text: &str) -> Option<(FieldPathStep, &str)> {
    let end = text.find(|c| !is_plain(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    (!name.is_empty()).then(|| (FieldPathStep::Key(name.to_owned()), rest))
}

/// Reads what is after an opening bracket.
fn bracketed(text: &str) -> Option<(FieldPathStep, &str)> {
    if let Some(quoted) = text.strip_prefix('\'') {
        let (key, rest) = quoted.split_once('\'')?;
        let rest = rest.strip_prefix(']')?;
        return (!key.is_empty()).then(|| (FieldPathStep::Key(key.to_owned()), rest));
    }
    let (digits, rest) = text.split_once(']')?;
    let item = digits.bytes().all(|c| c.is_ascii_digit()).then(|| digits.parse::<usize>().ok()).flatten()?;
    (item < MOST_ITEMS).then_some((FieldPathStep::Item(item), rest))
}

fn key_of<'a>(place: &'a mut Json, key: &str, path: impl Fn() -> String) -> Result<&'a mut Json, FieldPathError> {
    if place.is_null() {
        *place = Json::Object(Map::new());
    }
    let actual = kind_of(place);
    let map =
        place.as_object_mut().ok_or_else(|| FieldPathError::Mismatch { path: path(), actual, expected: "a map" })?;
    Ok(map.entry(key).or_insert(Json::Null))
}

fn item_of(place: &mut Json, item: usize, path: impl Fn() -> String) -> Result<&mut Json, FieldPathError> {
    let actual = kind_of(place);
    let list =
        place.as_array_mut().ok_or_else(|| FieldPathError::Mismatch { path: path(), actual, expected: "a list" })?;
    list.get_mut(item).ok_or_else(|| FieldPathError::NoItem { path: path(), item })
}

fn kind_of(value: &Json) -> &'static str {
    match value {
        Json::Null => "absent",
        Json::Bool(_) | Json::Number(_) | Json::String(_) => "a single value",
        Json::Array(_) => "a list",
        Json::Object(_) => "a map",
    }
}
