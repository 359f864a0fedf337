//! One document as a tree that knows its lines.

use std::{borrow::Cow, collections::BTreeMap};

use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Span, Tag};

use crate::fault::Fault;

/// The most bytes and nodes that anchors and aliases may repeat within one document. A few kilobytes can ask for terabytes.
const MOST_REPEATED: usize = 1 << 20;
/// The deepest nesting of a document of ours, several times what any field needs.
const DEEPEST: usize = 64;

/// A value and the line it stands on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node<'a> {
    /// Counted from 1 in the whole input. A list or map stands where its key does.
    pub(crate) line: u64,
    /// What it is.
    pub(crate) value: Value<'a>,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value<'a> {
    /// Everything that is neither list nor map.
    Scalar(Scalar<'a>),
    /// Values in order.
    List(Vec<Node<'a>>),
    /// Fields in order.
    Map(Vec<Entry<'a>>),
}

/// A scalar as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scalar<'a> {
    /// Its text.
    pub(crate) text: Cow<'a, str>,
    /// Whether the text decides its type: neither quotes nor a block nor the tag `!!str` make it a string.
    pub(crate) plain: bool,
}

/// A field of a map.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry<'a> {
    /// Its name.
    pub(crate) key: Cow<'a, str>,
    /// The line of its name.
    pub(crate) line: u64,
    /// Its value.
    pub(crate) node: Node<'a>,
}

/// What a scalar means (YAML 1.2.2, section 10.3, core schema).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Meaning {
    /// Nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number in decimal digits.
    Integer(i128),
    /// Any other number, leading zeros and other bases included: YAML 1.1 and 1.2 read those differently.
    Number(f64),
    /// Text.
    Text,
}

/// A document, and what it uses that documents of ours may not.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    /// The top.
    pub(crate) root: Node<'a>,
    /// Faults that do not keep the tree from being built: of no concern in a document of somebody else's.
    pub(crate) faults: Vec<Fault>,
    /// The bound that it breaks, if any: then values are left out of it, and it is of no use.
    pub(crate) excess: Option<Fault>,
}

impl Scalar<'_> {
    /// What it means.
    pub(crate) fn meaning(&self) -> Meaning {
        if !self.plain {
            return Meaning::Text;
        }
        match self.text.as_ref() {
            "" | "~" | "null" | "Null" | "NULL" => Meaning::Null,
            "true" | "True" | "TRUE" => Meaning::Bool(true),
            "false" | "False" | "FALSE" => Meaning::Bool(false),
            text => number(text),
        }
    }
}

fn number(text: &str) -> Meaning {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = |text: &str, base: u32| !text.is_empty() && text.chars().all(|c| c.is_digit(base));
    if digits(unsigned, 10) {
        let leading_zero = unsigned.len() > 1 && unsigned.starts_with('0');
        if let (false, Ok(integer)) = (leading_zero, text.parse()) {
            return Meaning::Integer(integer);
        }
        return Meaning::Number(text.parse().unwrap_or(f64::NAN));
    }
    let based = |prefix, base| text.strip_prefix(prefix).is_some_and(|rest| digits(rest, base));
    if based("0x", 16)
        || based("0o", 8)
        || matches!(unsigned, ".inf" | ".Inf" | ".INF")
        || matches!(text, ".nan" | ".NaN" | ".NAN")
    {
        return Meaning::Number(f64::NAN);
    }
    let shaped = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    match text.parse() {
        Ok(float) if shaped => Meaning::Number(float),
        _ => Meaning::Text,
    }
}

