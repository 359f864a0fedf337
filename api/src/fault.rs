//! Faults of input: what is wrong, where, and how to mend it.

use core::fmt;

use crate::tree;

/// The most faults of one input that are told. A person mends none of the rest before reading again.
pub(crate) const MOST_FAULTS: usize = 1000;

/// One fault of one document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Which document, counted from 1, and what it is: `document 2 (Cluster c1)`. Empty where the whole input is at fault.
    pub document: String,
    /// The line of the input, counted from 1. 0 where there is none.
    pub line: u64,
    /// The field, as `kubectl explain` writes it: `spec.etcd.replicas`. Empty where it is the document itself.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub help: String,
}

/// Every fault of an input, at least one, in the order of the input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Faults(pub Vec<Fault>);

impl Fault {
    /// A fault of one field; document and line are filled in by who knows them.
    pub fn of(field: impl Into<String>, problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { document: String::new(), line: 0, field: field.into(), problem: problem.into(), help: help.into() }
    }

    /// The same for an entry of a map, such as `data[active.crt]`.
    pub fn of_entry(map: &str, key: &str, problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self::of(tree::field(map, key), problem, help)
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
