//! Cases for the runtime and the files of every machine.

use keelway_api::machine::{ContainerPhase, OnChange, PodFile, sha256_hex};
use keelway_machine::{
    action::{Action, PodAction},
    layout::MachineDirectory,
};

use super::subject::{Case, ContractSubject, ProgramBehaviour, USER, pod};

/// The exit code of a program that was killed.
const KILLED: i32 = 137;

macro_rules! cases {
    ($($case:ident,)*) => {
        /// All cases.
        pub const CASES: &[Case] = &[$((stringify!($case), |subject| Box::pin($case(subject))),)*];
    };
}

cases! {
    a_pod_comes_and_goes,
    a_name_is_taken_until_it_is_removed,
    a_container_starts_once,
    exit_codes_are_kept,
    a_stopped_sandbox_keeps_its_dead_containers,
    what_never_was_can_be_stopped_and_removed,
    what_is_missing_is_refused,
    files_are_as_they_were_written,
    data_is_marked_and_goes_with_its_pod,
    a_runtime_that_starts_again_knows_what_there_was,
}

/// Ending something that has already ended succeeds.
async fn a_pod_comes_and_goes(subject: &dyn ContractSubject) {
    let pod = pod("kube-scheduler-0");
    subject.execute_all(&pod, subject.steps(&pod, ProgramBehaviour::Serves).await).await.unwrap();
    let [sandbox] = subject.sandboxes(&pod).await.try_into().unwrap();
    assert!(sandbox.ready);
    assert_eq!((sandbox.attempt, sandbox.digest), (0, format!("digest of {pod}")));
    let found = subject.container(&pod).await;
    assert_eq!((found.name.as_str(), found.attempt, found.phase), ("one", 0, ContainerPhase::Running));
    assert_eq!((&found.sandbox, found.stop_seconds), (&sandbox.id, Some(5)));

    for _ in 0..2 {
        let stop = PodAction::StopContainer { id: found.id.clone(), name: found.name.clone(), grace_seconds: 5 };
        subject.act(&pod, stop).await.unwrap();
        // A program that has just started may not handle SIGTERM yet, and is then killed after the grace period.
        let phase = subject.container(&pod).await.phase;
        assert!(matches!(phase, ContainerPhase::Exited { code: 0 | KILLED }), "{phase:?}");
    }
    for _ in 0..2 {
        let remove = PodAction::RemoveContainer { id: found.id.clone(), name: found.name.clone() };
        subject.act(&pod, remove).await.unwrap();
        assert_eq!(subject.containers(&pod).await, []);
    }
    for _ in 0..2 {
        subject.act(&pod, PodAction::StopSandbox { id: sandbox.id.clone() }).await.unwrap();
        subject.until_stopped(&pod).await;
    }
    for _ in 0..2 {
        subject.act(&pod, PodAction::RemoveSandbox { id: sandbox.id.clone() }).await.unwrap();
        assert_eq!(subject.sandboxes(&pod).await, []);
    }
}

async fn a_name_is_taken_until_it_is_removed(subject: &dyn ContractSubject) {
    let pod = pod("kube-scheduler-1");
    subject.execute_all(&pod, subject.steps(&pod, ProgramBehaviour::Serves).await).await.unwrap();
    let [first] = subject.sandboxes(&pod).await.try_into().unwrap();
    let again = PodAction::CreateSandbox(subject.new_sandbox(&pod, 0).await);
    subject.act(&pod, again.clone()).await.unwrap_err();
    subject.act(&pod, PodAction::StopSandbox { id: first.id.clone() }).await.unwrap();
    subject.act(&pod, again.clone()).await.unwrap_err();

    subject.act(&pod, PodAction::CreateSandbox(subject.new_sandbox(&pod, 1).await)).await.unwrap();
    let both = subject.sandboxes(&pod).await;
    assert_eq!(both.iter().map(|found| found.attempt).max(), Some(1));
    let second = both.iter().find(|found| found.attempt == 1).unwrap();
    let mut new = subject.new_container(&subject.new_sandbox(&pod, 1).await, ProgramBehaviour::Serves, 1);
    new.sandbox_id = Some(second.id.clone());
    let create = PodAction::CreateContainer(Box::new(new));
    subject.act(&pod, create.clone()).await.unwrap();
    subject.act(&pod, create).await.unwrap_err();

    subject.act(&pod, PodAction::RemoveSandbox { id: first.id.clone() }).await.unwrap();
    subject.act(&pod, again).await.unwrap();
    assert!(subject.sandboxes(&pod).await.iter().all(|found| found.id != first.id), "ids are never given again");
    subject.remove(&pod).await;
}

