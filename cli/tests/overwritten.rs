//! stdout is the input file: the shell has emptied it before a command reads it. The keys of a fleet can be restored.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by it")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

/// A machine of an installation, and the documents that a command would lose.
const WORLD: &str = "apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata:
  name: hv-1
spec:
  role: Private
  endpoint:
    unix:
      path: /run/hv-1.sock
  addresses:
    private: [10.0.0.1]
status:
  installation: aaaaaaaaaaaaaaaa
";

/// Runs a line in a shell, in the directory of `c1.yaml`.
fn shell(directory: &Path, line: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_keelway")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(directory).env("PATH", path).env("XDG_STATE_HOME", directory.join("state"));
    command.output().unwrap()
}

/// Creates a directory in which a command has written `c1.yaml`.
fn written() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("world.yaml"), WORLD).unwrap();
    let done = shell(directory.path(), "keelway hypervisor cordon hv-1 < world.yaml > c1.yaml");
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    directory
}

/// Returns the command line that an error suggests.
fn copy_of(error: &str) -> String {
    let start = error.find("cp ").expect(error);
    error.get(start..).unwrap().lines().next().unwrap().to_owned()
}

#[test]
fn the_error_restores_a_file_that_the_shell_emptied() {
    for line in [
        "keelway reconcile < c1.yaml > c1.yaml",
        "keelway reconcile -f c1.yaml > c1.yaml",
        "keelway reconcile -f - < c1.yaml > c1.yaml",
        "keelway hypervisor cordon hv-1 < c1.yaml > c1.yaml",
        "keelway hypervisor cordon hv-1 -f c1.yaml > c1.yaml",
        "keelway hypervisor delete hv-1 < c1.yaml > c1.yaml",
        "keelway hypervisor revoke hv-1 < c1.yaml > c1.yaml",
        "keelway hypervisor inject --name hv-2 --role private --private-address 10.0.0.2 --socket /run/2.sock < c1.yaml > c1.yaml",
        "keelway cluster inject --name c1 < c1.yaml > c1.yaml",
        "keelway cluster delete --name c1 < c1.yaml > c1.yaml",
        "keelway status < c1.yaml > c1.yaml",
        // The same file by another name.
        "ln c1.yaml other.yaml; keelway reconcile < other.yaml > c1.yaml",
    ] {
        let directory = written();
        let before = fs::read(directory.path().join("c1.yaml")).unwrap();
        let refused = shell(directory.path(), line);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains("stdout is the input file"), "{line}: {said}");
        assert!(said.contains("--in-place"), "{line}: {said}");
        assert!(!said.contains("local create"), "{line}: {said}");
        assert_eq!(shell(directory.path(), &copy_of(&said)).status.code(), Some(0), "{line}: {said}");
        assert_eq!(fs::read(directory.path().join("c1.yaml")).unwrap(), before, "{line}");
    }
}

#[test]
fn a_file_that_stdout_is_appended_to_is_unchanged() {
    for line in ["keelway hypervisor cordon hv-1 < c1.yaml >> c1.yaml", "keelway status -f c1.yaml 1<> c1.yaml"] {
        let directory = written();
        let before = fs::read(directory.path().join("c1.yaml")).unwrap();
        let refused = shell(directory.path(), line);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains("the file is unchanged"), "{line}: {said}");
        assert_eq!(fs::read(directory.path().join("c1.yaml")).unwrap(), before, "{line}");
    }
}

#[test]
fn a_pipeline_with_an_emptied_input_names_the_copy() {
    for line in [
        "keelway reconcile < /dev/null",
        "true | keelway reconcile",
        ": > c1.yaml; keelway validate < c1.yaml",
        ": > c1.yaml; keelway cluster inject --name c2 < c1.yaml | keelway reconcile > c1.yaml",
        ": > c1.yaml; keelway reconcile --in-place c1.yaml",
    ] {
        let directory = written();
        let refused = shell(directory.path(), line);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains("documents-aaaaaaaaaaaaaaaa.yaml"), "{line}: {said}");
        assert!(!said.contains("local create"), "{line}: {said}");
    }
}

#[test]
fn different_input_and_output_files_are_accepted() {
    let directory = written();
    let done = shell(directory.path(), "keelway hypervisor uncordon hv-1 < c1.yaml > next.yaml");
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(shell(directory.path(), "keelway status < /dev/null > /dev/null").status.code(), Some(0));
}
