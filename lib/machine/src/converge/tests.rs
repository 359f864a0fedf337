//! Single cases that are easy to read.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use keelway_api::{
    hypervisor::Applied,
    machine::{
        Container, ContainerCheck, ContainerPhase, ContainerResources, DataRemoval, DataState, HaproxyServers,
        Liveness, MachineConfig, Mount, OnChange, Pod, PodFile, SERVING_CERTIFICATE, SandboxState, ServerAdmin,
        ServerState, Start,
    },
    name::PodName,
    registry::RegistryCredentials,
};
use proptest::{collection::btree_map, prelude::*};

use super::{applied_by, converge, model::MachineModel, waits_for_connections};
use crate::{
    action::{Action, PodAction, ServerChange, WantedImage},
    refusal::ConfigRefusal,
};

fn etcd() -> PodName {
    PodName { cluster: "0123456789abcdef".parse().unwrap(), component: "etcd-0".parse().unwrap() }
}

fn config() -> MachineConfig {
    let container = Container {
        name: "etcd".to_owned(),
        image: "registry.k8s.io/etcd:3.7.0-0".to_owned(),
        command: vec!["etcd".to_owned()],
        mounts: vec![Mount { source: "data".to_owned(), target: "/data".to_owned(), read_only: false }],
        resources: ContainerResources { cpu_request_millis: 100, cpu_limit_millis: None, memory_limit_bytes: 1 << 30 },
        stop_seconds: 25,
        liveness: None,
    };
    let pod = Pod {
        user: 20000,
        files: vec![PodFile {
            path: "pki/ca.crt".to_owned(),
            content: b"certificate".to_vec(),
            on_change: OnChange::PickedUp,
        }],
        data: vec!["data".to_owned()],
        containers: vec![container],
        pause_image: "registry.k8s.io/pause:3.10.2".to_owned(),
        servers: None,
        start: Start::Always,
        hold: false,
        registries: BTreeMap::new(),
        prefetch: BTreeSet::new(),
    };
    MachineConfig {
        format: keelway_api::machine::ConfigFormat::NEWEST,
        installation: "00000000000000ff".parse().unwrap(),
        term: 3,
        generation: 7,
        pods: [(etcd(), pod)].into(),
        others: BTreeSet::new(),
        removals: std::collections::BTreeMap::new(),
    }
}

fn plan(config: &MachineConfig, machine: &MachineModel) -> Vec<String> {
    let actions = converge(config, &machine.state).unwrap();
    actions.iter().map(ToString::to_string).collect()
}

fn settled(config: &MachineConfig) -> MachineModel {
    let mut machine = MachineModel::empty();
    machine.execute(&converge(config, &machine.state).unwrap());
    machine
}

#[test]
fn a_first_pod_comes_up_in_order() {
    assert_eq!(
        plan(&config(), &MachineModel::empty()),
        [
            "take the machine for installation 00000000000000ff",
            "fetch image registry.k8s.io/etcd:3.7.0-0",
            "fetch image registry.k8s.io/pause:3.10.2",
            "create 5 directories",
            "write file pki/ca.crt",
            "create sandbox 0",
            "create container etcd",
            "start container etcd",
            "record config 3.7 as applied",
        ]
    );
}

#[test]
fn a_changed_password_restarts_nothing() {
    let image = "registry.k8s.io/etcd:3.7.0-0".to_owned();
    let with = |password: &str, generation: u64| {
        let mut config = config();
        config.generation = generation;
        let credentials = RegistryCredentials { username: "puller".to_owned(), password: password.to_owned() };
        config.pods.get_mut(&etcd()).unwrap().registries.insert(image.clone(), credentials);
        config
    };
    let old = with("old", 7);
    let actions = converge(&old, &MachineModel::empty().state).unwrap();
    let credentials = old.pods[&etcd()].registries.get(&image).cloned();
    let fetch = PodAction::EnsureImage(WantedImage { name: image.clone(), credentials });
    assert!(actions.contains(&Action::Pod(etcd(), fetch)), "{actions:?}");
    assert!(!format!("{actions:?}").contains("\"old\""));
    assert_eq!(plan(&with("new", 8), &settled(&old)), ["record config 3.8 as applied"]);
    assert_ne!(old.digest(), config().digest());
}

