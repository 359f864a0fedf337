//! A host for one test.

use std::{
    env,
    process::{Command, id},
};

/// Set for the test within its host, to the process id of the one outside: what is not parted (cgroups) is named after it.
const INSIDE: &str = "KEELWAY_TEST_HOST";

/// What others have mounted in these directories would come and go with them; what is gone meanwhile cannot be unmounted. The shell stays as the host's init: orphans need
/// somebody who takes their exit status.
const SETUP: &str = "
awk '$2 ~ \"^/(run|var/lib|var/log)(/|$)\" {print $2}' /proc/mounts | sort --reverse |
    while read point; do umount --lazy $point 2> /dev/null || true; done
for directory in /run /var/lib /var/log; do mount -t tmpfs tmpfs $directory; done
ip link set lo up
\"$@\"
exit $?";

/// Runs a test's body in a process of its own on a host of its own. `test` is the test's full name.
///
/// All processes of that host end with it, however the test ends.
pub(crate) fn on_own_host(test: &str, body: impl AsyncFnOnce()) {
    if env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        return runtime.block_on(body());
    }
    let output = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["sh", "-ec", SETUP, "sh"])
        .arg(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, id().to_string())
        .output()
        .unwrap();
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test}: {}", output.status);
}

/// The process id by which things outside of the host are told apart.
pub(crate) fn outer_pid() -> String {
    env::var(INSIDE).unwrap()
}
