//! What the fake offers to tests: records of the calls, and injected failures.
#![expect(clippy::unwrap_used, reason = "a test binary fails by panic")]

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use keelway_cri::{
    ContainerSpec, CriContainerState, CriError, CriRuntime, Deadlines, SandboxSpec,
    fake::{CallFault, Fake, RecordedCall},
    testing::ServedFake,
};

const SOCKET: &str = "KEELWAY_TEST_SOCKET";

fn sandbox(name: &str) -> SandboxSpec {
    SandboxSpec { name: name.into(), namespace: "fake".into(), uid: "uid".into(), ..SandboxSpec::default() }
}

async fn pods(runtime: &CriRuntime) -> Vec<String> {
    let pods = runtime.list_pod_sandboxes(&BTreeMap::new()).await.unwrap();
    let mut names: Vec<_> = pods.into_iter().map(|pod| pod.name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn calls_are_noted_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("calls");
    let fake = Fake::new();
    fake.add_image("image");
    fake.write_calls_to(&file).unwrap();
    let runtime = fake.runtime(Deadlines::default());
    let sandbox = sandbox("pod");
    let spec = ContainerSpec { name: "one".into(), image: "image".into(), ..ContainerSpec::default() };
    let pod = runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    runtime.container_status(&id).await.unwrap();
    runtime.remove_pod_sandbox(&pod).await.unwrap();
    runtime.remove_pod_sandbox(&pod).await.unwrap();

    let changes = [
        ("RunPodSandbox", "pod".to_owned()),
        ("CreateContainer", "pod/one".to_owned()),
        ("StartContainer", "pod/one".to_owned()),
        ("RemovePodSandbox", "pod".to_owned()),
        ("RemovePodSandbox", pod),
    ];
    let mut calls = changes.clone().map(|(method, object)| RecordedCall { method, object, change: true }).to_vec();
    calls.insert(3, RecordedCall { method: "ContainerStatus", object: "pod/one".into(), change: false });
    assert_eq!(fake.calls(), calls);
    let lines = changes.map(|(method, object)| format!("{method} {object}\n")).concat();
    assert_eq!(fs::read_to_string(&file).unwrap(), lines);
}

#[tokio::test]
async fn faults_come_at_their_call_and_once() {
    let fake = Fake::new();
    let runtime = fake.runtime(Deadlines::default());
    runtime.run_pod_sandbox(&sandbox("before")).await.unwrap();
    fake.inject(2, CallFault::Fail);
    fake.inject(3, CallFault::LoseAnswer);
    runtime.run_pod_sandbox(&sandbox("first")).await.unwrap();
    let failed = runtime.run_pod_sandbox(&sandbox("second")).await.unwrap_err();
    assert!(matches!(failed, CriError::Refused { .. }), "{failed:?}");
    let lost = runtime.run_pod_sandbox(&sandbox("third")).await.unwrap_err();
    assert!(matches!(lost, CriError::Unreachable { .. }), "{lost:?}");
    runtime.run_pod_sandbox(&sandbox("fourth")).await.unwrap();
    assert_eq!(pods(&runtime).await, ["before", "first", "fourth", "third"]);
}

#[tokio::test]
async fn a_test_ends_containers_of_the_fake() {
    let fake = Fake::new();
    fake.add_image("image");
    let runtime = fake.runtime(Deadlines::default());
    let sandbox = sandbox("pod");
    let spec = ContainerSpec { name: "one".into(), image: "image".into(), ..ContainerSpec::default() };
    let pod = runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    assert_eq!(fake.exit_container("one", 5), 0);
    runtime.start_container(&id).await.unwrap();
    assert_eq!(fake.exit_container("other", 5), 0);
    assert_eq!(fake.exit_container("one", 5), 1);
    let status = runtime.container_status(&id).await.unwrap();
    assert_eq!((status.state, status.exit.unwrap().code), (CriContainerState::Exited, 5));
    assert_eq!(fake.exit_container("one", 6), 0);
}

/// Returns the output of the signalled process, the pods of the runtime afterwards, and the recorded calls.
async fn signalled(arguments: &[&str]) -> (Output, Vec<String>, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_keelway-cri-fake"));
    let directory = tempfile::tempdir().unwrap();
    let calls = directory.path().join("calls");
    let arguments = [&["--calls", calls.to_str().unwrap()], arguments].concat();
    let served = ServedFake::start("signal", program, &arguments).await.unwrap();
    // Background jobs of a shell, and their children, ignore SIGINT.
    let caller = Command::new("env")
        .arg("--default-signal=INT")
        .arg(env::current_exe().unwrap())
        .args(["a_caller", "--exact", "--ignored", "--nocapture"])
        .env(SOCKET, served.socket())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let pods = pods(&served.runtime().unwrap()).await;
    (caller, pods, fs::read_to_string(calls).unwrap())
}

/// Makes five calls, prints a line after each response, and waits for a signal. The other tests run this as a process and signal it.
#[tokio::test]
#[ignore = "a part of other tests"]
async fn a_caller() {
    let Some(socket) = env::var_os(SOCKET) else { return };
    let runtime = CriRuntime::on_socket(socket, Deadlines::default()).unwrap();
    for number in 1..=5 {
        runtime.run_pod_sandbox(&sandbox(&format!("pod-{number}"))).await.unwrap();
        println!("answered {number}");
    }
    // Wait for a signal that follows the last response.
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_caller_is_killed_after_each_answer() {
    for nth in 1..=5 {
        let (caller, pods, calls) = signalled(&["--signal", "KILL", "--after", &nth.to_string()]).await;
        assert_eq!(caller.status.signal(), Some(9), "{caller:?}");
        let output = String::from_utf8(caller.stdout).unwrap();
        assert!(output.contains(&format!("answered {nth}\n")), "{output}");
        assert_eq!((pods.len(), calls.lines().count()), (nth, nth), "{calls}");
    }
}

#[tokio::test]
async fn a_caller_is_killed_before_each_answer() {
    for nth in 1..=5 {
        let (caller, pods, calls) = signalled(&["--signal", "KILL", "--before", &nth.to_string()]).await;
        assert_eq!(caller.status.signal(), Some(9), "{caller:?}");
        let output = String::from_utf8(caller.stdout).unwrap();
        assert!(!output.contains(&format!("answered {nth}\n")), "{output}");
        assert_eq!((pods.len(), calls.lines().count()), (nth, nth), "{calls}");
    }
}

#[tokio::test]
async fn other_signals_end_a_caller_too() {
    for (name, number) in [("TERM", 15), ("INT", 2)] {
        let (caller, pods, _) = signalled(&["--signal", name, "--before", "2"]).await;
        assert_eq!(caller.status.signal(), Some(number), "{caller:?}");
        assert!(pods.len() >= 2, "{pods:?}");
    }
}
