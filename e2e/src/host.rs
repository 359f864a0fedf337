//! A host for one test: a network, a process table and empty `/run`, `/var/lib` and `/var/log` of its own.
//!
//! So a test sees nothing of others, and whatever it leaves behind ends with it, also when it is killed.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio, id},
};

use crate::keelway;

/// Set for the test within its host, to the process id of the one outside: what is not parted (cgroups) is named after it.
const INSIDE: &str = "KEELWAY_TEST_HOST";
/// The program under test, for the test within its host.
pub(crate) const PROGRAM: &str = "KEELWAY_TEST_PROGRAM";
/// Where a test keeps what it writes: gone with its host.
const WORK: &str = "/run/keelway-e2e";

/// Of what a panic says.
const MOST_LINES: usize = 60;

/// The shell stays as the host's init: orphans need somebody who takes their exit status. Mounts of others would go when
/// their files do, in the middle of a test.
const SETUP: &str = "
awk '$2 ~ \"^/(run|var/lib|var/log)/\" {print $2}' /proc/mounts | sort -r | xargs -r -n 1 umount -l
for directory in /run /var/lib /var/log; do mount -t tmpfs tmpfs $directory; done
mkdir -m 700 /run/keelway-e2e
ip link set lo up
\"$@\" 2>&1
exit $?";

/// Runs a test's body in a process of its own on a host of its own. `test` is the test's full name.
///
/// All processes of that host end with it, however the test ends.
pub fn on_own_host(test: &str, body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return body();
    }
    remove_leftover_cgroups();
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["sh", "-ec", SETUP, "sh"])
        .arg(env::current_exe().unwrap())
        .args([test, "--exact", "--include-ignored", "--nocapture"])
        .env(INSIDE, id().to_string())
        .env(PROGRAM, keelway::program())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut cause = PanicMessage::default();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        println!("{line}");
        cause.read(&line);
    }
    let status = child.wait().unwrap();
    assert!(status.success(), "{test}: {status}\n{}", cause.lines.join("\n"));
}

/// What the first panic of a test says, so that it stands at the end, too: a long output is cut in the middle.
#[derive(Default)]
struct PanicMessage {
    lines: Vec<String>,
    is_over: bool,
}

impl PanicMessage {
    fn read(&mut self, line: &str) {
        let begins = line.starts_with("thread '") && line.contains(" panicked at ");
        self.is_over |= !self.lines.is_empty() && (line == "stack backtrace:" || line.starts_with("note: "));
        let is_of_it = begins || !self.lines.is_empty();
        if is_of_it && !self.is_over && self.lines.len() < MOST_LINES {
            self.lines.push(line.to_owned());
        }
    }
}

/// A fleet's name that no other test has, and that is always as long.
pub fn fleet(tag: &str) -> String {
    let pid: u32 = env::var(INSIDE).unwrap().parse().unwrap();
    format!("{tag}-{pid:06x}")
}

/// A new directory of this test.
pub fn directory(name: &str) -> PathBuf {
    let directory = Path::new(WORK).join(name);
    fs::create_dir(&directory).unwrap();
    directory
}

/// Whether a path is the test's own, and not something found on its host.
pub(crate) fn is_work(path: &Path) -> bool {
    path.starts_with(WORK)
}

/// Removes the cgroups of tests that were killed: all else went with their host.
fn remove_leftover_cgroups() {
    let root = Path::new("/sys/fs/cgroup");
    for hierarchy in children(root).into_iter().chain([root.to_owned()]) {
        let fleets = children(&hierarchy.join("keelway-local"));
        fleets.iter().filter(|fleet| is_orphan(fleet)).for_each(|fleet| remove_groups(fleet));
    }
}

fn is_orphan(fleet: &Path) -> bool {
    let pid = || {
        let (tag, pid) = fleet.file_name()?.to_str()?.rsplit_once('-')?;
        let hexadecimal = tag.starts_with("e2e") && pid.len() == 6;
        hexadecimal.then(|| u32::from_str_radix(pid, 16).ok()).flatten()
    };
    pid().is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

fn remove_groups(group: &Path) {
    for child in children(group) {
        remove_groups(&child);
    }
    // Another process may sweep at the same time.
    let _ = fs::remove_dir(group);
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}