#[test]
fn a_changed_program_drains_before_it_is_replaced() {
    let mut machine = settled(&config());
    let mut config = config();
    config.generation += 1;
    let pod = config.pods.get_mut(&etcd()).unwrap();
    pod.containers[0].command.push("--new".to_owned());
    pod.containers[0].stop_seconds = 1;
    assert_eq!(
        plan(&config, &machine),
        [
            "stop container etcd within 25 s",
            "stop sandbox id-1",
            "remove sandbox id-1",
            "create sandbox 1",
            "create container etcd",
            "start container etcd",
            "record config 3.8 as applied",
        ]
    );
    machine.execute(&converge(&config, &machine.state).unwrap());
    assert_eq!(plan(&config, &machine), [""; 0]);
}

#[test]
fn an_exited_container_comes_back_in_its_sandbox() {
    let mut machine = settled(&config());
    machine.state.containers[0].phase = ContainerPhase::Exited { code: 137 };
    assert_eq!(plan(&config(), &machine), ["remove container etcd", "create container etcd", "start container etcd"]);
    machine.execute(&converge(&config(), &machine.state).unwrap());
    assert_eq!(machine.state.containers[0].attempt, 1);
}

#[test]
fn a_sandbox_that_the_runtime_made_late_ends_nothing() {
    let mut machine = settled(&config());
    let sandbox = &machine.state.sandboxes[0];
    let late = SandboxState { id: "late".to_owned(), attempt: sandbox.attempt + 1, ..sandbox.clone() };
    machine.state.sandboxes.push(late);
    assert_eq!(plan(&config(), &machine), ["stop sandbox late", "remove sandbox late"]);

    // A sandbox of another definition has to be replaced, which is an interruption.
    machine.state.sandboxes[0].digest = "of something else".to_owned();
    let config = config();
    assert!(machine.state.is_interrupted(&etcd(), (&config.pods[&etcd()], &config.pods[&etcd()].digests())));
}

/// A config with a second container, on which the pod's main container relies.
fn accompanied() -> MachineConfig {
    let mut config = config();
    let containers = &mut config.pods.get_mut(&etcd()).unwrap().containers;
    let beside = Container { name: "egress".to_owned(), stop_seconds: 65, ..containers[0].clone() };
    containers.insert(0, beside);
    config
}

#[test]
fn the_container_beside_a_component_starts_first_and_stops_last() {
    let begins = plan(&accompanied(), &MachineModel::empty());
    let of_containers: Vec<&str> =
        begins.iter().map(String::as_str).filter(|step| step.contains(" container ")).collect();
    assert_eq!(
        of_containers,
        ["create container egress", "start container egress", "create container etcd", "start container etcd"]
    );
    let end = [
        "stop container etcd within 25 s",
        "stop container egress within 65 s",
        "stop sandbox id-1",
        "remove sandbox id-1",
    ];
    let machine = settled(&accompanied());
    let mut other = accompanied();
    other.generation += 1;
    other.pods.get_mut(&etcd()).unwrap().containers[1].command.push("--new".to_owned());
    assert_eq!(plan(&other, &machine)[..end.len()], end, "it is replaced");
    other.pods.clear();
    let removed = plan(&other, &machine);
    let from = removed.iter().position(|step| step == end[0]).unwrap();
    assert_eq!(removed[from..from + end.len()], end, "it goes");
}

#[test]
fn the_end_of_one_container_leaves_the_other_alone() {
    for ended in ["egress", "etcd"] {
        let mut machine = settled(&accompanied());
        let found = machine.state.containers.iter_mut().find(|found| found.name == ended).unwrap();
        found.phase = ContainerPhase::Exited { code: 137 };
        let steps = ["remove", "create", "start"].map(|step| format!("{step} container {ended}"));
        assert_eq!(plan(&accompanied(), &machine), steps);
        machine.execute(&converge(&accompanied(), &machine.state).unwrap());
        assert_eq!(plan(&accompanied(), &machine), [""; 0]);
    }
}

#[test]
fn a_container_that_was_made_and_not_started_is_started() {
    let mut machine = settled(&config());
    machine.state.containers[0].phase = ContainerPhase::Created;
    assert_eq!(plan(&config(), &machine), ["start container etcd"]);
}

#[test]
fn a_container_that_the_runtime_lost_is_stopped_before_it_is_replaced() {
    let mut machine = settled(&config());
    machine.state.containers[0].phase = ContainerPhase::Unknown;
    assert_eq!(
        plan(&config(), &machine),
        ["stop container etcd within 25 s", "remove container etcd", "create container etcd", "start container etcd"]
    );
}

