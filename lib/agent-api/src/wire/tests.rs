//! Decoding returns what was encoded.

use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;
use keelway_api::{
    Time,
    hypervisor::Applied,
    machine::{
        AgentIdentity, Amount, CertificateFiles, CgroupDriver, ConfigFormat, Container, ContainerCheck, ContainerPhase,
        ContainerResources, ContainerState, DataRemoval, DataState, Disk, Figures, FileState, HaproxyServers, Liveness,
        MachineState, Mount, OnChange, Pod, PodFile, PortFacts, RuntimeFacts, SandboxState, ServerAdmin, ServerState,
        Start, SystemFacts,
    },
    registry::RegistryCredentials,
};
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
};

use super::*;

fn name() -> impl Strategy<Value = PodName> {
    ("[0-9a-f]{16}", "etcd-[0-9]").prop_map(|(cluster, component)| PodName {
        cluster: cluster.parse().unwrap(),
        component: component.parse().unwrap(),
    })
}

/// Documents contain no flow label and no scope id.
fn address() -> impl Strategy<Value = SocketAddr> {
    any::<SocketAddr>().prop_map(|address| SocketAddr::new(address.ip(), address.port()))
}

fn server() -> impl Strategy<Value = ServerState> {
    let admin = prop_oneof![Just(ServerAdmin::Serves), Just(ServerAdmin::Drains), Just(ServerAdmin::Maintenance)];
    (address(), admin, any::<u64>(), any::<bool>()).prop_map(|(address, admin, sessions, ready)| ServerState {
        address,
        admin,
        sessions,
        ready,
    })
}

fn check() -> impl Strategy<Value = ContainerCheck> {
    let identity = ("[a-z]{1,9}", "[a-z]{1,9}").prop_map(|(certificate, key)| CertificateFiles { certificate, key });
    prop_oneof![
        (address(), option::of(identity)).prop_map(|(address, identity)| ContainerCheck::Https {
            address,
            path: "/livez?exclude=etcd".to_owned(),
            server_name: "kubernetes".to_owned(),
            authority: "ca.crt".to_owned(),
            identity,
        }),
        address().prop_map(|address| ContainerCheck::Http { address, path: "/healthz".to_owned() }),
        "[a-z]{1,9}".prop_map(|name| ContainerCheck::Socket {
            path: format!("run/{name}"),
            request: "show info".to_owned(),
            answer: "Name".to_owned(),
        }),
    ]
}

fn liveness() -> impl Strategy<Value = Liveness> {
    (check(), any::<[u32; 3]>(), any::<Option<u32>>()).prop_map(|(check, [period, timeout, threshold], startup)| {
        Liveness {
            check,
            period_seconds: period,
            timeout_seconds: timeout,
            failure_threshold: threshold,
            startup_seconds: startup,
        }
    })
}

fn container() -> impl Strategy<Value = Container> {
    let resources = (any::<u32>(), any::<Option<u32>>(), any::<u64>());
    (vec(".*", 0..3), any::<bool>(), resources, any::<u32>(), option::of(liveness())).prop_map(
        |(command, read_only, (request, limit, memory), stop_seconds, liveness)| Container {
            name: "main".to_owned(),
            image: "registry.example/image:1".to_owned(),
            command,
            mounts: vec![Mount { source: "files".to_owned(), target: "/etc".to_owned(), read_only }],
            resources: ContainerResources {
                cpu_request_millis: request,
                cpu_limit_millis: limit,
                memory_limit_bytes: memory,
            },
            stop_seconds,
            liveness,
        },
    )
}

