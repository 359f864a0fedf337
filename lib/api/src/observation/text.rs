//! An Observation as text.

use crate::{
    fault::{Fault, Faults},
    kind::{API_VERSION, DocumentKind},
    observation::Observation,
    read::decode,
    schema, split, tree,
    write::canonical,
};

impl Observation {
    /// Reads one document, in YAML or JSON.
    ///
    /// # Errors
    /// Every fault of it.
    pub fn read(bytes: &[u8]) -> Result<Self, Faults> {
        let text = split::text(bytes).map_err(|fault| Faults(vec![fault]))?;
        let mut trees = Vec::new();
        for chunk in split::split(text) {
            let tree = tree::parse(chunk.text, chunk.line).map_err(|fault| Faults(vec![fault]))?;
            trees.extend(tree.filter(|tree| !tree.root.is_null()));
        }
        let [tree] = trees.as_slice() else {
            let problem = format!("the input has {} documents", trees.len());
            return Err(Faults(vec![Fault::of("", problem, "pass one Observation, as `keelway observe` writes it")]));
        };
        let is = |key, wanted| tree.root.get(key).and_then(tree::YamlNode::text) == Some(wanted);
        if !is("apiVersion", API_VERSION) || !is("kind", DocumentKind::Observation.name()) {
            let help = format!("pass a document of apiVersion {API_VERSION} and kind Observation");
            return Err(Faults(vec![Fault::of("kind", "the document is not an Observation", help)]));
        }
        let (json, structural) = schema::check(DocumentKind::Observation, &tree.root);
        let faults: Vec<Fault> = tree.faults.iter().cloned().chain(tree.excess.clone()).chain(structural).collect();
        if faults.is_empty() { decode(json).map_err(Faults) } else { Err(Faults(faults)) }
    }

    /// The document in canonical YAML.
    #[must_use]
    pub fn write(&self) -> String {
        // Types of plain data with text for keys have no way to fail here.
        canonical(DocumentKind::Observation, serde_json::to_value(self).unwrap_or_default())
    }
}