#[test]
fn a_pod_whose_files_were_removed_is_replaced() {
    let mut machine = settled(&config());
    machine.remove_tree("0123456789abcdef/etcd-0/files");
    assert_eq!(
        plan(&config(), &machine),
        [
            "create 2 directories",
            "write file pki/ca.crt",
            "stop container etcd within 25 s",
            "stop sandbox id-1",
            "remove sandbox id-1",
            "create sandbox 1",
            "create container etcd",
            "start container etcd",
        ]
    );
}

/// Its program may have been started after the change.
#[test]
fn a_pod_is_replaced_if_a_file_that_it_reads_at_its_start_was_changed_by_hand() {
    let mut config = config();
    config.pods.get_mut(&etcd()).unwrap().files[0].on_change = OnChange::Restart;
    let mut machine = settled(&config);
    let path = crate::layout::file_path(&etcd(), "pki/ca.crt");
    machine.state.files.get_mut(&path).unwrap().sha256 = Some(String::new());
    assert_eq!(
        plan(&config, &machine),
        [
            "write file pki/ca.crt",
            "stop container etcd within 25 s",
            "stop sandbox id-1",
            "remove sandbox id-1",
            "create sandbox 1",
            "create container etcd",
            "start container etcd",
        ]
    );
}

/// Another replica is replaced first. Certificates are reloaded without a restart.
#[test]
fn a_pod_that_is_held_runs_on() {
    let mut config = config();
    let pod = config.pods.get_mut(&etcd()).unwrap();
    pod.files.push(PodFile { path: "conf".to_owned(), content: b"old".to_vec(), on_change: OnChange::Restart });
    let mut machine = settled(&config);
    let pod = config.pods.get_mut(&etcd()).unwrap();
    pod.hold = true;
    pod.files[0].content = b"renewed".to_vec();
    pod.files[1].content = b"new".to_vec();
    pod.containers[0].image = "registry.k8s.io/etcd:3.7.1-0".to_owned();
    config.generation += 1;
    assert_eq!(
        plan(&config, &machine),
        ["fetch image registry.k8s.io/etcd:3.7.1-0", "write file pki/ca.crt", "record config 3.8 as applied",]
    );
    machine.execute(&converge(&config, &machine.state).unwrap());
    assert_eq!(plan(&config, &machine), [""; 0]);

    machine.state.containers[0].phase = ContainerPhase::Exited { code: 1 };
    assert!(plan(&config, &machine).contains(&"create sandbox 1".to_owned()), "there is nothing to hold");
    machine.state.containers[0].phase = ContainerPhase::Running;
    machine.state.sandboxes[0].ready = false;
    assert!(plan(&config, &machine).contains(&"create sandbox 1".to_owned()), "a broken one is mended");
    machine.state.sandboxes[0].ready = true;
    config.pods.get_mut(&etcd()).unwrap().hold = false;
    config.generation += 1;
    assert_eq!(plan(&config, &machine)[..2], ["write file conf", "stop container etcd within 25 s"]);
}

#[test]
fn a_change_of_the_container_beside_a_component_is_not_held() {
    let mut config = accompanied();
    let mut machine = settled(&config);
    let pod = config.pods.get_mut(&etcd()).unwrap();
    pod.hold = true;
    pod.files.push(PodFile { path: "conf".to_owned(), content: b"new".to_vec(), on_change: OnChange::Restart });
    config.generation += 1;
    let replaced = "create sandbox 1".to_owned();
    let with = |machine: &mut MachineModel, ended: &str| {
        for container in &mut machine.state.containers {
            let has_ended = container.name == ended;
            container.phase = if has_ended { ContainerPhase::Exited { code: 1 } } else { ContainerPhase::Running };
        }
        plan(&config, machine)
    };
    assert!(!with(&mut machine, "none").contains(&replaced), "both run");
    assert!(!with(&mut machine, "egress").contains(&replaced), "the store runs");
    assert!(with(&mut machine, "etcd").contains(&replaced), "the store has ended");
}