fn config() -> impl Strategy<Value = MachineConfig> {
    let file = (vec(any::<u8>(), 0..64), any::<bool>()).prop_map(|(content, restart)| PodFile {
        path: "pki/ca.key".to_owned(),
        content,
        on_change: if restart { OnChange::Restart } else { OnChange::PickedUp },
    });
    let servers = btree_map("[a-z]{1,9}/[a-z]{1,9}", address(), 0..3)
        .prop_map(|addresses| HaproxyServers { options: "check".to_owned(), addresses });
    let starts = [Start::Always, Start::Never, Start::Later, Start::OnMarkedData, Start::OnUsedData, Start::Stopped];
    let start = prop_oneof![proptest::sample::select(starts.to_vec()), any::<u32>().prop_map(Start::Copied)];
    let registry = ("[a-z]{1,9}", "[a-z]{0,9}");
    let registries = btree_map("[a-z]{1,9}", registry, 0..3);
    let rest = (start, any::<bool>(), registries, proptest::collection::btree_set("[a-z]{1,9}", 0..3));
    let pod = (any::<u32>(), vec(file, 0..3), vec(container(), 0..3), option::of(servers), rest).prop_map(
        |(user, files, containers, servers, (start, hold, registries, prefetch))| Pod {
            user,
            files,
            data: vec!["data".to_owned()],
            containers,
            pause_image: "pause".to_owned(),
            servers,
            start,
            hold,
            registries: registries
                .into_iter()
                .map(|(image, (username, password))| (image, RegistryCredentials { username, password }))
                .collect(),
            prefetch,
        },
    );
    let others = proptest::collection::btree_set(name().prop_map(|name| name.cluster), 0..3);
    let removal = ("[0-9a-f]{1,16}", "[A-Za-z]{1,9}").prop_map(|(member, reason)| DataRemoval { member, reason });
    let removals = btree_map(name(), removal, 0..3);
    let parts = (btree_map(name(), pod, 0..3), any::<u64>(), any::<u64>(), others, removals);
    parts.prop_map(|(pods, term, generation, others, removals)| MachineConfig {
        format: ConfigFormat::NEWEST,
        installation: "00000000000000ff".parse().unwrap(),
        term,
        generation,
        pods,
        others,
        removals,
    })
}

fn phase() -> impl Strategy<Value = ContainerPhase> {
    prop_oneof![
        Just(ContainerPhase::Created),
        Just(ContainerPhase::Running),
        any::<i32>().prop_map(|code| ContainerPhase::Exited { code }),
        Just(ContainerPhase::Unknown),
    ]
}

prop_compose! {
    fn state()(
        systemd in any::<bool>(),
        owned in any::<bool>(),
        applied in option::of((any::<u64>(), any::<u64>())),
        term in any::<u64>(),
        sandboxes in vec((name(), any::<u32>(), any::<bool>()), 0..3),
        containers in vec((any::<u32>(), phase(), any::<Option<u32>>()), 0..3),
        files in btree_map("[a-z/]{0,9}", (any::<[u32; 3]>(), option::of("[0-9a-f]{0,64}")), 0..3),
        images in proptest::collection::btree_set("[a-z]{1,9}", 0..3),
        ephemeral in any::<Option<(u16, u16)>>(),
        listening in proptest::collection::btree_set(any::<u16>(), 0..3),
        servers in btree_map(name(), btree_map("[a-z/]{1,9}", server(), 0..3), 0..3),
        data in proptest::collection::btree_map("[a-z/]{0,9}", any::<(bool, bool)>(), 0..3),
        capacity in any::<Option<(u64, u64)>>(),
        kubelet_pods in any::<u32>(),
        disk_pressure in any::<bool>(),
        healthy in proptest::collection::btree_set("[0-9a-f]{1,9}", 0..3),
        failures in vec("[a-z ]{1,9}", 0..3),
        identity in option::of(("[0-9a-f]{32}", 0_i64..4_000_000_000)),
        disk in any::<Option<(u64, u64)>>(),
        system in option::of(("[a-z0-9.]{0,9}", any::<Option<bool>>())),
        formats in any::<(u32, u32)>(),
        figures in btree_map(name(), any::<(Option<u64>, Option<u64>, bool)>(), 0..3),
    ) -> MachineState {
        let driver = if systemd { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs };
        MachineState {
            formats: FormatRange { first: formats.0, last: formats.1 },
            restores: owned,
            prefetches: owned,
            runtime: RuntimeFacts { name: "containerd".to_owned(), version: "v2".to_owned(), cgroup_driver: driver },
            owner: owned.then(|| "00000000000000ff".parse().unwrap()),
            applied: applied.map(|(term, generation)| Applied { term, generation, digest: "d".to_owned() }),
            term,
            sandboxes: sandboxes
                .into_iter()
                .map(|(pod, attempt, ready)| SandboxState {
                    id: "s".to_owned(),
                    pod,
                    attempt,
                    digest: "d".to_owned(),
                    ready,
                })
                .collect(),
            containers: containers
                .into_iter()
                .map(|(attempt, phase, stop_seconds)| ContainerState {
                    id: "c".to_owned(),
                    sandbox: "s".to_owned(),
                    name: "main".to_owned(),
                    attempt,
                    phase,
                    stop_seconds,
                })
                .collect(),
            files: files
                .into_iter()
                .map(|(path, ([user, group, mode], sha256))| (path, FileState { user, group, mode, sha256 }))
                .collect(),
            images,
            ports: PortFacts { ephemeral, unprivileged_from: Some(443), listening },
            addresses: [IpAddr::from([10, 0, 0, 5])].into_iter().filter(|_| owned).collect(),
            servers,
            data: data.into_iter().map(|(path, (marked, used))| (path, DataState { marked, used })).collect(),
            capacity: capacity.map(|(cpu_millis, memory_bytes)| Amount { cpu_millis, memory_bytes }),
            kubelet_pods: kubelet_pods as usize,
            disk_pressure,
            healthy,
            failures,
            agent_id: owned.then(|| "0123456789abcdef".to_owned()),
            identity: identity.map(|(serial, end)| AgentIdentity {
                trusts: serial.clone(),
                serial,
                renew_at: Time(Timestamp::from_second(end / 2).unwrap()),
                not_after: Time(Timestamp::from_second(end).unwrap()),
            }),
            figures: figures
                .into_iter()
                .map(|(pod, (database_bytes, peers, no_space))| (pod, Figures { database_bytes, peers, no_space }))
                .collect(),
            disk: disk.map(|(capacity_bytes, available_bytes)| Disk { capacity_bytes, available_bytes }),
            system: system.map(|(kernel_version, agent)| SystemFacts {
                kernel_version,
                os_image: "Linux".to_owned(),
                architecture: "amd64".to_owned(),
                agent_version: agent.map(|_| "1.2.3".to_owned()),
            }),
        }
    }
}

