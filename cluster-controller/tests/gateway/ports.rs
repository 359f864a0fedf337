//! Ports of a machine that count connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::control_plane::echo;
use crate::support::Namespace;

pub(crate) struct Ports(BTreeMap<u16, Arc<AtomicUsize>>);

impl Ports {
    /// Listens on all addresses of the machine, until the test ends.
    pub(crate) fn listen(machine: &Namespace, ports: impl IntoIterator<Item = u16>) -> Self {
        Self(ports.into_iter().map(|port| (port, echo(machine, port))).collect())
    }

    pub(crate) fn all(&self) -> BTreeSet<u16> {
        self.0.keys().copied().collect()
    }

    /// Returns the ports with at least one connection.
    pub(crate) fn met(&self) -> BTreeSet<u16> {
        self.0.iter().filter(|(_, count)| count.load(Ordering::Relaxed) > 0).map(|(port, _)| *port).collect()
    }
}
