//! Kubernetes' own client.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use keelway_cri::testing::cache;

use crate::host::WORK;

/// `kubectl` with a kubeconfig.
pub(crate) struct Kubectl(String);

impl Kubectl {
    pub(crate) fn new(kubeconfig: String) -> Self {
        Self(kubeconfig)
    }

    /// Runs it with this input.
    pub(crate) fn run(&self, arguments: &[&str], stdin: &str) -> Output {
        let mut child = Command::new(cache().unwrap().join("bin/kubectl"))
            .args(["--kubeconfig", &self.0])
            .args(arguments)
            // Its discovery cache.
            .env("HOME", WORK)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // What it does not read it refuses for another reason, which is what it says.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// What it says where it succeeds.
    pub(crate) fn says(&self, arguments: &[&str]) -> String {
        self.does(arguments, "")
    }

    pub(crate) fn does(&self, arguments: &[&str], stdin: &str) -> String {
        let output = self.run(arguments, stdin);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {errors}\n{stdin}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says where it fails; none where it does not.
    pub(crate) fn refuses(&self, arguments: &[&str], stdin: &str) -> Option<String> {
        let output = self.run(arguments, stdin);
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
