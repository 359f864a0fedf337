//! Events of the YAML parser to a tree.

use std::{borrow::Cow, collections::BTreeMap};

use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Span, Tag};

use crate::fault::{Fault, MOST_FAULTS};

use super::{MapEntry, Scalar, Tree, Value, YamlNode, field, item};

/// The most bytes and nodes that anchors and aliases may repeat within one document. A few kilobytes can ask for terabytes.
const MOST_REPEATED: usize = 1 << 20;
/// The deepest nesting of a document of ours, several times what any field needs.
const DEEPEST: usize = 64;
/// How much of a path is shown where it is too deep.
const SHOWN: usize = 4;

/// Reads one document. `None` where there is nothing but comments.
pub(crate) fn parse(text: &str, first_line: u64) -> Result<Option<Tree<'_>>, Fault> {
    let mut options = granit_parser::Options::default();
    options.set_emit_comments(false);
    let body = text.trim_start_matches('\u{feff}');
    let mut builder = Builder::new(first_line);
    for event in Parser::new_from_str_with_options(body, options) {
        let (event, span) = event.map_err(|error| Fault {
            line: builder.line(error.marker().line()),
            ..Fault::of(
                "",
                format!("this is not valid YAML: {}", error.info()),
                "correct the text at this line or just before it",
            )
        })?;
        builder.take(event, &span)?;
    }
    Ok(builder.finish())
}

enum BuilderFrame<'a> {
    List { items: Vec<YamlNode<'a>>, line: u64, anchor: usize },
    Map { entries: Vec<MapEntry<'a>>, key: Option<(Option<Cow<'a, str>>, u64)>, line: u64, anchor: usize },
}

struct Builder<'a> {
    first_line: u64,
    stack: Vec<BuilderFrame<'a>>,
    root: Option<YamlNode<'a>>,
    anchors: BTreeMap<usize, Anchor<'a>>,
    repeated: usize,
    faults: Vec<Fault>,
    excess: Option<Fault>,
}

fn path<'f, 'a: 'f>(frames: impl Iterator<Item = &'f BuilderFrame<'a>>) -> String {
    frames.fold(String::new(), |path, frame| match frame {
        BuilderFrame::List { items, .. } => item(&path, items.len()),
        BuilderFrame::Map { key: Some((Some(key), _)), .. } => field(&path, key),
        BuilderFrame::Map { .. } => path,
    })
}

/// What an alias repeats.
struct Anchor<'a> {
    value: Value<'a>,
    weight: usize,
    height: usize,
}

impl<'a> Builder<'a> {
    fn new(first_line: u64) -> Self {
        Self {
            first_line,
            stack: Vec::new(),
            root: None,
            anchors: BTreeMap::new(),
            repeated: 0,
            faults: Vec::new(),
            excess: None,
        }
    }

    fn line(&self, in_chunk: usize) -> u64 {
        self.first_line + u64::try_from(in_chunk).unwrap_or(u64::MAX).saturating_sub(1)
    }

