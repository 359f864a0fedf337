//! `keelway pivot` with documents on stdout.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output, Stdio},
};

const MACHINE: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-1}
spec: {role: Private, endpoint: {unix: {path: /nowhere/containerd.sock}}, addresses: {private: [10.0.0.11]}}
";

fn pivot(folder: &Path, stdout: Stdio) -> Output {
    let store = folder.join("store/hypervisors");
    fs::create_dir_all(&store).unwrap();
    fs::write(store.join("hv-1.yaml"), MACHINE).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keelway"));
    command.args(["pivot", "--from", &format!("dir:{}", folder.join("store").display())]);
    let child = command.env("XDG_STATE_HOME", folder.join("state")).stdout(stdout).stderr(Stdio::piped()).spawn();
    child.unwrap().wait_with_output().unwrap()
}

/// Returns the files of the state directory, as text.
fn kept(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("state/keelway")).unwrap();
    entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect()
}

#[test]
fn documents_survive_a_failed_write_to_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let refused = pivot(folder.path(), full.into());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    let [text] = &kept(folder.path())[..] else { panic!("{said}") };
    assert!(text.contains("name: hv-1") && said.contains("documents are kept in "), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let moved = pivot(folder.path(), Stdio::piped());
    assert!(moved.status.success() && String::from_utf8(moved.stdout).unwrap().contains("name: hv-1"));
    assert!(kept(folder.path()).is_empty() && !folder.path().join("store/hypervisors/hv-1.yaml").exists());
}
