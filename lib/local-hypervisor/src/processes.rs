//! Finds and ends a machine's processes.
//!
//! There are no pid files. A machine's processes are those in its cgroup, those in its network namespace, and those that are about to enter
//! them. Each is held by a pidfd, so that a signal never reaches another process.

use std::{
    collections::BTreeSet,
    fs,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{LocalHypervisorError, cgroup, files, fleet::FleetMachine, namespace};

/// How long containerd may take to close its files.
const GRACE: Duration = Duration::from_secs(3);

/// How long a process may take to end after SIGKILL.
const KILLED: Duration = Duration::from_secs(20);

/// The group of containerd and its shims, beside the groups of containers.
pub(crate) const RUNTIME_GROUP: &str = "containerd";

/// The group of the agent, beside that of containerd.
pub(crate) const AGENT_GROUP: &str = "agent";

/// The group of commands that are run on a worker from outside, beside that of containerd.
pub(crate) const PROCESS_GROUP: &str = "processes";

/// containerd's name in the process table.
const CONTAINERD: &str = "containerd";

/// The shims' name in the process table, which keeps 15 characters.
const SHIM: &str = "containerd-shim";

/// The last arguments of a shim's program if it is a command that ends by itself.
const SHIM_COMMANDS: [&[u8]; 3] = [b"-info", b"start", b"delete"];

/// Ends all of a machine's processes. Blocking.
///
/// It ends the agent first, then containerd, so that no new process is started. The rest is killed, because its data is about to be deleted.
pub(crate) fn end_all(machine: &FleetMachine) -> Result<(), LocalHypervisorError> {
    end_agent(machine)?;
    end_containerd(machine)?;
    kill_all(machine)
}

/// Kills all of a machine's processes at once, like a power loss. Blocking.
pub(crate) fn kill_all(machine: &FleetMachine) -> Result<(), LocalHypervisorError> {
    let deadline = Instant::now() + KILLED;
    loop {
        let processes = held(|| of_machine(machine))?;
        if processes.is_empty() {
            return Ok(());
        }
        send_all(&processes, Signal::KILL)?;
        if !all_end(&processes, deadline)? || Instant::now() > deadline {
            return Err(unkillable(machine, &processes));
        }
    }
}

/// Ends a machine's containerd, even one that is only about to start, and nothing else. Blocking.
pub(crate) fn end_containerd(machine: &FleetMachine) -> Result<(), LocalHypervisorError> {
    end(machine, || containerd(machine))
}

/// Ends a machine's agent, in the same way. Blocking.
pub(crate) fn end_agent(machine: &FleetMachine) -> Result<(), LocalHypervisorError> {
    end(machine, || agent(machine))
}

/// Ends processes until none is found. A process that is forked meanwhile has its parent's name until it executes another program.
fn end(
    machine: &FleetMachine,
    find: impl Fn() -> Result<BTreeSet<i32>, LocalHypervisorError>,
) -> Result<(), LocalHypervisorError> {
    loop {
        let processes = held(&find)?;
        if processes.is_empty() {
            return Ok(());
        }
        send_all(&processes, Signal::TERM)?;
        if all_end(&processes, Instant::now() + GRACE)? {
            continue;
        }
        send_all(&processes, Signal::KILL)?;
        if !all_end(&processes, Instant::now() + KILLED)? {
            return Err(unkillable(machine, &processes));
        }
    }
}

fn unkillable(machine: &FleetMachine, processes: &[ProcessHandle]) -> LocalHypervisorError {
    LocalHypervisorError::Unkillable {
        machine: machine.name(),
        pids: processes.iter().map(|process| process.pid).collect(),
    }
}

/// Returns a process in the machine's namespaces: a shim, containerd, or the agent.
pub(crate) fn any_inside(machine: &FleetMachine) -> Result<Option<i32>, LocalHypervisorError> {
    let mut inside = in_runtime_group(machine, SHIM)?;
    inside.retain(|pid| serves_containers(*pid));
    if inside.is_empty() {
        inside = in_runtime_group(machine, CONTAINERD)?;
    }
    if inside.is_empty() {
        inside = cgroup::processes(&machine.cgroup().join(AGENT_GROUP))?;
    }
    Ok(inside.first().copied())
}

/// Whether a shim stays. `containerd-shim-runc-v2 -info`, `.. start` and `.. delete` are commands of containerd. They may outlive it by some
/// milliseconds, so their namespaces cannot be relied on.
fn serves_containers(shim: i32) -> bool {
    last_argument(shim).is_some_and(|word| !SHIM_COMMANDS.contains(&word.as_slice()))
}

/// Returns the agent, and processes that are about to become it.
fn agent(machine: &FleetMachine) -> Result<BTreeSet<i32>, LocalHypervisorError> {
    let mut pids = launching(&machine.agent_launch())?;
    pids.extend(cgroup::processes(&machine.cgroup().join(AGENT_GROUP))?);
    Ok(pids)
}

/// Returns containerd, and processes that are about to become it. An interrupted creation may have left such a process.
fn containerd(machine: &FleetMachine) -> Result<BTreeSet<i32>, LocalHypervisorError> {
    // In this order: a process that changes its name between the two calls is found by both.
    let mut pids = launching(&machine.launch())?;
    pids.extend(in_runtime_group(machine, CONTAINERD)?);
    Ok(pids)
}

fn of_machine(machine: &FleetMachine) -> Result<BTreeSet<i32>, LocalHypervisorError> {
    let mut pids = launching(&machine.launch())?;
    pids.extend(launching(&machine.agent_launch())?);
    pids.extend(cgroup::processes(&machine.cgroup())?);
    pids.extend(in_namespace(&machine.namespace())?);
    pids.remove(&std::process::id().cast_signed());
    Ok(pids)
}

fn in_runtime_group(machine: &FleetMachine, name: &str) -> Result<BTreeSet<i32>, LocalHypervisorError> {
    let pids = cgroup::processes(&machine.cgroup().join(RUNTIME_GROUP))?;
    let has_name =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|found| found.trim_end() == name);
    Ok(pids.into_iter().filter(has_name).collect())
}

