//! One suite for every runtime: the fake in this process, the fake as a process, and the real containerd.

#![expect(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test binary has no other users, and fails by panic"
)]

mod cases;
mod exec;
mod real;
mod stalled;
mod subject;

use std::{panic::AssertUnwindSafe, path::Path, time::Instant};

use futures::FutureExt;
use keelway_cri::{
    Deadlines,
    fake::Fake,
    testing::{Containerd, ContainerdOptions, ImageArchive, PROGRAM, ServedFake, build_program, cache},
};
use subject::{Case, IMAGE, SPARE, Subject, TWIN};

#[tokio::test]
async fn fake_in_process() {
    let fake = Fake::new();
    fake.add_image(IMAGE);
    fake.add_image(SPARE);
    let runtime = fake.runtime(Deadlines::default());
    all(&Subject { runtime, logs: String::new(), cgroup_parent: String::new() }, cases::ALL).await;
}

#[tokio::test]
async fn fake_as_a_process() {
    let program = Path::new(env!("CARGO_BIN_EXE_keelway-cri-fake"));
    let mut served = ServedFake::start("contract", program, &["--image", IMAGE, "--image", SPARE]).await.unwrap();
    let runtime = served.runtime().unwrap();
    all(&Subject { runtime, logs: String::new(), cgroup_parent: String::new() }, cases::ALL).await;
    assert!(served.end().unwrap().success());
    assert!(!served.socket().exists());
}

#[tokio::test]
async fn containerd() {
    let options = ContainerdOptions {
        test: "contract".into(),
        binaries: cache().unwrap().join("bin"),
        sandbox_image: TWIN.into(),
        prefix: Vec::new(),
    };
    let containerd = Containerd::start(&options).await.unwrap();
    let directory = containerd.directory();
    let program = build_program(directory).unwrap();
    let runtime = containerd.runtime().unwrap();
    for (image, entrypoint) in [(IMAGE, vec![PROGRAM]), (TWIN, vec![PROGRAM]), (SPARE, vec![PROGRAM, "serve"])] {
        let archive = directory.join("image.tar");
        ImageArchive::new(image).file(&program, PROGRAM).entrypoint(entrypoint).write(&archive).unwrap();
        let file = tokio::fs::File::open(&archive).await.unwrap();
        assert_eq!(runtime.import_images(file).await.unwrap(), [image]);
    }
    let subject = Subject {
        runtime,
        logs: directory.join("logs").display().to_string(),
        cgroup_parent: containerd.cgroup_parent(),
    };
    let outcome = AssertUnwindSafe(async {
        all(&subject, cases::ALL).await;
        all(&(&subject, &containerd), &real::all()).await;
    });
    if let Err(panic) = outcome.catch_unwind().await {
        println!("{}", containerd.log().unwrap());
        std::panic::resume_unwind(panic);
    }
    let directory = directory.to_owned();
    drop(containerd);
    real::nothing_is_left(&directory);
}

/// Runs all cases, also after one has failed. Fails with the names of the failed cases.
async fn all<S>(subject: &S, cases: &[Case<S>]) {
    let mut failed = Vec::new();
    for (name, case) in cases {
        let begun = Instant::now();
        let passed = AssertUnwindSafe(case(subject)).catch_unwind().await.is_ok();
        println!("{name}: {} in {:?}", if passed { "passed" } else { "FAILED" }, begun.elapsed());
        if !passed {
            failed.push(*name);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}
