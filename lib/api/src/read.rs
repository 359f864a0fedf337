//! Strict parsing of documents. All faults of an input are reported together.

mod list;
mod one;
pub(crate) mod vpn_range;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::{
    Documents,
    across::{across, completeness_faults},
    document::{Document, DocumentName},
    documents::{Foreign, InputDocument},
    fault::{Fault, Faults, MOST_FAULTS},
    kind::{API_VERSION, DocumentKind, GROUP},
    machine::{CLUSTER_LABEL, INSTALLATION_LABEL},
    newer,
    origin::{DocumentOrigin, InputPosition, OriginIndex},
    registry::PULL_SECRET,
    schema::{self, suggestion},
    secret::Secret,
    split::{self, Chunk},
    tree::{self, Tree, Value, YamlNode},
    validated::{self, ValidatedCluster, ValidatedHypervisor},
};

impl Documents {
    /// Reads documents in YAML or JSON, in any order.
    ///
    /// # Errors
    /// Every fault of the input: of its text, of each document of Keelway, and between documents. A document of another program must only be YAML
    /// with `apiVersion` and `kind`.
    pub fn read(bytes: &[u8]) -> Result<Self, Faults> {
        Self::read_with(bytes, ReadOptions::default())
    }

    /// Reads documents as [`Self::read`] does, with options.
    pub fn read_with(bytes: &[u8], asked: ReadOptions<'_>) -> Result<Self, Faults> {
        DocumentReader::of(bytes, asked)?.finish()
    }

    /// Reads a part of an installation's documents: the documents to which they refer may be elsewhere.
    ///
    /// # Errors
    /// Every fault of the text and of each document of Keelway.
    pub fn read_partial(bytes: &[u8], asked: ReadOptions<'_>) -> Result<Self, Faults> {
        DocumentReader::of(bytes, asked)?.finish_partial()
    }
}

impl<'a> DocumentReader<'a> {
    fn of(bytes: &'a [u8], asked: ReadOptions<'a>) -> Result<Self, Faults> {
        let text = split::text(bytes).map_err(|fault| Faults(vec![fault]))?;
        let chunks = split::split(text);
        if chunks.len() > split::MOST_DOCUMENTS {
            let fault = Fault::of(
                "",
                format!("the input has {} documents", chunks.len()),
                format!("split it: Keelway reads at most {}", split::MOST_DOCUMENTS),
            );
            return Err(Faults(vec![fault]));
        }
        let mut reader = DocumentReader {
            documents: Documents::default(),
            seen: OriginIndex::default(),
            identities: BTreeMap::new(),
            faults: Vec::new(),
            count: 0,
            asked,
        };
        for chunk in chunks {
            if reader.faults.len() >= MOST_FAULTS {
                return Err(reader.stop(chunk.line));
            }
            reader.chunk(chunk);
        }
        Ok(reader)
    }
}

/// Returns the faults of the values of a Secret.
pub type KeyCheck<'a> = &'a dyn Fn(&Secret) -> Vec<Fault>;

/// Options for reading documents.
#[derive(Clone, Copy, Default)]
pub struct ReadOptions<'a> {
    /// Checks the values of Secrets of Keelway. This crate cannot parse keys and certificates.
    pub keys: Option<KeyCheck<'a>>,
    /// Whether the documents must be complete: there is at least one document, and machines of each role that the clusters need.
    pub is_complete_world: bool,
    /// The treatment of fields that this release does not know.
    pub unknown: UnknownFields,
}

/// The treatment of fields that this release does not know, below the spec and the status of a document. Other unknown fields are faults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnknownFields {
    /// Fields are kept if the [format](newer::FORMAT_ANNOTATION) of the document is newer than that of this release. Otherwise they are faults,
    /// because a person wrote them.
    #[default]
    OfFormat,
    /// Fields are kept. An API server rejects or drops fields that its definitions lack, so the fields are from another release.
    Kept,
    /// Fields are faults.
    Refused,
}

impl UnknownFields {
    fn are_kept(self, document: &YamlNode<'_>) -> bool {
        match self {
            Self::OfFormat => newer::is_newer(document),
            Self::Kept => true,
            Self::Refused => false,
        }
    }
}

/// Kind, namespace and name, which identify an object in kube-apiserver.
type ObjectKey = (DocumentKind, String, String);

struct DocumentReader<'a> {
    documents: Documents,
    seen: OriginIndex<'a>,
    identities: BTreeMap<ObjectKey, (String, u64)>,
    faults: Vec<Fault>,
    count: usize,
    asked: ReadOptions<'a>,
}

/// The owner of a document.
enum Owner {
    Ours(DocumentKind),
    Foreign,
    /// A list, in which some items may be documents of Keelway.
    List,
}

