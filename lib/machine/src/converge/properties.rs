//! Properties that hold for every config and every state of a machine.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    machine::{
        Container, ContainerPhase, ContainerResources, ContainerState, DataRemoval, DataState, MachineConfig,
        MachineState, Mount, OnChange, Pod, PodFile, SandboxState, Start, sha256_hex,
    },
    name::PodName,
};
use proptest::{
    bool::weighted,
    collection::vec,
    option,
    prelude::*,
    sample::{Index, subsequence},
};

use super::{
    applied_by, converge,
    model::{MachineModel, file_state},
};
use crate::{
    action::{Action, PodAction},
    layout::{FILES, file_path, pod_directory},
};

fn pod_names() -> Vec<PodName> {
    ["0000000000000001", "0000000000000002"]
        .iter()
        .flat_map(|cluster| ["etcd-0", "kube-apiserver-0"].map(|component| (cluster, component)))
        .map(|(cluster, component)| PodName {
            cluster: cluster.parse().unwrap(),
            component: component.parse().unwrap(),
        })
        .collect()
}

fn container(name: &str, image: &str, data: &[String]) -> Container {
    let sources = data.iter().cloned().chain([FILES.to_owned()]);
    Container {
        name: name.to_owned(),
        image: image.to_owned(),
        command: vec![format!("/bin/{name}")],
        mounts: sources
            .map(|source| Mount { target: format!("/{source}"), read_only: source == FILES, source })
            .collect(),
        resources: ContainerResources { cpu_request_millis: 100, cpu_limit_millis: None, memory_limit_bytes: 1 << 28 },
        stop_seconds: 10,
        liveness: None,
    }
}

prop_compose! {
    fn file(path: &'static str)(content in 0..3u8, restart in any::<bool>()) -> PodFile {
        PodFile {
            path: path.to_owned(),
            content: vec![content],
            on_change: if restart { OnChange::Restart } else { OnChange::PickedUp },
        }
    }
}

/// Two sets of paths. Files of one are directories of the other.
fn files() -> impl Strategy<Value = Vec<PodFile>> {
    let some_of = |paths: [&'static str; 3]| {
        paths.map(|path| option::of(file(path))).prop_map(|files| files.into_iter().flatten().collect())
    };
    prop_oneof![some_of(["config", "pki/ca.crt", "pki/etcd/key"]), some_of(["pki", "config/a", "b"]),]
}

prop_compose! {
    fn pod()(
        user in 1000..1002u32,
        files in files(),
        data in subsequence(vec!["data".to_owned(), "run".to_owned()], 0..=2),
        names in subsequence(vec!["main", "side"], 1..=2),
        image in prop_oneof![Just("image:a"), Just("image:b")],
    ) -> Pod {
        Pod {
            user,
            files,
            containers: names.iter().map(|name| container(name, image, &data)).collect(),
            data,
            pause_image: "pause:1".to_owned(),
            servers: None,
            start: Start::Always,
            hold: false,
            registries: std::collections::BTreeMap::new(),
            prefetch: std::collections::BTreeSet::new(),
        }
    }
}

fn start() -> impl Strategy<Value = Start> {
    let waits = prop_oneof![Just(Start::Never), Just(Start::Later)];
    prop_oneof![Just(Start::Always), waits, Just(Start::OnMarkedData), Just(Start::OnUsedData)]
}

fn removal() -> DataRemoval {
    DataRemoval { member: "8e9e05c52164694d".to_owned(), reason: "ClusterDeleted".to_owned() }
}

fn config(generation: u64) -> impl Strategy<Value = MachineConfig> {
    vec(option::weighted(0.7, pod()), 4).prop_map(move |pods| MachineConfig {
        format: keelway_api::machine::ConfigFormat::NEWEST,
        installation: "00000000000000ff".parse().unwrap(),
        term: 1,
        generation,
        pods: pod_names().into_iter().zip(pods).filter_map(|(name, pod)| Some((name, pod?))).collect(),
        others: BTreeSet::new(),
        removals: std::collections::BTreeMap::new(),
    })
}

