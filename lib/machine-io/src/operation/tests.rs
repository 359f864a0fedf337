//! Operations stay within the directories of components, whatever the request.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
};

use keelway_api::machine::OnChange;
use proptest::prelude::*;

use super::*;

const CLUSTER: &str = "0123456789abcdef";

fn pod() -> PodName {
    PodName { cluster: CLUSTER.parse().unwrap(), component: "etcd-0".parse().unwrap() }
}

/// Everything outside of the cluster's own directories: names, kinds, modes, owners and contents. Links are not followed.
fn outside(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if name == format!("var/lib/keelway/{CLUSTER}") || name == format!("var/log/keelway/{CLUSTER}") {
                continue;
            }
            let seen = fs::symlink_metadata(&path).unwrap();
            let content = if seen.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            found.insert(name, format!("{:o} {} {} {content:?}", seen.mode(), seen.uid(), seen.gid()));
            if seen.is_dir() {
                left.push(path);
            }
        }
    }
    found
}

/// A machine with a component whose directories contain links that lead out of them.
fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let below = |path: &str| root.path().join(path);
    let home = format!("var/lib/keelway/{CLUSTER}/etcd-0");
    for path in [
        format!("{home}/files/a"),
        format!("{home}/data"),
        "outside".to_owned(),
        format!("var/log/keelway/{CLUSTER}/etcd-0"),
    ] {
        fs::create_dir_all(below(&path)).unwrap();
    }
    for path in ["outside/a", "var/lib/keelway/owner", "var/lib/keelway/applied"] {
        fs::write(below(path), "theirs").unwrap();
    }
    for place in
        [&home, &format!("{home}/files"), &format!("{home}/data"), &format!("var/log/keelway/{CLUSTER}/etcd-0")]
    {
        symlink(below("outside"), below(&format!("{place}/link"))).unwrap();
        symlink("../../../../../../outside", below(&format!("{place}/up"))).unwrap();
    }
    root
}

fn path() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "..",
        ".",
        "",
        "a",
        "link",
        "up",
        "files",
        "data",
        "owner",
        "outside",
        CLUSTER,
        "etcd-0",
        "/",
        "\0",
        "keelway-mark",
    ]);
    prop::collection::vec(piece, 0..7).prop_map(|pieces| pieces.join("/"))
}

/// A path that often begins in a component's directory.
fn some_path() -> impl Strategy<Value = String> {
    prop_oneof![
        path(),
        path().prop_map(|rest| format!("{CLUSTER}/etcd-0/{rest}")),
        path().prop_map(|rest| format!("{CLUSTER}/{rest}"))
    ]
}

fn work() -> impl Strategy<Value = MachineOperation> {
    let file = |path| PodFile { path, content: b"ours".to_vec(), on_change: OnChange::Restart };
    prop_oneof![
        some_path().prop_map(move |path| MachineOperation::WriteFile { pod: pod(), user: 20_017, file: file(path) }),
        some_path().prop_map(MachineOperation::RemovePath),
        some_path().prop_map(|path| MachineOperation::MarkData { pod: pod(), path }),
        (some_path(), any::<u32>()).prop_map(|(path, mode)| {
            MachineOperation::MakeDirectories(vec![MachineDirectory {
                path,
                user: 20_017,
                group: 20_017,
                mode: mode & 0o7777,
            }])
        }),
        path().prop_map(|name| MachineOperation::MakeRoomForLog { pod: pod(), useless: Some(name) }),
        Just(MachineOperation::RemoveTree(pod())),
        Just(MachineOperation::ForgetCluster(CLUSTER.parse().unwrap())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_outside_is_changed(works in prop::collection::vec(work(), 1..6)) {
        let root = machine();
        let before = outside(root.path());
        let opened = fs::File::open(root.path()).unwrap();
        for work in works {
            if work.check().is_ok() {
                // Operations may fail here.
                let _ = on_files(MachineFiles::new(std::os::fd::AsFd::as_fd(&opened)), work);
            }
        }
        prop_assert_eq!(outside(root.path()), before);
    }
}

#[test]
fn the_check_is_what_keeps_work_inside() {
    let root = machine();
    let opened = fs::File::open(root.path()).unwrap();
    // A plain name cannot lead elsewhere by itself, but the top directory is the same: this one is beside the directories of components.
    let beside = MachineDirectory { path: "beside".to_owned(), user: 20_017, group: 20_017, mode: 0o700 };
    let work = MachineOperation::MakeDirectories(vec![beside]);
    assert!(work.check().is_err());
    on_files(MachineFiles::new(std::os::fd::AsFd::as_fd(&opened)), work).unwrap();
    assert!(root.path().join("var/lib/keelway/beside").is_dir(), "without it this is done");
}