impl<'a> DocumentReader<'a> {
    fn chunk(&mut self, chunk: Chunk<'a>) {
        if chunk.text.len() > split::LARGEST_DOCUMENT {
            self.count += 1;
            let problem = format!("the document has {} bytes", chunk.text.len());
            let help = format!("reduce it: Keelway reads at most {}", split::LARGEST_DOCUMENT);
            return self.refuse(chunk.line, Fault::of("", problem, help));
        }
        let tree = match tree::parse(chunk.text, chunk.line) {
            Ok(Some(tree)) if !tree.root.is_null() => tree,
            Ok(_) => return self.foreign(chunk),
            Err(fault) => {
                self.count += 1;
                return self.refuse(fault.line, fault);
            }
        };
        self.count += 1;
        match owner(&tree.root) {
            Ok(Owner::Foreign) => {
                self.read_user_secret(&tree, None);
                self.foreign(chunk);
            }
            Ok(Owner::Ours(kind)) => self.ours(kind, &tree, InputPosition { chunk, item: None }),
            Ok(Owner::List) => self.list(tree, chunk),
            Err(fault) => self.refuse(tree.root.line_of(&fault.field), fault),
        }
    }

    fn refuse(&mut self, line: u64, fault: Fault) {
        self.seen.broken.extend(DocumentKind::OF_GROUP);
        self.faults.push(Fault { line, document: format!("document {}", self.count), ..fault });
    }

    /// Stores a Secret of the user, to which documents may refer.
    fn read_user_secret(&mut self, tree: &Tree<'_>, item: Option<usize>) {
        let Err(faults) = self.documents.read_user_secret(tree) else { return };
        self.seen.broken.insert(DocumentKind::Secret);
        let document = format!("{} ({})", self.position(item), title(&identity(DocumentKind::Secret, &tree.root)));
        self.faults.extend(faults.into_iter().map(|fault| Fault {
            line: tree.root.line_of(&fault.field),
            document: document.clone(),
            ..fault
        }));
    }

    fn foreign(&mut self, chunk: Chunk<'a>) {
        let text = Foreign(chunk.text.to_owned());
        self.documents.reading_order.push(InputDocument::Foreign(text));
    }

    fn ours(&mut self, kind: DocumentKind, tree: &Tree<'_>, place: InputPosition<'a>) {
        let identity = identity(kind, &tree.root);
        let origin = DocumentOrigin { title: format!("{} ({})", self.position(place.item), title(&identity)), place };
        let mut faults = match self.documents.take(kind, tree, self.asked) {
            Ok(name) => {
                self.documents.reading_order.push(InputDocument::Ours(name.clone()));
                self.seen.origins.insert(name, origin.clone());
                Vec::new()
            }
            Err(faults) => {
                self.seen.broken.insert(kind);
                faults
            }
        };
        let line = place.item.map_or(place.chunk.line, |_| tree.root.line);
        faults.extend(self.duplicate_fault(identity, line, place.item));
        self.faults.extend(faults.into_iter().map(|fault| Fault {
            line: match fault.line {
                0 => tree.root.line_of(&fault.field),
                line => line,
            },
            document: origin.title.clone(),
            ..fault
        }));
    }

    /// Returns the position of the current document, for people.
    fn position(&self, item: Option<usize>) -> String {
        let document = format!("document {}", self.count);
        item.map_or_else(|| document.clone(), |index| format!("{document}, item {}", index + 1))
    }

    fn duplicate_fault(&mut self, identity: ObjectKey, line: u64, item: Option<usize>) -> Option<Fault> {
        let here = (self.position(item), line);
        if identity.2.is_empty() {
            return None;
        }
        let name = title(&identity);
        if let Some((document, line)) = self.identities.get(&identity) {
            return Some(Fault::of(
                "metadata.name",
                format!("{name} is a duplicate: the first is {document}, line {line}"),
                "remove one of them, or rename it",
            ));
        }
        self.identities.insert(identity, here);
        None
    }

    fn finish(mut self) -> Result<Documents, Faults> {
        self.faults.extend(across(&self.documents, &self.seen));
        if self.asked.is_complete_world {
            self.faults.extend(completeness_faults(&self.documents, &self.seen));
        }
        if self.faults.is_empty() {
            return Ok(self.documents);
        }
        Err(in_order(self.faults))
    }

    /// Returns the documents without checks between them.
    fn finish_partial(self) -> Result<Documents, Faults> {
        if self.faults.is_empty() { Ok(self.documents) } else { Err(in_order(self.faults)) }
    }

    fn stop(mut self, line: u64) -> Faults {
        let problem = format!("there are {MOST_FAULTS} faults before this line");
        let fault = Fault::of("", problem, "correct those first: Keelway did not read the rest");
        self.faults.push(Fault { line, ..fault });
        in_order(self.faults)
    }
}