async fn a_container_starts_once(subject: &dyn ContractSubject) {
    let pod = pod("kube-scheduler-2");
    subject.execute_all(&pod, subject.steps(&pod, ProgramBehaviour::Serves).await).await.unwrap();
    let found = subject.container(&pod).await;
    let start = PodAction::StartContainer { id: Some(found.id.clone()), name: found.name.clone() };
    subject.act(&pod, start.clone()).await.unwrap_err();
    subject.kill(&found.id).await;
    assert_eq!(subject.exit_code(&pod).await, 137);
    subject.act(&pod, start).await.unwrap_err();
    subject.remove(&pod).await;
}

async fn exit_codes_are_kept(subject: &dyn ContractSubject) {
    let pod = pod("kube-scheduler-3");
    subject.execute_all(&pod, subject.steps(&pod, ProgramBehaviour::Fails).await).await.unwrap();
    assert!(![0, 137].contains(&subject.exit_code(&pod).await));
    assert!(subject.sandboxes(&pod).await[0].ready, "a container's end is not the sandbox's");
    subject.remove(&pod).await;
}

async fn a_stopped_sandbox_keeps_its_dead_containers(subject: &dyn ContractSubject) {
    let pod = pod("kube-scheduler-4");
    subject.execute_all(&pod, subject.steps(&pod, ProgramBehaviour::Serves).await).await.unwrap();
    let [sandbox] = subject.sandboxes(&pod).await.try_into().unwrap();
    subject.act(&pod, PodAction::StopSandbox { id: sandbox.id.clone() }).await.unwrap();
    assert_eq!(subject.exit_code(&pod).await, 137);
    let mut new = subject.new_container(&subject.new_sandbox(&pod, 0).await, ProgramBehaviour::Serves, 1);
    new.sandbox_id = Some(sandbox.id.clone());
    let create = PodAction::CreateContainer(Box::new(new));
    subject.act(&pod, create.clone()).await.unwrap_err();
    subject.act(&pod, PodAction::RemoveSandbox { id: sandbox.id }).await.unwrap();
    let state = subject.observe().await;
    assert!(!state.containers.iter().any(|found| found.name == "one"), "{:?}", state.containers);
    subject.act(&pod, create).await.unwrap_err();
}

async fn what_never_was_can_be_stopped_and_removed(subject: &dyn ContractSubject) {
    let pod = pod("kube-scheduler-5");
    let (id, name) = ("0123456789abcdef".to_owned(), "one".to_owned());
    for action in [
        PodAction::StopContainer { id: id.clone(), name: name.clone(), grace_seconds: 1 },
        PodAction::RemoveContainer { id: id.clone(), name: name.clone() },
        PodAction::StopSandbox { id: id.clone() },
        PodAction::RemoveSandbox { id: id.clone() },
        PodAction::RemovePath { path: format!("{pod}/files/nothing") },
        PodAction::RemoveTree,
    ] {
        subject.act(&pod, action.clone()).await.unwrap_or_else(|error| panic!("{action}: {error}"));
    }
    subject.act(&pod, PodAction::StartContainer { id: Some(id), name }).await.unwrap_err();
}

async fn what_is_missing_is_refused(subject: &dyn ContractSubject) {
    let pod = pod("kube-scheduler-6");
    let sandbox = subject.new_sandbox(&pod, 0).await;
    let mut new = subject.new_container(&sandbox, ProgramBehaviour::Serves, 0);
    new.sandbox_id = Some("0123456789abcdef".to_owned());
    subject.act(&pod, PodAction::CreateContainer(Box::new(new.clone()))).await.unwrap_err();

    subject.act(&pod, PodAction::EnsureImage(subject.pause().into())).await.unwrap();
    subject.act(&pod, PodAction::CreateSandbox(sandbox)).await.unwrap();
    new.sandbox_id = Some(subject.sandboxes(&pod).await[0].id.clone());
    let image = std::mem::replace(&mut new.container.image, "registry.k8s.io/keelway-nothing:v1.0.0".to_owned());
    subject.act(&pod, PodAction::CreateContainer(Box::new(new.clone()))).await.unwrap_err();
    assert_eq!(subject.containers(&pod).await, [], "what was refused holds no name");
    new.container.image = image;
    subject.act(&pod, PodAction::CreateContainer(Box::new(new))).await.unwrap();
    subject.remove(&pod).await;
}

