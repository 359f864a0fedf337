//! Cases that only the real runtime can show.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt, path::Path};

use containerd_client::services::v1::{
    CreateTaskRequest, GetImageRequest, StartRequest,
    images_client::ImagesClient,
    snapshots::{MountsRequest, snapshots_client::SnapshotsClient},
    tasks_client::TasksClient,
};
use keelway_cri::{
    CriCgroupDriver, CriContainerState, CriError, CriMount, CriResources, CriSandboxState,
    testing::{Containerd, ImageArchive, PROGRAM},
};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};
use tonic::{Request, metadata::MetadataValue};

use crate::{
    exec::{commands_end_as_they_end, commands_have_a_terminal, commands_have_streams},
    stalled::who_does_not_fetch_holds_nobody_up,
    subject::{Case, IMAGE, Subject, container, eventually},
};

type Pair<'a> = (&'a Subject, &'a Containerd);

macro_rules! cases {
    ($($case:ident,)*) => {
        pub fn all<'s>() -> Vec<Case<Pair<'s>>> { vec![$((stringify!($case), |pair| Box::pin($case(pair))),)*] }
    };
}

cases! {
    cgroup_driver_is_asked_for,
    containers_have_no_privilege,
    limits_reach_the_cgroup,
    logs_are_written_where_they_should,
    killed_processes_are_seen,
    tasks_that_the_runtime_lost_are_ended,
    imported_images_are_managed_by_cri,
    image_is_replaced_by_one_of_the_same_name,
    oci_layout_is_imported,
    broken_archives_are_refused,
    who_does_not_fetch_holds_nobody_up,
    commands_have_streams,
    commands_have_a_terminal,
    commands_end_as_they_end,
}

async fn cgroup_driver_is_asked_for((subject, _): &Pair<'_>) {
    let status = subject.runtime.status().await.unwrap();
    assert_eq!(status.cgroup_driver, CriCgroupDriver::Cgroupfs);
    assert_eq!(subject.runtime.version().await.unwrap().runtime, "containerd");
}

async fn containers_have_no_privilege((subject, containerd): &Pair<'_>) {
    let shared = containerd.directory().join("shared");
    fs::create_dir_all(&shared).unwrap();
    fs::write(shared.join("file"), "seen").unwrap();
    let sandbox = subject.sandbox("privilege");
    let mut spec = container("one", &["serve"]);
    let mount = |path: &str, read_only| CriMount {
        host_path: shared.display().to_string(),
        container_path: path.into(),
        read_only,
    };
    spec.mounts = vec![mount("/readable", true), mount("/writable", false)];
    spec.env = BTreeMap::from([("KEELWAY".into(), "set".into())]);
    spec.working_dir = "/readable".into();
    let pod = subject.runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    subject.runtime.start_container(&id).await.unwrap();

    for pid in [
        subject.runtime.container_pid(&id).await.unwrap().unwrap(),
        subject.runtime.pod_sandbox_pid(&pod).await.unwrap().unwrap(),
    ] {
        let proc = Path::new("/proc").join(pid.to_string());
        let status = fs::read_to_string(proc.join("status")).unwrap();
        for line in
            ["Uid:\t65532\t65532\t65532\t65532", "Gid:\t65532\t65532\t65532\t65532", "NoNewPrivs:\t1", "Seccomp:\t2"]
        {
            assert!(status.lines().any(|found| found == line), "{line} is not in\n{status}");
        }
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000")), "{set}\n{status}");
        }
        let mounts = fs::read_to_string(proc.join("mountinfo")).unwrap();
        assert!(options_of(&mounts, "/").starts_with("ro"), "{mounts}");
        assert_eq!(namespace(&proc, "net"), namespace(Path::new("/proc/self"), "net"));
        assert_ne!(namespace(&proc, "pid"), namespace(Path::new("/proc/self"), "pid"));
    }

    let pid = subject.runtime.container_pid(&id).await.unwrap().unwrap();
    let proc = Path::new("/proc").join(pid.to_string());
    // The environment is empty for a moment while the process executes its program.
    let environment = eventually("its environment", async || {
        let environment = fs::read_to_string(proc.join("environ")).unwrap();
        (!environment.is_empty()).then_some(environment)
    })
    .await;
    let status = fs::read_to_string(proc.join("status")).unwrap();
    assert!(status.contains("CapBnd:\t0000000000000000"), "{status}");
    let mounts = fs::read_to_string(proc.join("mountinfo")).unwrap();
    assert!(options_of(&mounts, "/readable").starts_with("ro"), "{mounts}");
    assert!(options_of(&mounts, "/writable").starts_with("rw"), "{mounts}");
    assert_eq!(fs::read_to_string(proc.join("root/readable/file")).unwrap(), "seen");
    assert_eq!(fs::read_link(proc.join("cwd")).unwrap(), Path::new("/readable"));
    assert!(environment.split('\0').any(|pair| pair == "KEELWAY=set"), "{environment}");
    assert_eq!(
        fs::read_to_string(proc.join("oom_score_adj")).unwrap(),
        fs::read_to_string("/proc/self/oom_score_adj").unwrap()
    );
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

