//! The layout of files on the host.
//!
//! ```text
//! /var/lib/keelway-local/FLEET/fleet.json          the record; outlives a reboot
//!                             /MACHINE/{lib,log}   the machine's /var/lib and /var/log
//!                             /workers.json        workers, and the NATs that they are behind
//!                             /worker-NAME/over    a worker's changes in /etc, /opt, /usr/local
//! /run/keelway-local/FLEET/net                     the fleet's network namespace
//!                         /MACHINE/net             the machine's
//!                         /MACHINE/run             the machine's /run
//!                         /nat-NAME/net            a NAT's network namespace
//! CGROUPS/keelway-local/FLEET/MACHINE              the root of the machine's cgroups, in each hierarchy
//! ```

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::fleet::{Fleet, FleetMachine};

/// The state of all fleets that survives a reboot.
pub(crate) const STATE: &str = "/var/lib/keelway-local";

/// The state of all fleets that does not survive a reboot.
pub(crate) const RUN: &str = "/run/keelway-local";

/// The group of all fleets in each cgroup hierarchy.
pub(crate) const CGROUP: &str = "keelway-local";

/// containerd's socket, relative to a machine's `/run`.
pub(crate) const SOCKET: &str = "containerd/containerd.sock";

/// The agent's socket, relative to a machine's `/run`. The shipped unit has the same path.
pub(crate) const AGENT_SOCKET: &str = "keelway/agent.sock";

/// The directory of the agent's network identity, relative to a machine's `/var/lib`.
pub(crate) const AGENT_IDENTITY: &str = "keelway-agent";

/// Linux' limit for an interface's name, without the final zero.
const LONGEST_INTERFACE: usize = 15;

impl Fleet {
    pub(crate) fn state(&self) -> PathBuf {
        Path::new(STATE).join(self.name())
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.state().join("fleet.json")
    }

    pub(crate) fn workers(&self) -> PathBuf {
        self.state().join("workers.json")
    }

    pub(crate) fn run(&self) -> PathBuf {
        Path::new(RUN).join(self.name())
    }

    pub(crate) fn nat_run(&self, nat: &str) -> PathBuf {
        self.run().join(format!("nat-{nat}"))
    }

    /// Returns the network namespace of a NAT.
    pub(crate) fn nat(&self, nat: &str) -> PathBuf {
        self.nat_run(nat).join("net")
    }

    pub(crate) fn namespace(&self) -> PathBuf {
        self.run().join("net")
    }

    pub(crate) fn cgroup(&self) -> PathBuf {
        Path::new(CGROUP).join(self.name())
    }

    /// Returns the name of the host's interface in the public network. If the fleet's name is too long, it contains a digest instead.
    pub(crate) fn interface(&self) -> String {
        let plain = format!("kw-{}", self.name());
        if plain.len() <= LONGEST_INTERFACE {
            return plain;
        }
        let digest = Sha256::digest(self.name());
        let start = digest.iter().take((LONGEST_INTERFACE - "kw_".len()) / 2);
        start.fold("kw_".to_owned(), |name, byte| format!("{name}{byte:02x}"))
    }
}

impl FleetMachine {
    pub(crate) fn state(&self) -> PathBuf {
        self.fleet.state().join(self.id.to_string())
    }

    /// The machine's `/var/lib`.
    pub(crate) fn lib(&self) -> PathBuf {
        self.state().join("lib")
    }

    /// The machine's `/var/log`.
    pub(crate) fn log(&self) -> PathBuf {
        self.state().join("log")
    }

    /// The directory of a worker's changes in directories that it shares with the host.
    pub(crate) fn over(&self) -> PathBuf {
        self.state().join("over")
    }

    pub(crate) fn containerd_log(&self) -> PathBuf {
        self.log().join("containerd.log")
    }

    pub(crate) fn run_parent(&self) -> PathBuf {
        self.fleet.run().join(self.id.to_string())
    }

    /// The machine's `/run`.
    pub(crate) fn run(&self) -> PathBuf {
        self.run_parent().join("run")
    }

    pub(crate) fn namespace(&self) -> PathBuf {
        self.run_parent().join("net")
    }

    pub(crate) fn launch(&self) -> PathBuf {
        self.run_parent().join("launch.json")
    }

    pub(crate) fn agent_launch(&self) -> PathBuf {
        self.run_parent().join("agent.json")
    }

    pub(crate) fn agent_log(&self) -> PathBuf {
        self.log().join("keelway-hypervisor-agent.log")
    }

    /// The directory of the agent's network identity. It exists only if the agent is enrolled.
    pub(crate) fn agent_identity(&self) -> PathBuf {
        self.lib().join(AGENT_IDENTITY)
    }

    /// The agent's socket, as a path on the host.
    pub(crate) fn agent_socket(&self) -> PathBuf {
        self.run().join(AGENT_SOCKET)
    }

    /// containerd's socket, as a path on the host.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run().join(SOCKET)
    }

    pub(crate) fn cgroup(&self) -> PathBuf {
        self.fleet.cgroup().join(self.id.to_string())
    }
}

#[cfg(test)]
mod tests {
    use keelway_api::hypervisor::HypervisorRole;

    use super::*;
    use crate::fleet::{MOST, MachineId};

    /// `sun_path` has 108 bytes. A limit of 100 leaves room for a proxy's suffix.
    #[test]
    fn the_longest_socket_path_fits() {
        let fleet = Fleet::new("f".repeat(21)).unwrap();
        let machine = fleet.machine(MachineId { role: HypervisorRole::Private, ordinal: MOST });
        assert!(machine.socket().as_os_str().len() < 100);
    }

    #[test]
    fn interfaces_are_short_and_differ() {
        let name = |text: &str| Fleet::new(text).unwrap().interface();
        assert_eq!(name("local"), "kw-local");
        for long in ["a-rather-long-name-1", "a-rather-long-name-2"] {
            assert_eq!(name(long).len(), LONGEST_INTERFACE);
        }
        assert_ne!(name("a-rather-long-name-1"), name("a-rather-long-name-2"));
    }
}
