//! Documents to text: ours in canonical form, those of others as they were.

use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::{
    Documents,
    documents::{Foreign, Place},
    kind::Kind,
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
        let mut output = Output::default();
        for place in self.in_order() {
            match &place {
                Place::Hypervisor(name) => {
                    output.ours(Kind::Hypervisor, self.hypervisors.get(name));
                }
                Place::Cluster(name) => output.ours(Kind::Cluster, self.clusters.get(name)),
                Place::Component(name) => output.ours(Kind::Component, self.components.get(name)),
                Place::Secret(name) => output.ours(Kind::Secret, self.secrets.get(name)),
                Place::Foreign(foreign) => output.foreign(foreign),
            }
        }
        output.text
    }
}

/// One document of ours in canonical YAML, without a separator.
pub(crate) fn canonical(kind: Kind, document: &impl Serialize) -> String {
    // Types of plain data with text for keys have no way to fail here.
    let mut json = serde_json::to_value(document).unwrap_or_default();
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

#[derive(Default)]
struct Output {
    text: String,
    last: Last,
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

impl Output {
    fn ours(&mut self, kind: Kind, document: Option<&impl Serialize>) {
        let Some(document) = document else { return };
        if self.last != Last::Nothing {
            self.end_line();
            self.text.push_str("---\n");
        }
        self.text.push_str(&canonical(kind, document));
        self.end_line();
        self.last = Last::Document;
    }

    fn foreign(&mut self, Foreign(text): &Foreign) {
        let separated = is_marker(text, "---");
        let fits = match self.last {
            Last::Nothing | Last::End => true,
            Last::Object => separated || begins_with_object(text),
            Last::Document => separated,
        };
        if !fits {
            self.end_line();
            self.text.push_str("...\n");
        } else if separated || self.last == Last::End {
            self.end_line();
        }
        self.text.push_str(text);
        self.last = match lines(text).last() {
            Some(end) if is_marker(end, "...") => Last::End,
            _ if is_object(text) => Last::Object,
            _ => Last::Document,
        };
    }

    fn end_line(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(['\n', '\r']) {
            self.text.push('\n');
        }
    }
}
