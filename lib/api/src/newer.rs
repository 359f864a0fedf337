//! Fields of documents that a newer release of Keelway wrote and this one does not know.
//!
//! After a rollback, the documents of a store may contain such fields. This release keeps them, writes them back unchanged, ignores them, and reports
//! them. If a person writes an unknown field, it is an error. The [format](FORMAT) of a document distinguishes the two cases.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use crate::tree::{self, YamlNode};

/// The format of the documents that this release writes. If a release adds fields to documents, it has a new format: `e2e/tests/compatibility.rs`
/// compares the fields with those of the previous release.
pub const FORMAT: u32 = 1;
/// The annotation with the format of a document. Documents of format 1 have no annotation.
pub const FORMAT_ANNOTATION: &str = "keelway.dev/format";

/// The fields of a spec or a status that this release does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Newer(Option<Box<UnknownValue>>);

/// The unknown part of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum UnknownValue {
    /// The entire value.
    Whole(Json),
    /// Fields of a map, by name.
    Fields(BTreeMap<String, UnknownValue>),
    /// Parts of the items of a list.
    Items(Vec<(Item, UnknownValue)>),
}

/// An item of a list. It is identified by its type or name, if it has one, because other items may precede it when the list is written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Named(String),
    At(usize),
}

impl Item {
    fn of(index: usize, value: &Json) -> Self {
        let name = ["type", "name"].into_iter().find_map(|key| value.get(key)?.as_str());
        name.map_or(Self::At(index), |name| Self::Named(name.to_owned()))
    }
}

impl Newer {
    /// Returns the parts of a written value that the known value lacks.
    pub(crate) fn of(written: Option<&Json>, known: Option<&Json>) -> Self {
        let residue = written.zip(known).and_then(|(written, known)| UnknownValue::between(written, known));
        Self(residue.map(Box::new))
    }

    /// Returns whether there are no unknown fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Restores the unknown fields in a value. A field whose parent was removed is dropped.
    pub(crate) fn restore(&self, value: &mut Json) {
        if let Some(residue) = &self.0 {
            residue.restore(value);
        }
    }

    /// Returns the paths of the unknown fields below `root`.
    pub(crate) fn paths(&self, root: &str) -> Vec<String> {
        let mut paths = Vec::new();
        if let Some(residue) = &self.0 {
            residue.paths(root.to_owned(), &mut paths);
        }
        paths
    }
}

impl UnknownValue {
    fn between(written: &Json, known: &Json) -> Option<Self> {
        match (written, known) {
            (Json::Object(written), Json::Object(known)) => {
                let fields = written
                    .iter()
                    .filter_map(|(name, value)| Some((name.clone(), Self::of_field(value, known.get(name))?)));
                let fields: BTreeMap<_, _> = fields.collect();
                (!fields.is_empty()).then_some(Self::Fields(fields))
            }
            (Json::Array(written), Json::Array(known)) => {
                let pairs = written.iter().zip(known).enumerate();
                let items = pairs.filter_map(|(index, (written, known))| {
                    Some((Item::of(index, known), Self::between(written, known)?))
                });
                let items: Vec<_> = items.collect();
                (!items.is_empty()).then_some(Self::Items(items))
            }
            _ => None,
        }
    }

    /// A field with the value null counts as missing, as in kube-apiserver.
    fn of_field(written: &Json, known: Option<&Json>) -> Option<Self> {
        match known {
            Some(known) => Self::between(written, known),
            None => (!written.is_null()).then(|| Self::Whole(written.clone())),
        }
    }

    fn restore(&self, value: &mut Json) {
        match (self, value) {
            (Self::Fields(fields), Json::Object(map)) => {
                for (name, residue) in fields {
                    residue.restore_field(name, map);
                }
            }
            (Self::Items(items), Json::Array(list)) => {
                for (item, residue) in items {
                    let found = list.iter_mut().enumerate().find(|(index, value)| Item::of(*index, value) == *item);
                    if let Some((_, value)) = found {
                        residue.restore(value);
                    }
                }
            }
            (Self::Whole(_) | Self::Fields(_) | Self::Items(_), _) => {}
        }
    }

    fn restore_field(&self, name: &str, map: &mut Map<String, Json>) {
        match self {
            Self::Whole(value) => drop(map.entry(name).or_insert_with(|| value.clone())),
            Self::Fields(_) | Self::Items(_) => {
                if let Some(value) = map.get_mut(name) {
                    self.restore(value);
                }
            }
        }
    }

    fn paths(&self, path: String, all: &mut Vec<String>) {
        match self {
            Self::Whole(_) => all.push(path),
            Self::Fields(fields) => {
                for (name, residue) in fields {
                    residue.paths(tree::field(&path, name), all);
                }
            }
            Self::Items(items) => {
                for (item, residue) in items {
                    let path = match item {
                        Item::Named(name) => format!("{path}[{name}]"),
                        Item::At(index) => tree::item(&path, *index),
                    };
                    residue.paths(path, all);
                }
            }
        }
    }
}

/// Returns whether the annotation of a document names a newer format than that of this release.
pub(crate) fn is_newer(document: &YamlNode<'_>) -> bool {
    let annotations = document.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let format = annotations.and_then(|annotations| annotations.get(FORMAT_ANNOTATION)).and_then(YamlNode::text);
    format.and_then(|text| text.parse::<u32>().ok()).is_some_and(|format| format > FORMAT)
}

/// Returns whether newer releases may add fields at this path: below the spec and the status of a document.
pub(crate) fn may_hold(path: &str) -> bool {
    ["spec.", "status."].iter().any(|part| path.starts_with(part))
}

fn format_of(document: &Json) -> Option<u32> {
    document.get("metadata")?.get("annotations")?.get(FORMAT_ANNOTATION)?.as_str()?.parse().ok()
}

/// Removes the format from a document, unless it is newer than that of this release.
pub(crate) fn strip_format(document: &mut Json) {
    if format_of(document).is_some_and(|format| format > FORMAT) {
        return;
    }
    if let Some(Json::Object(annotations)) = document.pointer_mut("/metadata/annotations") {
        annotations.shift_remove(FORMAT_ANNOTATION);
    }
}

/// Writes the format to a document: the newest format of all releases that wrote its fields.
pub(crate) fn stamp(document: &mut Json, has_newer: bool) {
    let own = if has_newer { FORMAT + 1 } else { FORMAT };
    let format = format_of(document).unwrap_or_default().max(own);
    if format <= 1 {
        return;
    }
    let Some(Json::Object(metadata)) = document.get_mut("metadata") else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| Json::Object(Map::new()));
    if let Json::Object(annotations) = annotations {
        annotations.insert(FORMAT_ANNOTATION.to_owned(), Json::String(format.to_string()));
        annotations.sort_keys();
    }
}
