//! Observes on which ports pods listen that use the machine's own network.

use std::{collections::BTreeSet, fs, io, path::Path};

use crate::firewall::Transport;

/// The kubelet's cgroup for pods, or its name with systemd (`kubepods.slice`), is part of the path of each pod's cgroup.
const PODS: &str = "kubepods";

/// Returns the ports on which processes of pods listen in this network namespace. Ports on loopback addresses are left out.
pub(crate) fn pod_ports() -> io::Result<BTreeSet<(Transport, u16)>> {
    let sockets = pod_sockets()?;
    let mut ports = BTreeSet::new();
    for transport in Transport::ALL {
        for file in files(transport) {
            match fs::read_to_string(Path::new("/proc/thread-self/net").join(file)) {
                Ok(table) => {
                    let own = table.lines().skip(1).filter_map(|line| open_socket(transport, line));
                    ports.extend(own.filter(|(inode, _)| sockets.contains(inode)).map(|(_, port)| (transport, port)));
                }
                // The kernel has no IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(ports)
}

fn files(transport: Transport) -> [&'static str; 2] {
    match transport {
        Transport::Tcp => ["tcp", "tcp6"],
        Transport::Udp => ["udp", "udp6"],
    }
}

/// Returns the inodes of the sockets of these processes. A process that ends meanwhile has none.
fn pod_sockets() -> io::Result<BTreeSet<u64>> {
    let own = fs::read_link("/proc/thread-self/ns/net")?;
    let mut sockets = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        // This leaves out everything that is not a process, too.
        if fs::read_link(path.join("ns/net")).is_ok_and(|network| network == own) && is_of_pod(&path) {
            let links = fs::read_dir(path.join("fd")).into_iter().flatten().flatten();
            sockets.extend(links.filter_map(|link| inode(fs::read_link(link.path()).ok()?.to_str()?)));
        }
    }
    Ok(sockets)
}

fn is_of_pod(process: &Path) -> bool {
    fs::read_to_string(process.join("cgroup")).is_ok_and(|cgroups| cgroups.contains(PODS))
}

/// Parses `socket:[INODE]`.
fn inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Parses `0: 00000000:1F90 00000000:0000 0A ..`, where the tenth word is the inode. 0A means listening, and 07 means unconnected.
fn open_socket(transport: Transport, line: &str) -> Option<(u64, u16)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = words.get(1)?.split_once(':')?;
    let open = match transport {
        Transport::Tcp => "0A",
        Transport::Udp => "07",
    };
    let is_open = *words.get(3)? == open && !super::kernel_address(address)?.is_loopback();
    let inode = words.get(9)?.parse().ok()?;
    is_open.then_some((inode, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_sockets_are_distinguished_from_connections() {
        let line = "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1";
        assert_eq!(open_socket(Transport::Tcp, line), Some((4711, 8080)));
        assert_eq!(open_socket(Transport::Udp, line), None);
        assert_eq!(open_socket(Transport::Udp, &line.replace(" 0A ", " 07 ")), Some((4711, 8080)));
        assert_eq!(open_socket(Transport::Tcp, &line.replace(" 00000000:1F90", " 0100007F:1F90")), None);
        assert_eq!(inode("socket:[4711]"), Some(4711));
        assert_eq!(inode("/dev/null"), None);
    }

    #[test]
    fn a_process_outside_of_pods_opens_nothing() {
        let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!pod_ports().unwrap().contains(&(Transport::Tcp, port)));
    }
}
