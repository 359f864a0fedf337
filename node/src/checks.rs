//! Checks whether a machine can become a worker: turns facts of the machine into faults. Pure.

#[cfg(test)]
mod documented;
mod host_ports;
mod kernel;
mod pod_network;
mod ranges;
mod resolv_conf;
mod routing;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

pub(crate) use host_ports::{RULE_PROGRAMS, host_ports};
pub use kernel::{KernelFacts, KernelNeeds, kernel_faults};
pub use pod_network::{PodNetworkFacts, pod_network};
pub use ranges::{NamedRanges, overlaps};
pub use resolv_conf::ResolvConf;
pub(crate) use resolv_conf::{RESOLV_CONF, for_pods};
pub(crate) use routing::{RoutingFacts, TAILSCALE_CHAINS, routing_faults};

/// The oldest containerd whose `runtime.v1` supports current kubelets.
const OLDEST_CONTAINERD: (u32, u32) = (1, 7);
/// The kubelet's ports: its API, and its health endpoint on loopback.
const KUBELET_PORTS: [u16; 2] = [10250, 10248];
/// Help text: how to make Services work between pods of one bridge, now and after the next boot.
pub(crate) const BRIDGE_HELP: &str = "load the module with `modprobe br_netfilter`, and at boot with `echo br_netfilter > /etc/modules-load.d/keelway.conf`";
/// The largest clock difference that certificates and tokens tolerate.
const CLOCK: SignedDuration = SignedDuration::from_mins(4);

/// A reason why the machine cannot become a worker, with help.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckFault {
    /// What is wrong.
    pub problem: String,
    /// What the user can do.
    pub help: String,
}

impl CheckFault {
    #[cfg_attr(test, track_caller)]
    pub(crate) fn new(problem: impl Into<String>, help: impl Into<String>) -> Self {
        #[cfg(test)]
        documented::record(std::panic::Location::caller());
        Self { problem: problem.into(), help: help.into() }
    }
}

impl fmt::Display for CheckFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  help: {}", self.problem, self.help)
    }
}

/// The version of cgroups on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cgroups {
    /// Version 2.
    Unified,
    /// Version 1, or both.
    Legacy,
    /// No cgroups are mounted.
    Missing,
}

/// The facts of a container runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRuntimeFacts {
    /// The name of the runtime, such as `containerd`.
    pub name: String,
    /// The version of the runtime, such as `v2.0.1`.
    pub version: String,
    /// The number of its sandboxes that belong to components of control planes.
    pub components: usize,
}

/// The facts of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are answers to questions that have nothing to do with one another"
)]
pub struct HostFacts {
    /// Whether this process runs as root.
    pub is_root: bool,
    /// The runtime's socket.
    pub socket: PathBuf,
    /// The facts of the runtime at the socket, or an error message.
    pub runtime: Result<HostRuntimeFacts, String>,
    /// The version of cgroups.
    pub cgroups: Cgroups,
    /// Whether cgroups can limit memory.
    pub has_memory_cgroup: bool,
    /// Whether the kernel's log is readable at `/dev/kmsg`.
    pub has_kernel_log: bool,
    /// Directories in which no program can be executed although programs run from there, each with its option.
    pub noexec: Vec<(&'static str, PathBuf)>,
    /// Processes named kubelet that do not belong to this worker.
    pub kubelets: BTreeSet<u32>,
    /// The kubelet's directory.
    pub kubelet_root: PathBuf,
    /// Whether the directory contains the state of another kubelet.
    pub has_kubelet_state: bool,
    /// Addresses of listening TCP sockets.
    pub listeners: BTreeSet<SocketAddr>,
    /// Whether the machine is a hypervisor of an installation.
    pub is_hypervisor: bool,
    /// Whether the machine has a TUN device or the kernel's WireGuard.
    pub has_tunnels: bool,
    /// Whether the kernel has nftables.
    pub has_nftables: bool,
    /// Whether the firewall filters bridged packets (`br_netfilter`).
    pub has_bridge_netfilter: bool,
    /// The files with DNS servers, the machine's own one first.
    pub resolv_confs: Vec<ResolvConf>,
    /// The time of this machine.
    pub now: Timestamp,
}

/// Options of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckOptions {
    /// Whether cgroups of version 1 are accepted.
    pub allow_cgroup_v1: bool,
}

