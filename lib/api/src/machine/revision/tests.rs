//! Digests that v0.1.0 computed for these pods. If one changes, components restart on every upgrade of Keelway.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    CertificateFiles, ConfigFormat, Container, ContainerCheck, ContainerResources, DataRemoval, HaproxyServers,
    Liveness, MachineConfig, Mount, OnChange, Pod, PodFile, Start, hex,
};
use crate::{name::PodName, registry::RegistryCredentials};

fn file(path: &str, content: &[u8], on_change: OnChange) -> PodFile {
    PodFile { path: path.to_owned(), content: content.to_vec(), on_change }
}

fn plain() -> Pod {
    Pod {
        user: 20001,
        files: Vec::new(),
        data: Vec::new(),
        containers: Vec::new(),
        pause_image: "registry.k8s.io/pause:3.10".to_owned(),
        servers: None,
        start: Start::Always,
        hold: false,
        registries: BTreeMap::new(),
        prefetch: BTreeSet::new(),
    }
}

fn container(name: &str, check: Option<ContainerCheck>) -> Container {
    Container {
        name: name.to_owned(),
        image: format!("example.test/{name}:1"),
        command: vec![format!("/usr/bin/{name}"), "--option=\"ü\"".to_owned()],
        mounts: vec![
            Mount { source: "files".to_owned(), target: "/etc/keelway".to_owned(), read_only: true },
            Mount { source: "data".to_owned(), target: "/var/lib/data".to_owned(), read_only: false },
        ],
        resources: ContainerResources { cpu_request_millis: 250, cpu_limit_millis: None, memory_limit_bytes: 1 << 31 },
        stop_seconds: 30,
        liveness: check.map(|check| Liveness {
            check,
            period_seconds: 10,
            timeout_seconds: 3,
            failure_threshold: 8,
            startup_seconds: Some(60),
        }),
    }
}

fn member() -> Pod {
    let check = ContainerCheck::Https {
        address: "[fd00::1]:2379".parse().unwrap(),
        path: "/livez".to_owned(),
        server_name: "etcd-0".to_owned(),
        authority: "ca.crt".to_owned(),
        identity: Some(CertificateFiles { certificate: "client.crt".to_owned(), key: "client.key".to_owned() }),
    };
    Pod {
        files: vec![
            file("ca.crt", b"authorities\n", OnChange::Restart),
            file("server.crt", b"\x00\xff\xfe", OnChange::PickedUp),
        ],
        data: vec!["data".to_owned()],
        containers: vec![container("etcd", Some(check))],
        start: Start::OnUsedData,
        registries: [(
            "example.test/etcd:1".to_owned(),
            RegistryCredentials { username: "reader".to_owned(), password: "a password".to_owned() },
        )]
        .into(),
        ..plain()
    }
}

fn ingress() -> Pod {
    let socket = ContainerCheck::Socket {
        path: "run/admin.sock".to_owned(),
        request: "show info".to_owned(),
        answer: "Name".to_owned(),
    };
    let http = ContainerCheck::Http { address: "127.0.0.1:9000".parse().unwrap(), path: "/healthz?a=b".to_owned() };
    let limited =
        ContainerResources { cpu_request_millis: 1, cpu_limit_millis: Some(500), memory_limit_bytes: 64 << 20 };
    Pod {
        files: vec![file("haproxy.cfg", b"defaults\n", OnChange::Restart), file("empty", b"", OnChange::Restart)],
        data: vec!["run".to_owned(), "data".to_owned()],
        containers: vec![
            container("gateway", Some(http)),
            Container { resources: limited, ..container("haproxy", Some(socket)) },
        ],
        servers: Some(HaproxyServers {
            options: "check inter 1s".to_owned(),
            addresses: [("api/kube-apiserver-0".to_owned(), "10.0.0.1:6443".parse().unwrap())].into(),
        }),
        start: Start::Later,
        hold: true,
        ..plain()
    }
}

/// Pods that together contain each field in each form.
fn pods() -> BTreeMap<PodName, Pod> {
    let name = |name: &str| format!("0123456789abcdef/{name}").parse().unwrap();
    [
        (name("empty-0"), plain()),
        (name("etcd-0"), member()),
        (name("etcd-1"), Pod { start: Start::Never, ..member() }),
        (name("etcd-2"), Pod { start: Start::OnMarkedData, ..member() }),
        (name("ingress-0"), ingress()),
    ]
    .into()
}

fn config() -> MachineConfig {
    let others: BTreeSet<_> = ["fedcba9876543210".parse().unwrap()].into();
    MachineConfig {
        format: ConfigFormat::One,
        installation: "00000000000000ff".parse().unwrap(),
        term: 3,
        generation: 7,
        pods: pods(),
        others,
        removals: BTreeMap::new(),
    }
}

/// The name of a pod, the digest that decides about its replacement, and the digest of its content.
const PODS: [(&str, &str, &str); 5] = [
    (
        "empty-0",
        "0b3589b8f20c91dd48b521ff8e33ff40729566ec76e1c92dac064ce549cf84cc",
        "e29e63ddfd708d9d589195fe6c83b9aa9c9444b6006768a9d825517478b56f4b",
    ),
    (
        "etcd-0",
        "47e9ecd6db6dda65891e53eea18534e41e204f545a532abee2dccd0b91ccd0e0",
        "b969bc650df1e2ab5be6bad2b0b7dbdcba6180daa17044cc7c99269b91292266",
    ),
    (
        "etcd-1",
        "47e9ecd6db6dda65891e53eea18534e41e204f545a532abee2dccd0b91ccd0e0",
        "e6445af88aac905a9c9209252bde01ae5f37e6ec7e359af798189bf1c1d2d620",
    ),
    (
        "etcd-2",
        "47e9ecd6db6dda65891e53eea18534e41e204f545a532abee2dccd0b91ccd0e0",
        "2f2792bd4c981fee9bd1ed90f20342d4f7d5a4eae5c5ecf02d4ab509554e082d",
    ),
    (
        "ingress-0",
        "b4c53efa5afc764d8c733365997a17bccff54bdfdbf329d36c442b5caa5d7ffa",
        "e48e36bf1439ab6d497e3b4b3c441a730d425ebc9220e29d6f70c18a24b7d5c1",
    ),
];
const CONFIG: &str = "7cbdf2d7ad1fc46e91150e2f3880c9195b3741330da1fee0112e7e22c123f7b4";

#[test]
fn digests_are_those_of_v0_1_0() {
    let made = pods().into_iter().map(|(name, pod)| {
        let digests = pod.digests();
        assert_eq!(digests.content, pod.content_digest());
        (name.component.to_string(), digests.replacement, hex(&digests.content))
    });
    let recorded =
        PODS.map(|(name, replacement, content)| (name.to_owned(), replacement.to_owned(), content.to_owned()));
    assert_eq!(made.collect::<Vec<_>>(), recorded);
    assert_eq!(config().digest(), CONFIG);
}

#[test]
fn fields_at_their_defaults_are_not_hashed() {
    let newer = MachineConfig { format: ConfigFormat::NEWEST, ..config() };
    assert_eq!(newer.digest(), CONFIG, "an upgrade of an agent changes no config");
    let removal = DataRemoval { member: "1a2b".to_owned(), reason: "ClusterDeleted".to_owned() };
    let removals: BTreeMap<_, _> = [("0123456789abcdef/etcd-3".parse().unwrap(), removal)].into();
    assert_ne!(MachineConfig { removals: removals.clone(), ..newer }.digest(), CONFIG);
    assert_eq!(MachineConfig { removals, ..config() }.digest(), CONFIG, "format 1 has none");
}
