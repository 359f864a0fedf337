//! Checks that a history of concurrent operations is linearizable: each operation took effect at one moment between its request and its response.
//!
//! This is the algorithm of Wing and Gong with the memory of Lowe: a depth-first search for an order of the operations that visits each
//! configuration once. Operations that failed may take effect at any time after their request, or never. Equal ones that failed take effect once at
//! most: no two writes have the same number, and no two objects.

mod objects;
mod search;

use std::{fmt::Debug, time::Duration};

pub use objects::{ListAction, RegisterAction};
use search::Search;

/// An action on an object that does one thing at a time, with the result that a client observed.
pub trait ObjectAction: Debug + Sized + PartialEq {
    /// The state of the object. The default is its state before the history.
    type State: Clone + Default + Ord + Debug;

    /// Returns the state after the action. None: the action cannot have this result in this state.
    fn apply(&self, state: &Self::State) -> Option<Self::State>;

    /// Returns what the result of another action shows of the effect of this one, which failed.
    fn effect_in(&self, other: &Self) -> EffectEvidence;
}

/// What the result of an action shows of the effect of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EffectEvidence {
    /// It is the same with and without that effect.
    Nothing,
    /// It may depend on that effect.
    Possible,
    /// Nothing else can be the reason for it.
    Certain,
}

/// An action, with the times of its request and its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedAction<A> {
    /// When the request was sent.
    pub invoked: Duration,
    /// When the response arrived. None: there was no response or an error, so the action may take effect later, or never.
    pub returned: Option<Duration>,
    /// The action.
    pub action: A,
}

/// A history is not known to be linearizable.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// No order of the operations explains all results.
    #[error("not linearizable: {0}")]
    NotLinearizable(Contradiction),
    /// The search was ended.
    #[error("undecided after {configurations} configurations: {farthest}")]
    Undecided {
        /// The number of configurations that the search visited.
        configurations: usize,
        /// Where the order ends that explains most.
        farthest: Contradiction,
    },
}

/// Where the order of operations ends that explains most of a history.
#[derive(Debug, thiserror::Error)]
#[error(
    "in the order that explains most, {explained} of {completed} operations leave {state}, in which none of these can be next:\n{}",
    .open.join("\n")
)]
pub struct Contradiction {
    /// The number of operations that the order explains.
    pub explained: usize,
    /// The number of operations that took effect.
    pub completed: usize,
    /// The state after the explained ones.
    pub state: String,
    /// The operations that could be next.
    pub open: Vec<String>,
}

/// Checks a history. Returns the number of configurations that the search visited.
pub fn check<A: ObjectAction>(history: &[TimedAction<A>]) -> Result<usize, HistoryError> {
    Search::new(history).run()
}
