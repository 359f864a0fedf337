//! A separate network and root directory for a machine. Only a process with one thread can use these functions.

use std::{
    env,
    fs::File,
    net::IpAddr,
    os::fd::AsFd,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use rustix::{
    process::{Pid, chroot},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

/// The network of a machine.
#[derive(Clone, Debug)]
pub enum FakeNetwork {
    /// A new network, with these addresses on its loopback interface.
    New(Vec<IpAddr>),
    /// The network of another process.
    Of(Pid),
}

impl FakeNetwork {
    /// Moves this process into the network. The program `ip` sets the addresses.
    pub fn enter(&self) -> anyhow::Result<()> {
        match self {
            Self::New(addresses) => make(addresses),
            Self::Of(pid) => join(*pid),
        }
    }
}

fn make(addresses: &[IpAddr]) -> anyhow::Result<()> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for the sake of UnshareFlags::FILES, which is not passed here"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNET).context("could not make a network namespace")?;
    ip(&["link", "set", "lo", "up"])?;
    for address in addresses {
        let length = if address.is_ipv4() { 32 } else { 128 };
        ip(&["address", "add", &format!("{address}/{length}"), "dev", "lo"])?;
    }
    Ok(())
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let ended = Command::new("ip").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let ended = ended.context("could not run ip")?;
    ensure!(ended.success(), "ip {} did not succeed", arguments.join(" "));
    Ok(())
}

fn join(pid: Pid) -> anyhow::Result<()> {
    let path = format!("/proc/{}/ns/net", pid.as_raw_pid());
    let namespace = File::open(&path).with_context(|| format!("could not open {path}"))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).context("could not enter it")
}

/// Makes a directory the root of this process, and thereby of the machine: clients that find the process by its socket find this root.
pub fn change_root(directory: &Path) -> anyhow::Result<()> {
    chroot(directory).with_context(|| format!("could not make {} the root", directory.display()))?;
    env::set_current_dir("/").context("could not go to the root")
}