/// Returns all faults of this machine.
#[must_use]
pub fn faults(facts: &HostFacts, wishes: CheckOptions) -> Vec<CheckFault> {
    let mut faults = Vec::new();
    if !facts.is_root {
        faults
            .push(CheckFault::new("joining a cluster requires root", "run the command as root, for example with sudo"));
    }
    faults.extend(runtime(facts));
    faults.extend(cgroups(facts, wishes));
    faults.extend(facts.noexec.iter().map(|(option, directory)| noexec(option, directory)));
    faults.extend(kubelet(facts));
    faults.extend(kernel(facts));
    faults.extend(resolv_conf::resolv_conf(&facts.resolv_confs));
    faults
}

fn runtime(facts: &HostFacts) -> Vec<CheckFault> {
    let socket = facts.socket.display();
    let runtime = match &facts.runtime {
        Ok(runtime) => runtime,
        Err(why) => {
            let problem = format!("no container runtime responds on {socket}: {why}");
            let help = "install and start containerd 1.7 or newer with its CRI plugin enabled, or set its socket with --containerd-socket";
            return vec![CheckFault::new(problem, help)];
        }
    };
    let mut faults = Vec::new();
    let found = version(&runtime.version);
    if runtime.name != "containerd" || found.is_none_or(|found| found < OLDEST_CONTAINERD) {
        let problem = format!(
            "the container runtime on {socket} is {} {}, which is not supported",
            runtime.name, runtime.version
        );
        faults.push(CheckFault::new(
            problem,
            "install containerd 1.7 or newer, or set its socket with --containerd-socket",
        ));
    }
    if facts.is_hypervisor || runtime.components > 0 {
        let problem =
            "this machine is a Keelway hypervisor: its containerd runs control planes, which a kubelet would remove";
        faults.push(CheckFault::new(problem, "join another machine, or remove this one from its installation first"));
    }
    faults
}

/// Parses major and minor of a version such as `v2.0.1`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn cgroups(facts: &HostFacts, wishes: CheckOptions) -> Vec<CheckFault> {
    let version = cgroup_version(facts.cgroups, wishes);
    let has_none = facts.cgroups != Cgroups::Missing && !facts.has_memory_cgroup;
    let memory = has_none.then(|| {
        CheckFault::new(
            "the memory controller of cgroups is off, and the kubelet requires it",
            "boot the kernel with cgroup_enable=memory (on a Raspberry Pi, append it to the line in /boot/firmware/cmdline.txt); in a container, delegate the controller to it",
        )
    });
    version.into_iter().chain(memory).collect()
}

fn noexec(option: &str, directory: &Path) -> CheckFault {
    let directory = directory.display();
    CheckFault::new(
        format!("programs in {directory} cannot be executed: its file system is mounted with noexec"),
        format!("mount it without noexec, now and in /etc/fstab, or set another directory with {option}"),
    )
}

fn cgroup_version(found: Cgroups, wishes: CheckOptions) -> Option<CheckFault> {
    match found {
        Cgroups::Unified => None,
        Cgroups::Legacy if wishes.allow_cgroup_v1 => None,
        Cgroups::Legacy => Some(CheckFault::new(
            "this machine uses cgroup v1, which the kubelet no longer supports",
            "boot the kernel with systemd.unified_cgroup_hierarchy=1, or pass --allow-cgroup-v1",
        )),
        Cgroups::Missing => {
            Some(CheckFault::new("no cgroups are mounted at /sys/fs/cgroup", "mount cgroup2 there, as systemd does"))
        }
    }
}

