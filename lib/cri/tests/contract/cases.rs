//! Cases that hold for every runtime.

use std::time::{Duration, Instant};

use keelway_cri::{CriContainerState, CriError, CriSandboxState, EventKind, EventMessage, testing::PROGRAM};

use crate::subject::{
    Case, DEADLINE, IMAGE, SPARE, Subject, container, eventually, labels, not_found, refused, refused_or_not_found,
};

macro_rules! cases {
    ($($case:ident,)*) => {
        pub const ALL: &[Case<Subject>] = &[$((stringify!($case), |subject| Box::pin($case(subject))),)*];
    };
}

cases! {
    events_tell_a_whole_life,
    says_who_it_is,
    sandbox_from_run_to_removal,
    sandbox_name_is_taken_until_it_is_removed,
    container_from_creation_to_removal,
    container_name_is_taken_until_it_is_removed,
    exit_code_is_kept,
    container_that_ignores_its_stop_signal_is_killed_after_its_grace,
    stop_without_grace_kills,
    removal_kills_what_runs,
    container_starts_once,
    only_what_runs_begins_its_log_anew,
    missing_image_is_not_found_and_holds_no_name,
    sandbox_has_to_be_there_and_to_run,
    stopped_sandbox_keeps_its_dead_containers,
    removed_sandbox_takes_its_containers,
    labels_select,
    what_never_was_can_be_stopped_and_removed_but_not_seen,
    images_are_listed_and_found_by_name_and_id,
    image_that_nobody_has_cannot_be_pulled,
    image_is_removed_although_a_container_uses_it,
    commands_run_in_containers,
    usage_is_of_running_containers,
}

async fn says_who_it_is(subject: &Subject) {
    let version = subject.runtime.version().await.unwrap();
    assert_eq!(version.api_version, "v1");
    assert!(!version.runtime.is_empty() && !version.runtime_version.is_empty(), "{version:?}");
    let status = subject.runtime.status().await.unwrap();
    assert!(status.ready(), "{status:?}");
}

async fn sandbox_from_run_to_removal(subject: &Subject) {
    let spec = subject.sandbox("sandbox-life");
    let id = subject.runtime.run_pod_sandbox(&spec).await.unwrap();

    let seen = subject.runtime.pod_sandbox_status(&id).await.unwrap();
    assert_eq!(seen.id, id);
    assert_eq!(seen.state, CriSandboxState::Ready);
    assert_eq!((&seen.name, &seen.namespace, &seen.uid, seen.attempt), (&spec.name, &spec.namespace, &spec.uid, 0));
    assert_eq!((&seen.labels, &seen.annotations), (&spec.labels, &spec.annotations));
    let listed = subject.runtime.list_pod_sandboxes(&spec.labels).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(
        (&listed[0].id, listed[0].state, &listed[0].annotations),
        (&id, CriSandboxState::Ready, &spec.annotations)
    );

    for _ in 0..2 {
        subject.runtime.stop_pod_sandbox(&id).await.unwrap();
        let stopped = subject.runtime.pod_sandbox_status(&id).await.unwrap();
        assert_eq!(stopped.state, CriSandboxState::NotReady);
    }
    for _ in 0..2 {
        subject.runtime.remove_pod_sandbox(&id).await.unwrap();
        not_found(&subject.runtime.pod_sandbox_status(&id).await);
        assert_eq!(subject.runtime.list_pod_sandboxes(&spec.labels).await.unwrap(), []);
    }
}

async fn sandbox_name_is_taken_until_it_is_removed(subject: &Subject) {
    let spec = subject.sandbox("sandbox-name");
    let first = subject.runtime.run_pod_sandbox(&spec).await.unwrap();
    let second = subject.runtime.run_pod_sandbox(&spec).await;
    assert!(matches!(&second, Err(CriError::Conflict { holder: Some(id), .. }) if *id == first), "{second:?}");
    subject.runtime.stop_pod_sandbox(&first).await.unwrap();
    let second = subject.runtime.run_pod_sandbox(&spec).await;
    assert!(matches!(second, Err(CriError::Conflict { .. })), "{second:?}");

    let mut next = spec.clone();
    next.attempt = 1;
    let other = subject.runtime.run_pod_sandbox(&next).await.unwrap();
    subject.runtime.remove_pod_sandbox(&first).await.unwrap();
    let again = subject.runtime.run_pod_sandbox(&spec).await.unwrap();
    assert!(again != first && again != other);
    for id in [again, other] {
        subject.runtime.remove_pod_sandbox(&id).await.unwrap();
    }
}

