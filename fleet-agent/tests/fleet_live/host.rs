//! A host for the test: a network, a process table and an empty `/run` of its own. All of them end with the test, also if it is killed.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

/// Set for the test within its host.
const INSIDE: &str = "KEELWAY_FLEET_AGENT_TEST_HOST";

/// The shell stays as the host's init process, which collects the exit status of orphans.
const SETUP: &str = "
mount -t tmpfs tmpfs /run
ip link set lo up
\"$@\" 2>&1
exit $?";

/// The directory for all files of a test. It ends with the host.
pub(crate) const WORK: &str = "/run/keelway-test";

/// Runs the body of a test in a process of its own on a host of its own. `test` is the test's full name.
pub(crate) fn on_own_host(test: &str, body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        std::fs::create_dir(WORK).unwrap();
        return body();
    }
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["sh", "-ec", SETUP, "sh"])
        .arg(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut has_passed = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        has_passed |= line.contains("1 passed");
        println!("{line}");
    }
    let status = child.wait().unwrap();
    assert!(status.success() && has_passed, "{test}: {status}");
}
