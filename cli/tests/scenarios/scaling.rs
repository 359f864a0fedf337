//! Changes of replicas, new machines, and drained machines.

use keelway_api::{
    hypervisor::LOST_ANNOTATION,
    machine::{ServerAdmin, ServerState, UnreachableReason},
};

use super::{Scenario, worlds};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "scale-api-servers-up",
        question: "What is done if a cluster is scaled from one to three API servers?",
        from: worlds::small,
        change: |world| world.cluster("c1").spec.control_plane.kube_api_server.replicas = Some(3),
    },
    Scenario {
        name: "scale-api-servers-up-when-ready",
        question: "What is done once a second API server is ready?",
        from: worlds::small,
        change: |world| {
            world.cluster("c1").spec.control_plane.kube_api_server.replicas = Some(2);
            world.pass();
        },
    },
    Scenario {
        name: "scale-api-servers-down",
        question: "What is done first if a cluster is scaled from three to two API servers?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.control_plane.kube_api_server.replicas = Some(2),
    },
    Scenario {
        name: "scale-api-servers-down-when-drained",
        question: "What is done once no ingress sends connections to the API server that leaves?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.control_plane.kube_api_server.replicas = Some(2);
            world.pass();
        },
    },
    Scenario {
        name: "scale-api-servers-down-with-connections",
        question: "What is waited for if an API server that left has connections?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.control_plane.kube_api_server.replicas = Some(2);
            world.pass();
            let place = world.place_of("c1/ingress-0");
            for servers in world.machine(&place).state.servers.values_mut() {
                for server in servers.values_mut().filter(|server| server.admin == ServerAdmin::Drains) {
                    *server = ServerState { sessions: 3, ..server.clone() };
                }
            }
        },
    },
    Scenario {
        name: "scale-api-servers-down-and-back",
        question: "What is done with a leaving API server that is desired again?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.control_plane.kube_api_server.replicas = Some(2);
            world.pass();
            world.cluster("c1").spec.control_plane.kube_api_server.replicas = Some(3);
        },
    },
    Scenario {
        name: "scale-controllers-down",
        question: "What is done if a cluster is scaled from three to one controller manager?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.control_plane.kube_controller_manager.replicas = Some(1),
    },
    Scenario {
        name: "scale-scheduler-to-none",
        question: "What is done if a cluster is scaled to no scheduler?",
        from: worlds::one,
        change: |world| world.cluster("c1").spec.control_plane.kube_scheduler.replicas = Some(0),
    },
    Scenario {
        name: "scale-scheduler-up",
        question: "What is done if a cluster is scaled from one to two schedulers?",
        from: worlds::small,
        change: |world| world.cluster("c1").spec.control_plane.kube_scheduler.replicas = Some(2),
    },
    Scenario {
        name: "scale-ingress-up",
        question: "What is done if a cluster is scaled from one to two ingresses?",
        from: worlds::small,
        change: |world| world.cluster("c1").spec.ingress.replicas = 2,
    },
    Scenario {
        name: "scale-ingress-up-and-down",
        question: "What is done if a cluster is scaled back to one ingress?",
        from: worlds::small,
        change: |world| {
            world.cluster("c1").spec.ingress.replicas = 2;
            while !world.pass() {}
            world.cluster("c1").spec.ingress.replicas = 1;
        },
    },
    Scenario {
        name: "scale-ingress-beyond-machines",
        question: "Where is a third ingress placed on two public machines?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.ingress.replicas = 3,
    },
    Scenario {
        name: "scale-etcd-up",
        question: "What is done if an existing cluster is scaled to more etcd members?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.etcd.replicas = 5,
    },
    Scenario {
        name: "scale-etcd-one-to-three",
        question: "What is done once etcd lists the second member of a store that is to have three?",
        from: worlds::small,
        change: |world| {
            world.cluster("c1").spec.etcd.replicas = 3;
            world.pass();
        },
    },
    Scenario {
        name: "scale-etcd-promotion",
        question: "What is done once the second member of a store has caught up?",
        from: worlds::small,
        change: |world| {
            world.cluster("c1").spec.etcd.replicas = 3;
            world.pass_until_ordered("promote");
        },
    },
    Scenario {
        name: "scale-etcd-down",
        question: "What is done if an existing cluster is scaled to fewer etcd members?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.etcd.replicas = 1,
    },
    Scenario {
        name: "scale-etcd-removed",
        question: "What is done once etcd has removed a member?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.etcd.replicas = 1;
            world.pass_until_ordered("remove");
            world.pass();
        },
    },
    Scenario {
        name: "machine-of-a-member-lost",
        question: "What is done if the machine of an etcd member is lost for good?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/etcd-1");
            world.silence(&place, UnreachableReason::Asked, "no route to host");
            world.pass();
            world.hypervisor(&place).metadata.annotations =
                Some([(LOST_ANNOTATION.to_owned(), "true".to_owned())].into());
        },
    },
    Scenario {
        name: "machine-of-a-member-unreachable",
        question: "What is done if the machine of an etcd member has not responded for ten minutes?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/etcd-1");
            world.silence(&place, UnreachableReason::Asked, "no route to host");
            world.pass();
            world.pass();
            world.wait(1);
        },
    },
    Scenario {
        name: "drain-leader",
        question: "What is done if the drained machine has the leader of etcd and its replacement votes?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/etcd-1");
            world.hypervisor(&place).spec.drain = true;
            world.pass_until_ordered("move the leader");
        },
    },
    Scenario {
        name: "new-private-machine",
        question: "What moves if a private machine is added?",
        from: worlds::small,
        change: |world| *world = worlds::new_machines(world.clone(), 4, 2),
    },
    Scenario {
        name: "new-public-machine",
        question: "What changes if a public machine is added?",
        from: worlds::small,
        change: |world| *world = worlds::new_machines(world.clone(), 3, 3),
    },
    Scenario {
        name: "drain-private",
        question: "What is done first if a private machine is drained?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/kube-apiserver-0");
            world.hypervisor(&place).spec.drain = true;
        },
    },
    Scenario {
        name: "drain-private-when-replaced",
        question: "What is done once what replaces the components of a drained machine is ready?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/kube-apiserver-0");
            world.hypervisor(&place).spec.drain = true;
            world.pass();
        },
    },
    Scenario {
        name: "drain-private-over",
        question: "What is left if a machine with an etcd member was drained?",
        from: worlds::three,
        change: |world| {
            let place = world.place_of("c1/kube-apiserver-0");
            world.hypervisor(&place).spec.drain = true;
            while !world.pass() {}
        },
    },
    Scenario {
        name: "drain-public-without-another",
        question: "What is waited for if the only public machine is drained?",
        from: worlds::one,
        change: |world| world.hypervisor("public-1").spec.drain = true,
    },
];
