//! What can go wrong, one variant per operation.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use ipnet::Ipv4Net;

use crate::tools::MissingProgram;

/// An operation on local hypervisors failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalHypervisorError {
    /// Namespaces, links and mounts are made by root alone.
    #[error("local hypervisors need root: run the same command with sudo")]
    NotRoot,
    /// Programs that are needed are not there; all of them at once.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Missing(Vec<MissingProgram>),
    /// Machines are to have agents, and there is no program of theirs.
    #[error(
        "{} is not there, the program of agents: put it beside keelway (`make build` builds both), or make machines without agents (--agent=false)",
        path.display()
    )]
    NoAgent {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A fleet's name is part of host names and paths.
    #[error(
        "{name:?} is not a fleet's name: lowercase letters, digits and inner hyphens, at most {longest} characters"
    )]
    FleetName {
        /// What was given.
        name: String,
        /// The most characters.
        longest: usize,
    },
    /// More machines than a fleet has addresses for.
    #[error("{asked} machines of one role were asked for, a fleet has at most {most}")]
    TooMany {
        /// What was asked for.
        asked: u8,
        /// The most.
        most: u8,
    },
    /// Every range is used by a route of this host.
    #[error(
        "no range is free: each /24 of 198.18.0.0/16 or its twin in 198.19.0.0/16 overlaps a route of this host (see `ip route show table all`)"
    )]
    NoFreeNetwork,
    /// Something else took the fleet's range while the fleet was down.
    #[error(
        "{range}, a range of fleet {fleet}, is now routed elsewhere on this host: remove that route, or destroy the fleet and create it again"
    )]
    NetworkTaken {
        /// The fleet.
        fleet: String,
        /// Its range.
        range: Ipv4Net,
    },
    /// A file or directory.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The fleet's record is not what this program writes.
    #[error("{} is not what Keelway wrote: destroy the fleet that it belongs to", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// Another process holds the lock for too long.
    #[error("another process has been working on {} for {} s", path.display(), waited.as_secs())]
    Locked {
        /// The locked directory.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// A system call on namespaces, mounts, processes or the host name.
    #[error("cannot {doing}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// `ip` said no.
    #[error("`ip {commands}` failed: {stderr}")]
    Ip {
        /// What it was to do.
        commands: String,
        /// What it said.
        stderr: String,
    },
    /// The host has no control groups.
    #[error("no cgroup hierarchy is mounted on this host")]
    NoCgroups,
    /// A program could not be started.
    #[error("cannot run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A program of a machine's, or what starts it, ended.
    #[error("{program} of {machine} ended ({status}) before it was ready; the end of its log:\n{log}")]
    Ended {
        /// The program.
        program: &'static str,
        /// The machine.
        machine: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// A program of a machine's did not become ready.
    #[error("{program} of {machine} was not ready after {} s; the end of its log:\n{log}", waited.as_secs())]
    NotReady {
        /// The program.
        program: &'static str,
        /// The machine.
        machine: String,
        /// How long was waited.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },
    /// A process outlived SIGKILL.
    #[error("processes of {machine} do not end: {pids:?}")]
    Unkillable {
        /// The machine.
        machine: String,
        /// Their ids.
        pids: Vec<i32>,
    },
    /// A name that no machine of a fleet has.
    #[error("fleet {fleet} has no machine {name}")]
    NoMachine {
        /// What was given.
        name: String,
        /// The fleet.
        fleet: String,
    },
    /// Workers need a network to be in.
    #[error("there is no fleet {fleet}: make one with `keelway hypervisor local create --fleet {fleet}`")]
    NoFleet {
        /// The fleet.
        fleet: String,
    },
    /// A fleet whose networks went with a reboot.
    #[error("fleet {fleet} is down: `keelway hypervisor local create --fleet {fleet}` brings it up again")]
    FleetDown {
        /// The fleet.
        fleet: String,
    },
    /// A worker's or NAT's name is part of host names and paths.
    #[error(
        "{name:?} is not a name of a worker or NAT: lowercase letters, digits and inner hyphens, at most {longest} characters"
    )]
    WorkerName {
        /// What was given.
        name: String,
        /// The most characters.
        longest: usize,
    },
    /// A worker that is there is where it is.
    #[error("{name} is there already, {place}: destroy it first, or give it the same place")]
    Elsewhere {
        /// The worker or NAT.
        name: String,
        /// Behind whom it is.
        place: String,
    },
    /// A NAT cannot be behind itself.
    #[error("{name} is named twice: each NAT of a series is another one")]
    NatTwice {
        /// The NAT.
        name: String,
    },
    /// A network has no address left.
    #[error("there is no free address {place}")]
    Full {
        /// Which network.
        place: String,
    },
    /// A name that no worker of a fleet has.
    #[error("fleet {fleet} has no worker {name}")]
    NoWorker {
        /// What was given.
        name: String,
        /// The fleet.
        fleet: String,
    },
    /// A name that no NAT of a fleet has.
    #[error("fleet {fleet} has no NAT {name}")]
    NoNat {
        /// What was given.
        name: String,
        /// The fleet.
        fleet: String,
    },
    /// A worker without any process.
    #[error("worker {name} is down: `keelway node local start {name}` brings it up again")]
    WorkerDown {
        /// The worker.
        name: String,
    },
    /// A program that sets up a NAT said no.
    #[error("`{command}` failed: {stderr}")]
    Nat {
        /// What it was to do.
        command: String,
        /// What it said.
        stderr: String,
    },
    /// A Hypervisor that no fleet of this host has made.
    #[error("{name} is not a local hypervisor: it has no label {}", crate::FLEET_LABEL)]
    NotLocal {
        /// The document's name.
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
