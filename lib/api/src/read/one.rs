//! Reads a file of a store, which contains one document.

use super::{Owner, ReadOptions, in_order, owner, sound, text, typed};
use crate::{
    document::{Document, DocumentName},
    fault::{Fault, Faults},
    kind::DocumentKind,
    schema,
    split::{self, Chunk},
    tree::{self, Tree},
    validated,
};

impl Document {
    /// Reads a text with one document: a document of Keelway, or a Secret of the user.
    ///
    /// # Errors
    /// Every fault of the document, with the name of its file.
    pub fn read(bytes: &[u8], file: &str, asked: ReadOptions<'_>) -> Result<(DocumentName, Self), Faults> {
        let read = split::text(bytes).map_err(|fault| vec![fault]).and_then(|text| one(text, asked));
        read.map_err(|faults| {
            in_order(faults.into_iter().map(|fault| Fault { document: file.to_owned(), ..fault }).collect())
        })
    }

    /// Returns the line of a field in a text, counted from 1, or 0 if it is not known.
    #[must_use]
    pub fn line_of(bytes: &[u8], field: &str) -> u64 {
        let parsed = split::text(bytes).ok().and_then(|text| only(text).ok()).map(|(_, tree)| tree);
        parsed.map_or(0, |tree| tree.root.line_of(field))
    }
}

fn one(text: &str, asked: ReadOptions<'_>) -> Result<(DocumentName, Document), Vec<Fault>> {
    let (chunk, tree) = only(text)?;
    let read = match owner(&tree.root).map_err(|fault| vec![fault]) {
        Ok(Owner::Ours(kind)) => sound(kind, &tree, asked.unknown),
        Ok(Owner::Foreign) => read_user_secret(&tree),
        Ok(Owner::List) => {
            let help = "move each item to a separate file";
            Err(vec![Fault::of("items", "the file must not contain a list of documents of Keelway", help)])
        }
        Err(faults) => Err(faults),
    };
    let checked = read.and_then(|(name, document)| match (&document, asked.keys) {
        (Document::Secret(secret), Some(keys)) if matches!(owner(&tree.root), Ok(Owner::Ours(_))) => {
            let faults = keys(secret);
            if faults.is_empty() { Ok((name, document)) } else { Err(faults) }
        }
        _ => Ok((name, document)),
    });
    let locate = |fault: Fault| match fault.line {
        0 => Fault { line: tree.root.line_of(&fault.field).max(chunk.line), ..fault },
        _ => fault,
    };
    checked.map_err(|faults| faults.into_iter().map(locate).collect())
}

/// Returns the only document of a text.
fn only(text: &str) -> Result<(Chunk<'_>, Tree<'_>), Vec<Fault>> {
    let mut found = None;
    for chunk in split::split(text) {
        if chunk.text.len() > split::LARGEST_DOCUMENT {
            let problem = format!("the document has {} bytes", chunk.text.len());
            let help = format!("reduce it: Keelway reads at most {}", split::LARGEST_DOCUMENT);
            return Err(vec![Fault { line: chunk.line, ..Fault::of("", problem, help) }]);
        }
        match tree::parse(chunk.text, chunk.line) {
            Ok(Some(tree)) if !tree.root.is_null() => {
                if found.is_some() {
                    let fault =
                        Fault::of("", "the file must not contain a second document", "move it to a separate file");
                    return Err(vec![Fault { line: chunk.line, ..fault }]);
                }
                found = Some((chunk, tree));
            }
            Ok(_) => {}
            Err(fault) => return Err(vec![fault]),
        }
    }
    let nothing = || vec![Fault::of("", "the file contains no document", "write one, or remove the file")];
    found.ok_or_else(nothing)
}

/// Reads a Secret of the user.
fn read_user_secret(tree: &Tree<'_>) -> Result<(DocumentName, Document), Vec<Fault>> {
    let is_secret = text(&tree.root, "apiVersion") == Some("v1") && text(&tree.root, "kind") == Some("Secret");
    if !is_secret {
        let kind = schema::short(text(&tree.root, "kind").unwrap_or_default());
        return Err(vec![Fault::of("kind", format!("{kind:?} is not a kind of Keelway"), "move it elsewhere")]);
    }
    if let Some(excess) = &tree.excess {
        return Err(vec![excess.clone()]);
    }
    let (json, structural) = schema::check(DocumentKind::Secret, &tree.root);
    let faults: Vec<Fault> = tree.faults.iter().cloned().chain(structural).collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    let document = typed(DocumentKind::Secret, json)?;
    let name = match &document {
        Document::Secret(secret) => {
            validated::check_user_secret(secret)?;
            DocumentName::of_secret(secret)
        }
        Document::ClusterClass(_) | Document::Hypervisor(_) | Document::Cluster(_) | Document::Component(_) => {
            return Err(Vec::new());
        }
    };
    Ok((name, document))
}
