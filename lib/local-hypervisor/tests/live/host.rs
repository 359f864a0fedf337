//! A host for one test.

use std::{
    env,
    process::{Command, id},
};

/// Set for the test inside of its host, to the process id of the test outside. It names cgroups, which the hosts share.
const INSIDE: &str = "KEELWAY_TEST_HOST";

/// Unmounts what others have mounted in these directories, because their mounts and unmounts would change the facts of the test. An unmount
/// can fail because the mount is gone already. The shell remains as the init process of the host, because orphans need a process that reaps
/// them.
const SETUP: &str = "
awk '$2 ~ \"^/(run|var/lib|var/log)(/|$)\" {print $2}' /proc/mounts | sort --reverse |
    while read point; do umount --lazy $point 2> /dev/null || true; done
for directory in /run /var/lib /var/log; do mount -t tmpfs tmpfs $directory; done
ip link set lo up
\"$@\"
exit $?";

/// Runs the body of a test in a separate process on its own host. `test` is the full name of the test.
///
/// All processes of that host end with it, regardless of how the test ends.
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

/// Returns the process id that distinguishes this host in names that hosts share.
pub(crate) fn outer_pid() -> String {
    env::var(INSIDE).unwrap()
}