/// Sorts faults by line, and shortens their texts.
fn in_order(mut faults: Vec<Fault>) -> Faults {
    faults.sort_by_key(|fault| fault.line);
    for fault in &mut faults {
        for text in [&mut fault.document, &mut fault.field, &mut fault.problem, &mut fault.help] {
            *text = printable(text);
        }
    }
    Faults(faults)
}

/// Returns a text on one line with a limited length, because it may contain values and names of the input.
fn printable(text: &str) -> String {
    const LONGEST: usize = 400;
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let cut = if text.chars().nth(LONGEST).is_some() { ".." } else { "" };
    text.chars().take(LONGEST).map(shown).chain(cut.chars()).collect()
}

fn owner(root: &YamlNode<'_>) -> Result<Owner, Fault> {
    if !matches!(root.value, Value::Map(_)) {
        let problem = "a document must be a map of fields, as in Kubernetes";
        return Err(Fault::of("", problem, "remove it, or correct its indentation"));
    }
    let (Some(version), Some(kind)) = (text(root, "apiVersion"), text(root, "kind")) else {
        let absent = if text(root, "apiVersion").is_none() { "apiVersion" } else { "kind" };
        let help = format!("write apiVersion and kind; documents of Keelway have apiVersion {API_VERSION}");
        return Err(Fault::of(absent, "is required", help));
    };
    let group = version.split_once('/').map_or(version, |(group, _)| group);
    match (group, version, kind) {
        (GROUP, _, _) => ours(version, kind).map(Owner::Ours),
        (_, "v1", "Secret") if labelled(root) || text(root, "type") == Some(PULL_SECRET) => {
            Ok(Owner::Ours(DocumentKind::Secret))
        }
        (_, "v1", "List") if holds_ours(root) => Ok(Owner::List),
        _ => Ok(Owner::Foreign),
    }
}

fn ours(version: &str, kind: &str) -> Result<DocumentKind, Fault> {
    if kind == DocumentKind::Observation.name() {
        return Err(of_no_world());
    }
    let names = DocumentKind::OF_GROUP.map(DocumentKind::name);
    let Some(found) = DocumentKind::OF_GROUP.into_iter().find(|k| k.name() == kind) else {
        let problem = format!("{:?} is not a kind of {GROUP}", schema::short(kind));
        return Err(Fault::of("kind", problem, suggestion(kind, &names)));
    };
    if version != API_VERSION {
        let problem = format!("{:?} is not a version of {GROUP}", schema::short(version));
        return Err(Fault::of("apiVersion", problem, format!("write {API_VERSION}")));
    }
    Ok(found)
}

fn of_no_world() -> Fault {
    let help = "pass it to `keelway plan --offline FILE`, together with the documents that it was made from";
    Fault::of("kind", "an Observation is not a document of an installation", help)
}

fn text<'n>(node: &'n YamlNode<'_>, key: &str) -> Option<&'n str> {
    node.get(key).and_then(YamlNode::text)
}

fn labelled(root: &YamlNode<'_>) -> bool {
    let labels = root.get("metadata").and_then(|metadata| metadata.get("labels"));
    labels.is_some_and(|labels| [CLUSTER_LABEL, INSTALLATION_LABEL].iter().any(|label| labels.get(label).is_some()))
}

fn holds_ours(list: &YamlNode<'_>) -> bool {
    match list.get("items").map(|items| &items.value) {
        Some(Value::List(items)) => {
            items.iter().any(|item| labelled(item) || text(item, "apiVersion").is_some_and(|v| v.starts_with(GROUP)))
        }
        Some(Value::Scalar(_) | Value::Map(_)) | None => false,
    }
}

fn identity(kind: DocumentKind, root: &YamlNode<'_>) -> ObjectKey {
    let metadata = root.get("metadata");
    let of = |key| metadata.and_then(|metadata| text(metadata, key));
    let namespace = match kind {
        DocumentKind::ClusterClass | DocumentKind::Hypervisor | DocumentKind::Observation => "",
        DocumentKind::Cluster | DocumentKind::Component | DocumentKind::Secret => of("namespace").unwrap_or("default"),
    };
    let name = of("name").unwrap_or_default();
    (kind, namespace.to_owned(), name.to_owned())
}

fn title((kind, namespace, name): &ObjectKey) -> String {
    let name = schema::short(name);
    match (kind, namespace.as_str()) {
        _ if name.is_empty() => kind.name().to_owned(),
        (DocumentKind::ClusterClass | DocumentKind::Hypervisor, _) | (_, "default") => {
            format!("{} {name}", kind.name())
        }
        (_, namespace) => format!("{} {}/{name}", kind.name(), schema::short(namespace)),
    }
}

