//! The creation of a cluster, also if a pass ends before all of its actions are done, and machines that are not part of it.

use keelway_api::machine::Amount;

use super::{Scenario, worlds};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "creation-of-one-replica",
        question: "What does the first pass over a cluster of one replica do?",
        from: worlds::one_unborn,
        change: |_| {},
    },
    Scenario {
        name: "creation-of-three-replicas",
        question: "What does the first pass over a cluster of three replicas do?",
        from: worlds::three_unborn,
        change: |_| {},
    },
    Scenario {
        name: "creation-second-pass",
        question: "What does the creation of a cluster do once the data directories are marked?",
        from: worlds::one_unborn,
        change: |world| {
            world.pass();
        },
    },
    Scenario {
        name: "creation-third-pass",
        question: "What does the creation of a cluster do once its API server is ready?",
        from: worlds::one_unborn,
        change: |world| {
            world.pass();
            world.pass();
        },
    },
    Scenario {
        name: "creation-over",
        question: "What is there to do if a cluster is created and healthy?",
        from: worlds::three,
        change: |_| {},
    },
    Scenario {
        name: "creation-died-after-the-save",
        question: "What follows if the first pass was killed after its documents were saved, before any effect?",
        from: worlds::one_unborn,
        change: |world| {
            world.pass_that_reaches(|_, _| Vec::new());
        },
    },
    Scenario {
        name: "creation-died-within-the-first-pod",
        question: "What follows if the first pass was killed while it created the directories and files of the first pod?",
        from: worlds::one_unborn,
        change: |world| {
            world.pass_that_reaches(|_, mut actions| {
                actions.truncate(6);
                actions
            });
        },
    },
    Scenario {
        name: "creation-died-before-the-record",
        question: "What follows if the first pass was killed when only the record of its work was missing?",
        from: worlds::one_unborn,
        change: |world| {
            world.pass_that_reaches(|_, mut actions| {
                actions.pop();
                actions
            });
        },
    },
    Scenario {
        name: "creation-died-before-the-first-start",
        question: "What follows if the pass that starts etcd was killed between the creation of its container and the start?",
        from: worlds::one_unborn,
        change: |world| {
            world.pass();
            world.pass_that_reaches(|_, actions| {
                let before_start = actions.iter().position(|action| action.to_string().starts_with("start container"));
                actions.into_iter().take(before_start.unwrap_or_default()).collect()
            });
        },
    },
    Scenario {
        name: "creation-with-a-machine-that-does-not-answer",
        question: "Where are three replicas placed while one machine does not respond?",
        from: worlds::three_unborn,
        change: |world| world.silence("private-2", keelway_api::machine::UnreachableReason::Asked, "no route to host"),
    },
    Scenario {
        name: "creation-with-a-cordoned-machine",
        question: "Where are three replicas placed while one machine is cordoned?",
        from: worlds::three_unborn,
        change: |world| world.hypervisor("private-1").spec.unschedulable = true,
    },
    Scenario {
        name: "creation-with-a-full-disk",
        question: "Where are three replicas placed while the disk of one machine is full?",
        from: worlds::three_unborn,
        change: |world| world.machine("private-3").state.disk_pressure = true,
    },
    Scenario {
        name: "creation-with-a-full-zone",
        question: "Where are three replicas placed while the disks of one zone are full?",
        from: worlds::three_unborn,
        change: |world| {
            for name in ["private-1", "private-4", "public-1"] {
                world.machine(name).state.disk_pressure = true;
            }
        },
    },
    Scenario {
        name: "creation-without-room",
        question: "What is waited for if the only private machine is too small?",
        from: worlds::one_unborn,
        change: |world| {
            let small = Amount { cpu_millis: 400, memory_bytes: 1 << 30 };
            world.machine("private-1").state.capacity = Some(small);
        },
    },
    Scenario {
        name: "creation-beside-a-stranger",
        question: "Which ports are assigned if another program listens on the first ones?",
        from: worlds::one_unborn,
        change: |world| {
            world.occupy("private-1", 20_001);
            world.occupy("public-1", 20_000);
        },
    },
    Scenario {
        name: "creation-without-ports",
        question: "What is waited for if the ranges of ports are full?",
        from: worlds::one_and_a_new_one,
        change: |world| {
            world.hypervisor("private-1").spec.port_range.to = 20_007;
            world.hypervisor("public-1").spec.port_range.to = 20_007;
            (20_001..20_008).for_each(|port| world.occupy("public-1", port));
        },
    },
    Scenario {
        name: "creation-of-a-second-cluster",
        question: "What does a second cluster on the same machines get?",
        from: worlds::one_and_a_new_one,
        change: |_| {},
    },
];
