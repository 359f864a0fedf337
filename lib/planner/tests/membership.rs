//! Changes the members of a store again and again: scaling, drained, silent and lost machines, learners that lag, full databases, orders that are lost,
//! and a driver that dies between any two steps. Our orders never end a majority, and in the end the members are those of the spec.

mod corruption;
mod planted;
mod recovered;
mod space;
mod steps;
mod zones;

use proptest::{collection::vec, prelude::*};

use crate::world::{DriverFate, Round, World};

fn round() -> impl Strategy<Value = Round> {
    let bits = || prop_oneof![5 => Just(0), 1 => (0..6u32).prop_map(|bit| 1 << bit), 1 => any::<u8>()];
    let fate = prop_oneof![
        6 => Just(DriverFate::Lives),
        1 => Just(DriverFate::DiesBeforeTheSave),
        1 => Just(DriverFate::DiesAfterTheSave),
        1 => Just(DriverFate::LosesTheOrder),
    ];
    let replicas = prop_oneof![Just(1), Just(3), Just(5)];
    // Data alone never fills the quota.
    let writes = prop_oneof![2 => Just((0, 0)), 1 => (Just(1), 0..60u64)];
    (replicas, bits(), bits(), bits(), 0..7i64, any::<bool>(), fate, writes).prop_map(
        |(replicas, silent, dead, drained, minutes, lags, fate, writes)| Round {
            replicas,
            silent,
            dead,
            drained,
            minutes,
            lags,
            fate,
            writes,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_majority_is_never_ended_and_the_members_are_those_of_the_spec(
        first in prop_oneof![Just(1), Just(3)],
        rounds in vec((round(), 1..6usize), 0..10),
        lost in vec(0..6usize, 0..3),
    ) {
        let mut world = World::settled(first);
        for (round, times) in &rounds {
            for _ in 0..*times {
                let _ = world.pass(round);
            }
        }
        let replicas = rounds.last().map_or(first, |(round, _)| round.replicas);
        // While the machine of an API server is lost, the other API servers keep their arguments, and no member leaves.
        let lost: Vec<usize> = lost.into_iter().filter(|number| !world.has_api_server(*number)).collect();
        for number in lost {
            world.lose(number);
        }
        world.settle(replicas);
    }
}
