//! A host for one test: a network, a process table and an empty `/run` of its own.
//!
//! A test therefore sees nothing of others. What it leaves behind ends with its host, also if it is killed.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Set for the test within its host.
const INSIDE: &str = "KEELWAY_VPN_TEST_HOST";

/// The first line that a body prints. If the name matches no test, nothing runs, and libtest would report success.
const BEGUN: &str = "on a host of its own";

/// The shell stays as the host's init process, which collects the exit status of orphans.
const SETUP: &str = "
mount -t tmpfs tmpfs /run
mkdir -m 700 /run/tmp
ip link set lo up
TMPDIR=/run/tmp \"$@\" 2>&1
exit $?";

/// Runs `body` in a process of its own on a host of its own. The process is this program, with `arguments` that select this test.
pub fn on_own_host(arguments: &[&str], body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        println!("{BEGUN}");
        return body();
    }
    assert!(rustix::process::geteuid().is_root(), "this makes network namespaces: run it as root");
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["sh", "-ec", SETUP, "sh"])
        .arg(env::current_exe().unwrap())
        .args(arguments)
        .env(INSIDE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut has_begun = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        // The line may begin with output of libtest.
        has_begun |= line.ends_with(BEGUN);
        println!("{line}");
    }
    let status = child.wait().unwrap();
    assert!(status.success(), "{arguments:?}: {status}");
    assert!(has_begun, "{arguments:?} names nothing that runs here");
}
