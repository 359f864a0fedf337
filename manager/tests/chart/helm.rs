//! Runs helm, which `cargo xtask images` builds, and what holds for every chart.

use std::{
    env, fs,
    path::Path,
    process::{Command, Output},
};

use keelway_cri::testing::cache;
use serde_json::{Value, json};

use crate::values;

/// A chart of this workspace, with the release that the tests render.
pub(crate) struct HelmChart {
    pub(crate) directory: &'static str,
    pub(crate) release: &'static str,
    pub(crate) namespace: &'static str,
}

impl HelmChart {
    /// Returns the manifests that the chart renders with these values. The value `KEY=@TEXT` is given as a file.
    pub(crate) fn template(&self, options: &[&str]) -> String {
        succeeded(&self.helm("template", &[self.release], options))
    }

    /// Fails unless `helm lint --strict` accepts the chart with these values.
    pub(crate) fn lint(&self, options: &[&str]) {
        let _ = succeeded(&self.helm("lint", &["--strict"], options));
    }

    /// Returns helm's error message for values that the chart refuses.
    pub(crate) fn refuses(&self, options: &[&str]) -> String {
        let output = self.helm("template", &[self.release], options);
        assert!(!output.status.success(), "{options:?} are accepted");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Fails unless the schema has exactly the values of the chart, each explained.
    pub(crate) fn explains_every_value(&self) {
        let schema: Value = serde_json::from_str(&self.read("values.schema.json")).unwrap();
        let text = self.read("values.yaml");
        let mut known: Value = serde_saphyr::from_str(&text).unwrap();
        // Helm passes `global` to a chart that is a dependency of another one.
        known["global"] = json!({});
        assert_eq!(values::of_schema(&schema, ""), values::of_values(&schema, &known, ""));
        assert_eq!(values::unexplained(&text), Vec::<String>::new());
    }

    /// Fails unless the chart has the version of this release.
    pub(crate) fn has_this_version(&self) {
        let chart: Value = serde_saphyr::from_str(&self.read("Chart.yaml")).unwrap();
        let version = json!(env!("CARGO_PKG_VERSION"));
        assert_eq!((&chart["version"], &chart["appVersion"]), (&version, &version));
    }

    fn read(&self, name: &str) -> String {
        read(&format!("{}/{name}", self.directory))
    }

    fn helm(&self, command: &str, words: &[&str], options: &[&str]) -> Output {
        let own = cache().unwrap().join("bin");
        let path = env::join_paths(env::split_paths(&env::var_os("PATH").unwrap()).chain([own])).unwrap();
        // The plugins and the configuration of the user that runs the tests must have no effect.
        let home = tempfile::tempdir().unwrap();
        let mut helm = Command::new("helm");
        helm.env_clear().env("PATH", path).env("HOME", home.path()).current_dir(workspace());
        helm.arg(command).args(words).arg(self.directory).args(["--namespace", self.namespace]);
        for option in options {
            if let Some((key, text)) = option.split_once("=@") {
                let file = home.path().join(key);
                fs::write(&file, text).unwrap();
                helm.arg("--set-file").arg(format!("{key}={}", file.display()));
            } else {
                helm.args(["--set", option]);
            }
        }
        helm.output().expect("helm is not installed: cargo xtask images --only helm")
    }
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

fn succeeded(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