/// An API server whose key file was changed by hand runs until its turn, and so does the container that its connections go through.
#[test]
fn the_exited_container_beside_a_held_component_is_restarted() {
    let mut config = accompanied();
    let pod = config.pods.get_mut(&etcd()).unwrap();
    pod.hold = true;
    pod.files.push(PodFile { path: "conf".to_owned(), content: b"own".to_vec(), on_change: OnChange::Restart });
    let mut machine = settled(&config);
    let changed = machine.state.files.iter_mut().find(|(path, _)| path.ends_with("/conf")).unwrap().1;
    changed.sha256 = Some("0".repeat(64));
    assert_eq!(plan(&config, &machine), [""; 0]);
    let beside = machine.state.containers.iter_mut().find(|found| found.name == "egress").unwrap();
    beside.phase = ContainerPhase::Exited { code: 1 };
    assert_eq!(
        plan(&config, &machine),
        ["remove container egress", "create container egress", "start container egress"]
    );
    machine.execute(&converge(&config, &machine.state).unwrap());
    assert_eq!(plan(&config, &machine), [""; 0]);
}

#[test]
fn everything_is_removed_with_the_last_pod() {
    let machine = settled(&config());
    let empty = MachineConfig { generation: 8, pods: [].into(), ..config() };
    assert_eq!(
        plan(&empty, &machine),
        [
            "stop container etcd within 25 s",
            "stop sandbox id-1",
            "remove sandbox id-1",
            "remove files, data and logs",
            "remove the remains of cluster 0123456789abcdef",
            "leave the machine as it was found",
        ]
    );
}

/// A machine with a member whose data directory has its mark.
fn marked() -> MachineModel {
    let mut machine = settled(&config());
    let data = DataState { marked: true, used: true };
    machine.state.data.insert("0123456789abcdef/etcd-0/data".to_owned(), data);
    machine
}

fn ordered() -> BTreeMap<PodName, DataRemoval> {
    let order = DataRemoval { member: "8e9e05c52164694d".to_owned(), reason: "ClusterDeleted".to_owned() };
    [(etcd(), order)].into()
}

#[test]
fn a_member_in_no_config_keeps_running_without_an_order() {
    let mut machine = marked();
    let empty = MachineConfig { generation: 8, pods: [].into(), ..config() };
    assert_eq!(plan(&empty, &machine), ["record config 3.8 as applied"]);
    machine.execute(&converge(&empty, &machine.state).unwrap());
    assert_eq!(plan(&empty, &machine), [""; 0]);
}

#[test]
fn an_order_removes_the_member_that_it_names() {
    let machine = marked();
    let empty = MachineConfig { generation: 8, pods: [].into(), removals: ordered(), ..config() };
    assert!(plan(&empty, &machine).contains(&"remove files, data and logs".to_owned()));
    let other = PodName { component: "etcd-1".parse().unwrap(), ..etcd() };
    let of_another = ordered().into_values().map(|order| (other.clone(), order)).collect();
    let empty = MachineConfig { removals: of_another, ..empty };
    assert_eq!(plan(&empty, &machine), ["record config 3.8 as applied"]);
}

#[test]
fn an_order_removes_nothing_of_a_pod_in_the_config() {
    let machine = marked();
    let wanted = MachineConfig { generation: 8, removals: ordered(), ..config() };
    assert_eq!(plan(&wanted, &machine), ["record config 3.8 as applied"]);
}

#[test]
fn another_installation_is_refused_with_the_remedy() {
    let machine = settled(&config());
    let stranger = MachineConfig { installation: "00000000000000ee".parse().unwrap(), generation: 9, ..config() };
    let refusal = converge(&stranger, &machine.state).unwrap_err();
    assert!(matches!(refusal, ConfigRefusal::AnotherInstallation { .. }));
    assert!(refusal.to_string().contains("hypervisor adopt --from 00000000000000ff"));
}

#[test]
fn only_the_same_or_a_newer_config_is_accepted() {
    let machine = settled(&config());
    let numbered = |term, generation| MachineConfig { term, generation, ..config() };
    assert_eq!(converge(&numbered(3, 7), &machine.state), Ok(Vec::new()));
    for (term, generation) in [(3, 6), (2, 9)] {
        let refusal = converge(&numbered(term, generation), &machine.state).unwrap_err();
        assert!(matches!(refusal, ConfigRefusal::Stale { .. }), "{refusal}");
    }
    for (term, generation) in [(3, 8), (4, 1)] {
        assert!(converge(&numbered(term, generation), &machine.state).is_ok());
    }
    let mut changed = config();
    changed.pods.get_mut(&etcd()).unwrap().user += 1;
    let refusal = ConfigRefusal::Changed { term: 3, generation: 7 };
    assert_eq!(converge(&changed, &machine.state), Err(refusal));
}

