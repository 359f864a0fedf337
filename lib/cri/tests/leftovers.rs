//! A test that is killed leaves processes, mounts and files. The next test removes them.
#![expect(clippy::unwrap_used, reason = "a test binary fails by panic")]

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use keelway_cri::{
    ContainerSpec, SandboxSpec,
    testing::{Containerd, ContainerdOptions, ImageArchive, PROGRAM, build_program, cache},
};

const IMAGE: &str = "registry.k8s.io/keelway-test:v1.0.0";
const CHILD: &str = "KEELWAY_TEST_CHILD";

fn options(test: &str) -> ContainerdOptions {
    ContainerdOptions {
        test: test.into(),
        binaries: cache().unwrap().join("bin"),
        sandbox_image: IMAGE.into(),
        prefix: ["nsenter", "--net=/proc/self/ns/net"].map(Into::into).to_vec(),
    }
}

/// Runs a container, prints where, and waits for a signal. The other test runs this as a process and kills it.
#[tokio::test]
#[ignore = "a part of another test"]
async fn a_test_that_is_killed() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let containerd = Containerd::start(&options("killed")).await.unwrap();
    let program = build_program(containerd.directory()).unwrap();
    let archive = containerd.directory().join("image.tar");
    ImageArchive::new(IMAGE).file(&program, PROGRAM).entrypoint([PROGRAM]).write(&archive).unwrap();
    let runtime = containerd.runtime().unwrap();
    runtime.import_images(tokio::fs::File::open(&archive).await.unwrap()).await.unwrap();
    let sandbox =
        SandboxSpec { name: "pod".into(), cgroup_parent: containerd.cgroup_parent(), ..SandboxSpec::default() };
    let spec = ContainerSpec { name: "one".into(), image: IMAGE.into(), ..ContainerSpec::default() };
    let pod = runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let pid = runtime.container_pid(&id).await.unwrap().unwrap();
    println!("\nleft {pid} {}", containerd.directory().display());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn the_next_test_removes_leftovers_of_a_killed_one() {
    let mut killed = Command::new(env::current_exe().unwrap())
        .args(["a_test_that_is_killed", "--exact", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(killed.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.into_iter().find_map(|line| line.strip_prefix("left ").map(str::to_owned));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let said = said.expect("the other test runs");
    let (pid, directory) = said.split_once(' ').unwrap();
    let (process, directory) = (Path::new("/proc").join(pid), PathBuf::from(directory));
    assert!(process.join("exe").exists() && directory.is_dir(), "something is left to be cleared");

    let next = Containerd::start(&options("next")).await.unwrap();
    let name = directory.file_name().unwrap().to_str().unwrap();
    // A zombie still has a cgroup, but no executable.
    let is_meant = fs::read_to_string(process.join("cgroup")).is_ok_and(|cgroup| cgroup.contains(name));
    assert!(!(is_meant && process.join("exe").exists()));
    assert!(!directory.exists());
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(name));
    for entry in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        assert!(!entry.path().join(name).exists(), "{entry:?}");
    }
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        assert!(!line.contains(name), "{line}");
    }
    drop(next);
}
