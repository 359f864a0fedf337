//! Fields of documents that a newer release of Keelway wrote, and this one does not know.
//!
//! After a rollback the documents of a store may have such fields. They are kept: this release writes them back as they are, does nothing by them, and reports
//! them. A person who writes an unknown field made a mistake, and gets an error. The [format](FORMAT) of a document tells the two apart.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use crate::tree::{self, YamlNode};

/// The format of the documents that this release writes. A release whose documents have fields that those of the release before do not have has a format of its own:
/// `e2e/tests/compatibility.rs` compares the fields.
pub const FORMAT: u32 = 1;
/// The annotation with the format of a document. Documents of format 1 have none.
pub const FORMAT_ANNOTATION: &str = "keelway.dev/format";

/// Fields of a spec or of a status that this release does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Newer(Option<Box<UnknownValue>>);

/// What of a value is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
enum UnknownValue {
    /// All of it.
    Whole(Json),
    /// Fields of a map, by name.
    Fields(BTreeMap<String, UnknownValue>),
    /// Parts of the items of a list.
    Items(Vec<(Item, UnknownValue)>),
}

/// An item of a list is found by its type or name, if it has one: other items may come before it by the time that it is written.
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
    /// What a value has as it was written, and does not have as far as it is known.
    pub(crate) fn of(written: Option<&Json>, known: Option<&Json>) -> Self {
        let residue = written.zip(known).and_then(|(written, known)| UnknownValue::between(written, known));
        Self(residue.map(Box::new))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Puts them back into the value that is written. A field whose parent was removed goes with it.
    pub(crate) fn restore(&self, value: &mut Json) {
        if let Some(residue) = &self.0 {
            residue.restore(value);
        }
    }

    /// Their paths below this one.
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

    /// A field that is null is as if it were not there, as kube-apiserver has it.
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

/// Whether a document is of a newer format than this release's, as it says itself.
pub(crate) fn is_newer(document: &YamlNode<'_>) -> bool {
    let annotations = document.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let format = annotations.and_then(|annotations| annotations.get(FORMAT_ANNOTATION)).and_then(YamlNode::text);
    format.and_then(|text| text.parse::<u32>().ok()).is_some_and(|format| format > FORMAT)
}

/// Whether newer releases have fields of their own there: below the spec and the status of a document.
pub(crate) fn may_hold(path: &str) -> bool {
    ["spec.", "status."].iter().any(|part| path.starts_with(part))
}

fn format_of(document: &Json) -> Option<u32> {
    document.get("metadata")?.get("annotations")?.get(FORMAT_ANNOTATION)?.as_str()?.parse().ok()
}

/// Takes the format from a document that is of this release's or of an older one, which says nothing.
pub(crate) fn strip_format(document: &mut Json) {
    if format_of(document).is_some_and(|format| format > FORMAT) {
        return;
    }
    if let Some(Json::Object(annotations)) = document.pointer_mut("/metadata/annotations") {
        annotations.shift_remove(FORMAT_ANNOTATION);
    }
}

/// Writes the format into a document: the newest of all releases that wrote fields of it.
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
