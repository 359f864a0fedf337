//! The checker of histories: what it accepts and refuses, compared with a search of all orders.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's functions fail by panicking")]

mod all_orders;
mod lists;
mod random;
mod registers;

use std::time::Duration;

use keelway_e2e::linearizability::{HistoryError, ObjectAction, TimedAction, check};

/// Returns an action with the times of its request and response.
fn done<A>(invoked: u64, returned: u64, action: A) -> TimedAction<A> {
    TimedAction { invoked: Duration::from_millis(invoked), returned: Some(Duration::from_millis(returned)), action }
}

/// Returns an action without a response.
fn failed<A>(invoked: u64, action: A) -> TimedAction<A> {
    TimedAction { invoked: Duration::from_millis(invoked), returned: None, action }
}

fn accept<A: ObjectAction>(history: &[TimedAction<A>]) {
    check(history).unwrap();
}

/// Returns the explanation.
fn refuse<A: ObjectAction>(history: &[TimedAction<A>]) -> String {
    match check(history) {
        Err(error @ HistoryError::NotLinearizable(_)) => error.to_string(),
        other => panic!("{other:?}: {history:?}"),
    }
}
