//! Runs helm, which `cargo xtask images` builds.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use keelway_cri::testing::cache;

const CHART: &str = "manifests/charts/keelway";

/// Returns the manifests that the chart renders with these values.
pub(crate) fn template(options: &[&str]) -> String {
    succeeded(helm("template", &["keelway"], options))
}

/// Fails unless `helm lint --strict` accepts the chart with these values.
pub(crate) fn lint(options: &[&str]) {
    succeeded(helm("lint", &["--strict"], options));
}

/// Returns helm's error message for values that the chart refuses.
pub(crate) fn refuses(options: &[&str]) -> String {
    let output = helm("template", &["keelway"], options);
    assert!(!output.status.success(), "{options:?} are taken");
    String::from_utf8(output.stderr).unwrap()
}

/// Reads a file by its path in the workspace.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap()
}

/// Fails unless the file contains `text`. If `UPDATE` is set, writes `text` to the file first.
pub(crate) fn golden(path: &str, text: &str) {
    if env::var_os("UPDATE").is_some() {
        fs::write(workspace().join(path), text).unwrap();
    }
    assert!(read(path) == text, "{path} is not what the chart renders: UPDATE=1 writes it anew");
}

fn helm(command: &str, words: &[&str], options: &[&str]) -> Output {
    let own = cache().unwrap().join("bin");
    let path = env::join_paths(env::split_paths(&env::var_os("PATH").unwrap()).chain([own])).unwrap();
    // The plugins and the configuration of the user that runs the tests must have no effect.
    let home = tempfile::tempdir().unwrap();
    let mut helm = Command::new("helm");
    helm.env_clear().env("PATH", path).env("HOME", home.path()).current_dir(workspace());
    helm.arg(command).args(words).arg(CHART).args(["--namespace", "keelway-system"]);
    for option in options {
        helm.args(["--set", option]);
    }
    helm.output().expect("helm is not there: cargo xtask images --only helm")
}

fn succeeded(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