/// A change of a machine that does not come from the agent.
#[derive(Debug, Clone)]
enum Event {
    SandboxDies,
    SandboxVanishes,
    SandboxDoubled { ready: bool },
    ContainerIs(ContainerPhase),
    ContainerVanishes,
    ContainerDoubled(ContainerPhase),
    PathVanishes,
    FileIs(&'static str),
    ModeIs(u32),
    Stray(&'static str, bool),
    ImagesVanish,
    OwnerVanishes,
    AppliedVanishes,
}

fn phase() -> impl Strategy<Value = ContainerPhase> {
    prop_oneof![
        Just(ContainerPhase::Created),
        Just(ContainerPhase::Running),
        Just(ContainerPhase::Exited { code: 1 }),
        Just(ContainerPhase::Unknown),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let stray = prop_oneof![
        Just("files/stray"),
        Just("files/pki"),
        Just("files/config"),
        Just("files/pki/etcd"),
        Just("files/pki/ca.crt"),
        Just("data"),
        Just("run"),
    ];
    prop_oneof![
        Just(Event::SandboxDies),
        Just(Event::SandboxVanishes),
        any::<bool>().prop_map(|ready| Event::SandboxDoubled { ready }),
        phase().prop_map(Event::ContainerIs),
        Just(Event::ContainerVanishes),
        phase().prop_map(Event::ContainerDoubled),
        Just(Event::PathVanishes),
        prop_oneof![Just(""), Just("other")].prop_map(Event::FileIs),
        Just(Event::ModeIs(0o777)),
        (stray, any::<bool>()).prop_map(|(path, directory)| Event::Stray(path, directory)),
        Just(Event::ImagesVanish),
        Just(Event::OwnerVanishes),
        Just(Event::AppliedVanishes),
    ]
}

fn pick<T>(items: &[T], index: Index) -> Option<usize> {
    (!items.is_empty()).then(|| index.index(items.len()))
}

fn happen(model: &mut MachineModel, event: &Event, index: Index) {
    match event {
        Event::ImagesVanish => model.state.images.clear(),
        Event::OwnerVanishes => model.state.owner = None,
        Event::AppliedVanishes => model.state.applied = None,
        Event::SandboxDies | Event::SandboxVanishes | Event::SandboxDoubled { .. } => {
            if let Some(at) = pick(&model.state.sandboxes, index) {
                happen_to_sandbox(model, event, at);
            }
        }
        Event::ContainerIs(_) | Event::ContainerVanishes | Event::ContainerDoubled(_) => {
            if let Some(at) = pick(&model.state.containers, index) {
                happen_to_container(model, event, at);
            }
        }
        Event::PathVanishes | Event::FileIs(_) | Event::ModeIs(_) | Event::Stray(..) => {
            let below_top = model.state.files.keys().filter(|path| path.contains('/'));
            let paths: Vec<String> = below_top.cloned().collect();
            if let Some(at) = pick(&paths, index) {
                happen_to_path(model, event, &paths[at]);
            }
        }
    }
}

fn happen_to_sandbox(model: &mut MachineModel, event: &Event, at: usize) {
    let sandboxes = &mut model.state.sandboxes;
    if let Event::SandboxDoubled { ready } = event {
        let highest = sandboxes.iter().map(|sandbox| sandbox.attempt).max();
        let double = SandboxState { attempt: highest.unwrap_or(0) + 1, ready: *ready, ..sandboxes[at].clone() };
        let id = model.new_id();
        model.state.sandboxes.insert(0, SandboxState { id, ..double });
    } else if matches!(event, Event::SandboxVanishes) {
        let gone = sandboxes.remove(at).id;
        model.state.containers.retain(|container| container.sandbox != gone);
    } else {
        sandboxes[at].ready = false;
    }
}

fn happen_to_container(model: &mut MachineModel, event: &Event, at: usize) {
    if let Event::ContainerDoubled(phase) = event {
        let highest = model.state.containers.iter().map(|container| container.attempt).max();
        let double = ContainerState {
            id: model.new_id(),
            attempt: highest.unwrap_or(0) + 1,
            phase: *phase,
            ..model.state.containers[at].clone()
        };
        model.state.containers.insert(0, double);
    } else if let Event::ContainerIs(phase) = event {
        model.state.containers[at].phase = *phase;
    } else {
        model.state.containers.remove(at);
    }
}

fn happen_to_path(model: &mut MachineModel, event: &Event, path: &str) {
    let of_pod = path.match_indices('/').nth(1).map_or(path, |(end, _)| &path[..end]);
    let is_directory = model.state.files[path].sha256.is_none();
    match event {
        Event::FileIs(digest) if !is_directory => {
            model.state.files.get_mut(path).unwrap().sha256 = Some((*digest).to_owned());
        }
        Event::ModeIs(mode) => model.state.files.get_mut(path).unwrap().mode = *mode,
        Event::Stray(name, directory) => {
            let path = format!("{of_pod}/{name}");
            let parent = path.rsplit_once('/').unwrap().0;
            if model.state.files.get(parent).is_some_and(|parent| parent.sha256.is_none()) {
                model.remove_tree(&path);
                let digest = (!directory).then(|| sha256_hex(b"stray"));
                model.state.files.insert(path, file_state(0, 0, 0o755, digest));
            }
        }
        Event::PathVanishes => model.remove_tree(path),
        Event::FileIs(_)
        | Event::SandboxDies
        | Event::SandboxVanishes
        | Event::SandboxDoubled { .. }
        | Event::ContainerIs(_)
        | Event::ContainerVanishes
        | Event::ContainerDoubled(_)
        | Event::ImagesVanish
        | Event::OwnerVanishes
        | Event::AppliedVanishes => {}
    }
}

/// A machine with a history, and a config that leaves most of its pods unchanged.
fn world() -> impl Strategy<Value = (MachineModel, MachineConfig)> {
    let same = vec(weighted(0.6), 4);
    let events = vec((event(), any::<Index>()), 0..8);
    (option::weighted(0.8, config(1)), config(2), same, events).prop_map(|(before, mut config, same, events)| {
        let mut model = MachineModel::empty();
        if let Some(before) = before {
            model.execute(&converge(&before, &model.state).unwrap());
            let kept = before.pods.into_iter().zip(same).filter(|(_, same)| *same);
            config.pods.extend(kept.map(|(pod, _)| pod));
        }
        for (event, index) in &events {
            happen(&mut model, event, *index);
        }
        (model, config)
    })
}

/// Asserts that a machine matches its config, without the use of `converge`.
fn assert_holds(state: &MachineState, config: &MachineConfig) {
    let pods: BTreeSet<_> = state.sandboxes.iter().map(|sandbox| &sandbox.pod).collect();
    assert_eq!(pods, config.pods.keys().collect());
    assert_eq!(state.sandboxes.len(), config.pods.len());
    for sandbox in &state.sandboxes {
        let pod = &config.pods[&sandbox.pod];
        assert!(sandbox.ready);
        assert_eq!(sandbox.digest, pod.digest());
        let found = state.containers.iter().filter(|found| found.sandbox == sandbox.id);
        let running: BTreeMap<_, _> = found.map(|found| (&found.name, found.phase)).collect();
        let wanted = pod.containers.iter().map(|wanted| (&wanted.name, ContainerPhase::Running));
        assert_eq!(running, wanted.collect());
    }
    for (name, pod) in &config.pods {
        let below = file_path(name, "");
        let found: BTreeMap<_, _> = state
            .files
            .iter()
            .filter(|(path, found)| path.starts_with(&below) && found.sha256.is_some())
            .map(|(path, found)| (path.clone(), found.clone()))
            .collect();
        let wanted = pod.files.iter().map(|file| {
            let digest = sha256_hex(&file.content);
            (file_path(name, &file.path), file_state(pod.user, pod.user, 0o600, Some(digest)))
        });
        assert_eq!(found, wanted.collect());
    }
    if config.pods.is_empty() {
        assert_eq!((&state.owner, &state.applied, state.files.len()), (&None, &None, 0));
    } else {
        assert_eq!(state.owner.as_ref(), Some(&config.installation));
        assert_eq!(state.applied, Some(applied_by(config)));
    }
}

/// Returns a part of the actions: some steps of each pod, because pods do not wait for each other, and the actions after all pods only if no step was
/// left out.
fn part(actions: &[Action], cuts: &BTreeMap<PodName, Index>) -> Vec<Action> {
    let mut left: BTreeMap<&PodName, usize> = BTreeMap::new();
    for (pod, cut) in cuts {
        let steps = actions.iter().filter(|action| action.pod() == Some(pod)).count();
        left.insert(pod, cut.index(steps + 1));
    }
    let mut all = true;
    let mut kept = Vec::new();
    for action in actions {
        let goes = match action.pod().map(|pod| left.get_mut(pod)) {
            Some(Some(0)) => false,
            Some(Some(steps)) => {
                *steps -= 1;
                true
            }
            Some(None) => true,
            None => all,
        };
        all &= goes;
        kept.extend(goes.then(|| action.clone()));
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn one_round_leads_to_the_wanted_state((mut machine, config) in world()) {
        let actions = converge(&config, &machine.state).unwrap();
        machine.execute(&actions);
        assert_holds(&machine.state, &config);
        prop_assert_eq!(converge(&config, &machine.state).unwrap(), []);
    }

    #[test]
    fn a_round_may_be_cut_anywhere(
        (mut machine, config) in world(),
        cuts in vec(any::<Index>(), 4),
    ) {
        let cuts = pod_names().into_iter().zip(cuts).collect();
        let actions = converge(&config, &machine.state).unwrap();
        machine.execute(&part(&actions, &cuts));
        machine.execute(&converge(&config, &machine.state).unwrap());
        assert_holds(&machine.state, &config);
        prop_assert_eq!(converge(&config, &machine.state).unwrap(), []);
    }

    #[test]
    fn the_data_of_a_wanted_pod_stays((mut machine, config) in world()) {
        let data: Vec<String> = machine.state.files.iter().filter_map(|(path, found)| {
            let of_wanted = config.pods.keys().any(|pod| {
                ["data", "run"].iter().any(|name| *path == format!("{}/{name}", pod_directory(pod)))
            });
            (of_wanted && found.sha256.is_none()).then(|| path.clone())
        }).collect();
        for action in converge(&config, &machine.state).unwrap() {
            let removed = |path: &String| matches!(
                &action,
                Action::Pod(_, PodAction::RemovePath { path: removed }) if removed == path
            );
            prop_assert!(!data.iter().any(removed));
        }
        machine.execute(&converge(&config, &machine.state).unwrap());
        prop_assert!(data.iter().all(|path| machine.state.files.contains_key(path)));
    }

    #[test]
    fn a_pod_in_its_desired_state_is_not_restarted(before in config(1), users in 0..4usize) {
        let mut machine = MachineModel::empty();
        machine.execute(&converge(&before, &machine.state).unwrap());
        let mut config = MachineConfig { generation: 2, ..before };
        // A file that its process reloads, and the removal of another pod, must not touch any process.
        for pod in config.pods.values_mut() {
            for file in pod.files.iter_mut().filter(|file| file.on_change == OnChange::PickedUp) {
                file.content.push(1);
            }
        }
        config.pods.remove(&pod_names()[users]);
        let ids = |machine: &MachineModel| -> Vec<_> {
            let kept = machine.state.sandboxes.iter().filter(|sandbox| config.pods.contains_key(&sandbox.pod));
            let kept: BTreeSet<_> = kept.map(|sandbox| sandbox.id.clone()).collect();
            let inside = machine.state.containers.iter().filter(|found| kept.contains(&found.sandbox));
            inside.map(|found| found.id.clone()).collect()
        };
        let seen = ids(&machine);
        machine.execute(&converge(&config, &machine.state).unwrap());
        prop_assert_eq!(seen, ids(&machine));
        assert_holds(&machine.state, &config);
    }

    /// Marked data stays, whatever a config leaves out, unless an order names its pod.
    #[test]
    fn marked_data_is_removed_by_an_order_alone(
        (mut machine, config) in world(),
        marks in vec(any::<bool>(), 4),
        orders in vec(any::<bool>(), 4),
    ) {
        let mut config = config;
        let names = pod_names().into_iter();
        config.removals = names.zip(orders).filter(|(_, is)| *is).map(|(name, _)| (name, removal())).collect();
        let mut marked = BTreeSet::new();
        for (name, _) in pod_names().into_iter().zip(marks).filter(|(_, is)| *is) {
            let path = format!("{}/data", pod_directory(&name));
            if machine.state.files.get(&path).is_some_and(|found| found.sha256.is_none()) {
                machine.state.data.insert(path, DataState { marked: true, used: true });
                marked.insert(name);
            }
        }
        machine.execute(&converge(&config, &machine.state).unwrap());
        for name in marked {
            let goes = config.removals.contains_key(&name) && !config.pods.contains_key(&name);
            prop_assert_eq!(machine.state.has_marked_data(&name), !goes);
        }
        prop_assert_eq!(converge(&config, &machine.state).unwrap(), []);
    }

    /// A pod starts only on data that allows it, whatever happened to the machine, and wherever its rounds were cut off.
    #[test]
    fn a_pod_starts_only_on_data_that_allows_it(
        (mut machine, config) in world(),
        start in start(),
        data in vec(any::<(bool, bool)>(), 8),
        cuts in vec(any::<Index>(), 4),
    ) {
        let mut config = config;
        config.pods.values_mut().for_each(|pod| pod.start = start);
        config.removals = pod_names().into_iter().map(|name| (name, removal())).collect();
        let directories = pod_names().into_iter().flat_map(|name| {
            ["data", "run"].map(|data| format!("{}/{data}", pod_directory(&name)))
        });
        for (path, (marked, used)) in directories.zip(data) {
            if machine.state.files.get(&path).is_some_and(|found| found.sha256.is_none()) {
                machine.state.data.insert(path, DataState { marked, used });
            }
        }
        let cuts: BTreeMap<_, _> = pod_names().into_iter().zip(cuts).collect();
        for round in 0..3 {
            let actions = converge(&config, &machine.state).unwrap();
            for action in &actions {
                let Action::Pod(name, PodAction::CreateSandbox(_) | PodAction::StartContainer { .. }) = action else {
                    continue;
                };
                let Some(pod) = config.pods.get(name) else { continue };
                let allowed = start == Start::Always
                    || !start.waits() && pod.data.iter().all(|data| machine.state.data_of(name, data).allows(start));
                prop_assert!(allowed, "{name} starts with {start:?}");
            }
            if round == 0 { machine.execute(&part(&actions, &cuts)) } else { machine.execute(&actions) }
        }
        prop_assert_eq!(converge(&config, &machine.state).unwrap(), []);
        // A prepared pod may start.
        if start == Start::Never {
            config.generation += 1;
            config.pods.values_mut().for_each(|pod| pod.start = Start::OnMarkedData);
            machine.execute(&converge(&config, &machine.state).unwrap());
            assert_holds(&machine.state, &config);
        }
    }
}
