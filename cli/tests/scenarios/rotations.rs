//! Rotations of keys.

use keelway_api::{
    Time,
    machine::UnreachableReason,
    rotation::{RotatedKey, RotationPhase, RotationRequest},
};

use super::{Scenario, world::World, worlds};

fn request_of(key: RotatedKey, world: &mut World, complete: bool) {
    let requested_at = Time(world.now);
    *world.cluster("c1").spec.rotations.request_mut(key) =
        Some(RotationRequest { requested_at, complete, immediate: false });
}

fn request(world: &mut World, complete: bool) {
    request_of(RotatedKey::ServiceAccount, world, complete);
}

fn begin_and_reach(world: &mut World, phase: RotationPhase) {
    request(world, false);
    world.pass_until_rotation(RotatedKey::ServiceAccount, phase);
}

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "rotation-of-the-service-account-key",
        question: "What is done first if the service account key is rotated?",
        from: worlds::three,
        change: |world| request(world, false),
    },
    Scenario {
        name: "rotation-announced",
        question: "What is replaced while the next service account key is announced?",
        from: worlds::three,
        change: |world| {
            begin_and_reach(world, RotationPhase::Announcing);
            world.pass();
        },
    },
    Scenario {
        name: "rotation-with-a-silent-machine",
        question: "What does a rotation wait for while a machine with an API server does not respond?",
        from: worlds::three,
        change: |world| {
            begin_and_reach(world, RotationPhase::Announcing);
            let place = world.place_of("c1/kube-apiserver-1");
            world.silence(&place, UnreachableReason::Asked, "no route to host");
        },
    },
    Scenario {
        name: "rotation-immediate-with-a-silent-machine",
        question: "What does an immediate rotation leave behind on a machine that does not respond?",
        from: worlds::three,
        change: |world| {
            begin_and_reach(world, RotationPhase::Announcing);
            world.pass();
            let place = world.place_of("c1/kube-apiserver-1");
            world.silence(&place, UnreachableReason::Asked, "no route to host");
            let request = world.cluster("c1").spec.rotations.request_mut(RotatedKey::ServiceAccount);
            request.as_mut().unwrap().immediate = true;
        },
    },
    Scenario {
        name: "rotation-activated",
        question: "What is replaced once the next service account key is the active one?",
        from: worlds::three,
        change: |world| begin_and_reach(world, RotationPhase::Activating),
    },
    Scenario {
        name: "rotation-prepared",
        question: "What is left to do once all components use the new service account key?",
        from: worlds::three,
        change: |world| {
            begin_and_reach(world, RotationPhase::Prepared);
            world.pass();
        },
    },
    Scenario {
        name: "rotation-of-the-encryption-key",
        question: "What is done first if the encryption key is rotated?",
        from: worlds::three,
        change: |world| request_of(RotatedKey::Encryption, world, false),
    },
    Scenario {
        name: "rotation-of-the-authority-of-etcd",
        question: "What is done first if the authority of etcd is rotated?",
        from: worlds::three,
        change: |world| request_of(RotatedKey::EtcdAuthority, world, false),
    },
    Scenario {
        name: "rotation-of-the-authority-of-workers",
        question: "What is done first if the authority for API servers, users and workers is rotated?",
        from: worlds::three,
        change: |world| request_of(RotatedKey::KubernetesAuthority, world, false),
    },
    Scenario {
        name: "rotation-completed",
        question: "What is done if the rotation of the service account key is completed?",
        from: worlds::three,
        change: |world| {
            begin_and_reach(world, RotationPhase::Prepared);
            world.pass();
            request(world, true);
        },
    },
];