impl<'a> Node<'a> {
    /// The value of a field of this map.
    pub(crate) fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// A field of this map.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry<'a>> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            Value::Scalar(_) | Value::List(_) => None,
        }
    }

    /// The text of this scalar, where it means something.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) if scalar.meaning() != Meaning::Null => Some(&scalar.text),
            Value::Scalar(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// Whether it is nothing.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.meaning() == Meaning::Null)
    }

    /// The line of a field by its path, or of what is there of it.
    pub(crate) fn line_of(&self, path: &str) -> u64 {
        let mut node = self;
        let mut line = self.line;
        for segment in segments(path) {
            let next = match &node.value {
                Value::Map(_) => node.entry(segment).map(|entry| {
                    line = entry.line;
                    &entry.node
                }),
                Value::List(items) => segment.parse().ok().and_then(|index: usize| items.get(index)),
                Value::Scalar(_) => None,
            };
            let Some(next) = next else { break };
            node = next;
            line = node.line;
        }
        line
    }

    fn height(&self) -> usize {
        match &self.value {
            Value::Scalar(_) => 0,
            Value::List(items) => 1 + items.iter().map(Self::height).max().unwrap_or_default(),
            Value::Map(entries) => 1 + entries.iter().map(|entry| entry.node.height()).max().unwrap_or_default(),
        }
    }

    fn weight(&self) -> usize {
        match &self.value {
            Value::Scalar(scalar) => 1 + scalar.text.len(),
            Value::List(items) => 1 + items.iter().map(Self::weight).sum::<usize>(),
            Value::Map(entries) => entries.iter().fold(1, |sum, entry| sum + entry.key.len() + entry.node.weight()),
        }
    }
}

/// The path of a field: `spec.etcd`, or `metadata.labels[a.b/c]` where the name is no simple word.
pub(crate) fn field(parent: &str, key: &str) -> String {
    let simple = key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    match (parent, simple) {
        ("", true) => key.to_owned(),
        (_, true) => format!("{parent}.{key}"),
        (_, false) => format!("{parent}[{key}]"),
    }
}

/// The path of an item of a list.
pub(crate) fn item(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    core::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if rest.is_empty() {
            return None;
        }
        let (segment, tail) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']').unwrap_or((inner, "")),
            None => rest.split_at_checked(rest.find(['.', '[']).unwrap_or(rest.len()))?,
        };
        rest = tail;
        Some(segment)
    })
}

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
                format!("this is no YAML: {}", error.info()),
                "mend the text at this line or just before it",
            )
        })?;
        builder.take(event, &span)?;
    }
    Ok(builder.finish())
}

enum Frame<'a> {
    List { items: Vec<Node<'a>>, line: u64, anchor: usize },
    Map { entries: Vec<Entry<'a>>, key: Option<(Cow<'a, str>, u64)>, line: u64, anchor: usize },
}

