//! Stores of which no majority works any more.

use keelway_api::{
    Time,
    hypervisor::LOST_ANNOTATION,
    machine::UnreachableReason,
    store_rebuild::{EtcdRecovery, QuorumRecovery, RebuildPhase},
};

use super::{Scenario, world::World, worlds};

pub(super) const LOST: [&str; 2] = ["c1/etcd-1", "c1/etcd-2"];

fn lose_two(world: &mut World) {
    lose(world, &LOST);
}

/// The machines of these members do not respond any more, and passes have recorded that.
pub(super) fn lose(world: &mut World, members: &[&str]) {
    for member in members {
        let place = world.place_of(member);
        world.silence(&place, UnreachableReason::Asked, "no route to host");
    }
    world.pass();
    world.pass();
}

pub(super) fn annotate(world: &mut World, members: &[&str]) {
    for member in members {
        let place = world.place_of(member);
        let lost = [(LOST_ANNOTATION.to_owned(), "true".to_owned())];
        world.hypervisor(&place).metadata.annotations = Some(lost.into());
    }
}

fn request(world: &mut World) {
    let requested_at = Time(world.now);
    let lost = ["etcd-1", "etcd-2"].map(|name| name.parse().unwrap()).to_vec();
    world.cluster("c1").spec.etcd.recover_quorum = Some(QuorumRecovery { requested_at, lost });
}

fn rebuild_until(world: &mut World, phase: RebuildPhase) {
    lose_two(world);
    annotate(world, &LOST);
    request(world);
    world.pass_until_phase(Some(phase));
}

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "quorum-lost",
        question: "What is reported where two of three machines with members of etcd do not respond?",
        from: worlds::three,
        change: lose_two,
    },
    Scenario {
        name: "quorum-lost-automatic",
        question: "What is waited for with an automatic recovery where two of three machines do not respond?",
        from: worlds::three,
        change: |world| {
            lose_two(world);
            world.cluster("c1").spec.etcd.recovery = EtcdRecovery::Automatic;
        },
    },
    Scenario {
        name: "quorum-lost-automatic-one-marked",
        question: "What is waited for with an automatic recovery where one of the two machines is marked as lost?",
        from: worlds::three,
        change: |world| {
            lose_two(world);
            annotate(world, &LOST[..1]);
            world.cluster("c1").spec.etcd.recovery = EtcdRecovery::Automatic;
        },
    },
    Scenario {
        name: "quorum-lost-requested",
        question: "What is done first where a person requests that etcd continues from the member that remains?",
        from: worlds::three,
        change: |world| {
            lose_two(world);
            annotate(world, &LOST);
            request(world);
        },
    },
    Scenario {
        name: "quorum-rebuild-stop",
        question: "What is done where etcd is to be rebuilt and everything was told to stop?",
        from: worlds::three,
        change: |world| rebuild_until(world, RebuildPhase::Stopping),
    },
    Scenario {
        name: "quorum-rebuild-copy",
        question: "What is done where the data of the member that remains was copied?",
        from: worlds::three,
        change: |world| rebuild_until(world, RebuildPhase::Preparing),
    },
    Scenario {
        name: "quorum-rebuild-alone",
        question: "What is done where the member that remains has become the only one?",
        from: worlds::three,
        change: |world| rebuild_until(world, RebuildPhase::Starting),
    },
    Scenario {
        name: "quorum-rebuild-restart",
        question: "What is done where the only member has started again?",
        from: worlds::three,
        change: |world| rebuild_until(world, RebuildPhase::Restarting),
    },
    Scenario {
        name: "quorum-rebuild-over",
        question: "What is done where an API server serves what the only member has?",
        from: worlds::three,
        change: |world| rebuild_until(world, RebuildPhase::Serving),
    },
    Scenario {
        name: "quorum-rebuilt",
        question: "What follows after etcd was rebuilt from one member?",
        from: worlds::three,
        change: |world| {
            rebuild_until(world, RebuildPhase::Serving);
            world.pass_until_phase(None);
        },
    },
];