fn options_of<'m>(mounts: &'m str, point: &str) -> &'m str {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields[4] == point).map(|fields| fields[5]).next_back().expect("the mount")
}

fn namespace(proc: &Path, kind: &str) -> u64 {
    fs::metadata(proc.join("ns").join(kind)).unwrap().ino()
}

async fn limits_reach_the_cgroup((subject, _): &Pair<'_>) {
    let sandbox = subject.sandbox("limits");
    let mut spec = container("one", &["serve"]);
    spec.resources = CriResources { cpu_shares: 512, cpu_quota: 50_000, cpu_period: 100_000, memory_limit: 64 << 20 };
    let pod = subject.runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    subject.runtime.start_container(&id).await.unwrap();
    let pid = subject.runtime.container_pid(&id).await.unwrap().unwrap();
    let (memory, cpu) = (cgroup(pid, "memory"), cgroup(pid, "cpu"));
    assert!(memory.contains(&subject.cgroup_parent), "{memory}");
    let read = |path: String| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        assert_eq!(read(format!("{memory}/memory.max")).trim(), "67108864");
        assert_eq!(read(format!("{cpu}/cpu.max")).trim(), "50000 100000");
    } else {
        assert_eq!(read(format!("{memory}/memory.limit_in_bytes")).trim(), "67108864");
        assert_eq!(read(format!("{cpu}/cpu.cfs_quota_us")).trim(), "50000");
        assert_eq!(read(format!("{cpu}/cpu.shares")).trim(), "512");
    }
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

/// Returns the cgroup directory of a process: in the hierarchy of the controller, or in the only hierarchy of cgroup version 2.
fn cgroup(pid: u32, controller: &str) -> String {
    let lines = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    for line in lines.lines() {
        let fields: Vec<_> = line.splitn(3, ':').collect();
        if fields[1].split(',').any(|name| name == controller) {
            return format!("/sys/fs/cgroup/{controller}{}", fields[2]);
        }
    }
    let unified = lines.lines().find_map(|line| line.strip_prefix("0::")).expect("a cgroup");
    format!("/sys/fs/cgroup{unified}")
}

