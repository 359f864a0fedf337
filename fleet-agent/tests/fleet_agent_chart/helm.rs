//! Runs helm, which `cargo xtask images` builds.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use keelway_cri::testing::cache;

pub(crate) const CHART: &str = "manifests/charts/keelway-fleet-agent";

/// Returns the manifests that the chart renders with these values.
pub(crate) fn template(options: &[&str]) -> String {
    succeeded(&helm("template", &["keelway-fleet-agent"], options))
}

/// Fails unless `helm lint --strict` accepts the chart with these values.
pub(crate) fn lint(options: &[&str]) {
    let _ = succeeded(&helm("lint", &["--strict"], options));
}

/// Returns helm's error message for values that the chart refuses.
pub(crate) fn refuses(options: &[&str]) -> String {
    let output = helm("template", &["keelway-fleet-agent"], options);
    assert!(!output.status.success(), "{options:?} are accepted");
    String::from_utf8(output.stderr).unwrap()
}

/// Reads a file by its path in the workspace.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap()
}

/// Each option is `--set OPTION`, or `--set-file` for `token=@TEXT`.
fn helm(command: &str, words: &[&str], options: &[&str]) -> Output {
    let own = cache().unwrap().join("bin");
    let path = env::join_paths(env::split_paths(&env::var_os("PATH").unwrap()).chain([own])).unwrap();
    // The plugins and the configuration of the user that runs the tests must have no effect.
    let home = tempfile::tempdir().unwrap();
    let mut helm = Command::new("helm");
    helm.env_clear().env("PATH", path).env("HOME", home.path()).current_dir(workspace());
    helm.arg(command).args(words).arg(CHART).args(["--namespace", "keelway-fleet"]);
    for option in options {
        if let Some(token) = option.strip_prefix("token=@") {
            let file = home.path().join("token");
            fs::write(&file, token).unwrap();
            helm.arg("--set-file").arg(format!("token={}", file.display()));
        } else {
            helm.args(["--set", option]);
        }
    }
    helm.output().expect("helm is not installed: cargo xtask images --only helm")
}

fn succeeded(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
