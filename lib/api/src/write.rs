//! Writes documents as text: those of Keelway in canonical form, those of others unchanged.

use serde_json::{Map, Value as Json};

use crate::{
    Documents,
    document::{DocumentName, DocumentRef},
    documents::{Foreign, InputDocument},
    kind::DocumentKind,
    schema,
    split::{begins_with_object, is_marker, is_object, lines},
};

/// The order of fields in a document. Other fields follow in the order of their type.
const FIELDS: [&str; 8] = ["apiVersion", "kind", "metadata", "spec", "status", "type", "immutable", "data"];

impl Documents {
    /// Returns all documents as one text, in the order of reading. New documents follow.
    ///
    /// Documents of Keelway are written in canonical YAML, so that equal documents have equal texts. Documents of others are unchanged.
    #[must_use]
    pub fn write(&self) -> String {
        self.pieces().collect()
    }

    /// Returns the same text, one document at a time, so that the text of a large fleet need not be in memory.
    pub fn pieces(&self) -> impl Iterator<Item = String> {
        let mut output = DocumentWriter::default();
        self.in_order().into_iter().map(move |place| match &place {
            InputDocument::Ours(name) => output.ours(self.text_of(name)),
            InputDocument::Foreign(foreign) => output.foreign(foreign),
        })
    }

    /// Returns one document as canonical YAML, without a separator, or `None` if there is no document with this name.
    #[must_use]
    pub fn text_of(&self, name: &DocumentName) -> Option<String> {
        self.get(name).map(DocumentRef::text)
    }
}

/// Returns a document of Keelway as canonical YAML, without a separator.
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

/// The state after the documents that were written so far.
#[derive(Default)]
struct DocumentWriter {
    last: Last,
    /// Whether the last line has no line break yet.
    open: bool,
}

/// The last document, which determines what may follow without a separator.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Last {
    #[default]
    Nothing,
    /// Only a document with a separator may follow.
    Document,
    /// A JSON object. Another JSON object may follow.
    Object,
    /// The marker `...`. Any document may follow.
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

    /// Returns whether the last line has no line break after this text is written.
    fn is_open(&self, text: &str) -> bool {
        if text.is_empty() { self.open } else { !text.ends_with(['\n', '\r']) }
    }

    fn wrote(&mut self, text: String, last: Last) -> String {
        self.open = self.is_open(&text);
        self.last = last;
        text
    }
}
