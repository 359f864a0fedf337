//! Faults of input: what is wrong, where, and how to correct it.

use core::fmt;

/// The maximum number of faults that are reported for one input. After that many, a person corrects some and reads the input again.
pub(crate) const MOST_FAULTS: usize = 1000;

/// A fault of a document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The number of the document, counted from 1, and its name: `document 2 (Cluster c1)`. Empty if the fault concerns the entire input.
    pub document: String,
    /// The line of the input, counted from 1. 0 if it is not known.
    pub line: u64,
    /// The field in the notation of `kubectl explain`: `spec.etcd.replicas`. Empty if the fault concerns the document itself.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// How to correct it.
    pub help: String,
}

/// Every fault of an input, at least one, in the order of the input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Faults(pub Vec<Fault>);

impl Fault {
    /// Creates a fault of one field. Callers that know the document and the line add them.
    pub fn of(field: impl Into<String>, problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { document: String::new(), line: 0, field: field.into(), problem: problem.into(), help: help.into() }
    }

    /// Creates a fault of an entry of a map, such as `data[active.crt]`.
    pub fn of_entry(map: &str, key: &str, problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self::of(field(map, key), problem, help)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.document.is_empty() {
            write!(f, "{}", self.document)?;
            if self.line > 0 {
                write!(f, ", line {}", self.line)?;
            }
            write!(f, ": ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}; {}", self.problem, self.help)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

/// Returns the path of a field: `spec.etcd`, or `metadata.labels[a.b/c]` if the name has other characters than letters, digits, - and _.
pub(crate) fn field(parent: &str, key: &str) -> String {
    let simple = key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    match (parent, simple) {
        ("", true) => key.to_owned(),
        (_, true) => format!("{parent}.{key}"),
        (_, false) => format!("{parent}[{key}]"),
    }
}
