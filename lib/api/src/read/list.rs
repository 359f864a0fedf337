//! A `v1/List`, as `kubectl get -o yaml` writes it. Each item is a document.

use super::{DocumentReader, InputPosition, Owner, owner};
use crate::{
    documents::{Foreign, InputDocument},
    fault::Fault,
    schema,
    split::Chunk,
    tree::{Tree, Value, YamlNode},
};

impl<'a> DocumentReader<'a> {
    /// Reads each item. Items of other programs become separate documents.
    pub(super) fn list(&mut self, tree: Tree<'_>, chunk: Chunk<'a>) {
        let Tree { root, faults, excess } = tree;
        if excess.is_some() || !faults.is_empty() {
            return excess.into_iter().chain(faults).for_each(|fault| self.refuse(fault.line, fault));
        }
        for (index, root) in items(root).into_iter().enumerate() {
            let within = Tree { root, faults: Vec::new(), excess: None };
            match owner(&within.root) {
                Ok(Owner::Ours(kind)) => self.ours(kind, &within, InputPosition { chunk, item: Some(index) }),
                Ok(Owner::Foreign) => {
                    self.read_user_secret(&within, Some(index));
                    let text = Foreign(format!("---\n{}\n", schema::raw(&within.root)));
                    self.documents.reading_order.push(InputDocument::Foreign(text));
                }
                Ok(Owner::List) => {
                    let fault =
                        Fault::of("items", "a list must not be an item of another list", "move it out of that list");
                    self.refuse(within.root.line, fault);
                }
                Err(fault) => self.refuse(within.root.line_of(&fault.field), fault),
            }
        }
    }
}

fn items(list: YamlNode<'_>) -> Vec<YamlNode<'_>> {
    let Value::Map(entries) = list.value else { return Vec::new() };
    match entries.into_iter().find(|entry| entry.key == "items").map(|entry| entry.node.value) {
        Some(Value::List(items)) => items,
        Some(Value::Scalar(_) | Value::Map(_)) | None => Vec::new(),
    }
}
