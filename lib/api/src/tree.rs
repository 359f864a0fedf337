//! A document as a tree of values with their lines.

mod build;

use std::borrow::Cow;

pub(crate) use crate::fault::field;
pub(crate) use build::parse;

use crate::fault::Fault;

/// A value and its line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct YamlNode<'a> {
    /// The line in the entire input, counted from 1. A list or map is on the line of its key.
    pub(crate) line: u64,
    pub(crate) value: Value<'a>,
}

/// The value of a node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value<'a> {
    /// A value that is neither a list nor a map.
    Scalar(Scalar<'a>),
    /// Values in order.
    List(Vec<YamlNode<'a>>),
    /// Fields in order.
    Map(Vec<MapEntry<'a>>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scalar<'a> {
    pub(crate) text: Cow<'a, str>,
    /// Whether the text determines the type: it has no quotes, is not a block, and has no tag `!!str`, any of which makes it a string.
    pub(crate) plain: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MapEntry<'a> {
    pub(crate) key: Cow<'a, str>,
    /// The line of the key.
    pub(crate) line: u64,
    pub(crate) node: YamlNode<'a>,
}

/// The type of a scalar (YAML 1.2.2, section 10.3, core schema).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ScalarMeaning {
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer in decimal digits.
    Integer(i128),
    /// Any other number, including those with leading zeros or another base, which YAML 1.1 and 1.2 interpret differently.
    Number(f64),
    /// Anything else, including numbers that are too large for a float: `kubectl` writes an etcd ID such as `621e818197962705` without quotes.
    Text,
}

/// A document, and its YAML features that documents of Keelway may not use.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    pub(crate) root: YamlNode<'a>,
    /// Faults despite which the tree could be built. They do not matter in a document of another program.
    pub(crate) faults: Vec<Fault>,
    /// The limit that the document exceeds, if any. The tree then lacks values and must not be used.
    pub(crate) excess: Option<Fault>,
}

impl Scalar<'_> {
    /// Returns the type and the value of the scalar.
    pub(crate) fn meaning(&self) -> ScalarMeaning {
        if !self.plain {
            return ScalarMeaning::Text;
        }
        match self.text.as_ref() {
            "" | "~" | "null" | "Null" | "NULL" => ScalarMeaning::Null,
            "true" | "True" | "TRUE" => ScalarMeaning::Bool(true),
            "false" | "False" | "FALSE" => ScalarMeaning::Bool(false),
            text => number(text),
        }
    }
}

fn number(text: &str) -> ScalarMeaning {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = |text: &str, base: u32| !text.is_empty() && text.chars().all(|c| c.is_digit(base));
    if digits(unsigned, 10) {
        let leading_zero = unsigned.len() > 1 && unsigned.starts_with('0');
        if let (false, Ok(integer)) = (leading_zero, text.parse()) {
            return ScalarMeaning::Integer(integer);
        }
        return float(text);
    }
    let based = |prefix, base| text.strip_prefix(prefix).is_some_and(|rest| digits(rest, base));
    if based("0x", 16)
        || based("0o", 8)
        || matches!(unsigned, ".inf" | ".Inf" | ".INF")
        || matches!(text, ".nan" | ".NaN" | ".NAN")
    {
        return ScalarMeaning::Number(f64::NAN);
    }
    let shaped = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    if shaped { float(text) } else { ScalarMeaning::Text }
}

fn float(text: &str) -> ScalarMeaning {
    match text.parse::<f64>() {
        Ok(float) if float.is_finite() => ScalarMeaning::Number(float),
        _ => ScalarMeaning::Text,
    }
}

impl<'a> YamlNode<'a> {
    /// Returns the value of a field of this map.
    pub(crate) fn get(&self, key: &str) -> Option<&YamlNode<'a>> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// Returns a field of this map.
    pub(crate) fn entry(&self, key: &str) -> Option<&MapEntry<'a>> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            Value::Scalar(_) | Value::List(_) => None,
        }
    }

    /// Returns the text of this scalar, unless it is null.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) if scalar.meaning() != ScalarMeaning::Null => Some(&scalar.text),
            Value::Scalar(_) | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// Returns whether the value is null.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.meaning() == ScalarMeaning::Null)
    }

    /// Returns the line of a field, or of its closest existing ancestor.
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

/// Returns the path of an item of a list.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Tree<'_> {
        parse(text, 1).unwrap().unwrap()
    }

    fn plain(text: &str) -> ScalarMeaning {
        let text = Cow::Borrowed(text);
        Scalar { text, plain: true }.meaning()
    }

    #[test]
    fn scalars_follow_yaml_1_2() {
        assert_eq!(plain("yes"), ScalarMeaning::Text);
        assert_eq!(plain("1.37.0"), ScalarMeaning::Text);
        assert_eq!(plain("12:30:45"), ScalarMeaning::Text);
        assert_eq!(plain("1.37"), ScalarMeaning::Number(1.37));
        assert_eq!(plain("-3"), ScalarMeaning::Integer(-3));
        assert_eq!(plain("true"), ScalarMeaning::Bool(true));
        assert_eq!(plain("~"), ScalarMeaning::Null);
        assert!(matches!(plain("0777"), ScalarMeaning::Number(_)));
        assert!(matches!(plain("0x1f"), ScalarMeaning::Number(_)));
        assert!(matches!(plain("1e3"), ScalarMeaning::Number(_)));
        assert_eq!(plain("inf"), ScalarMeaning::Text);
        assert_eq!(plain("621e818197962705"), ScalarMeaning::Text);
        assert_eq!(plain(&"9".repeat(400)), ScalarMeaning::Text);
        assert_eq!(plain("10.0.0.11"), ScalarMeaning::Text);
        assert_eq!(plain("-"), ScalarMeaning::Text);
    }

    #[test]
    fn every_path_has_its_line() {
        let tree = tree("a:\n  b:\n  - x: 1\n  - x: 2\n    y.z/w: 3\n");
        assert_eq!(tree.root.line_of("a.b[1].x"), 4);
        assert_eq!(tree.root.line_of("a.b[1][y.z/w]"), 5);
        assert_eq!(tree.root.line_of("a.b"), 2);
        assert_eq!(tree.root.line_of("a.nothing"), 1);
    }
}
