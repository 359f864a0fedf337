//! Faulty machines and components.

use keelway_api::{machine::UnreachableReason, role::EGRESS};

use super::{Scenario, worlds};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "machine-silent",
        question: "What is done if a machine does not respond?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/etcd-0");
            world.silence(&place, UnreachableReason::Asked, "no route to host");
        },
    },
    Scenario {
        name: "machine-agent-away",
        question: "What is done if the agent of a machine does not respond?",
        from: worlds::one,
        change: |world| {
            let why = "could not reach the agent at /run/private-1.sock: connection refused";
            world.silence("private-1", UnreachableReason::Asked, why);
        },
    },
    Scenario {
        name: "machine-runtime-hangs",
        question: "What is done if the container runtime of a machine hangs?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/etcd-0");
            world.silence(&place, UnreachableReason::Runtime, "no answer within 8 s");
        },
    },
    Scenario {
        name: "machine-emptied",
        question: "What is done if a machine comes back with nothing on it?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/etcd-0");
            world.empty(&place);
        },
    },
    Scenario {
        name: "machine-emptied-of-one",
        question: "What is done if the machine of the only etcd member comes back with nothing on it?",
        from: worlds::one,
        change: |world| world.empty("private-1"),
    },
    Scenario {
        name: "machine-rebooted",
        question: "What is done if a machine was restarted and its runtime knows no container any more?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/etcd-0");
            let state = &mut world.machine(&place).state;
            state.sandboxes.clear();
            state.containers.clear();
        },
    },
    Scenario {
        name: "machine-disk-full",
        question: "What is done if the disk of a machine is full?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/etcd-0");
            world.machine(&place).state.disk_pressure = true;
        },
    },
    Scenario {
        name: "container-ended",
        question: "What is done if the process of an API server was killed?",
        from: worlds::three,
        change: |world| world.end("c1/kube-apiserver-1", 137),
    },
    Scenario {
        name: "egress-ended",
        question: "What is done if the egress beside an API server was killed?",
        from: worlds::three,
        change: |world| world.end_container("c1/kube-apiserver-1", EGRESS, 137),
    },
    Scenario {
        name: "container-ended-without-an-agent",
        question: "What is done about that if the machine has no agent?",
        from: worlds::one,
        change: |world| {
            let path = "/run/containerd/containerd.sock".to_owned();
            world.hypervisor("private-1").spec.endpoint = keelway_api::hypervisor::HypervisorEndpoint::Unix { path };
            world.end("c1/kube-apiserver-0", 137);
        },
    },
    Scenario {
        name: "sandbox-ended",
        question: "What is done if the sandbox of an etcd member ended?",
        from: worlds::three,
        change: |world| {
            let (pod, place) = (world.pod("c1/etcd-1"), world.place_of("c1/etcd-1"));
            world.end("c1/etcd-1", 137);
            let state = &mut world.machine(&place).state;
            state.sandboxes.iter_mut().find(|sandbox| sandbox.pod == pod).unwrap().ready = false;
        },
    },
    Scenario {
        name: "etcd-data-lost",
        question: "What is done if the data directory of an etcd member is gone, and its process ended?",
        from: worlds::three,
        change: |world| {
            let (pod, place) = (world.pod("c1/etcd-1"), world.place_of("c1/etcd-1"));
            world.end("c1/etcd-1", 1);
            let state = &mut world.machine(&place).state;
            state.data.remove(&format!("{pod}/data"));
            state.files.remove(&format!("{pod}/data"));
        },
    },
    Scenario {
        name: "component-ill",
        question: "What is done if an API server runs and is not healthy?",
        from: worlds::three,
        change: |world| world.make_ill("c1/kube-apiserver-2"),
    },
    Scenario {
        name: "port-taken-later",
        question: "What is done if another program listens on the port of an API server that exited?",
        from: worlds::one,
        change: |world| {
            world.end("c1/kube-apiserver-0", 1);
            let port = world.documents.components[&world.pod("c1/kube-apiserver-0")].spec.ports["secure"];
            world.occupy("private-1", port);
        },
    },
    Scenario {
        name: "image-gone",
        question: "What is done if the images of running components were removed?",
        from: worlds::one,
        change: |world| world.machine("private-1").state.images.clear(),
    },
    Scenario {
        name: "ingress-forgot-a-server",
        question: "What is done if a haproxy does not know one of the API servers?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/ingress-0");
            let servers = world.machine(&place).state.servers.values_mut().next().unwrap();
            servers.remove("kube-apiserver/kube-apiserver-1");
        },
    },
];
