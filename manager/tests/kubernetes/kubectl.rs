//! Runs kubectl.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use keelway_cri::testing::cache;

use crate::host::WORK;

/// `kubectl` with this kubeconfig file.
pub(crate) struct Kubectl(String);

impl Kubectl {
    pub(crate) fn new(kubeconfig: String) -> Self {
        Self(kubeconfig)
    }

    pub(crate) fn run(&self, arguments: &[&str], stdin: &str) -> Output {
        let mut child = Command::new(cache().unwrap().join("bin/kubectl"))
            .args(["--kubeconfig", &self.0])
            .args(arguments)
            // kubectl writes its discovery cache there.
            .env("HOME", WORK)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // If kubectl exits before it reads its input, this write fails. The output of kubectl contains the reason.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// Returns the output of a command that must succeed.
    pub(crate) fn says(&self, arguments: &[&str]) -> String {
        self.does(arguments, "")
    }

    pub(crate) fn does(&self, arguments: &[&str], stdin: &str) -> String {
        let output = self.run(arguments, stdin);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {errors}\n{stdin}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the error message if the command fails, else `None`.
    pub(crate) fn refuses(&self, arguments: &[&str], stdin: &str) -> Option<String> {
        let output = self.run(arguments, stdin);
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