fn kubelet(facts: &HostFacts) -> Vec<CheckFault> {
    let mut faults = Vec::new();
    if let Some(pid) = facts.kubelets.first() {
        let problem = format!("a kubelet is already running as process {pid}");
        faults.push(CheckFault::new(
            problem,
            "this machine belongs to another cluster; leave that cluster and stop that kubelet",
        ));
    }
    let root = facts.kubelet_root.display();
    if facts.has_kubelet_state {
        let problem = format!("{root} contains the state of another kubelet");
        let help = format!("leave that cluster and remove {root}, or set another directory with --kubelet-root-dir");
        faults.push(CheckFault::new(problem, help));
    }
    let taken = KUBELET_PORTS.iter().filter(|port| facts.listeners.iter().any(|listener| listener.port() == **port));
    for port in taken {
        faults.push(CheckFault::new(
            format!("port {port} is in use, and the kubelet needs it"),
            "stop the program that listens there",
        ));
    }
    faults
}

fn kernel(facts: &HostFacts) -> Vec<CheckFault> {
    let mut faults = Vec::new();
    if !facts.has_tunnels {
        let problem = "the kernel has neither /dev/net/tun nor WireGuard";
        let help = "load one with `modprobe tun` or `modprobe wireguard`, and add it to a file in /etc/modules-load.d to load it at boot";
        faults.push(CheckFault::new(problem, help));
    }
    if !facts.has_nftables {
        let help = "load it with `modprobe nf_tables`, and add it to a file in /etc/modules-load.d to load it at boot";
        faults.push(CheckFault::new("the kernel has no nftables", help));
    }
    if !facts.has_kernel_log {
        let help = "create it with `mknod /dev/kmsg c 1 11`; in a container, add the device of the host to it";
        faults.push(CheckFault::new("/dev/kmsg does not exist, and the kubelet reads the kernel's log there", help));
    }
    if !facts.has_bridge_netfilter {
        let problem =
            "bridged packets bypass the firewall, so Services would not work between pods on the same machine";
        faults.push(CheckFault::new(problem, BRIDGE_HELP));
    }
    faults
}

/// Returns a fault if the worker's directory has entries other than those that an interrupted join leaves: leaving would remove them.
#[must_use]
pub fn state_directory(root: &Path, found: &BTreeSet<Vec<u8>>, own: &BTreeSet<Vec<u8>>) -> Option<CheckFault> {
    let first = found.difference(own).next()?;
    let problem =
        format!("{} contains files of other programs, such as {}", root.display(), String::from_utf8_lossy(first));
    Some(CheckFault::new(problem, "set an empty or absent directory with --state-dir"))
}

/// Returns a fault if this machine's clock differs from an endpoint's by more than certificates tolerate.
#[must_use]
pub fn clock(here: Timestamp, there: Option<Timestamp>) -> Option<CheckFault> {
    let apart = here.duration_since(there?);
    (apart.abs() > CLOCK).then(|| {
        let way = if apart.is_positive() { "ahead of" } else { "behind" };
        let problem = format!("this machine's clock is {} s {way} the cluster's", apart.abs().as_secs());
        CheckFault::new(problem, "synchronize the clock, for example with chrony or systemd-timesyncd")
    })
}

/// Returns a fault if a program listens on one of the API's reserved addresses.
#[must_use]
pub fn api_port(listeners: &BTreeSet<SocketAddr>, api: &[SocketAddr]) -> Option<CheckFault> {
    let takes = |listener: &&SocketAddr| {
        api.iter().any(|api| {
            listener.port() == api.port()
                && (listener.ip() == api.ip() || listener.ip().is_unspecified())
                && (listener.is_ipv4() == api.is_ipv4() || listener.is_ipv6())
        })
    };
    listeners.iter().find(takes).map(|taken| {
        let problem = format!("{taken} is in use, and the worker serves the API on port {}", taken.port());
        CheckFault::new(problem, "stop the program that listens there")
    })
}

/// A network of the machine.
pub type MachineNetwork = IpNet;
