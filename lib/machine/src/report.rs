//! The result of an execution.

use crate::action::Action;

/// What an execution did, what failed, and what it did not start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct ApplyReport {
    /// Actions that are done. Those of one pod are in order.
    pub done: Vec<Action>,
    /// Actions that were started and failed, at most one for each pod.
    pub failed: Vec<ActionFailure>,
    /// Actions that were not started, because an earlier step failed or the execution was stopped.
    pub left_out: Vec<Action>,
}

/// An action that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionFailure {
    /// The action that failed.
    pub action: Action,
    /// The error and its causes, as one text.
    pub error: String,
}

/// An event of an execution, for progress output.
#[derive(Debug, Clone, Copy)]
pub enum Effect<'a> {
    /// The action starts.
    Begins(&'a Action),
    /// The action is done.
    Done(&'a Action),
    /// The action failed, with this error.
    Failed(&'a Action, &'a str),
}

impl ApplyReport {
    /// Returns whether everything was done.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.left_out.is_empty()
    }

    /// Adds the results of another execution.
    pub fn add(&mut self, other: Self) {
        self.done.extend(other.done);
        self.failed.extend(other.failed);
        self.left_out.extend(other.left_out);
    }
}
