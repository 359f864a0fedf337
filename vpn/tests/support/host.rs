//! A host for one test: a network, a process table and an empty `/run` of its own.
//!
//! So a test sees nothing of others, and whatever it leaves behind ends with it, also when it is killed.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Set for the test within its host.
const INSIDE: &str = "KEELWAY_VPN_TEST_HOST";

/// What a body says first: a name that is no test's runs nothing, and would succeed.
const BEGUN: &str = "on a host of its own";

/// The shell stays as the host's init: orphans need somebody who takes their exit status.
const SETUP: &str = "
mount -t tmpfs tmpfs /run
mkdir -m 700 /run/tmp
ip link set lo up
TMPDIR=/run/tmp \"$@\" 2>&1
exit $?";

/// Runs `body` in a process of its own on a host of its own: this program again, with `arguments` by which it comes here.
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
        // libtest may have begun the line.
        has_begun |= line.ends_with(BEGUN);
        println!("{line}");
    }
    let status = child.wait().unwrap();
    assert!(status.success(), "{arguments:?}: {status}");
    assert!(has_begun, "{arguments:?} names nothing that runs here");
}