#[test]
fn a_record_of_another_content_is_renewed_with_a_new_number() {
    let mut machine = settled(&config());
    machine.state.applied = Some(Applied { generation: 6, ..applied_by(&config()) });
    assert_eq!(plan(&config(), &machine), ["record config 3.7 as applied"]);
}

#[test]
fn a_pod_keeps_to_its_own_directory_and_has_no_privilege() {
    type Spoil = fn(&mut Pod);
    let spoils: [Spoil; 8] = [
        |pod| pod.user = 0,
        |pod| pod.files[0].path = "../../x".to_owned(),
        |pod| pod.files[0].path = "/etc/passwd".to_owned(),
        |pod| pod.files.push(pod.files[0].clone()),
        |pod| {
            let mut file = pod.files[0].clone();
            file.path.push_str("/below");
            pod.files.push(file);
        },
        |pod| pod.data.push("files".to_owned()),
        |pod| pod.containers[0].mounts[0].source = "..".to_owned(),
        |pod| pod.containers.push(pod.containers[0].clone()),
    ];
    for (index, spoil) in spoils.iter().enumerate() {
        let mut config = config();
        spoil(config.pods.get_mut(&etcd()).unwrap());
        let refused = converge(&config, &MachineModel::empty().state);
        assert!(matches!(refused, Err(ConfigRefusal::Invalid { .. })), "{index}: {refused:?}");
    }
}

fn asking(check: ContainerCheck) -> Liveness {
    Liveness { check, period_seconds: 5, timeout_seconds: 5, failure_threshold: 3, startup_seconds: None }
}

fn socket(path: &str) -> ContainerCheck {
    ContainerCheck::Socket { path: path.to_owned(), request: "show info".to_owned(), answer: "Name".to_owned() }
}

fn https(authority: &str) -> ContainerCheck {
    ContainerCheck::Https {
        address: ([127, 0, 0, 1], 2379).into(),
        path: "/livez".to_owned(),
        server_name: "etcd-0".to_owned(),
        authority: authority.to_owned(),
        identity: None,
    }
}

#[test]
fn a_check_uses_only_files_and_addresses_of_its_pod() {
    let with = |liveness: Liveness| {
        let mut config = config();
        let pod = config.pods.get_mut(&etcd()).unwrap();
        pod.containers[0].liveness = Some(liveness);
        pod.files.push(PodFile { path: SERVING_CERTIFICATE.to_owned(), ..pod.files[0].clone() });
        converge(&config, &MachineModel::empty().state)
    };
    for good in [socket("data/admin.sock"), https("pki/ca.crt")] {
        assert!(with(asking(good)).is_ok());
    }
    let of_others = ["../x/admin.sock", "data/../admin.sock", "files/admin.sock", "data"].map(socket);
    for bad in of_others.into_iter().chain([https("/etc/ssl/ca.crt")]) {
        let refused = with(asking(bad.clone()));
        assert!(matches!(refused, Err(ConfigRefusal::Invalid { .. })), "{bad:?}: {refused:?}");
    }
    let at_once = Liveness { period_seconds: 0, ..asking(https("pki/ca.crt")) };
    assert!(matches!(with(at_once), Err(ConfigRefusal::Invalid { .. })));
}

#[test]
fn another_check_restarts_nothing() {
    let machine = settled(&config());
    let mut checked = MachineConfig { generation: 8, ..config() };
    checked.pods.get_mut(&etcd()).unwrap().containers[0].liveness = Some(asking(socket("data/admin.sock")));
    assert_eq!(plan(&checked, &machine), ["record config 3.8 as applied"]);
}

fn balanced(servers: &[(&str, &str)]) -> MachineConfig {
    let mut config = config();
    let pod = config.pods.get_mut(&etcd()).unwrap();
    let addresses = servers.iter().map(|(name, address)| ((*name).to_owned(), address.parse().unwrap())).collect();
    pod.data.push("run".to_owned());
    pod.servers = Some(HaproxyServers { options: "check".to_owned(), addresses });
    config
}

/// Servers as haproxy reports them: name, address, admin state, connections.
fn reported(servers: &[(&str, &str, ServerAdmin, u64)]) -> BTreeMap<String, ServerState> {
    let server = |(name, address, admin, sessions): &(&str, &str, ServerAdmin, u64)| {
        let state = ServerState { address: address.parse().unwrap(), admin: *admin, sessions: *sessions, ready: true };
        ((*name).to_owned(), state)
    };
    servers.iter().map(server).collect()
}

