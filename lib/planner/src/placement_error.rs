//! Why a component cannot be placed.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;

use keelway_api::{
    hypervisor::{HypervisorRole, PortRange},
    machine::Amount,
    name::HypervisorName,
    reserved,
    role::Role,
};

use crate::text::{count, kind_of_machine};

/// Why a component cannot be placed. The text names what the component waits for, and the remedy.
#[expect(missing_docs, reason = "the messages state what is missing")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("its ClusterClass, which selects its machines: restore it")]
    NoClass,
    #[error("{0}")]
    NoMachine(Box<MissingMachine>),
    #[error("a public hypervisor: add one")]
    NoPublicMachine,
    #[error("a {} hypervisor that responds and accepts components: add one", kind_of_machine(*.0))]
    NoOpenMachine(HypervisorRole),
    #[error("{0} to respond and accept components")]
    ClosedMachine(HypervisorName),
    #[error("the document of {0}")]
    NoDocument(HypervisorName),
    #[error("room on {machine}: {requests}, of which it has {left}")]
    NoRoom { machine: HypervisorName, requests: Amount, left: Amount },
    #[error("{} in spec.portRange of {machine}: widen it", count(*.number, "free port"))]
    TooFewPorts { machine: HypervisorName, number: usize },
    #[error(
        "a port in spec.portRange of every public hypervisor: the ranges have no port in common; make them overlap"
    )]
    NoCommonPort,
    #[error(
        "a port that is free on every public hypervisor: all of {}-{}, their common range, are in use; widen spec.portRange of each \
         of them, or delete clusters",
        .0.from, .0.to
    )]
    CommonPortsInUse(PortRange),
    #[error(
        "port {0} of public hypervisors, which another cluster has: choose another spec.ingress.port, or remove the field"
    )]
    PortOfCluster(u16),
    #[error(
        "port {port} of every public hypervisor, which is in use on {machines}: free it there, or choose another spec.ingress.port"
    )]
    PortInUse { port: u16, machines: Shortened<HypervisorName> },
    #[error(
        "port {port} of every public hypervisor, on which only root may listen on {machines}: run \
         `sysctl -w net.ipv4.ip_unprivileged_port_start={port}` there, or choose another spec.ingress.port"
    )]
    PrivilegedPort { port: u16, machines: Shortened<HypervisorName> },
    #[error("a free VPN address: {} of each range are reserved for gateways", reserved::GATEWAYS)]
    NoVpnAddress,
    #[error("a free user id: all are in use")]
    NoUser,
}

/// The kind of machine that a component lacks, with the machines that would do after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingMachine {
    /// The role of the component.
    pub role: Role,
    /// The port of the cluster's ingresses.
    pub ingress_port: Option<u16>,
    /// Whether the cluster's class selects only some of the machines.
    pub is_selected: bool,
    /// Machines with too little CPU or memory left.
    pub full: Shortened<RemainingCapacity>,
    /// Machines without the ports.
    pub without_ports: Shortened<HypervisorName>,
    /// Machines on which only root may listen on the port of the cluster's ingresses.
    pub privileged: Shortened<HypervisorName>,
    /// Machines that are cordoned or drained.
    pub closed: Shortened<HypervisorName>,
    /// Machines with a full disk.
    pub without_disk: Shortened<HypervisorName>,
}

/// What a machine has left for components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingCapacity {
    /// The machine.
    pub machine: HypervisorName,
    /// Its free resources.
    pub left: Amount,
}

/// As many items as a person reads, and the number of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortened<T> {
    first: Vec<T>,
    more: usize,
}

impl<T> Shortened<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

impl<T> FromIterator<T> for Shortened<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        const MOST: usize = 5;
        let mut items = items.into_iter();
        Self { first: items.by_ref().take(MOST).collect(), more: items.count() }
    }
}

impl<T: fmt::Display> fmt::Display for Shortened<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.first.iter().enumerate() {
            write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
        }
        if self.more == 0 { Ok(()) } else { write!(f, ", and {} more", self.more) }
    }
}

impl fmt::Display for RemainingCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {}", self.machine, self.left)
    }
}

impl fmt::Display for MissingMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = self.role.row();
        write!(f, "a {} hypervisor that responds and accepts components, ", kind_of_machine(role.runs_on))?;
        match (self.role, self.ingress_port) {
            (Role::Ingress, Some(port)) => write!(f, "where port {port} is free")?,
            (Role::Ingress, None) => f.write_str("where the port of the cluster's ingresses is free")?,
            _ => write!(f, "with {} in spec.portRange", count(role.ports.len(), "free port"))?,
        }
        if !self.full.is_empty() {
            write!(f, " and {} left ({})", role.requests, self.full)?;
        }
        if self.is_selected {
            f.write_str(", among those that its ClusterClass selects")?;
        }
        f.write_str(": add one")?;
        if !self.without_ports.is_empty() && self.role == Role::Ingress {
            write!(f, ", or free it on one (in use on {})", self.without_ports)?;
        } else if !self.without_ports.is_empty() {
            write!(f, ", or widen spec.portRange of one (no free ports on {})", self.without_ports)?;
        }
        if let (false, Some(port)) = (self.privileged.is_empty(), self.ingress_port) {
            write!(f, ", or run `sysctl -w net.ipv4.ip_unprivileged_port_start={port}` on one ({})", self.privileged)?;
        }
        if !self.closed.is_empty() {
            write!(f, ", or uncordon one ({} cordoned or drained)", self.closed)?;
        }
        if !self.without_disk.is_empty() {
            write!(f, ", or free disk space on one ({} full)", self.without_disk)?;
        }
        Ok(())
    }
}