proptest! {
    #[test]
    fn a_config_comes_back_with_the_same_digest(config in config()) {
        let back = decode_config(&encode_config(&config)).unwrap();
        prop_assert_eq!(back.digest(), config.digest());
        prop_assert_eq!(back, config);
    }

    /// An agent of v0.1.0 receives what a driver of v0.1.0 sends.
    #[test]
    fn a_config_of_format_1_has_nothing_that_came_later(config in config()) {
        let config = MachineConfig { format: ConfigFormat::One, ..config };
        let sent = proto::MachineConfig::from(RevisedConfig { config: &config, digests: &config.pod_digests() });
        prop_assert_eq!((sent.format, sent.digest.as_str(), sent.removals.len()), (0, "", 0));
        prop_assert!(sent.pods.iter().all(|pod| pod.revision.is_empty() && pod.content.is_empty()));
        let (back, digests) = read_config(sent).unwrap();
        prop_assert_eq!(digests, config.pod_digests());
        prop_assert_eq!(back.digest(), config.digest());
        prop_assert_eq!(back, MachineConfig { removals: BTreeMap::new(), ..config });
    }

    /// Digests of a driver are kept, however it computes them.
    #[test]
    fn digests_of_a_driver_are_kept(config in config(), digest in "[a-z]{1,9}") {
        let mut digests = config.pod_digests();
        for of in digests.values_mut() {
            of.replacement = format!("{digest} of another release");
            of.content = digest.clone().into_bytes();
        }
        let stored = decode_stored(&encode_stored((&config, &digests), &digest)).unwrap();
        prop_assert_eq!(stored, (config, digests, Some(digest)));
    }

    #[test]
    fn a_state_comes_back(state in state()) {
        let bytes = proto::MachineState::from(&state).encode_to_vec();
        let back = MachineState::try_from(proto::MachineState::decode(&*bytes).unwrap()).unwrap();
        prop_assert_eq!(back, state);
    }

    #[test]
    fn no_bytes_are_too_much(bytes in vec(any::<u8>(), 0..256)) {
        let _ = decode_config(&bytes);
    }
}

#[test]
fn a_config_of_a_newer_format_is_refused_with_both_numbers() {
    let error = read_config(proto::MachineConfig { format: 3, ..Default::default() }).unwrap_err().to_string();
    assert!(error.contains("format 3") && error.contains("formats 1 to 2"), "{error}");
}

#[test]
fn a_pod_without_a_revision_is_refused() {
    let name = Some(proto::PodName { cluster: "0123456789abcdef".to_owned(), component: "etcd-0".to_owned() });
    let pod = proto::Pod { name, start: proto::Start::Always.into(), ..Default::default() };
    let installation = "00000000000000ff".to_owned();
    let config = proto::MachineConfig { format: 2, installation, pods: vec![pod], ..Default::default() };
    assert!(read_config(config).unwrap_err().to_string().contains("the revision of a pod"));
}

/// v0.1.0 sends no formats.
#[test]
fn a_state_without_formats_is_of_a_machine_that_understands_the_first_one() {
    let runtime = RuntimeFacts { name: String::new(), version: String::new(), cgroup_driver: CgroupDriver::Systemd };
    let state = proto::MachineState { formats: None, ..(&MachineState::empty(runtime)).into() };
    assert_eq!(MachineState::try_from(state).unwrap().formats, FormatRange::OF_V0_1_0);
}
