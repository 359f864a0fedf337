//! Where documents are in the input, for faults.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    document::DocumentName,
    fault::Fault,
    kind::DocumentKind,
    split::Chunk,
    tree::{self, Value, YamlNode},
};

/// The origin of a document of Keelway.
#[derive(Debug, Clone)]
pub(crate) struct DocumentOrigin<'a> {
    /// `document 2 (Cluster c1)`.
    pub(crate) title: String,
    pub(crate) place: InputPosition<'a>,
}

/// The position of a document in the input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputPosition<'a> {
    pub(crate) chunk: Chunk<'a>,
    /// The index in a list, if the document is an item of one.
    pub(crate) item: Option<usize>,
}

impl DocumentOrigin<'_> {
    /// Adds the document and the line to a fault.
    pub(crate) fn locate(&self, mut fault: Fault) -> Fault {
        let InputPosition { chunk, item } = self.place;
        let tree = tree::parse(chunk.text, chunk.line).ok().flatten();
        let root = tree.as_ref().and_then(|tree| item.map_or(Some(&tree.root), |index| item_of(&tree.root, index)));
        fault.line = root.map_or(chunk.line, |root| root.line_of(&fault.field));
        fault.document.clone_from(&self.title);
        fault
    }
}

/// The documents of Keelway in the input, including invalid ones.
#[derive(Debug, Default)]
pub(crate) struct OriginIndex<'a> {
    /// The origins of valid documents.
    pub(crate) origins: BTreeMap<DocumentName, DocumentOrigin<'a>>,
    /// The kinds with invalid documents. A document that seems missing may be one of these.
    pub(crate) broken: BTreeSet<DocumentKind>,
}

/// Returns one item.
pub(crate) fn item_of<'n, 'a>(list: &'n YamlNode<'a>, index: usize) -> Option<&'n YamlNode<'a>> {
    match &list.get("items")?.value {
        Value::List(items) => items.get(index),
        Value::Scalar(_) | Value::Map(_) => None,
    }
}