#[test]
fn servers_change_while_their_haproxy_runs() {
    let one = balanced(&[("b/a", "10.0.0.1:1")]);
    let mut two = balanced(&[("b/a", "10.0.0.1:1"), ("b/b", "10.0.0.2:1")]);
    two.generation += 1;
    let mut machine = settled(&one);
    assert_eq!(plan(&two, &machine), ["record config 3.8 as applied"], "it does not answer, and reads its files");
    machine.state.servers.insert(etcd(), reported(&[("b/a", "10.0.0.1:1", ServerAdmin::Serves, 5)]));
    assert_eq!(plan(&two, &machine), ["add server b/b at 10.0.0.2:1", "record config 3.8 as applied"]);
    machine.execute(&converge(&two, &machine.state).unwrap());
    assert_eq!(plan(&two, &machine), [""; 0]);

    machine.state.containers[0].phase = ContainerPhase::Exited { code: 1 };
    machine.state.servers.get_mut(&etcd()).unwrap().clear();
    assert_eq!(
        plan(&two, &machine),
        ["remove container etcd", "create container etcd", "start container etcd"],
        "one that starts reads its files"
    );
}

#[test]
fn a_first_start_waits_for_the_mark_to_be_written_down() {
    let mut config = config();
    config.pods.get_mut(&etcd()).unwrap().start = Start::Never;
    let mut machine = MachineModel::empty();
    assert_eq!(
        plan(&config, &machine),
        [
            "take the machine for installation 00000000000000ff",
            "fetch image registry.k8s.io/etcd:3.7.0-0",
            "fetch image registry.k8s.io/pause:3.10.2",
            "create 5 directories",
            "write file pki/ca.crt",
            "mark 0123456789abcdef/etcd-0/data before the first start",
            "record config 3.7 as applied",
        ]
    );
    machine.execute(&converge(&config, &machine.state).unwrap());
    assert_eq!(plan(&config, &machine), [""; 0]);

    config.generation += 1;
    config.pods.get_mut(&etcd()).unwrap().start = Start::OnMarkedData;
    assert_eq!(
        plan(&config, &machine),
        ["create sandbox 0", "create container etcd", "start container etcd", "record config 3.8 as applied"]
    );
}

/// The number of passes before the first start makes no difference if the data is no store.
#[test]
fn data_that_can_be_recreated_needs_no_mark() {
    let mut config = config();
    config.pods.get_mut(&etcd()).unwrap().start = Start::Later;
    let mut machine = MachineModel::empty();
    for _ in 0..2 {
        machine.execute(&converge(&config, &machine.state).unwrap());
        assert_eq!(plan(&config, &machine), [""; 0]);
        assert_eq!(machine.state.data_of(&etcd(), "data"), DataState::default());
        assert_eq!((machine.state.sandboxes.len(), machine.state.images.len()), (0, 2));
    }
    config.generation += 1;
    config.pods.get_mut(&etcd()).unwrap().start = Start::Always;
    assert_eq!(
        plan(&config, &machine),
        ["create sandbox 0", "create container etcd", "start container etcd", "record config 3.8 as applied"]
    );
}

#[test]
fn a_server_is_removed_after_its_last_connection() {
    let wanted = balanced(&[]);
    let mut machine = settled(&wanted);
    for (admin, sessions, steps) in [
        (ServerAdmin::Serves, 3, vec!["drain server b/a"]),
        (ServerAdmin::Drains, 3, vec![]),
        (ServerAdmin::Drains, 0, vec!["remove server b/a"]),
        (ServerAdmin::Maintenance, 0, vec!["remove server b/a"]),
    ] {
        machine.state.servers.insert(etcd(), reported(&[("b/a", "10.0.0.1:1", admin, sessions)]));
        assert_eq!(plan(&wanted, &machine), steps, "{admin:?} {sessions}");
    }
}

#[test]
fn names_of_servers_hold_no_commands() {
    for (name, options) in [("b/a;shutdown", "check"), ("a", "check"), ("b/a b/c", "check"), ("b/a", "check\ndel")] {
        let mut config = balanced(&[(name, "10.0.0.1:1")]);
        config.pods.get_mut(&etcd()).unwrap().servers.as_mut().unwrap().options = options.to_owned();
        let refused = converge(&config, &MachineModel::empty().state);
        assert!(matches!(refused, Err(ConfigRefusal::Invalid { .. })), "{name} {options:?}: {refused:?}");
    }
}