struct Builder<'a> {
    first_line: u64,
    stack: Vec<Frame<'a>>,
    root: Option<Node<'a>>,
    anchors: BTreeMap<usize, Node<'a>>,
    repeated: usize,
    faults: Vec<Fault>,
    excess: Option<Fault>,
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
                        "write --- on a line of its own before it",
                    )
                });
            }
            Event::Alias(id) => self.alias(id, line),
            Event::Scalar(text, style, anchor, tag) => {
                let plain = self.is_plain(style, tag.as_deref(), line);
                let value = Value::Scalar(Scalar { text, plain });
                self.place(Node { line, value }, anchor);
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), "seq", line);
                self.may_nest(self.stack.len() + 1, line);
                self.stack.push(Frame::List { items: Vec::new(), line, anchor });
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), "map", line);
                self.may_nest(self.stack.len() + 1, line);
                self.stack.push(Frame::Map { entries: Vec::new(), key: None, line, anchor });
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

    fn exceed(&mut self, line: u64, problem: String, mend: &str) {
        if self.excess.is_none() {
            let fault = Fault::of(self.path(), problem, mend);
            self.excess = Some(Fault { line, ..fault });
        }
    }

    fn fault(&mut self, line: u64, problem: impl Into<String>, mend: &str) {
        let fault = Fault::of(self.path(), problem, mend);
        self.faults.push(Fault { line, ..fault });
    }

    fn path(&self) -> String {
        self.stack.iter().fold(String::new(), |path, frame| match frame {
            Frame::List { items, .. } => item(&path, items.len()),
            Frame::Map { key: Some(key), .. } => field(&path, &key.0),
            Frame::Map { key: None, .. } => path,
        })
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
        self.fault(line, "a tag changes the type of this value", "take the tag away");
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
            let problem = format!("values are nested more than {DEEPEST} deep");
            self.exceed(line, problem, "write it flatter");
        }
        depth <= DEEPEST
    }

    fn alias(&mut self, id: usize, line: u64) {
        let size = self.anchors.get(&id).map(|node| (node.weight(), node.height()));
        let value = if let Some((weight, height)) = size {
            let fits = self.may_repeat(weight, line) && self.may_nest(self.stack.len() + height, line);
            self.anchors.get(&id).filter(|_| fits).map(|node| node.value.clone())
        } else {
            let problem = "an alias stands inside of what it repeats";
            self.exceed(line, problem.to_owned(), "write the value out");
            None
        };
        let value = value.unwrap_or(Value::Scalar(Scalar { text: Cow::Borrowed(""), plain: true }));
        self.place(Node { line, value }, 0);
    }

    fn close(&mut self) {
        let (line, anchor, value) = match self.stack.pop() {
            Some(Frame::List { items, line, anchor }) => (line, anchor, Value::List(items)),
            Some(Frame::Map { entries, line, anchor, .. }) => {
                (line, anchor, Value::Map(self.without_duplicates(entries)))
            }
            None => return,
        };
        self.place(Node { line, value }, anchor);
    }

    fn without_duplicates(&mut self, entries: Vec<Entry<'a>>) -> Vec<Entry<'a>> {
        let mut first: BTreeMap<Cow<'a, str>, u64> = BTreeMap::new();
        let mut kept = Vec::with_capacity(entries.len());
        for entry in entries {
            if let Some(line) = first.get(&entry.key).copied() {
                let path = field(&self.path(), &entry.key);
                let fault =
                    Fault::of(path, format!("the field is given twice, first on line {line}"), "keep one of them");
                self.faults.push(Fault { line: entry.line, ..fault });
            } else {
                first.insert(entry.key.clone(), entry.line);
                kept.push(entry);
            }
        }
        kept
    }

    fn place(&mut self, mut node: Node<'a>, anchor: usize) {
        if anchor > 0 && self.may_repeat(node.weight(), node.line) {
            self.anchors.insert(anchor, node.clone());
        }
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Frame::List { items, .. }) => items.push(node),
            Some(Frame::Map { entries, key, .. }) => match key.take() {
                Some((key, line)) => {
                    if !matches!(node.value, Value::Scalar(_)) {
                        node.line = line;
                    }
                    entries.push(Entry { key, line, node });
                }
                None => self.key(node),
            },
        }
    }

    fn key(&mut self, node: Node<'a>) {
        let line = node.line;
        let text = if let Value::Scalar(scalar) = node.value {
            scalar.text
        } else {
            self.fault(line, "the name of a field is a list or a map", "write a simple name before the colon");
            Cow::Borrowed("")
        };
        if let Some(Frame::Map { key, .. }) = self.stack.last_mut() {
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

    fn plain(text: &str) -> Meaning {
        let text = Cow::Borrowed(text);
        Scalar { text, plain: true }.meaning()
    }

    #[test]
    fn scalars_mean_what_yaml_1_2_says() {
        assert_eq!(plain("yes"), Meaning::Text);
        assert_eq!(plain("1.37.0"), Meaning::Text);
        assert_eq!(plain("12:30:45"), Meaning::Text);
        assert_eq!(plain("1.37"), Meaning::Number(1.37));
        assert_eq!(plain("-3"), Meaning::Integer(-3));
        assert_eq!(plain("true"), Meaning::Bool(true));
        assert_eq!(plain("~"), Meaning::Null);
        assert!(matches!(plain("0777"), Meaning::Number(_)));
        assert!(matches!(plain("0x1f"), Meaning::Number(_)));
        assert!(matches!(plain("1e3"), Meaning::Number(_)));
        assert_eq!(plain("inf"), Meaning::Text);
        assert_eq!(plain("10.0.0.11"), Meaning::Text);
        assert_eq!(plain("-"), Meaning::Text);
    }

    #[test]
    fn every_path_has_its_line() {
        let tree = tree("a:\n  b:\n  - x: 1\n  - x: 2\n    y.z/w: 3\n");
        assert_eq!(tree.root.line_of("a.b[1].x"), 4);
        assert_eq!(tree.root.line_of("a.b[1][y.z/w]"), 5);
        assert_eq!(tree.root.line_of("a.b"), 2);
        assert_eq!(tree.root.line_of("a.nothing"), 1);
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
    fn what_is_nested_too_deep_is_told() {
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
