//! Documents to text: ours in canonical form, those of others as they were.

use serde_json::{Map, Value as Json};

use crate::{
    Documents,
    document::{DocumentName, DocumentRef},
    documents::{Foreign, InputDocument},
    kind::DocumentKind,
    schema,
    split::{begins_with_object, is_marker, is_object, lines},
};

/// The order of fields in a document. Others follow as their type declares them.
const FIELDS: [&str; 8] = ["apiVersion", "kind", "metadata", "spec", "status", "type", "immutable", "data"];

impl Documents {
    /// All documents as one text, in the order of reading, new ones after.
    ///
    /// Ours are written in canonical YAML, so that the same documents give the same bytes; those of others byte for byte as they were read.
    #[must_use]
    pub fn write(&self) -> String {
        self.pieces().collect()
    }

    /// The same, document by document: the whole text of a large fleet need not be in memory.
    pub fn pieces(&self) -> impl Iterator<Item = String> {
        let mut output = DocumentWriter::default();
        self.in_order().into_iter().map(move |place| match &place {
            InputDocument::Ours(name) => output.ours(self.text_of(name)),
            InputDocument::Foreign(foreign) => output.foreign(foreign),
        })
    }

    /// One document in canonical YAML, without a separator; `None` where there is none of this name.
    #[must_use]
    pub fn text_of(&self, name: &DocumentName) -> Option<String> {
        self.get(name).map(DocumentRef::text)
    }
}

/// One document of ours in canonical YAML, without a separator.
pub(crate) fn canonical(kind: DocumentKind, mut json: Json) -> String {
    schema::prune(kind, &mut json);
    let json = ordered(json);
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    // JSON is YAML, and writing it cannot fail.
    serde_saphyr::to_string_with_options(&json, options).unwrap_or_else(|_| format!("{json}\n"))
}

fn ordered(json: Json) -> Json {
    let Json::Object(mut rest) = json else {
        return json;
    };
    let mut fields = Map::new();
    for name in FIELDS {
        if let Some(value) = rest.shift_remove(name) {
            fields.insert(name.to_owned(), value);
        }
    }
    fields.extend(rest);
    Json::Object(fields)
}

/// What was written so far.
#[derive(Default)]
struct DocumentWriter {
    last: Last,
    /// Whether its last line has no end.
    open: bool,
}

/// What was written last: decides what may follow without a separator.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Last {
    #[default]
    Nothing,
    /// Only another document with a separator of its own may follow.
    Document,
    /// A JSON object, which another one may follow.
    Object,
    /// The marker `...`, which anything may follow.
    End,
}

impl DocumentWriter {
    fn ours(&mut self, document: Option<String>) -> String {
        let Some(document) = document else { return String::new() };
        let mut text = String::new();
        if self.last != Last::Nothing {
            self.end_line(&mut text);
            text.push_str("---\n");
        }
        text.push_str(&document);
        self.end_line(&mut text);
        self.wrote(text, Last::Document)
    }

    fn foreign(&mut self, Foreign(given): &Foreign) -> String {
        let mut text = String::new();
        let separated = is_marker(given, "---");
        let fits = match self.last {
            Last::Nothing | Last::End => true,
            Last::Object => separated || begins_with_object(given),
            Last::Document => separated,
        };
        if !fits {
            self.end_line(&mut text);
            text.push_str("...\n");
        } else if separated || self.last == Last::End {
            self.end_line(&mut text);
        }
        text.push_str(given);
        let last = match lines(given).last() {
            Some(end) if is_marker(end, "...") => Last::End,
            _ if is_object(given) => Last::Object,
            _ => Last::Document,
        };
        self.wrote(text, last)
    }

    fn end_line(&self, text: &mut String) {
        if self.is_open(text) {
            text.push('\n');
        }
    }

    /// Whether the last line has no end once this is written, too.
    fn is_open(&self, text: &str) -> bool {
        if text.is_empty() { self.open } else { !text.ends_with(['\n', '\r']) }
    }

    fn wrote(&mut self, text: String, last: Last) -> String {
        self.open = self.is_open(&text);
        self.last = last;
        text
    }
}
