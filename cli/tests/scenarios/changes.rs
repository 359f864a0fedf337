//! Changes of documents and files, and the passage of time.

use keelway_api::{documents::SecretName, machine::UnreachableReason};

use super::{Scenario, worlds};

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "change-registry",
        question: "What is replaced first if all images come from another registry?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned()),
    },
    Scenario {
        name: "change-registry-second-turn",
        question: "Which replicas are replaced after the first ones?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned());
            world.pass();
        },
    },
    Scenario {
        name: "change-while-paused",
        question: "What is replaced in a paused cluster, and which of its certificates are renewed?",
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
        question: "What is reported of a paused cluster once its machines have the config?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.paused = true;
            world.pass();
        },
    },
    Scenario {
        name: "sleep-first-pass",
        question: "What stops first if a cluster is put to sleep?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.asleep = true,
    },
    Scenario {
        name: "sleep-ingresses",
        question: "What do the ingresses get before the API servers stop?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.asleep = true;
            world.pass();
        },
    },
    Scenario {
        name: "sleep-over",
        question: "What is done while a cluster sleeps, although it is to be scaled?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.asleep = true;
            world.pass_until_asleep();
            world.cluster("c1").spec.control_plane.replicas = 1;
        },
    },
    Scenario {
        name: "sleep-with-a-drained-machine",
        question: "What is done if a machine of a sleeping cluster is drained?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.asleep = true;
            world.pass_until_asleep();
            world.hypervisor("private-2").spec.drain = true;
        },
    },
    Scenario {
        name: "wake-first-pass",
        question: "What starts first if a cluster is woken?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.asleep = true;
            world.pass_until_asleep();
            world.cluster("c1").spec.asleep = false;
        },
    },
    Scenario {
        name: "unpaused",
        question: "What is done first when a paused cluster is resumed?",
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
        question: "What is replaced if there is one replica of each role?",
        from: worlds::one,
        change: |world| world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned()),
    },
    Scenario {
        name: "change-registry-with-an-ill-member",
        question: "What is replaced while an etcd member is not healthy?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned());
            world.make_ill("c1/etcd-2");
        },
    },
    Scenario {
        name: "change-registry-with-a-silent-machine",
        question: "What is replaced while a machine does not respond?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.images.registry = Some("registry.example.com".to_owned());
            let place = world.place_of("c1/kube-apiserver-1");
            world.silence(&place, UnreachableReason::Asked, "no route to host");
        },
    },
    Scenario {
        name: "change-file-on-one-machine",
        question: "What is done if a file that an API server reads at its start was changed by hand?",
        from: worlds::three,
        change: |world| {
            let (pod, place) = (world.pod("c1/kube-apiserver-1"), world.place_of("c1/kube-apiserver-1"));
            let file = format!("{pod}/files/service-account.pub");
            world.machine(&place).state.files.get_mut(&file).unwrap().sha256 = Some("0".repeat(64));
        },
    },
    Scenario {
        name: "change-file-that-is-picked-up",
        question: "What is done if a file that its program reloads was changed by hand?",
        from: worlds::one,
        change: |world| {
            let file = format!("{}/files/authentication.json", world.pod("c1/kube-apiserver-0"));
            world.machine("private-1").state.files.get_mut(&file).unwrap().sha256 = Some("0".repeat(64));
        },
    },
    Scenario {
        name: "change-extra-san",
        question: "What is done if the API gets one more name?",
        from: worlds::three,
        change: |world| {
            world.cluster("c1").spec.control_plane.kube_api_server.extra_sans = vec!["api.example.com".to_owned()];
        },
    },
    Scenario {
        name: "change-extra-arguments",
        question: "What is done if API servers and schedulers get one more argument?",
        from: worlds::three,
        change: |world| {
            let plane = &mut world.cluster("c1").spec.control_plane;
            plane.kube_api_server.extra_args.insert("max-requests-inflight".to_owned(), "800".to_owned());
            plane.kube_scheduler.extra_args.insert("v".to_owned(), "4".to_owned());
        },
    },
    Scenario {
        name: "change-extra-arguments-second-turn",
        question: "Which component is replaced after the first API server?",
        from: worlds::three,
        change: |world| {
            let plane = &mut world.cluster("c1").spec.control_plane;
            plane.kube_api_server.extra_args.insert("max-requests-inflight".to_owned(), "800".to_owned());
            world.pass();
        },
    },
    Scenario {
        name: "change-vpn-range",
        question: "What is done if workers get another range?",
        from: worlds::three,
        change: |world| world.cluster("c1").spec.vpn.cidrs = vec!["100.96.0.0/16".to_owned()],
    },
    Scenario {
        name: "change-addons",
        question: "What is restarted if add-ons are turned off?",
        from: worlds::three,
        change: |world| {
            let addons = &mut world.cluster("c1").spec.addons;
            (addons.cni.enabled, addons.kube_proxy.enabled) = (false, false);
        },
    },
    Scenario {
        name: "change-release-of-keelway",
        question: "What is done with API servers of the last release, which had no egress?",
        from: worlds::three,
        change: |world| world.take_egress("c1"),
    },
    Scenario {
        name: "change-dns-domain",
        question: "What is done if the DNS domain of an existing cluster is changed?",
        from: worlds::three,
        change: |world| "example.internal".clone_into(&mut world.cluster("c1").spec.network.dns_domain),
    },
    Scenario {
        name: "change-version-back",
        question: "What is done if an older release is written into an existing cluster?",
        from: worlds::three,
        change: |world| "1.34.4".clone_into(&mut world.cluster("c1").spec.version),
    },
    Scenario {
        name: "change-version-patch",
        question: "What is done first if a later patch release is written into an existing cluster?",
        from: worlds::three,
        change: |world| "1.37.1".clone_into(&mut world.cluster("c1").spec.version),
    },
    Scenario {
        name: "certificates-at-two-thirds",
        question: "What is done when certificates of components have reached two thirds of their year?",
        from: worlds::three,
        change: |world| world.wait(8760 * 2 / 3 + 1),
    },
    Scenario {
        name: "certificates-before-two-thirds",
        question: "What is done before any certificate has reached two thirds of its lifetime, which is at least two thirds of a year?",
        from: worlds::three,
        change: |world| world.wait(8760 * 4 / 9 - 1),
    },
    Scenario {
        name: "certificates-ended",
        question: "What is done if no pass ran until all certificates of components had expired?",
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
        question: "What is done if the Secret of etcd's authority holds that of another cluster?",
        from: worlds::one,
        change: |world| {
            let id = world.pod("c1/etcd-0").cluster;
            let other = world.documents.secrets[&SecretName::of(&id, "front-proxy-ca")].data.clone();
            world.documents.secrets.get_mut(&SecretName::of(&id, "etcd-ca")).unwrap().data = other;
        },
    },
    Scenario {
        name: "authority-lost",
        question: "What is done if the Secret of etcd's authority is gone?",
        from: worlds::one,
        change: |world| {
            let id = world.pod("c1/etcd-0").cluster;
            world.documents.secrets.remove(&SecretName::of(&id, "etcd-ca"));
        },
    },
    Scenario {
        name: "certificate-lost",
        question: "What is done if the Secret of one component is gone?",
        from: worlds::one,
        change: |world| {
            let id = world.pod("c1/etcd-0").cluster;
            world.documents.secrets.remove(&SecretName::of(&id, "kube-scheduler-0"));
        },
    },
];
