//! Errors, one variant per operation.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use ipnet::Ipv4Net;

use crate::tools::MissingProgram;

/// An operation on local hypervisors failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalHypervisorError {
    /// Only root can create namespaces, links and mounts.
    #[error("local hypervisors require root; run the command as root, for example with sudo")]
    NotRoot,
    /// Required programs are missing. The error contains all of them.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Missing(Vec<MissingProgram>),
    /// Machines should have agents, but the agent's program is missing.
    #[error(
        "{}, the program of agents, does not exist; install it beside keelway (`make build` builds both), or create machines without agents (--agent=false)",
        path.display()
    )]
    NoAgent {
        /// The expected path of the program.
        path: PathBuf,
    },
    /// A fleet's name is invalid. It becomes part of host names and paths.
    #[error(
        "{name:?} is not a valid name of a fleet; must be at most {longest} lower-case letters, digits and inner hyphens"
    )]
    FleetName {
        /// The invalid name.
        name: String,
        /// The most characters of a name.
        longest: usize,
    },
    /// The request has more machines than a fleet has addresses.
    #[error("{asked} machines of one role exceed the limit of {most} in a fleet")]
    TooMany {
        /// The requested number.
        asked: u8,
        /// The largest number.
        most: u8,
    },
    /// A route of this host uses every range.
    #[error(
        "no free address range: each /24 of 198.18.0.0/16, or the same /24 of 198.19.0.0/16, overlaps a route of this host (see `ip route show table all`)"
    )]
    NoFreeNetwork,
    /// While the fleet was down, a route of this host started to use the fleet's range.
    #[error(
        "{range}, a range of fleet {fleet}, overlaps a new route of this host; remove the route, or destroy the fleet and create it again"
    )]
    NetworkTaken {
        /// The name of the fleet.
        fleet: String,
        /// The range of the fleet.
        range: Ipv4Net,
    },
    /// An operation on a file or directory failed.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// The operation.
        doing: &'static str,
        /// The path of the file or directory.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The fleet's record cannot be parsed.
    #[error("{} is not a valid record of a fleet; destroy the fleet that it belongs to", path.display())]
    Record {
        /// The path of the file.
        path: PathBuf,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// Another process held the lock for too long.
    #[error("another process has locked {} for {} s", path.display(), waited.as_secs())]
    Locked {
        /// The locked directory.
        path: PathBuf,
        /// How long this process waited.
        waited: Duration,
    },
    /// A system call on namespaces, mounts, processes or the host name failed.
    #[error("cannot {doing}")]
    System {
        /// The operation.
        doing: &'static str,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// `ip` failed.
    #[error("`ip {commands}` failed: {stderr}")]
    Ip {
        /// The commands.
        commands: String,
        /// The output of `ip` on stderr.
        stderr: String,
    },
    /// The host has no control groups.
    #[error("no cgroup hierarchy is mounted on this host")]
    NoCgroups,
    /// A program could not be started.
    #[error("cannot run {}", program.display())]
    Spawn {
        /// The path of the program.
        program: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A program of a machine, or the process that starts it, ended.
    #[error("{program} of {machine} exited ({status}) before it was ready; the end of its log:\n{log}")]
    Ended {
        /// The name of the program.
        program: &'static str,
        /// The name of the machine.
        machine: String,
        /// The exit status.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// A program of a machine did not become ready.
    #[error("{program} of {machine} was not ready after {} s; the end of its log:\n{log}", waited.as_secs())]
    NotReady {
        /// The name of the program.
        program: &'static str,
        /// The name of the machine.
        machine: String,
        /// How long this process waited.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },
    /// A process did not end after SIGKILL.
    #[error("processes of {machine} do not exit after SIGKILL: {pids:?}")]
    Unkillable {
        /// The name of the machine.
        machine: String,
        /// The ids of the processes.
        pids: Vec<i32>,
    },
    /// The fleet has no machine with this name.
    #[error("fleet {fleet} has no machine {name}")]
    NoMachine {
        /// The name in the request.
        name: String,
        /// The name of the fleet.
        fleet: String,
    },
    /// The fleet whose networks workers need does not exist.
    #[error("fleet {fleet} not found; create it with `keelway hypervisor local create --fleet {fleet}`")]
    NoFleet {
        /// The name of the fleet.
        fleet: String,
    },
    /// The fleet's networks do not exist, as after a reboot.
    #[error("fleet {fleet} is down; start it with `keelway hypervisor local create --fleet {fleet}`")]
    FleetDown {
        /// The name of the fleet.
        fleet: String,
    },
    /// The name of a worker or NAT is invalid. It becomes part of host names and paths.
    #[error(
        "{name:?} is not a valid name of a worker or NAT; must be at most {longest} lower-case letters, digits and inner hyphens"
    )]
    WorkerName {
        /// The invalid name.
        name: String,
        /// The most characters of a name.
        longest: usize,
    },
    /// The worker or NAT exists at another position.
    #[error("{name} already exists {place}; destroy it first, or use the same place")]
    Elsewhere {
        /// The name of the worker or NAT.
        name: String,
        /// The NATs that it is behind.
        place: String,
    },
    /// A NAT is listed twice, but cannot be behind itself.
    #[error("{name} is listed twice; the NATs of a series must be different")]
    NatTwice {
        /// The name of the NAT.
        name: String,
    },
    /// A network has no free address.
    #[error("no free address {place}")]
    Full {
        /// The network.
        place: String,
    },
    /// The fleet has no worker with this name.
    #[error("fleet {fleet} has no worker {name}")]
    NoWorker {
        /// The name in the request.
        name: String,
        /// The name of the fleet.
        fleet: String,
    },
    /// The fleet has no NAT with this name.
    #[error("fleet {fleet} has no NAT {name}")]
    NoNat {
        /// The name in the request.
        name: String,
        /// The name of the fleet.
        fleet: String,
    },
    /// The worker has no processes.
    #[error("worker {name} is down; start it with `keelway node local start {name}`")]
    WorkerDown {
        /// The name of the worker.
        name: String,
    },
    /// A program that sets up a NAT failed.
    #[error("`{command}` failed: {stderr}")]
    Nat {
        /// The command.
        command: String,
        /// The output of the command on stderr.
        stderr: String,
    },
    /// The Hypervisor does not belong to a fleet of this host.
    #[error("{name} is not a local hypervisor; it has no label {}", crate::FLEET_LABEL)]
    NotLocal {
        /// The name of the document.
        name: String,
    },
}

impl LocalHypervisorError {
    /// For `map_err` of file operations.
    pub(crate) fn file<E: Into<io::Error>>(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::File { doing, path, source: source.into() }
    }

    /// For `map_err` of system calls.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { doing, source: source.into() }
    }
}
