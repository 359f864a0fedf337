//! The client of a runtime that fails or hangs.

use std::{path::Path, time::Duration};

use keelway_cri::{
    CriCgroupDriver, CriError, CriRuntime, Deadlines, EventMessage, SandboxSpec,
    fake::{CallFault, Fake},
    testing::ServedFake,
};
use tokio::net::UnixListener;

/// Short, so that a hanging runtime does not delay the test; long compared to any response in these tests.
const SHORT: Deadlines = Deadlines {
    look: Duration::from_millis(500),
    change: Duration::from_millis(500),
    image: Duration::from_millis(500),
};

fn sandbox(name: &str) -> SandboxSpec {
    SandboxSpec { name: name.into(), namespace: "client".into(), uid: "uid".into(), ..SandboxSpec::default() }
}

#[tokio::test]
async fn relative_sockets_are_refused() {
    let error = CriRuntime::on_socket("cri.sock", SHORT).unwrap_err();
    assert!(matches!(error, CriError::RelativeSocket { .. }), "{error:?}");
}

#[tokio::test]
async fn nobody_listens() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = CriRuntime::on_socket(directory.path().join("cri.sock"), SHORT).unwrap();
    let error = runtime.version().await.unwrap_err();
    assert!(matches!(error, CriError::Unreachable { .. }) && error.retriable(), "{error:?}");
    assert_eq!(error.to_string(), "Version: cannot reach the runtime");
    let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    assert!(causes.last().unwrap().to_string().contains("No such file"), "{error:?}");
}

#[tokio::test]
async fn nobody_answers() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("cri.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let runtime = CriRuntime::on_socket(&socket, SHORT).unwrap();
    let error = runtime.version().await.unwrap_err();
    assert!(matches!(error, CriError::TimedOut { .. }) && error.retriable(), "{error:?}");
    let error = runtime.import_images(b"".as_slice()).await.unwrap_err();
    assert!(matches!(error, CriError::TimedOut { .. }), "{error:?}");
}

#[tokio::test]
async fn one_call_hangs_and_others_do_not() {
    let fake = Fake::new();
    let runtime = fake.runtime(SHORT);
    fake.inject(1, CallFault::Hang);
    let error = runtime.run_pod_sandbox(&sandbox("one")).await.unwrap_err();
    assert!(matches!(error, CriError::TimedOut { deadline, .. } if deadline == SHORT.change), "{error:?}");
    runtime.run_pod_sandbox(&sandbox("one")).await.unwrap();
}

#[tokio::test]
async fn a_stop_may_last_longer_by_its_grace_period() {
    let fake = Fake::new();
    fake.add_image("image");
    let runtime = fake.runtime(SHORT);
    let sandbox = sandbox("one");
    let spec = keelway_cri::ContainerSpec {
        name: "one".into(),
        image: "image".into(),
        command: vec!["/keelway-test".into(), "stubborn".into()],
        ..Default::default()
    };
    let pod = runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    runtime.stop_container(&id, Duration::from_secs(1)).await.unwrap();
    assert_eq!(runtime.container_status(&id).await.unwrap().exit.unwrap().code, 137);
}

#[tokio::test]
async fn the_runtime_dies_in_the_middle_of_a_call_and_comes_back() {
    let program = Path::new(env!("CARGO_BIN_EXE_keelway-cri-fake"));
    let mut first = ServedFake::start("client", program, &["--image", "image"]).await.unwrap();
    let runtime = first.runtime().unwrap();
    let mut events = runtime.events();
    let sandbox = sandbox("one");
    let spec = keelway_cri::ContainerSpec {
        name: "one".into(),
        image: "image".into(),
        command: vec!["/keelway-test".into(), "stubborn".into()],
        ..Default::default()
    };
    let pod = runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let last = async {
        while let Some(notice) = events.next().await {
            match notice {
                // The container runs now, and the stop call waits for its end.
                Ok(EventMessage::Event(event)) if event.id == id && event.kind == keelway_cri::EventKind::Started => {
                    break;
                }
                Ok(_) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        first.end().unwrap();
        events.next().await
    };
    let (stopped, last) = tokio::join!(runtime.stop_container(&id, Duration::from_secs(60)), last);
    assert!(matches!(stopped, Err(CriError::Unreachable { .. })), "{stopped:?}");
    assert!(matches!(last, Some(Err(CriError::Unreachable { .. }))), "{last:?}");

    let socket = first.socket();
    let _again =
        UnixListener::bind(&socket).map(|listener| tokio::spawn(keelway_cri::fake::serve(listener, Fake::new())));
    assert_eq!(runtime.version().await.unwrap().runtime, "keelway-cri-fake");
}

#[tokio::test]
async fn events_that_are_not_read_are_counted() {
    let fake = Fake::new();
    let runtime = fake.runtime(Deadlines::default());
    let mut events = runtime.events();
    let pods = 600;
    for number in 0..pods {
        runtime.run_pod_sandbox(&sandbox(&number.to_string())).await.unwrap();
    }
    let (mut seen, mut missed) = (0, 0);
    while seen + missed < 2 * pods {
        match tokio::time::timeout(Duration::from_secs(30), events.next()).await.unwrap().unwrap().unwrap() {
            EventMessage::Event(_) => seen += 1,
            EventMessage::Missed(lost) => missed += lost,
        }
    }
    assert!(missed > 0 && seen > 0, "{seen} seen, {missed} missed");
}

#[tokio::test]
async fn the_cgroup_driver_is_queried_and_cgroupfs_by_default() {
    let fake = Fake::new();
    let runtime = fake.runtime(SHORT);
    for (asked, answered) in [
        (Some(CriCgroupDriver::Systemd), CriCgroupDriver::Systemd),
        (Some(CriCgroupDriver::Cgroupfs), CriCgroupDriver::Cgroupfs),
        (None, CriCgroupDriver::Cgroupfs),
    ] {
        fake.set_cgroup_driver(asked);
        assert_eq!(runtime.status().await.unwrap().cgroup_driver, answered);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_can_be_spawned() {
    let fake = Fake::new();
    let runtime = fake.runtime(Deadlines::default());
    let names: Vec<String> = (0..20).map(|number| format!("pod-{number}")).collect();
    let calls = names.iter().map(|name| {
        let (runtime, spec) = (runtime.clone(), sandbox(name));
        tokio::spawn(async move { runtime.run_pod_sandbox(&spec).await })
    });
    for call in futures::future::join_all(calls).await {
        call.unwrap().unwrap();
    }
    assert_eq!(runtime.list_pod_sandboxes(&std::collections::BTreeMap::new()).await.unwrap().len(), names.len());
}