async fn logs_are_written_where_they_should((subject, _): &Pair<'_>) {
    let (pod, id) = subject.started("logs", &["print", "said", "0"]).await;
    let path = subject.exited(&id).await.log_path;
    assert_eq!(path, format!("{}/logs.log", subject.log_directory("logs")));
    eventually("the log", async || fs::read_to_string(&path).ok().filter(|log| log.contains(" stdout F said"))).await;
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

async fn killed_processes_are_seen((subject, _): &Pair<'_>) {
    let (pod, id) = subject.started("killed", &["serve"]).await;
    kill(subject.runtime.container_pid(&id).await.unwrap());
    assert_eq!(subject.exited(&id).await.exit.unwrap().code, 137);
    assert_eq!(subject.runtime.container_pid(&id).await.unwrap(), None);
    kill(subject.runtime.pod_sandbox_pid(&pod).await.unwrap());
    eventually("the sandbox's end", async || {
        let sandbox = subject.runtime.pod_sandbox_status(&pod).await.unwrap();
        (sandbox.state == CriSandboxState::NotReady).then_some(())
    })
    .await;
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

fn kill(pid: Option<u32>) {
    let pid = Pid::from_raw(pid.expect("a process").try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// As after a StartContainer whose client went away at the wrong moment: containerd runs a task that its CRI does not know (containerd issue 11037).
async fn tasks_that_the_runtime_lost_are_ended((subject, _): &Pair<'_>) {
    let runtime = &subject.runtime;
    for (case, with_its_sandbox) in [("lost-task", false), ("lost-task-and-sandbox", true)] {
        let (sandbox, spec) = (subject.sandbox(case), container(case, &["serve"]));
        let pod = runtime.run_pod_sandbox(&sandbox).await.unwrap();
        let id = runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
        let process = started_without_cri(subject, &id).await;
        assert_eq!(runtime.container_status(&id).await.unwrap().state, CriContainerState::Created);
        if !with_its_sandbox {
            runtime.remove_container(&id).await.unwrap();
        }
        runtime.remove_pod_sandbox(&pod).await.unwrap();
        assert!(matches!(runtime.container_status(&id).await, Err(CriError::NotFound { .. })));
        assert!(!Path::new("/proc").join(process.to_string()).exists());
    }
}

/// Starts the task of a container over containerd's own API, and returns its process id.
async fn started_without_cri(subject: &Subject, id: &str) -> u32 {
    let channel = subject.runtime.channel();
    let mounts = MountsRequest { snapshotter: "overlayfs".into(), key: id.into() };
    let mounts = SnapshotsClient::new(channel.clone()).mounts(of_cri(mounts)).await.unwrap().into_inner();
    let task = CreateTaskRequest { container_id: id.into(), rootfs: mounts.mounts, ..Default::default() };
    let mut tasks = TasksClient::new(channel);
    let process = tasks.create(of_cri(task)).await.unwrap().into_inner().pid;
    tasks.start(of_cri(StartRequest { container_id: id.into(), ..Default::default() })).await.unwrap();
    process
}

fn of_cri<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static("k8s.io"));
    request
}

async fn imported_images_are_managed_by_cri((subject, _): &Pair<'_>) {
    let mut images = ImagesClient::new(subject.runtime.channel());
    let id = subject.runtime.image_status(IMAGE).await.unwrap().unwrap().id;
    for name in [IMAGE.to_owned(), id] {
        let image = images.get(of_cri(GetImageRequest { name })).await.unwrap().into_inner().image.unwrap();
        assert_eq!(image.labels.get("io.cri-containerd.image").map(String::as_str), Some("managed"), "{image:?}");
    }
}

async fn image_is_replaced_by_one_of_the_same_name((subject, containerd): &Pair<'_>) {
    let name = "registry.k8s.io/keelway-replaced:v1.0.0";
    let directory = containerd.directory();
    let mut seen = Vec::new();
    for content in ["old", "new"] {
        let (file, archive) = (directory.join("content"), directory.join("replaced.tar"));
        fs::write(&file, content).unwrap();
        ImageArchive::new(name).file(&file, "/content").write(&archive).unwrap();
        let archive = tokio::fs::File::open(archive).await.unwrap();
        assert_eq!(subject.runtime.import_images(archive).await.unwrap(), [name]);
        seen.push(subject.runtime.image_status(name).await.unwrap().unwrap().id);
    }
    assert_ne!(seen[0], seen[1]);
}

async fn oci_layout_is_imported((subject, containerd): &Pair<'_>) {
    let name = "registry.k8s.io/keelway-oci:v1.0.0";
    let layout = oci_layout(name, &containerd.directory().join("program"));
    assert_eq!(subject.runtime.import_images(layout.as_slice()).await.unwrap(), [name]);

    let sandbox = subject.sandbox("oci");
    let mut spec = container("one", &["exit", "7"]);
    spec.image = name.into();
    let pod = subject.runtime.run_pod_sandbox(&sandbox).await.unwrap();
    let id = subject.runtime.create_container(&pod, &sandbox, &spec).await.unwrap();
    subject.runtime.start_container(&id).await.unwrap();
    assert_eq!(subject.exited(&id).await.exit.unwrap().code, 7);
    subject.runtime.remove_pod_sandbox(&pod).await.unwrap();
}

/// Builds an archive with an image of one file, in the layout that tools for registries write (OCI).
fn oci_layout(name: &str, program: &Path) -> Vec<u8> {
    let mut layout = tar::Builder::new(Vec::new());
    let mut append = |path: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        layout.append_data(&mut header, path, content).unwrap();
    };
    let mut blob = |kind: &str, content: &[u8]| {
        let digest = Sha256::digest(content).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        append(&format!("blobs/sha256/{digest}"), content);
        serde_json::json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len() })
    };
    let mut files = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    let content = fs::read(program).unwrap();
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    files.append_data(&mut header, PROGRAM.trim_start_matches('/'), content.as_slice()).unwrap();
    let layer = blob("application/vnd.oci.image.layer.v1.tar", &files.into_inner().unwrap());
    let config = serde_json::json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
    });
    let config = blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let manifest = serde_json::json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
    let mut manifest = blob("application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes());
    manifest["annotations"] = serde_json::json!({ "io.containerd.image.name": name });
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [manifest] });
    append("index.json", index.to_string().as_bytes());
    append("oci-layout", br#"{"imageLayoutVersion": "1.0.0"}"#);
    layout.into_inner().unwrap()
}

async fn broken_archives_are_refused((subject, containerd): &Pair<'_>) {
    let whole = fs::read(containerd.directory().join("image.tar")).unwrap();
    for (what, content) in [
        ("nothing", Vec::new()),
        ("no archive", vec![b'x'; 100_000]),
        ("half an archive", whole[..whole.len() / 2].to_vec()),
    ] {
        let imported = subject.runtime.import_images(content.as_slice()).await;
        assert!(matches!(imported, Err(CriError::Refused { .. })), "{what}: {imported:?}");
    }
    // A directory can be opened like a file, but not read like one.
    let unreadable = tokio::fs::File::open("/").await.unwrap();
    let imported = subject.runtime.import_images(unreadable).await;
    assert!(matches!(imported, Err(CriError::ReadArchive { .. })), "{imported:?}");
}

/// Checks that no process, mount, cgroup or file refers to this directory.
pub fn nothing_is_left(directory: &Path) {
    assert!(!directory.exists());
    let name = directory.file_name().unwrap().to_str().unwrap();
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(name));
    for entry in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        assert!(!entry.path().join(name).exists(), "{entry:?}");
    }
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        assert!(!line.contains(name), "{line}");
    }
}
