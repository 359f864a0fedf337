//! Owners of machines and documents, and the deletion of clusters.

use keelway_api::{
    Time,
    hypervisor::LOST_ANNOTATION,
    machine::{SandboxState, UnreachableReason},
    name::PodName,
};

use super::{Scenario, world::World, worlds};

fn delete(world: &mut World, cluster: &str) {
    let now = Time(world.now);
    world.cluster(cluster).metadata.deletion_timestamp = Some(now);
}

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "delete-first-pass",
        question: "What is removed first if a cluster is deleted?",
        from: worlds::three,
        change: |world| delete(world, "c1"),
    },
    Scenario {
        name: "delete-while-paused",
        question: "What is removed if a paused cluster is deleted?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.paused = true;
            delete(world, "c1");
        },
    },
    Scenario {
        name: "delete-second-pass",
        question: "What is removed last if a cluster is deleted?",
        from: worlds::three,
        change: |world| {
            delete(world, "c1");
            world.pass();
        },
    },
    Scenario {
        name: "delete-third-pass",
        question: "What is done once no machine holds anything of a deleted cluster?",
        from: worlds::three,
        change: |world| {
            delete(world, "c1");
            world.pass();
            world.pass();
        },
    },
    Scenario {
        name: "delete-with-a-silent-machine",
        question: "What is done if a cluster is deleted while one of its machines does not respond?",
        from: worlds::one,
        change: |world| {
            delete(world, "c1");
            world.silence("public-1", UnreachableReason::Asked, "no route to host");
        },
    },
    Scenario {
        name: "delete-with-a-lost-machine",
        question: "What is done if a cluster is deleted and one of its machines is lost for good, as its annotation says?",
        from: worlds::one,
        change: |world| {
            delete(world, "c1");
            world.silence("public-1", UnreachableReason::Asked, "no route to host");
            world.pass();
            let machine = world.documents.hypervisors.get_mut(&"public-1".parse().unwrap()).unwrap();
            machine.metadata.annotations.get_or_insert_default().insert(LOST_ANNOTATION.to_owned(), "true".to_owned());
        },
    },
    Scenario {
        name: "delete-a-machine",
        question: "What is done if a machine with components is deleted?",
        from: worlds::one,
        change: |world| {
            let now = Time(world.now);
            let machine = world.documents.hypervisors.get_mut(&"public-1".parse().unwrap()).unwrap();
            machine.metadata.deletion_timestamp = Some(now);
        },
    },
    Scenario {
        name: "delete-one-of-two",
        question: "What is done if one of two clusters on the same machines is deleted?",
        from: worlds::two_clusters,
        change: |world| delete(world, "c1"),
    },
    Scenario {
        name: "stale-documents",
        question: "What is done with documents that are older than what the machines hold?",
        from: worlds::one,
        change: |world| {
            let old = world.documents.clone();
            world.cluster("c1").spec.control_plane.kube_scheduler.replicas = Some(0);
            while !world.pass() {}
            world.documents = old;
        },
    },
    Scenario {
        name: "two-writers",
        question: "What is done if another person reconciled the same documents?",
        from: worlds::one,
        change: |world| {
            world.machine("private-1").state.applied.as_mut().unwrap().digest = "0".repeat(64);
        },
    },
    Scenario {
        name: "machine-of-another-installation",
        question: "What is done with a machine that obeys another installation?",
        from: worlds::three_unborn,
        change: |world| world.machine("private-1").state.owner = Some("00000000000000ee".parse().unwrap()),
    },
    Scenario {
        name: "machine-of-a-kubelet",
        question: "What is done with a machine whose container runtime a kubelet uses?",
        from: worlds::three_unborn,
        change: |world| world.machine("private-1").state.kubelet_pods = 7,
    },
    Scenario {
        name: "pods-of-a-stranger",
        question: "What is done with pods of a cluster that no document names?",
        from: worlds::one,
        change: |world| {
            let cluster = "00000000000000bb".parse().unwrap();
            world.machine("private-1").state.sandboxes.push(SandboxState {
                id: "stranger".to_owned(),
                pod: PodName { cluster, component: "etcd-0".parse().unwrap() },
                attempt: 0,
                digest: "of a stranger".to_owned(),
                ready: true,
            });
        },
    },
];
