//! The firewall of a worker. It masquerades packets of pods to destinations outside the cluster's networks. It also drops packets from
//! other networks to the cluster's ranges, because Linux forwards and accepts them on any interface, and packets from the cluster to other
//! programs of the machine. `leave` and `forget` remove, in addition, what kubelet, kube-proxy and CNI plugins left in the firewall.
//!
//! It uses the kernel's nftables directly, because a machine with only containerd has no `nft`. `linux/netfilter/nf_tables.h` defines
//! the messages.

mod encode;
mod foreign;
mod forward;
mod guard;
mod leftovers;
mod matches;
mod mss_clamp;
mod route_lookup;
mod seen;

use std::{io, time::Duration};

use ipnet::IpNet;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

pub(crate) use encode::IpFamily;
use encode::{Batch, NftObjectKind};
pub(crate) use foreign::{DroppingChain, ForeignRules, LegacyTables, ProbePacket, ProbeWay, generation};
pub(crate) use forward::forward_chains;
pub(crate) use guard::{ExternalInterfaces, ShieldedRanges, WorkerInput};
use leftovers::{Removal, leftovers};
pub(crate) use matches::Transport;
pub(crate) use route_lookup::can_look_up_routes;
pub(crate) use seen::FirewallNames;
use seen::Ruleset;

/// The name of the table in each family.
const TABLE: &str = "keelway-node";

/// How long the kernel may take to respond.
const ANSWER: Duration = Duration::from_secs(10);

/// The firewall cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// The socket could not be opened, or failed.
    #[error("cannot communicate with nftables")]
    Socket(#[source] io::Error),
    /// The rules of `iptables-legacy` could not be listed.
    #[error("cannot list the rules of iptables-legacy")]
    Legacy(#[source] io::Error),
    /// The kernel refused the change.
    #[error("the kernel refused to {operation}")]
    Refused {
        /// The refused operation.
        operation: &'static str,
        /// The kernel's errno.
        #[source]
        source: io::Error,
    },
}

/// The desired state of the firewall.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FirewallConfig {
    /// The ranges of this worker's pods.
    pub(crate) pods: Vec<IpNet>,
    /// Destinations to which packets of pods keep their source address.
    pub(crate) inside: Vec<IpNet>,
    /// The interfaces of tunnels. A name that ends with `*` matches all names with that prefix.
    pub(crate) tunnels: String,
    pub(crate) shielded: ShieldedRanges,
    /// `None`: everything on the worker is reachable from tunnels and pods.
    pub(crate) input: Option<WorkerInput>,
}

/// Keeps the firewall in its desired state.
#[derive(Debug, Default)]
pub(crate) struct FirewallKeeper {
    /// The last state that was set, and the generation of all rules after that.
    settled: Option<(FirewallConfig, u32)>,
}

impl FirewallKeeper {
    /// Sets the firewall, unless no rule of the machine has changed since it was set.
    pub(crate) fn keep(&mut self, wanted: FirewallConfig) -> Result<(), FirewallError> {
        let before = generation();
        let is_same = |(last, at): &(FirewallConfig, u32)| *last == wanted && Some(*at) == before;
        if self.settled.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        self.settled = None;
        let changes = set(&wanted)?;
        // If another program changed rules meanwhile, there are more generations.
        let after = generation().filter(|after| before.map(|before| before.wrapping_add(changes)) == Some(*after));
        self.settled = after.map(|after| (wanted, after));
        Ok(())
    }
}

/// Masquerades packets of pods, unless their destination is in `inside`, and drops packets as `shielded` and `input` define. It replaces the whole
/// table atomically in each family, and returns the number of families.
pub(crate) fn set(wanted: &FirewallConfig) -> Result<u32, FirewallError> {
    let mut changes = 0;
    for family in IpFamily::ALL.into_iter().filter(|family| family.is_in_kernel()) {
        let mut batch = Batch::new(family);
        // Deleting a table that does not exist fails, so it is added first.
        batch.add_table(TABLE);
        batch.delete_table(TABLE);
        batch.add_table(TABLE);
        add_masquerading(&mut batch, family, wanted);
        mss_clamp::add_rules(&mut batch, &wanted.tunnels);
        wanted.shielded.add_rules(&mut batch, family);
        if let Some(input) = &wanted.input {
            input.add_rules(&mut batch, family);
        }
        commit("apply the worker's nftables table", batch)?;
        changes += 1;
    }
    Ok(changes)
}