async fn container_from_creation_to_removal(subject: &Subject) {
    let sandbox = subject.sandbox("container-life");
    let spec = container("one", &["serve"]);
    let pod = subject.runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();

    let created = subject.runtime.container_status(&id).await.unwrap();
    assert_eq!((created.state, created.started, created.exit.is_some()), (CriContainerState::Created, None, false));
    assert_eq!((&created.name, created.attempt), (&spec.name, 0));
    assert_eq!((&created.labels, &created.annotations), (&spec.labels, &spec.annotations));

    subject.runtime.start_container(&id).await.unwrap();
    let running = subject.runtime.container_status(&id).await.unwrap();
    assert_eq!((running.state, running.exit.is_some()), (CriContainerState::Running, false));
    assert!(running.started.is_some_and(|started| started >= running.created), "{running:?}");
    let listed = subject.runtime.list_containers(&spec.labels).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((&listed[0].id, &listed[0].sandbox_id, listed[0].state), (&id, &pod, CriContainerState::Running));
    assert_eq!((&listed[0].image, &listed[0].annotations), (&spec.image, &spec.annotations));
    assert_eq!(listed[0].image_ref, subject.runtime.image_status(IMAGE).await.unwrap().unwrap().id);

    subject.serves(&id).await;
    for _ in 0..2 {
        subject.runtime.stop_container(&id, DEADLINE).await.unwrap();
        let stopped = subject.runtime.container_status(&id).await.unwrap();
        let exit = stopped.exit.expect("an exit");
        assert_eq!((stopped.state, exit.code, exit.reason.as_str()), (CriContainerState::Exited, 0, "Completed"));
        assert!(Some(exit.finished) >= stopped.started, "{exit:?}");
    }
    for _ in 0..2 {
        subject.runtime.remove_container(&id).await.unwrap();
        not_found(&subject.runtime.container_status(&id).await);
        assert_eq!(subject.runtime.list_containers(&spec.labels).await.unwrap(), []);
    }
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn container_name_is_taken_until_it_is_removed(subject: &Subject) {
    let sandbox = subject.sandbox("container-name");
    let spec = container("one", &["serve"]);
    let pod = subject.runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let first = subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    let second = subject.runtime.create_container(&pod, &sandbox, &spec).await;
    assert!(matches!(&second, Err(CriError::Conflict { holder: Some(id), .. }) if *id == first), "{second:?}");

    let mut next = spec.clone();
    next.attempt = 1;
    subject.runtime.create_container(&pod, &sandbox, &next).await.unwrap();
    subject.runtime.remove_container(&first).await.unwrap();
    subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn exit_code_is_kept(subject: &Subject) {
    let (pod, id) = subject.started("exit-code", &["exit", "3"]).await;
    let status = subject.exited(&id).await;
    let exit = status.exit.unwrap();
    assert_eq!((status.state, exit.code, exit.reason.as_str()), (CriContainerState::Exited, 3, "Error"));
    assert_eq!(subject.runtime.pod_sandbox_status(&pod).await.unwrap().state, CriSandboxState::Ready);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn container_that_ignores_its_stop_signal_is_killed_after_its_grace(subject: &Subject) {
    let (pod, id) = subject.started("stubborn", &["stubborn"]).await;
    let grace = Duration::from_secs(2);
    let begun = Instant::now();
    subject.runtime.stop_container(&id, grace).await.unwrap();
    assert!(begun.elapsed() >= grace, "{:?}", begun.elapsed());
    assert_eq!(subject.exited(&id).await.exit.unwrap().code, 137);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn stop_without_grace_kills(subject: &Subject) {
    let (pod, id) = subject.started("no-grace", &["serve"]).await;
    subject.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    assert_eq!(subject.exited(&id).await.exit.unwrap().code, 137);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn removal_kills_what_runs(subject: &Subject) {
    let (pod, id) = subject.started("removal", &["stubborn"]).await;
    subject.runtime.remove_container(&id).await.unwrap();
    not_found(&subject.runtime.container_status(&id).await);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn only_what_runs_begins_its_log_anew(subject: &Subject) {
    let (pod, id) = subject.started("log", &["serve"]).await;
    subject.runtime.reopen_container_log(&id).await.unwrap();
    subject.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    refused(&subject.runtime.reopen_container_log(&id).await);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn container_starts_once(subject: &Subject) {
    let (pod, id) = subject.started("once", &["serve"]).await;
    refused(&subject.runtime.start_container(&id).await);
    subject.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    refused(&subject.runtime.start_container(&id).await);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn missing_image_is_not_found_and_holds_no_name(subject: &Subject) {
    let sandbox = subject.sandbox("no-image");
    let mut spec = container("one", &["serve"]);
    let pod = subject.runtime.run_pod_sandbox(&sandbox).await.unwrap();
    spec.image = "registry.k8s.io/keelway-nothing:v1.0.0".into();
    not_found(&subject.runtime.create_container(&pod, &sandbox, &spec).await);
    assert_eq!(subject.runtime.list_containers(&spec.labels).await.unwrap(), []);
    spec.image = IMAGE.into();
    subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn sandbox_has_to_be_there_and_to_run(subject: &Subject) {
    let sandbox = subject.sandbox("no-sandbox");
    let spec = container("one", &["serve"]);
    not_found(&subject.runtime.create_container("0123456789abcdef", &sandbox, &spec).await);
    let pod = subject.runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    subject.runtime.stop_pod_sandbox(&pod).await.unwrap();
    refused_or_not_found(&subject.runtime.start_container(&id).await);
    let another = container("two", &["serve"]);
    refused(&subject.runtime.create_container(&pod, &sandbox, &another).await);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn stopped_sandbox_keeps_its_dead_containers(subject: &Subject) {
    let (pod, id) = subject.started("stopped-sandbox", &["serve"]).await;
    subject.runtime.stop_pod_sandbox(&pod).await.unwrap();
    assert_eq!(subject.exited(&id).await.exit.unwrap().code, 137);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn removed_sandbox_takes_its_containers(subject: &Subject) {
    let (pod, id) = subject.started("removed-sandbox", &["stubborn"]).await;
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
    not_found(&subject.runtime.container_status(&id).await);
    assert_eq!(subject.runtime.list_containers(&labels(&[("container", "removed-sandbox")])).await.unwrap(), []);
}

async fn labels_select(subject: &Subject) {
    let mut pods = Vec::new();
    for (name, colour) in [("left", "red"), ("right", "red"), ("middle", "blue")] {
        let mut sandbox = subject.sandbox(&format!("labels-{name}"));
        sandbox.labels = labels(&[("suite", "labels"), ("name", name), ("colour", colour)]);
        let mut spec = container(name, &["serve"]);
        spec.labels = sandbox.labels.clone();
        let pod = subject.runtime.run_pod_sandbox(&sandbox).await.unwrap();
        subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
        pods.push(pod);
    }
    for (selector, expected) in [
        (labels(&[("suite", "labels")]), 3),
        (labels(&[("suite", "labels"), ("colour", "red")]), 2),
        (labels(&[("suite", "labels"), ("colour", "red"), ("name", "left")]), 1),
        (labels(&[("suite", "labels"), ("colour", "blue"), ("name", "left")]), 0),
        (labels(&[("suite", "labels"), ("shape", "")]), 0),
    ] {
        let sandboxes = subject.runtime.list_pod_sandboxes(&selector).await.unwrap();
        assert_eq!(sandboxes.len(), expected, "{selector:?}");
        assert!(sandboxes.is_sorted_by_key(|sandbox| &sandbox.id));
        let containers = subject.runtime.list_containers(&selector).await.unwrap();
        assert_eq!(containers.len(), expected, "{selector:?}");
        assert!(
            containers
                .iter()
                .all(|container| selector.iter().all(|pair| container.labels.get_key_value(pair.0) == Some(pair)))
        );
    }
    assert!(subject.runtime.list_pod_sandboxes(&labels(&[])).await.unwrap().len() >= 3);
    for pod in pods {
        subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
    }
}

async fn what_never_was_can_be_stopped_and_removed_but_not_seen(subject: &Subject) {
    let id = "fedcba9876543210";
    subject.runtime.stop_container(id, Duration::ZERO).await.unwrap();
    subject.runtime.remove_container(id).await.unwrap();
    subject.runtime.stop_pod_sandbox(id).await.unwrap();
    subject.runtime.remove_pod_sandbox(id).await.unwrap();
    not_found(&subject.runtime.pod_sandbox_status(id).await);
    not_found(&subject.runtime.container_status(id).await);
    not_found(&subject.runtime.start_container(id).await);
    not_found(&subject.runtime.container_usage(id).await);
    not_found(&subject.runtime.exec_sync(id, &[PROGRAM.into()], DEADLINE).await);
}

async fn images_are_listed_and_found_by_name_and_id(subject: &Subject) {
    let image = subject.runtime.image_status(IMAGE).await.unwrap().expect("the image");
    assert!(image.tags.contains(&IMAGE.to_owned()), "{image:?}");
    assert!(image.size > 0);
    assert_eq!(subject.runtime.image_status(&image.id).await.unwrap().as_ref(), Some(&image));
    assert!(subject.runtime.list_images().await.unwrap().contains(&image));
    assert_eq!(subject.runtime.image_status("registry.k8s.io/keelway-nothing:v1.0.0").await.unwrap(), None);
}

/// The runtime does not protect images in use: a client that removes images has to check containers first.
async fn image_is_removed_although_a_container_uses_it(subject: &Subject) {
    let runtime = &subject.runtime;
    let sandbox = subject.sandbox("spare");
    let mut spec = container("one", &["serve"]);
    spec.image = SPARE.into();
    let pod = runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let image = runtime.image_status(SPARE).await.unwrap().unwrap();
    assert!(!image.pinned, "{image:?}");
    assert_eq!((&image.tags[..], &image.digests[..]), (&[SPARE.to_owned()][..], &[][..]));
    assert_eq!(runtime.list_containers(&spec.labels).await.unwrap()[0].image_ref, image.id);

    for name in [image.id.as_str(), SPARE] {
        runtime.remove_image(name).await.unwrap();
        assert_eq!(runtime.image_status(SPARE).await.unwrap(), None);
        assert_eq!(runtime.image_status(&image.id).await.unwrap(), None);
    }
    let listed = runtime.list_containers(&spec.labels).await.unwrap();
    assert_eq!((listed[0].state, &listed[0].image_ref), (CriContainerState::Running, &image.id));
    spec.attempt = 1;
    not_found(&runtime.create_container(&pod, &sandbox, &spec).await);
    // The other image remains, although it has the same layers.
    assert!(runtime.image_status(IMAGE).await.unwrap().is_some());
    runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn image_that_nobody_has_cannot_be_pulled(subject: &Subject) {
    // Nothing listens on this port of the machine.
    let pulled = subject.runtime.pull_image("127.0.0.1:1/keelway-nothing:v1.0.0", None).await;
    let error = pulled.expect_err("there is no such registry");
    assert!(!matches!(error, CriError::TimedOut { .. }), "{error:?}");
}

async fn commands_run_in_containers(subject: &Subject) {
    let (pod, id) = subject.started("exec", &["serve"]).await;
    let command = [PROGRAM, "print", "hello", "4"].map(String::from);
    let output = subject.runtime.exec_sync(&id, &command, DEADLINE).await.unwrap();
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice(), output.exit_code),
        (b"hello\n".as_slice(), b"".as_slice(), 4)
    );
    subject.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    refused(&subject.runtime.exec_sync(&id, &command, DEADLINE).await);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn usage_is_of_running_containers(subject: &Subject) {
    let (pod, id) = subject.started("usage", &["serve"]).await;
    eventually("some memory to be used", async || {
        let usage = subject.runtime.container_usage(&id).await.unwrap();
        (usage.memory_working_set > 0 && usage.cpu_nanoseconds > 0).then_some(())
    })
    .await;
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn events_tell_a_whole_life(subject: &Subject) {
    let mut events = subject.runtime.events();
    let (pod, id) = subject.started("events", &["exit", "0"]).await;
    subject.exited(&id).await;
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();

    let mut of_container = Vec::new();
    let mut of_sandbox = Vec::new();
    let whole_life = async {
        while of_sandbox.last() != Some(&EventKind::Deleted) {
            match events.next().await.expect("the stream goes on").unwrap() {
                EventMessage::Event(event) if event.id == id => of_container.push(event.kind),
                EventMessage::Event(event) if event.id == pod => of_sandbox.push(event.kind),
                EventMessage::Event(_) => {}
                EventMessage::Missed(lost) => panic!("{lost} events were lost"),
            }
        }
    };
    tokio::time::timeout(DEADLINE, whole_life).await.expect("the sandbox's end");
    let life = [EventKind::Created, EventKind::Started, EventKind::Stopped, EventKind::Deleted];
    assert_eq!(of_container, life);
    assert_eq!(of_sandbox, life);
}
