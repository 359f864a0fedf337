//! Fleets: the creation, replicas that fail, and changes of a document that turn a cluster into a fleet or back.

use keelway_api::cluster::FleetSpec;

use super::{Scenario, worlds};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "fleet-creation-of-one-replica",
        question: "What does the first pass over a fleet of one replica do?",
        from: worlds::small_fleet_unborn,
        change: |_| {},
    },
    Scenario {
        name: "fleet-creation-third-pass",
        question: "What does the creation of a fleet do once its API server is ready?",
        from: worlds::small_fleet_unborn,
        change: |world| {
            world.pass();
            world.pass();
        },
    },
    Scenario {
        name: "fleet-creation-of-three-replicas",
        question: "What does the first pass over a fleet of three replicas do?",
        from: worlds::large_fleet_unborn,
        change: |_| {},
    },
    Scenario {
        name: "fleet-creation-over",
        question: "What is there to do if a fleet is created and healthy?",
        from: worlds::large_fleet,
        change: |_| {},
    },
    Scenario {
        name: "fleet-with-an-ill-controller",
        question: "What is done about a fleet-controller that is not ready?",
        from: worlds::large_fleet,
        change: |world| world.make_ill("f1/fleet-controller-0"),
    },
    Scenario {
        name: "fleet-that-is-to-be-a-cluster",
        question: "What happens to a fleet whose document loses spec.fleet?",
        from: worlds::large_fleet,
        change: |world| world.cluster("f1").spec.fleet = None,
    },
    Scenario {
        name: "cluster-that-is-to-be-a-fleet",
        question: "What happens to a cluster whose document gets spec.fleet?",
        from: worlds::one,
        change: |world| world.cluster("c1").spec.fleet = Some(FleetSpec::default()),
    },
];
