//! Changes of documents and files, and the passage of time.

use keelway_api::{documents::SecretName, machine::UnreachableReason};

use super::{Scenario, worlds};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "change-registry",
        question: "What is replaced first where all images come from another registry?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned()),
    },
    Scenario {
        name: "change-registry-second-turn",
        question: "Whose turn is it once the first replicas have been replaced?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned());
            world.pass();
        },
    },
    Scenario {
        name: "change-while-paused",
        question: "What is replaced in a paused cluster, and which of its certificates are made anew?",
        from: worlds::three,
        change: |world| {
            let cluster = world.cluster("c1");
            cluster.spec.paused = true;
            cluster.spec.images.registry = Some("registry.example.com".to_owned());
            cluster.spec.control_plane.replicas = 1;
            cluster.spec.endpoint.host = Some("api.example.com".to_owned());
        },
    },
    Scenario {
        name: "paused",
        question: "What is told of a paused cluster once its machines know?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.paused = true;
            world.pass();
        },
    },
    Scenario {
        name: "unpaused",
        question: "What comes first of what was missed once a cluster is paused no more?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.paused = true;
            world.cluster("c1").spec.endpoint.host = Some("api.example.com".to_owned());
            world.pass();
            world.cluster("c1").spec.paused = false;
        },
    },
    Scenario {
        name: "change-registry-one-replica",
        question: "What is replaced where there is one replica of each role?",
        from: worlds::one,
        change: |world| world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned()),
    },
    Scenario {
        name: "change-registry-with-an-ill-member",
        question: "What is replaced while a member of etcd is not well?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned());
            world.make_ill("c1/etcd-2");
        },
    },
    Scenario {
        name: "change-registry-with-a-silent-machine",
        question: "What is replaced while a machine does not answer?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned());
            let place = world.place_of("c1/kube-apiserver-1");
            world.silence(&place, UnreachableReason::Asked, "no route to host");
        },
    },
    Scenario {
        name: "change-file-on-one-machine",
        question: "What is done where somebody changed a file of one API server that it read at its start?",
        from: worlds::three,
        change: |world| {
            let (pod, place) = (world.pod("c1/kube-apiserver-1"), world.place_of("c1/kube-apiserver-1"));
            let file = format!("{pod}/files/service-account.pub");
            world.machine(&place).state.files.get_mut(&file).unwrap().sha256 = Some("0".repeat(64));
        },
    },
    Scenario {
        name: "change-file-that-is-picked-up",
        question: "What is done where somebody changed a file that its program reads anew by itself?",
        from: worlds::one,
        change: |world| {
            let file = format!("{}/files/authentication.json", world.pod("c1/kube-apiserver-0"));
            world.machine("private-1").state.files.get_mut(&file).unwrap().sha256 = Some("0".repeat(64));
        },
    },
    Scenario {
        name: "change-extra-san",
        question: "What is done where the API gets one more name?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.control_plane.kube_api_server.extra_sans = vec!["api.example.com".to_owned()];
        },
    },
    Scenario {
        name: "change-extra-arguments",
        question: "What is done where API servers and schedulers get one more argument?",
        from: worlds::three,
        change: |world| {
            let plane = &mut world.cluster("c1").spec.control_plane;
            plane.kube_api_server.extra_args.insert("max-requests-inflight".to_owned(), "800".to_owned());
            plane.kube_scheduler.extra_args.insert("v".to_owned(), "4".to_owned());
        },
    },
    Scenario {
        name: "change-extra-arguments-second-turn",
        question: "Whose turn is it once the first API server has it?",
        from: worlds::three,
        change: |world| {
            let plane = &mut world.cluster("c1").spec.control_plane;
            plane.kube_api_server.extra_args.insert("max-requests-inflight".to_owned(), "800".to_owned());
            world.pass();
        },
    },
    Scenario {
        name: "change-vpn-range",
        question: "What is done where workers get another range?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.vpn.cidrs = vec!["100.96.0.0/16".to_owned()],
    },
    Scenario {
        name: "change-addons",
        question: "What is restarted where add-ons are turned off?",
        from: worlds::three,
        change: |world| {
            let addons = &mut world.cluster("c1").spec.addons;
            (addons.cni.enabled, addons.kube_proxy.enabled) = (false, false);
        },
    },
    Scenario {
        name: "change-release-of-keelway",
        question: "What becomes of API servers that the last release made, which had no egress?",
        from: worlds::three,
        change: |world| world.take_egress("c1"),
    },
    Scenario {
        name: "change-dns-domain",
        question: "What is done where somebody changes the DNS domain of a cluster that lives?",
        from: worlds::three,
        change: |world| "example.internal".clone_into(&mut world.cluster("c1").spec.network.dns_domain),
    },
    Scenario {
        name: "change-version-back",
        question: "What is done where somebody writes an older release into a cluster that lives?",
        from: worlds::three,
        change: |world| "1.34.4".clone_into(&mut world.cluster("c1").spec.version),
    },
    Scenario {
        name: "certificates-at-two-thirds",
        question: "What is done when certificates of components have lived two thirds of their year?",
        from: worlds::three,
        change: |world| world.wait(8760 * 2 / 3 + 1),
    },
    Scenario {
        name: "certificates-before-two-thirds",
        question: "What is done before any of them has lived two thirds of its life, which is two thirds of a year at least?",
        from: worlds::three,
        change: |world| world.wait(8760 * 4 / 9 - 1),
    },
    Scenario {
        name: "certificates-ended",
        question: "What is done where nobody ran a pass until all certificates of components had ended?",
        from: worlds::one,
        change: |world| world.wait(8760 + 24),
    },
    Scenario {
        name: "authority-near-its-end",
        question: "What is done when an authority has a month left?",
        from: worlds::one,
        change: |world| world.wait(87_600 - 720),
    },
    Scenario {
        name: "authority-of-another",
        question: "What is done where the Secret of etcd's authority holds that of another cluster?",
        from: worlds::one,
        change: |world| {
            let id = world.pod("c1/etcd-0").cluster;
            let other = world.documents.secrets[&SecretName::of(&id, "front-proxy-ca")].data.clone();
            world.documents.secrets.get_mut(&SecretName::of(&id, "etcd-ca")).unwrap().data = other;
        },
    },
    Scenario {
        name: "authority-lost",
        question: "What is done where the Secret of etcd's authority is gone?",
        from: worlds::one,
        change: |world| {
            let id = world.pod("c1/etcd-0").cluster;
            world.documents.secrets.remove(&SecretName::of(&id, "etcd-ca"));
        },
    },
    Scenario {
        name: "certificate-lost",
        question: "What is done where the Secret of one component is gone?",
        from: worlds::one,
        change: |world| {
            let id = world.pod("c1/etcd-0").cluster;
            world.documents.secrets.remove(&SecretName::of(&id, "kube-scheduler-0"));
        },
    },
];
