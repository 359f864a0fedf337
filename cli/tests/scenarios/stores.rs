//! Stores that are full or corrupt, or whose members another client changed.

use keelway_api::store_observation::MemberId;

use super::{Scenario, worlds};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "etcd-fragmented",
        question: "What is done first where the files of etcd are near their quota and mostly free?",
        from: worlds::three,
        change: |world| world.fragment("c1"),
    },
    Scenario {
        name: "etcd-without-space",
        question: "What is done first where etcd has raised its alarm NOSPACE?",
        from: worlds::three,
        change: |world| world.store("c1").write(5, 95),
    },
    Scenario {
        name: "etcd-without-space-leader",
        question: "What is done where etcd has no space and all members but the leader are defragmented?",
        from: worlds::three,
        change: |world| {
            world.store("c1").write(5, 95);
            world.pass_until_ordered("move the leader");
        },
    },
    Scenario {
        name: "etcd-with-space-again",
        question: "What is done where etcd has space again and its alarm NOSPACE is still raised?",
        from: worlds::three,
        change: |world| {
            world.store("c1").write(5, 95);
            world.pass_until_ordered("disarm");
        },
    },
    Scenario {
        name: "etcd-filled-by-data",
        question: "What is done where the data in use fills the quota of etcd?",
        from: worlds::three,
        change: |world| {
            world.store("c1").write(100, 0);
            world.pass();
        },
    },
    Scenario {
        name: "etcd-member-corrupt",
        question: "What is done first where the data of a member of etcd differs from that of the others?",
        from: worlds::three,
        change: |world| {
            let id = world.member("c1/etcd-1");
            world.store("c1").corrupt(id);
        },
    },
    Scenario {
        name: "etcd-member-corrupt-removed",
        question: "What is done once etcd has removed a corrupt member?",
        from: worlds::three,
        change: |world| {
            let id = world.member("c1/etcd-1");
            world.store("c1").corrupt(id);
            world.pass_until_ordered("disarm");
        },
    },
    Scenario {
        name: "etcd-corrupt-without-a-member",
        question: "What is done where etcd does not know which of its members is corrupt?",
        from: worlds::three,
        change: |world| world.store("c1").corrupt(MemberId(0)),
    },
    Scenario {
        name: "etcd-member-removed-by-another-client",
        question: "What is done where another client has removed a member of etcd?",
        from: worlds::three,
        change: |world| world.remove_as_another_client("c1/etcd-1"),
    },
];