proptest! {
    /// Whatever haproxy holds, and whenever connections end: servers in the config are never drained, no connection is cut (the model refuses that),
    /// and in the end haproxy has the servers of the config.
    #[test]
    fn haproxy_converges_to_the_servers_of_the_config(
        wanted in btree_map("b/[a-d]", 1..4u8, 0..4),
        found in btree_map("b/[a-d]", (1..4u8, admin(), 0..3u64), 0..4),
    ) {
        let address = |last: u8| SocketAddr::from(([10, 0, 0, last], 1));
        let mut config = balanced(&[]);
        let addresses: BTreeMap<_, _> = wanted.into_iter().map(|(name, last)| (name, address(last))).collect();
        config.pods.get_mut(&etcd()).unwrap().servers.as_mut().unwrap().addresses = addresses.clone();
        let mut machine = settled(&config);
        let state = |(last, admin, sessions)| ServerState { address: address(last), admin, sessions, ready: true };
        machine.state.servers.insert(etcd(), found.into_iter().map(|(name, found)| (name, state(found))).collect());
        for _ in 0..8 {
            let actions = converge(&config, &machine.state).unwrap();
            for action in &actions {
                if let Action::Pod(_, PodAction::ChangeServer { server, change: ServerChange::Drain }) = action {
                    prop_assert_ne!(Some(&machine.state.servers[&etcd()][server].address), addresses.get(server));
                }
            }
            if actions.is_empty() {
                let found = &machine.state.servers[&etcd()];
                let left = found.keys().any(|server| !addresses.contains_key(server))
                    || found.iter().any(|(server, found)| addresses[server] != found.address);
                prop_assert_eq!(waits_for_connections(&config, &machine.state), left, "nobody else tells of their end");
            }
            machine.execute(&actions);
            for server in machine.state.servers.get_mut(&etcd()).unwrap().values_mut() {
                server.sessions = server.sessions.saturating_sub(1);
            }
        }
        prop_assert_eq!(converge(&config, &machine.state).unwrap(), []);
        let left = &machine.state.servers[&etcd()];
        prop_assert!(left.values().all(|server| server.admin == ServerAdmin::Serves));
        prop_assert_eq!(left.iter().map(|(name, server)| (name.clone(), server.address)).collect::<BTreeMap<_, _>>(), addresses);
    }
}

fn admin() -> impl Strategy<Value = ServerAdmin> {
    prop_oneof![Just(ServerAdmin::Serves), Just(ServerAdmin::Drains), Just(ServerAdmin::Maintenance)]
}

#[test]
fn a_member_without_its_data_is_not_started_and_nothing_of_it_is_touched() {
    let mut config = config();
    config.pods.get_mut(&etcd()).unwrap().start = Start::Never;
    let mut machine = settled(&config);
    config.pods.get_mut(&etcd()).unwrap().start = Start::OnUsedData;
    config.generation += 1;
    machine.state.data.values_mut().for_each(|data| data.used = true);
    machine.execute(&converge(&config, &machine.state).unwrap());
    assert_eq!(plan(&config, &machine), [""; 0]);

    // Data that is emptied while the pod runs does not stop it. If the data is empty, lost or unmarked and the pod has ended, the pod stays stopped.
    machine.state.data.values_mut().for_each(|data| data.used = false);
    assert_eq!(plan(&config, &machine), [""; 0]);
    machine.state.containers[0].phase = ContainerPhase::Exited { code: 1 };
    assert_eq!(plan(&config, &machine), [""; 0]);
    machine.state.data.values_mut().for_each(|data| *data = DataState { marked: false, used: true });
    assert_eq!(plan(&config, &machine), [""; 0]);
    let empty = MachineModel::empty();
    assert_eq!(
        plan(&config, &empty),
        ["take the machine for installation 00000000000000ff", "record config 3.8 as applied"]
    );
}