async fn files_are_as_they_were_written(subject: &dyn ContractSubject) {
    let pod = pod("kube-scheduler-7");
    let path = format!("{pod}/files/config");
    let write = |content: &[u8]| PodAction::WriteFile {
        file: PodFile { path: "config".to_owned(), content: content.to_vec(), on_change: OnChange::Restart },
        user: USER,
    };
    subject.act(&pod, write(b"one")).await.unwrap_err();
    let directories = vec![
        MachineDirectory::of_cluster(&pod.cluster),
        MachineDirectory::of_files(pod.to_string(), USER),
        MachineDirectory::of_files(format!("{pod}/files"), USER),
    ];
    for content in [b"one".as_slice(), b"two", b"two"] {
        subject.act(&pod, PodAction::MakeDirectories(directories.clone())).await.unwrap();
        subject.act(&pod, write(content)).await.unwrap();
        let found = subject.observe().await.files.get(&path).cloned().unwrap();
        assert_eq!((found.user, found.mode, found.sha256), (USER, 0o600, Some(sha256_hex(content))));
    }
    subject.act(&pod, PodAction::RemovePath { path: path.clone() }).await.unwrap();
    assert!(!subject.observe().await.files.contains_key(&path));
    let nested = MachineDirectory::of_files(path.clone(), USER);
    subject.act(&pod, PodAction::MakeDirectories(vec![nested])).await.unwrap();
    subject.act(&pod, write(b"a directory is in its place")).await.unwrap_err();
    assert_eq!(subject.observe().await.files[&path].sha256, None);
    subject.remove(&pod).await;
    assert!(!subject.observe().await.files.keys().any(|found| found.starts_with(&pod.to_string())));
}

async fn data_is_marked_and_goes_with_its_pod(subject: &dyn ContractSubject) {
    let pod = pod("kube-scheduler-8");
    let path = format!("{pod}/data");
    subject.act(&pod, PodAction::MarkData { path: path.clone() }).await.unwrap_err();
    let directories = vec![
        MachineDirectory::of_cluster(&pod.cluster),
        MachineDirectory::of_files(pod.to_string(), USER),
        MachineDirectory::of_data(path.clone(), USER),
    ];
    subject.act(&pod, PodAction::MakeDirectories(directories)).await.unwrap();
    assert!(!subject.observe().await.data_of(&pod, "data").marked);
    for _ in 0..2 {
        subject.act(&pod, PodAction::MarkData { path: path.clone() }).await.unwrap();
        let data = subject.observe().await.data_of(&pod, "data");
        assert!(data.marked && !data.used, "{data:?}");
    }
    subject.remove(&pod).await;
    assert!(!subject.observe().await.data_of(&pod, "data").marked);
    let report = subject.execute(vec![Action::ForgetCluster(pod.cluster.clone())]).await;
    assert!(report.is_complete(), "{report:?}");
}

async fn a_runtime_that_starts_again_knows_what_there_was(subject: &dyn ContractSubject) {
    let pods = [pod("kube-scheduler-9"), pod("kube-controller-manager-9")];
    subject.execute_all(&pods[0], subject.steps(&pods[0], ProgramBehaviour::Serves).await).await.unwrap();
    subject.execute_all(&pods[1], subject.steps(&pods[1], ProgramBehaviour::Fails).await).await.unwrap();
    subject.exit_code(&pods[1]).await;
    let look = async || {
        let state = subject.observe().await;
        let mut all: Vec<String> = state.sandboxes.iter().map(|found| format!("{found:?}")).collect();
        all.extend(state.containers.iter().map(|found| format!("{found:?}")));
        all.sort();
        all
    };
    let before = look().await;
    subject.restart_runtime().await;
    assert_eq!(look().await, before);
    for pod in &pods {
        subject.remove(pod).await;
    }
}
