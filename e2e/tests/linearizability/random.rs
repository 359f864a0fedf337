//! Random histories: short ones with any results, and long ones of a correct object.

use std::{collections::BTreeSet, time::Duration};

use keelway_e2e::linearizability::{ListAction, ObjectAction, RegisterAction, TimedAction, check};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

use crate::all_orders;

/// The number of short histories of each object.
const SHORT: u64 = 3_000;
/// The number of operations in a long history, as of the longest case of the live test.
const LONG: usize = 2_000;
const CLIENTS: usize = 10;

#[test]
fn short_histories_are_judged_as_by_all_orders() {
    judge_alike(|random, fresh| match random.random_range(0..5) {
        0 | 1 => RegisterAction::Write(fresh),
        2 => RegisterAction::Read(None),
        _ => RegisterAction::Read(Some(random.random_range(1..4))),
    });
    judge_alike(|random, fresh| {
        let number = random.random_range(1..4);
        match random.random_range(0..6) {
            0 | 1 => ListAction::Create(fresh),
            2 => ListAction::Delete(number),
            3 => ListAction::NotFound(number),
            _ => ListAction::List((1..4).filter(|_| random.random_bool(0.4)).collect()),
        }
    });
}

/// Both verdicts occur often.
fn judge_alike<A: ObjectAction>(action: impl Fn(&mut ChaCha8Rng, u64) -> A) {
    let mut accepted = 0;
    for seed in 0..SHORT {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let count = random.random_range(2..7_u64);
        let history: Vec<_> = (1..=count).map(|fresh| any_times(&mut random, |random| action(random, fresh))).collect();
        let is_explained = all_orders::explain(&history);
        assert_eq!(check(&history).is_ok(), is_explained, "seed {seed}: {history:?}");
        accepted += u64::from(is_explained);
    }
    assert!((SHORT / 20..SHORT * 19 / 20).contains(&accepted), "{accepted}");
}

fn any_times<A>(random: &mut ChaCha8Rng, action: impl Fn(&mut ChaCha8Rng) -> A) -> TimedAction<A> {
    let invoked = random.random_range(0..10);
    let took = random.random_range(0..6);
    let returned = random.random_bool(0.8).then(|| Duration::from_millis(invoked + took));
    TimedAction { invoked: Duration::from_millis(invoked), returned, action: action(random) }
}

#[test]
fn a_long_history_of_a_register_is_decided_soon() {
    let mut written = 0;
    let mut history = of_a_correct_object::<RegisterAction>(3, |random, state: &Option<u64>| {
        if random.random_bool(0.5) {
            return RegisterAction::Read(*state);
        }
        written += 1;
        RegisterAction::Write(written)
    });
    let visited = check(&history).unwrap();
    assert!(visited < 20 * LONG, "{visited}");

    // One stale read, of a write that another one had replaced long before.
    let of_later = |one: &&mut TimedAction<RegisterAction>| {
        one.returned.is_some() && matches!(one.action, RegisterAction::Read(Some(number)) if number > 100)
    };
    history.iter_mut().rev().find(of_later).unwrap().action = RegisterAction::Read(Some(50));
    assert!(check(&history).is_err());
}

#[test]
fn a_long_history_of_a_list_is_decided_soon() {
    let mut created = 0;
    let mut history = of_a_correct_object::<ListAction>(5, |random, state: &BTreeSet<u64>| {
        match (random.random_range(0..4), state.first()) {
            (0 | 1, _) => ListAction::List(state.clone()),
            (2, Some(first)) if state.len() > 40 => ListAction::Delete(*first),
            _ => {
                created += 1;
                ListAction::Create(created)
            }
        }
    });
    let visited = check(&history).unwrap();
    assert!(visited < 20 * LONG, "{visited}");

    let last = history.iter_mut().rev().find_map(|one| match &mut one.action {
        ListAction::List(found) if one.returned.is_some() => Some(found),
        ListAction::Create(_) | ListAction::Delete(_) | ListAction::NotFound(_) | ListAction::List(_) => None,
    });
    // An object that was created long before.
    last.unwrap().pop_first();
    assert!(check(&history).is_err());
}

/// Returns what concurrent clients observe of an object whose actions take effect between request and response. One of fifty responses is lost.
fn of_a_correct_object<A: ObjectAction>(
    seed: u64,
    mut action: impl FnMut(&mut ChaCha8Rng, &A::State) -> A,
) -> Vec<TimedAction<A>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut state = A::State::default();
    let mut free = [0_u64; CLIENTS];
    let (mut now, mut history) = (0, Vec::new());
    while history.len() < LONG {
        // The operation takes effect now. Its client sent the request before, and gets the response after.
        now += random.random_range(1..40);
        let client = random.random_range(0..CLIENTS);
        if free[client] >= now {
            continue;
        }
        let invoked = random.random_range(free[client]..now);
        let returned = now + random.random_range(1..100);
        free[client] = returned + 1;
        let action = action(&mut random, &state);
        state = action.apply(&state).unwrap();
        let answered = random.random_bool(0.98).then(|| Duration::from_millis(returned));
        history.push(TimedAction { invoked: Duration::from_millis(invoked), returned: answered, action });
    }
    history
}
