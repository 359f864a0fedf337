//! What came of executing actions.

use std::error::Error;

use crate::action::Action;

/// What an execution did, could not do, and did not begin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct ApplyReport {
    /// Done, those of one pod in their order.
    pub done: Vec<Action>,
    /// Begun and not done, at most one for each pod.
    pub failed: Vec<ActionFailure>,
    /// Not begun: a step before failed, or execution was to stop.
    pub left_out: Vec<Action>,
}

/// An action that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionFailure {
    /// The action.
    pub action: Action,
    /// The error and its causes, in words for people.
    pub error: String,
}

/// What happens during an execution, for those who watch.
#[derive(Debug, Clone, Copy)]
pub enum Effect<'a> {
    /// The action begins.
    Begins(&'a Action),
    /// The action is done.
    Done(&'a Action),
    /// The action failed, and why.
    Failed(&'a Action, &'a str),
}

impl ApplyReport {
    /// Whether everything was done.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.left_out.is_empty()
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.done.extend(other.done);
        self.failed.extend(other.failed);
        self.left_out.extend(other.left_out);
    }
}

/// An error and its causes in one line.
#[must_use]
pub fn chain_text(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| Error::source(*error));
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}