fn add_masquerading(batch: &mut Batch, family: IpFamily, wanted: &FirewallConfig) {
    let of_family = |range: &&IpNet| IpFamily::of(range.addr()) == family;
    batch.add_postrouting_chain(TABLE);
    for range in wanted.pods.iter().filter(of_family) {
        for inside in wanted.inside.iter().filter(of_family) {
            batch.add_accept_rule(TABLE, range, inside);
        }
        batch.add_masquerade_rule(TABLE, range);
    }
}

/// Returns the names of all tables and chains.
pub(crate) fn names() -> Result<FirewallNames, FirewallError> {
    let mut names = FirewallNames::default();
    for family in IpFamily::ALL {
        names.extend(read_ruleset(family)?.names());
    }
    Ok(names)
}

/// Returns the names of all chains, without reading rules.
pub(crate) fn chains() -> Result<FirewallNames, FirewallError> {
    let mut seen = Ruleset::default();
    for family in IpFamily::ALL {
        let list = || dump(&open()?, &encode::list_request(family.number(), NftObjectKind::Chain));
        let messages = list().map_err(FirewallError::Socket)?;
        for message in &messages {
            seen.note(family, NftObjectKind::Chain, message);
        }
    }
    Ok(seen.names())
}

/// Removes the worker's table, and what the kubelet, kube-proxy and CNI plugins added to the tables and chains of `before`. It succeeds if
/// nothing is left.
pub(crate) fn clear(before: &FirewallNames) -> Result<(), FirewallError> {
    for family in IpFamily::ALL {
        let removals = leftovers(before, &read_ruleset(family)?);
        if removals.is_empty() {
            continue;
        }
        let mut batch = Batch::new(family);
        for removal in &removals {
            match removal {
                Removal::Rule(chain, handle) => batch.delete_rule(&chain.table, &chain.name, *handle),
                Removal::Rules(chain) => batch.flush_chain(&chain.table, &chain.name),
                Removal::Chain(chain) => batch.delete_chain(&chain.table, &chain.name),
                Removal::Table(table) => batch.delete_table(&table.name),
            }
        }
        commit("remove the worker's nftables rules", batch)?;
    }
    Ok(())
}

fn read_ruleset(family: IpFamily) -> Result<Ruleset, FirewallError> {
    let read = || {
        let socket = open()?;
        let mut seen = Ruleset::default();
        for kind in [NftObjectKind::Table, NftObjectKind::Chain, NftObjectKind::Rule] {
            for message in dump(&socket, &encode::list_request(family.number(), kind))? {
                seen.note(family, kind, &message);
            }
        }
        Ok(seen)
    };
    read().map_err(FirewallError::Socket)
}

/// Whether the kernel has nftables.
pub(crate) fn is_supported() -> bool {
    open().and_then(|socket| exchange(&socket, &encode::generation_request(), 1)).is_ok_and(|answer| answer.is_ok())
}

fn commit(operation: &'static str, batch: Batch) -> Result<(), FirewallError> {
    let (bytes, count) = batch.finish();
    let answer = open().and_then(|socket| exchange(&socket, &bytes, count)).map_err(FirewallError::Socket)?;
    answer.map_err(|source| FirewallError::Refused { operation, source })
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER))?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Sends messages, and reads until `count` of them were acknowledged or one was refused.
fn exchange(socket: &Socket, bytes: &[u8], count: usize) -> io::Result<io::Result<()>> {
    socket.send(bytes, 0)?;
    let mut acknowledged = 0;
    while acknowledged < count {
        let (datagram, _) = socket.recv_from_full()?;
        for answer in encode::answers(&datagram) {
            match answer {
                Ok(()) => acknowledged += 1,
                Err(errno) => return Ok(Err(io::Error::from_raw_os_error(errno))),
            }
        }
    }
    Ok(Ok(()))
}

/// Requests a list, and returns the attributes of each of its messages.
fn dump(socket: &Socket, request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    socket.send(request, 0)?;
    let mut listed = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let (messages, end) = encode::listed(&datagram);
        listed.extend(messages);
        match end {
            None => {}
            Some(Ok(())) => return Ok(listed),
            Some(Err(errno)) => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}
