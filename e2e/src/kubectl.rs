//! kubectl, run from the network of a client.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use keelway_cri::testing::cache;
use serde_json::Value;

use crate::{
    command::{FinishedCommand, run},
    deadline,
};

/// `kubectl` with a kubeconfig.
#[derive(Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    /// The context. If it is `None`, the current context of the kubeconfig applies.
    context: Option<String>,
}

impl Kubectl {
    /// Creates a client with this kubeconfig.
    pub fn new(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), context: None }
    }

    /// Returns a client with another context of the same kubeconfig.
    #[must_use]
    pub fn by(&self, context: &str) -> Self {
        Self { kubeconfig: self.kubeconfig.clone(), context: Some(context.to_owned()) }
    }

    /// Returns the path of the kubeconfig.
    pub fn file(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the parsed kubeconfig.
    pub fn kubeconfig(&self) -> Value {
        serde_saphyr::from_str(&std::fs::read_to_string(&self.kubeconfig).unwrap()).unwrap()
    }

    /// Runs `kubectl` with this input.
    pub fn run_with(&self, arguments: &[&str], stdin: &[u8]) -> FinishedCommand {
        run(&mut self.command(arguments), stdin, deadline::KUBERNETES)
    }

    /// Returns the command with these arguments, for a caller that acts while it runs.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cache().unwrap().join("bin/kubectl"));
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.args(self.context.iter().flat_map(|context| ["--context", context])).args(arguments);
        // The discovery cache is below the home directory.
        command.env("HOME", self.kubeconfig.parent().unwrap());
        command
    }

    /// Runs `kubectl`.
    pub fn run(&self, arguments: &[&str]) -> FinishedCommand {
        self.run_with(arguments, &[])
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &str) {
        let _ = self.run_with(&["apply", "-f", "-"], manifest.as_bytes()).succeeded();
    }

    /// Returns objects as JSON.
    pub fn get(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = ["get", "-o", "json"].iter().chain(arguments).copied().collect();
        self.run(&arguments).succeeded().json()
    }

    /// Waits with `kubectl wait`.
    pub fn wait(&self, what: &str, objects: &[&str]) {
        let (what, limit) = (format!("--for={what}"), format!("--timeout={}s", deadline::KUBERNETES.as_secs() - 10));
        let arguments: Vec<&str> = ["wait", &what, &limit].iter().chain(objects).copied().collect();
        let finished = self.run(&arguments).succeeded();
        println!("{:>7} ms  waited for {what} of {}", finished.took.as_millis(), objects.join(" "));
    }
}