#[test]
fn unknown_clusters_are_left_alone() {
    let mut machine = settled(&config());
    let stranger = PodName { cluster: "00000000000000aa".parse().unwrap(), component: "etcd-0".parse().unwrap() };
    let both = MachineConfig {
        format: keelway_api::machine::ConfigFormat::NEWEST,
        generation: 8,
        pods: [etcd(), stranger.clone()].map(|name| (name, config().pods[&etcd()].clone())).into(),
        ..config()
    };
    machine.execute(&converge(&both, &machine.state).unwrap());
    let others: BTreeSet<_> = [stranger.cluster.clone()].into();
    let own = MachineConfig { generation: 9, others: others.clone(), ..config() };
    assert_eq!(plan(&own, &machine), ["record config 3.9 as applied"]);
    let none = MachineConfig { generation: 10, pods: [].into(), others, ..config() };
    machine.execute(&converge(&none, &machine.state).unwrap());
    assert!(machine.state.sandboxes.iter().all(|sandbox| sandbox.pod == stranger));
    assert_eq!(machine.state.sandboxes.len(), 1);
    assert_eq!(machine.state.owner, Some(none.installation.clone()));
    assert_eq!(plan(&none, &machine), [""; 0]);
}

#[test]
fn a_cluster_that_loses_nothing_has_its_pods_looked_after() {
    let mut machine = settled(&config());
    let others: BTreeSet<_> = [etcd().cluster].into();
    let same = MachineConfig { generation: 8, others: others.clone(), ..config() };
    assert_eq!(plan(&same, &machine), ["record config 3.8 as applied"]);
    machine.execute(&converge(&same, &machine.state).unwrap());
    machine.state.containers.clear();
    assert!(!plan(&same, &machine).is_empty(), "what ended is started again");
    let none = MachineConfig { generation: 9, pods: [].into(), others, ..config() };
    assert_eq!(plan(&none, &machine), ["record config 3.9 as applied"]);
}

#[test]
fn a_machine_of_a_kubelet_is_refused() {
    let mut machine = settled(&config());
    machine.state.kubelet_pods = 2;
    assert_eq!(converge(&config(), &machine.state), Err(ConfigRefusal::UsedByKubelet { pods: 2 }));
}

/// A member that ran, with its data.
fn running_member() -> (MachineConfig, MachineModel) {
    let mut config = config();
    config.pods.get_mut(&etcd()).unwrap().start = Start::Never;
    let mut machine = settled(&config);
    config.pods.get_mut(&etcd()).unwrap().start = Start::OnUsedData;
    config.generation += 1;
    machine.state.data.values_mut().for_each(|data| data.used = true);
    machine.execute(&converge(&config, &machine.state).unwrap());
    config.generation += 1;
    (config, machine)
}

#[test]
fn a_member_stops_and_keeps_its_data_even_if_its_replacement_is_held() {
    let (mut config, mut machine) = running_member();
    let pod = config.pods.get_mut(&etcd()).unwrap();
    (pod.start, pod.hold) = (Start::Stopped, true);
    let (files, data) = (machine.state.files.clone(), machine.state.data.clone());
    machine.execute(&converge(&config, &machine.state).unwrap());
    assert!(machine.state.sandboxes.is_empty());
    assert_eq!((machine.state.files.clone(), machine.state.data.clone()), (files, data));
    assert_eq!(plan(&config, &machine), [""; 0]);
}

#[test]
fn the_data_of_a_member_is_copied_after_it_stopped_and_once() {
    let (mut config, mut machine) = running_member();
    config.pods.get_mut(&etcd()).unwrap().start = Start::Copied(3);
    let steps = plan(&config, &machine);
    let expected = [
        "stop container etcd within 25 s",
        "stop sandbox id-1",
        "remove sandbox id-1",
        "copy 0123456789abcdef/etcd-0/data to 0123456789abcdef/etcd-0/data.copy-3",
        "record config 3.9 as applied",
    ];
    assert_eq!(steps, expected);
    machine.execute(&converge(&config, &machine.state).unwrap());
    assert_eq!(plan(&config, &machine), [""; 0]);
    // The copy stays while the member runs, and is removed together with it.
    config.pods.get_mut(&etcd()).unwrap().start = Start::OnUsedData;
    config.generation += 1;
    machine.execute(&converge(&config, &machine.state).unwrap());
    assert!(machine.state.data_of(&etcd(), "data.copy-3").used);
    assert_eq!(plan(&config, &machine), [""; 0]);
}

#[test]
fn data_that_is_gone_is_not_copied() {
    let (mut config, mut machine) = running_member();
    config.pods.get_mut(&etcd()).unwrap().start = Start::Copied(1);
    machine.state.data.values_mut().for_each(|data| data.used = false);
    assert!(!plan(&config, &machine).iter().any(|step| step.starts_with("copy ")));
}