    fn take(&mut self, event: Event<'a>, span: &Span) -> Result<(), Fault> {
        let line = self.line(span.start.line());
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                return Err(Fault {
                    line,
                    ..Fault::of(
                        "",
                        "a second document begins here without a separator",
                        "write --- on a separate line before it",
                    )
                });
            }
            Event::Alias(id) => self.alias(id, line),
            Event::Scalar(text, style, anchor, tag) => {
                let plain = self.is_plain(style, tag.as_deref(), line);
                let value = Value::Scalar(Scalar { text, plain });
                self.place(YamlNode { line, value }, anchor);
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), "seq", line);
                self.may_nest(self.stack.len() + 1, line);
                self.stack.push(BuilderFrame::List { items: Vec::new(), line, anchor });
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), "map", line);
                self.may_nest(self.stack.len() + 1, line);
                self.stack.push(BuilderFrame::Map { entries: Vec::new(), key: None, line, anchor });
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(..)
            | Event::DocumentEnd
            | Event::Anchor(..)
            | Event::UnresolvedAlias(_)
            | _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Option<Tree<'a>> {
        self.root.map(|root| Tree { root, faults: self.faults, excess: self.excess })
    }

    fn exceed(&mut self, line: u64, problem: String, help: &str) {
        if self.excess.is_none() {
            let fault = Fault::of(path(self.stack.iter().take(SHOWN)), problem, help);
            self.excess = Some(Fault { line, ..fault });
        }
    }

    fn fault(&mut self, line: u64, problem: impl Into<String>, help: &str) {
        if self.faults.len() < MOST_FAULTS {
            let fault = Fault::of(self.path(), problem, help);
            self.faults.push(Fault { line, ..fault });
        }
    }

    fn path(&self) -> String {
        path(self.stack.iter())
    }

    fn is_plain(&mut self, style: ScalarStyle, tag: Option<&Tag>, line: u64) -> bool {
        match tag.and_then(Tag::core_suffix) {
            Some("str") => false,
            core => {
                if tag.is_some() && (core.is_none() || style != ScalarStyle::Plain) {
                    self.refuse_tag(line);
                }
                style == ScalarStyle::Plain
            }
        }
    }

    fn check_tag(&mut self, tag: Option<&Tag>, wanted: &str, line: u64) {
        if tag.is_some_and(|tag| tag.core_suffix() != Some(wanted)) {
            self.refuse_tag(line);
        }
    }

    fn refuse_tag(&mut self, line: u64) {
        self.fault(line, "must not have a tag that changes its type", "remove the tag");
    }

    /// Counts what is repeated; `false` once it is too much.
    fn may_repeat(&mut self, weight: usize, line: u64) -> bool {
        self.repeated = self.repeated.saturating_add(weight);
        let fits = self.repeated <= MOST_REPEATED;
        if !fits {
            let problem = format!("anchors and aliases repeat more than {MOST_REPEATED} bytes");
            self.exceed(line, problem, "write the values out");
        }
        fits
    }

    fn may_nest(&mut self, depth: usize, line: u64) -> bool {
        if depth > DEEPEST {
            let problem = format!("values are nested more than {DEEPEST} levels deep");
            self.exceed(line, problem, "reduce the nesting");
        }
        depth <= DEEPEST
    }

    fn alias(&mut self, id: usize, line: u64) {
        let size = self.anchors.get(&id).map(|anchor| (anchor.weight, anchor.height));
        let fits = if let Some((weight, height)) = size {
            self.may_repeat(weight, line) && self.may_nest(self.stack.len() + height, line)
        } else {
            let problem = "an alias must not be inside the value that it repeats";
            self.exceed(line, problem.to_owned(), "write the value out");
            false
        };
        let value = self.anchors.get(&id).filter(|_| fits).map(|anchor| anchor.value.clone());
        let nothing = Value::Scalar(Scalar { text: Cow::Borrowed(""), plain: true });
        self.place(YamlNode { line, value: value.unwrap_or(nothing) }, 0);
    }

    fn anchor(&mut self, id: usize, node: &YamlNode<'a>) {
        if id == 0 || self.repeated > MOST_REPEATED {
            return;
        }
        let (weight, height) = (node.weight(), node.height());
        if self.may_repeat(weight, node.line) {
            self.anchors.insert(id, Anchor { value: node.value.clone(), weight, height });
        }
    }

    fn close(&mut self) {
        let (line, anchor, value) = match self.stack.pop() {
            Some(BuilderFrame::List { items, line, anchor }) => (line, anchor, Value::List(items)),
            Some(BuilderFrame::Map { entries, line, anchor, .. }) => {
                (line, anchor, Value::Map(self.without_duplicates(entries)))
            }
            None => return,
        };
        self.place(YamlNode { line, value }, anchor);
    }

    fn without_duplicates(&mut self, entries: Vec<MapEntry<'a>>) -> Vec<MapEntry<'a>> {
        let mut first: BTreeMap<Cow<'a, str>, u64> = BTreeMap::new();
        let mut kept = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some(line) = first.get(&entry.key).copied() {
                let path = field(&self.path(), &entry.key);
                let fault =
                    Fault::of(path, format!("the field is set twice, first on line {line}"), "remove one of them");
                if self.faults.len() < MOST_FAULTS {
                    self.faults.push(Fault { line: entry.line, ..fault });
                }
            } else {
                first.insert(entry.key.clone(), entry.line);
                kept.push(entry);
            }
        }
        kept
    }

    fn place(&mut self, mut node: YamlNode<'a>, anchor: usize) {
        self.anchor(anchor, &node);
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(BuilderFrame::List { items, .. }) => items.push(node),
            Some(BuilderFrame::Map { entries, key, .. }) => match key.take() {
                Some((key, line)) => {
                    if !matches!(node.value, Value::Scalar(_)) {
                        node.line = line;
                    }
                    entries.extend(key.map(|key| MapEntry { key, line, node }));
                }
                None => self.key(node),
            },
        }
    }

    fn key(&mut self, node: YamlNode<'a>) {
        let line = node.line;
        let text = if let Value::Scalar(scalar) = node.value {
            Some(scalar.text)
        } else {
            self.fault(line, "the name of a field must not be a list or a map", "write a simple name before the colon");
            None
        };
        if let Some(BuilderFrame::Map { key, .. }) = self.stack.last_mut() {
            *key = Some((text, line));
        }
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write;

    use super::*;

    fn tree(text: &str) -> Tree<'_> {
        parse(text, 1).unwrap().unwrap()
    }

    #[test]
    fn a_duplicate_key_is_found_with_both_lines() {
        let tree = tree("a:\n  b: 1\n  b: 2\n");
        let [fault] = tree.faults.as_slice() else { panic!("{:?}", tree.faults) };
        assert_eq!((fault.line, fault.field.as_str()), (3, "a.b"));
        assert!(fault.problem.contains("line 2"));
    }

    #[test]
    fn aliases_are_followed_until_they_explode() {
        let good = tree("a: &a [1, 2]\nb: *a\n");
        assert!(good.excess.is_none());
        let b = good.root.get("b").unwrap();
        assert!(matches!(&b.value, Value::List(items) if items.len() == 2));

        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let below = format!("*a{}, ", level - 1).repeat(9);
            writeln!(bomb, "a{level}: &a{level} [{below}]").unwrap();
        }
        let exploded = tree(&bomb);
        assert!(exploded.excess.unwrap().problem.contains("repeat"));
        assert!(exploded.root.weight() < 3 * MOST_REPEATED);
    }

    #[test]
    fn excessive_nesting_is_reported() {
        let deep = format!("a: {}1{}\n", "[".repeat(100), "]".repeat(100));
        assert!(tree(&deep).excess.unwrap().problem.contains("nested"));
        let mut stairs = "a0: &a0 [x]\n".to_owned();
        for level in 1..1000 {
            writeln!(stairs, "a{level}: &a{level} [*a{}]", level - 1).unwrap();
        }
        let stairs = tree(&stairs);
        assert_eq!(stairs.excess.unwrap().line, 64);
        assert!(stairs.root.height() <= DEEPEST);
    }

    #[test]
    fn comments_alone_are_no_document() {
        assert!(parse("# only this\n", 1).unwrap().is_none());
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let fault = parse("a: 1\nb: [\n", 10).unwrap_err();
        assert!(fault.line >= 11, "{fault:?}");
    }
}