/// Converts JSON to a document of its type, whose values are not validated yet.
fn typed(kind: DocumentKind, mut json: Json) -> Result<Document, Vec<Fault>> {
    newer::strip_format(&mut json);
    schema::prune(kind, &mut json);
    if kind == DocumentKind::Cluster {
        vpn_range::keep(&mut json);
    }
    Ok(match kind {
        DocumentKind::ClusterClass => Document::ClusterClass(decode::<crate::ClusterClass>(json)?.into()),
        DocumentKind::Hypervisor => Document::Hypervisor(decode::<crate::Hypervisor>(json)?.into()),
        DocumentKind::Cluster => Document::Cluster(decode::<crate::Cluster>(json)?.into()),
        DocumentKind::Component => Document::Component(decode::<crate::Component>(json)?.with_placement().into()),
        DocumentKind::Secret => Document::Secret(decode::<Secret>(json)?.into()),
        DocumentKind::Observation => return Err(vec![of_no_world()]),
    })
}

/// Returns the name of a document, if all of its values are valid.
fn meant(document: &Document) -> Result<DocumentName, Vec<Fault>> {
    Ok(match document {
        Document::ClusterClass(document) => DocumentName::ClusterClass(validated::class(document)?),
        Document::Hypervisor(document) => DocumentName::Hypervisor(ValidatedHypervisor::parse(document)?.name),
        Document::Cluster(document) => DocumentName::Cluster(ValidatedCluster::parse(document)?.reference),
        Document::Component(document) => DocumentName::Component(validated::component(document)?),
        Document::Secret(document) => {
            validated::secret(document)?;
            DocumentName::of_secret(document)
        }
    })
}

/// Returns a document of Keelway, or every fault of it: of its structure, and of the values of fields with a valid structure.
fn sound(kind: DocumentKind, tree: &Tree<'_>, unknown: UnknownFields) -> Result<(DocumentName, Document), Vec<Fault>> {
    if let Some(excess) = &tree.excess {
        return Err(vec![excess.clone()]);
    }
    let (json, structural, newer) = schema::check_stored(kind, &tree.root, unknown.are_kept(&tree.root));
    let mut faults = tree.faults.clone();
    faults.extend(structural);
    let typed = typed(kind, json).map(|document| document.with_newer(newer));
    if faults.is_empty() {
        let document = typed?;
        return Ok((meant(&document)?, document));
    }
    let meant = typed.ok().and_then(|document| meant(&document).err()).unwrap_or_default();
    let broken: Vec<String> = faults.iter().map(|fault| fault.field.clone()).collect();
    faults.extend(meant.into_iter().filter(|fault| !broken.iter().any(|field| touches(field, &fault.field))));
    Err(faults)
}

/// Returns whether one field is the other or contains it.
fn touches(one: &str, other: &str) -> bool {
    let holds = |outer: &str, inner: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    holds(one, other) || holds(other, one)
}

impl Documents {
    /// Stores a Secret of the user, if the document is a valid one. The first of several with the same name is kept.
    fn read_user_secret(&mut self, tree: &Tree<'_>) -> Result<(), Vec<Fault>> {
        let is_secret = text(&tree.root, "apiVersion") == Some("v1") && text(&tree.root, "kind") == Some("Secret");
        if !is_secret || tree.excess.is_some() || !tree.faults.is_empty() {
            return Ok(());
        }
        let (json, _) = schema::check(DocumentKind::Secret, &tree.root);
        let Ok(Document::Secret(secret)) = typed(DocumentKind::Secret, json) else { return Ok(()) };
        // If the API server generates the name, no document can refer to the Secret.
        if secret.metadata.name.is_none() {
            return Ok(());
        }
        validated::check_user_secret(&secret)?;
        if let DocumentName::Secret(name) = DocumentName::of_secret(&secret) {
            self.user_secrets.get_or_insert_with(name, || secret);
        }
        Ok(())
    }

    /// Stores one document of Keelway. The first of several with the same name is kept.
    fn take(
        &mut self,
        kind: DocumentKind,
        tree: &Tree<'_>,
        asked: ReadOptions<'_>,
    ) -> Result<DocumentName, Vec<Fault>> {
        let (name, document) = sound(kind, tree, asked.unknown)?;
        if let (Document::Secret(secret), Some(keys)) = (&document, asked.keys) {
            let faults = keys(secret);
            if !faults.is_empty() {
                return Err(faults);
            }
        }
        if self.get(&name).is_none() {
            self.put(&name, document);
        }
        Ok(name)
    }
}

pub(crate) fn decode<T: DeserializeOwned>(json: Json) -> Result<T, Vec<Fault>> {
    serde_path_to_error::deserialize(json).map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => String::new(),
            path => path,
        };
        vec![Fault::of(path, error.inner().to_string(), "correct its format")]
    })
}
