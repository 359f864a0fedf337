//! Observes on which ports pods listen that use the machine's own network.

use std::{collections::BTreeSet, fs, io, path::Path};

use crate::firewall::Transport;

/// The kubelet's cgroup for pods, or its name with systemd (`kubepods.slice`), is part of the path of each pod's cgroup.
const PODS: &str = "kubepods";

/// A socket that accepts packets: its inode, and its port.
type OpenSocket = (u64, Transport, u16);

/// Observes the ports of pods. To find the processes of sockets, all of the machine are read, so this happens only if a socket was opened or closed.
#[derive(Debug, Default)]
pub(crate) struct PodPortsObserver {
    /// `None` before the first observation.
    open: Option<BTreeSet<OpenSocket>>,
}

impl PodPortsObserver {
    /// Returns the ports on which processes of pods listen in this network namespace, or `None` if no socket has changed. Ports on loopback addresses
    /// are left out.
    pub(crate) fn observe(&mut self) -> io::Result<Option<BTreeSet<(Transport, u16)>>> {
        let open = open_sockets()?;
        if self.open.as_ref() == Some(&open) {
            return Ok(None);
        }
        let of_pods = pod_sockets()?;
        let ports =
            open.iter().filter(|(inode, ..)| of_pods.contains(inode)).map(|(_, transport, port)| (*transport, *port));
        let ports = ports.collect();
        self.open = Some(open);
        Ok(Some(ports))
    }
}

fn open_sockets() -> io::Result<BTreeSet<OpenSocket>> {
    let mut sockets = BTreeSet::new();
    for transport in Transport::ALL {
        for file in files(transport) {
            match fs::read_to_string(Path::new("/proc/thread-self/net").join(file)) {
                Ok(table) => {
                    let open = table.lines().skip(1).filter_map(|line| open_socket(transport, line));
                    sockets.extend(open.map(|(inode, port)| (inode, transport, port)));
                }
                // The kernel has no IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(sockets)
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
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::isolated::within;

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
        let mut observer = PodPortsObserver::default();
        assert!(!observer.observe().unwrap().unwrap().contains(&(Transport::Tcp, port)));
    }

    #[test]
    fn processes_are_read_only_if_a_socket_was_opened_or_closed() {
        within(UnshareFlags::NEWNET, || {
            let mut observer = PodPortsObserver::default();
            let has_read = |observer: &mut PodPortsObserver| observer.observe().unwrap().is_some();
            assert!(has_read(&mut observer));
            assert!(!has_read(&mut observer));
            let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
            assert!(has_read(&mut observer));
            assert!(!has_read(&mut observer));
            drop(listener);
            assert!(has_read(&mut observer));
        });
    }
}
