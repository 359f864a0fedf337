//! `keelway kubectl-install`, and a real kubectl (`make images`) that runs the plugin.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use keelway_cri::testing::cache;

const PROGRAM: &str = env!("CARGO_BIN_EXE_keelway");

/// Runs a program with a directory at the beginning of PATH.
fn run(program: &Path, directory: &Path, arguments: &[&str]) -> Output {
    let path = format!("{}:{}", directory.display(), env::var("PATH").unwrap());
    Command::new(program).args(arguments).env("PATH", path).output().unwrap()
}

fn install(directory: &Path, into: &Path) -> Output {
    run(Path::new(PROGRAM), directory, &["kubectl-install", "--directory", into.to_str().unwrap()])
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn kubectl_runs_the_plugin() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = directory.path().join("kubectl-keelway");
    for _ in 0..2 {
        let installed = install(directory.path(), directory.path());
        assert!(installed.status.success(), "{installed:?}");
        assert_eq!(text(&installed.stdout), format!("{}\n", plugin.display()));
        assert_eq!(text(&installed.stderr), "");
    }
    let kubectl = cache().unwrap().join("bin/kubectl");
    let ran = run(&kubectl, directory.path(), &["keelway", "fleet", "explain", "--help"]);
    assert!(ran.status.success() && text(&ran.stdout).contains("KIND/NAME"), "{ran:?}");
    let refused = run(&kubectl, directory.path(), &["keelway", "fleet", "explain", "web", "--from", "/dev/null"]);
    assert_eq!(refused.status.code(), Some(2), "exit codes are those of keelway: {refused:?}");
}

#[test]
fn a_file_of_somebody_else_stays() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = directory.path().join("kubectl-keelway");
    fs::write(&plugin, "another").unwrap();
    let refused = install(directory.path(), directory.path());
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("exists, and is not a link to "), "{refused:?}");
    assert_eq!(fs::read_to_string(plugin).unwrap(), "another");
}

#[test]
fn a_directory_that_kubectl_does_not_search_is_reported() {
    let [searched, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let installed = install(searched.path(), other.path());
    assert!(installed.status.success(), "{installed:?}");
    assert!(text(&installed.stderr).contains("kubectl searches PATH, which does not contain "), "{installed:?}");
    let missing = install(searched.path(), &other.path().join("missing"));
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
}
