//! Observes the machine without changing it.

mod directories;
mod kernel;
mod pod_network;
mod pod_ports;
mod resolv_confs;
mod routing;
mod rule_programs;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use jiff::Timestamp;
use keelway_api::machine::COMPONENT_LABEL;
use keelway_base::error_chain::ErrorChain;
use keelway_cri::{CriRuntime, Deadlines};

use crate::{
    checks::{Cgroups, HostFacts, HostRuntimeFacts},
    firewall, process,
    settings::{Layout, NodeOptions},
};

pub(crate) use directories::is_noexec;
pub(crate) use kernel::kernel;
pub(crate) use pod_network::pod_network;
pub(crate) use pod_ports::PodPortsObserver;
pub(crate) use resolv_confs::resolv_confs;
pub(crate) use routing::{OwnNetworks, routing};
pub(crate) use rule_programs::rule_programs;

/// The file in which an agent stores the installation of a hypervisor.
const OWNER: &str = "/var/lib/keelway/owner";
/// How long the runtime may take to respond.
const ANSWER: Duration = Duration::from_secs(10);

/// Observes the machine. `own` is the kubelet of this worker, if it already runs.
pub(crate) async fn observe(options: &NodeOptions, layout: &Layout, own: Option<u32>) -> HostFacts {
    let runtime = runtime(&options.containerd_socket).await;
    HostFacts {
        is_root: rustix::process::geteuid().is_root(),
        socket: options.containerd_socket.clone(),
        cgroups: cgroups(),
        has_memory_cgroup: has_memory_cgroup(),
        has_kernel_log: Path::new("/dev/kmsg").exists(),
        noexec: directories::noexec(options, layout, runtime.is_ok()).await,
        runtime,
        kubelets: process::named("kubelet").into_iter().filter(|pid| Some(*pid) != own).collect(),
        kubelet_root: options.kubelet_root_dir.clone(),
        has_kubelet_state: own.is_none() && has_entries(&options.kubelet_root_dir),
        listeners: if own.is_some() { BTreeSet::new() } else { listeners() },
        is_hypervisor: Path::new(OWNER).exists(),
        has_tunnels: Path::new("/dev/net/tun").exists() || Path::new("/sys/module/wireguard").exists(),
        has_nftables: firewall::is_supported(),
        has_bridge_netfilter: Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists(),
        resolv_confs: resolv_confs(),
        now: Timestamp::now(),
    }
}

/// Returns a client of the machine's runtime.
pub(crate) fn client(socket: &Path) -> Result<CriRuntime, keelway_cri::CriError> {
    CriRuntime::on_socket(socket, Deadlines { look: ANSWER, ..Deadlines::default() })
}

async fn runtime(socket: &Path) -> Result<HostRuntimeFacts, String> {
    let ask = async {
        let runtime = client(socket)?;
        let labelled = |sandbox: &keelway_cri::CriSandbox| sandbox.labels.contains_key(COMPONENT_LABEL);
        let all = BTreeMap::new();
        let (version, components) = futures::try_join!(runtime.version(), runtime.list_pod_sandboxes(&all))?;
        Ok(HostRuntimeFacts {
            name: version.runtime,
            version: version.runtime_version,
            components: components.iter().filter(|sandbox| labelled(sandbox)).count(),
        })
    };
    ask.await.map_err(|error: keelway_cri::CriError| ErrorChain(&error).to_string())
}

/// Returns the machine's architecture, as images and Nodes name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the version of cgroups that is mounted at `/sys/fs/cgroup`.
pub(crate) fn cgroups() -> Cgroups {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        Cgroups::Unified
    } else if ["memory", "cpu"].iter().any(|controller| root.join(controller).is_dir()) {
        Cgroups::Legacy
    } else {
        Cgroups::Missing
    }
}

fn has_memory_cgroup() -> bool {
    match fs::read_to_string("/sys/fs/cgroup/cgroup.controllers") {
        Ok(controllers) => controllers.split_whitespace().any(|controller| controller == "memory"),
        // Version 1.
        Err(_) => Path::new("/sys/fs/cgroup/memory").is_dir(),
    }
}

fn has_entries(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

/// Returns the addresses of listening TCP sockets, from the kernel's tables.
pub(crate) fn listeners() -> BTreeSet<SocketAddr> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(listener).collect()
}

/// Parses `0: 0100007F:1F90 00000000:0000 0A ..`, where 0A means listening.
fn listener(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace().skip(1);
    let (address, port) = words.next()?.split_once(':')?;
    let state = words.nth(1)?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == "0A").then_some(SocketAddr::new(kernel_address(address)?, port))
}

/// Parses an address as the kernel prints it: words of 32 bits in the machine's byte order.
fn kernel_address(text: &str) -> Option<IpAddr> {
    let words: Vec<u32> = (0..text.len() / 8)
        .map(|at| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok())
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let v4 = <[u8; 4]>::try_from(bytes.as_slice()).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
    v4.or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)))).ok()
}

/// Returns the interfaces of default routes.
pub(crate) fn uplinks() -> Vec<String> {
    let v4 = fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    let v6 = fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default();
    uplinks_of(&v4, &v6).into_iter().collect()
}

/// `v4` has the interface, the destination, .., and the mask as its eighth word, after a line of titles. `v6` has the destination, the length of its prefix, .., and the interface last.
fn uplinks_of(v4: &str, v6: &str) -> BTreeSet<String> {
    let of_v4 = v4.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&"00000000") && words.get(7) == Some(&"00000000")).then(|| words.first().copied())?
    });
    let of_v6 = v6.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_default = words.nth(1) == Some("00");
        words.next_back().filter(|name| is_default && *name != "lo")
    });
    of_v4.chain(of_v6).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_kernel_are_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
        assert_eq!(listener(line), Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        let line = "   0: 00000000000000000000000001000000:280A 00000000000000000000000000000000:0000 0A 0";
        assert_eq!(listener(line), Some("[::1]:10250".parse().unwrap()));
    }

    #[test]
    fn uplinks_are_interfaces_of_default_routes() {
        let v4 = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
            eth0 00000000 0100A8C0 0003 0 0 0 00000000 0 0 0\n\
            eth1 0000A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        let zero = "0".repeat(32);
        let v6 = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth2\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n\
             fe80{} 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001 eth3\n",
            "0".repeat(28)
        );
        assert_eq!(uplinks_of(v4, &v6).into_iter().collect::<Vec<_>>(), ["eth0", "eth2"]);
    }
}
