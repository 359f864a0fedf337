//! Another checker, for short histories: it tries every order of every subset of the failed operations.

use keelway_e2e::linearizability::{ObjectAction, TimedAction};

pub(crate) fn explain<A: ObjectAction>(history: &[TimedAction<A>]) -> bool {
    extend(&history.iter().collect::<Vec<_>>(), &A::State::default())
}

/// Whether the remaining operations have an order that begins in this state.
fn extend<A: ObjectAction>(remaining: &[&TimedAction<A>], state: &A::State) -> bool {
    if remaining.iter().all(|one| one.returned.is_none()) {
        return true;
    }
    (0..remaining.len()).any(|index| {
        let next = remaining[index];
        let mut others = remaining.to_vec();
        others.remove(index);
        let can_be_next = others.iter().all(|other| other.returned.is_none_or(|returned| returned >= next.invoked));
        can_be_next && next.action.apply(state).is_some_and(|state| extend(&others, &state))
    })
}