/// Returns the processes whose last argument is this launch file.
fn launching(launch: &Path) -> Result<BTreeSet<i32>, LocalHypervisorError> {
    Ok(all()?.filter(|pid| last_argument(*pid).as_deref() == Some(launch.as_os_str().as_bytes())).collect())
}

/// Returns the last argument of a process. `None` for kernel threads, for ended processes, and for a moment while a program is executed.
fn last_argument(pid: i32) -> Option<Vec<u8>> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    words.strip_suffix(b"\0")?.rsplit(|byte| *byte == 0).next().map(<[u8]>::to_vec)
}

fn all() -> Result<impl Iterator<Item = i32>, LocalHypervisorError> {
    Ok(files::names("/proc".as_ref())?.into_iter().filter_map(|name| name.parse().ok()))
}

fn in_namespace(pin: &Path) -> Result<BTreeSet<i32>, LocalHypervisorError> {
    if !namespace::is_pinned(pin) {
        return Ok(BTreeSet::new());
    }
    let identity = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let wanted = identity(pin);
    let is_inside = |pid: &i32| {
        let seen = identity(format!("/proc/{pid}/ns/net").as_ref());
        seen.is_some() && seen == wanted
    };
    Ok(all()?.filter(is_inside).collect())
}

/// A process that cannot be confused with a later one with the same id.
struct ProcessHandle {
    pid: i32,
    fd: OwnedFd,
}

/// Opens processes. A process that is not found again once it is open was not one of the machine's.
fn held(
    find: impl Fn() -> Result<BTreeSet<i32>, LocalHypervisorError>,
) -> Result<Vec<ProcessHandle>, LocalHypervisorError> {
    let mut processes = Vec::new();
    for pid in find()? {
        processes.extend(open(pid)?);
    }
    let again = find()?;
    processes.retain(|process| again.contains(&process.pid));
    Ok(processes)
}

fn open(pid: i32) -> Result<Option<ProcessHandle>, LocalHypervisorError> {
    let opened = Pid::from_raw(pid).map(|raw| pidfd_open(raw, PidfdFlags::empty()));
    match opened {
        Some(Ok(fd)) => Ok(Some(ProcessHandle { pid, fd })),
        None | Some(Err(Errno::SRCH)) => Ok(None),
        Some(Err(errno)) => Err(LocalHypervisorError::system("open a process")(errno)),
    }
}

fn send_all(processes: &[ProcessHandle], signal: Signal) -> Result<(), LocalHypervisorError> {
    for process in processes {
        match pidfd_send_signal(&process.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return Err(LocalHypervisorError::system("signal a process")(errno)),
        }
    }
    Ok(())
}

/// Whether all processes end before the deadline. A pidfd is readable once its process has ended.
fn all_end(processes: &[ProcessHandle], deadline: Instant) -> Result<bool, LocalHypervisorError> {
    let mut alive: Vec<PollFd<'_>> = processes.iter().map(|process| PollFd::new(&process.fd, PollFlags::IN)).collect();
    while !alive.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut alive, Some(&limit)) {
            Ok(0) => return Ok(false),
            Ok(_) => alive.retain(|process| process.revents().is_empty()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(LocalHypervisorError::system("wait for processes to exit")(errno)),
        }
    }
    Ok(true)
}
