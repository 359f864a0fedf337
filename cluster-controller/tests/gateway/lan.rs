//! One network for all machines of a test.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::support::{Namespace, run};

/// A switch. Machine N has the address 10.231.0.N.
pub(crate) struct Lan {
    switch: Namespace,
    ports: AtomicU8,
}

impl Lan {
    pub(crate) fn new() -> Self {
        let switch = Namespace::new();
        switch.ip(&["link", "add", "switch", "type", "bridge"]);
        switch.ip(&["link", "set", "switch", "up"]);
        Self { switch, ports: AtomicU8::new(0) }
    }

    /// Creates a machine in the network.
    pub(crate) fn machine(&self, number: u8) -> Namespace {
        let machine = Namespace::new();
        let port = format!("port{}", self.ports.fetch_add(1, Ordering::Relaxed));
        let link =
            format!("link add eth0 netns {} type veth peer name {port} netns {}", machine.name(), self.switch.name());
        run("ip", &link.split(' ').collect::<Vec<_>>());
        self.switch.ip(&["link", "set", &port, "master", "switch", "up"]);
        machine.ip(&["addr", "add", &format!("{}/24", address(number)), "dev", "eth0"]);
        machine.ip(&["link", "set", "eth0", "up"]);
        machine
    }
}

/// Returns the address of a machine.
pub(crate) fn address(number: u8) -> String {
    format!("10.231.0.{number}")
}
