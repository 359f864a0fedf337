//! A host for one test: a separate network, process table, `/run`, `/var/lib` and `/var/log`. The directories are empty.
//!
//! A test therefore does not see other tests. Everything that it leaves behind ends with its host, even if the test is killed.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio, id},
};

use crate::keelway;

/// Set for the test within its host, to the process id of the outer process. Resources that are not separated (cgroups) are named after it.
const INSIDE: &str = "KEELWAY_TEST_HOST";
/// The program under test, for the test within its host.
pub(crate) const PROGRAM: &str = "KEELWAY_TEST_PROGRAM";
/// The directory for files that a test writes. It disappears with the host.
const WORK: &str = "/run/keelway-e2e";

/// The maximum number of lines of a panic message.
const MOST_LINES: usize = 60;

/// The shell is the init process of the host, because orphans need a process that collects their exit status. Inherited mounts are removed first:
/// otherwise they would disappear in the middle of a test, when another test removes their files.
const SETUP: &str = "
awk '$2 ~ \"^/(run|var/lib|var/log)/\" {print $2}' /proc/mounts | sort -r | xargs -r -n 1 umount -l
for directory in /run /var/lib /var/log; do mount -t tmpfs tmpfs $directory; done
mkdir -m 700 /run/keelway-e2e
ip link set lo up
\"$@\" 2>&1
exit $?";

/// Runs the body of a test in a separate process on a separate host. `test` is the full name of the test.
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

/// The message of the first panic of a test. It is repeated at the end, because the middle of a long output is cut.
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

/// Returns a name for a fleet that no other test uses. All names have the same length for the same tag.
pub fn fleet(tag: &str) -> String {
    let pid: u32 = env::var(INSIDE).unwrap().parse().unwrap();
    format!("{tag}-{pid:06x}")
}

/// Creates a directory for this test.
pub fn directory(name: &str) -> PathBuf {
    let directory = Path::new(WORK).join(name);
    fs::create_dir(&directory).unwrap();
    directory
}

/// Returns whether a path belongs to the test's own files.
pub(crate) fn is_work(path: &Path) -> bool {
    path.starts_with(WORK)
}

/// Removes the cgroups of tests that were killed. Everything else ended with their host.
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
    // Another process may remove it at the same time.
    let _ = fs::remove_dir(group);
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}
