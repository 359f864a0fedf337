//! Chooses the file from which pods get their DNS servers.

use std::{net::IpAddr, path::Path};

use super::CheckFault;

/// The file that the machine itself uses.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";

/// An existing file with DNS servers (`resolv.conf(5)`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvConf {
    /// The path of the file.
    pub path: &'static Path,
    /// The addresses of the servers, without zones.
    pub servers: Vec<IpAddr>,
}

impl ResolvConf {
    /// Parses the lines `nameserver ADDRESS` as the kubelet does. Other lines are skipped.
    pub(crate) fn parse(path: &'static Path, text: &str) -> Self {
        let server = |line: &str| {
            let mut words = line.split_whitespace();
            let address = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next())?;
            address.split('%').next()?.parse().ok()
        };
        Self { path, servers: text.lines().filter_map(server).collect() }
    }
}

/// Returns the file for pods: the first one with servers that pods can reach, if possible without servers that they cannot reach.
pub(crate) fn for_pods(files: &[ResolvConf]) -> Option<&ResolvConf> {
    let has_reachable = |file: &&ResolvConf| file.servers.iter().any(is_reachable);
    let mut usable = files.iter().filter(has_reachable);
    let best = usable.clone().find(|file| file.servers.iter().all(is_reachable));
    best.or_else(|| usable.next())
}

/// Whether a server can be reached from another network namespace.
fn is_reachable(server: &IpAddr) -> bool {
    let is_link_local = matches!(server, IpAddr::V6(v6) if v6.is_unicast_link_local());
    !server.is_loopback() && !server.is_unspecified() && !is_link_local
}

/// Returns a fault if pods could not resolve names.
pub(crate) fn resolv_conf(files: &[ResolvConf]) -> Option<CheckFault> {
    let Some(own) = files.iter().find(|file| file.path == Path::new(RESOLV_CONF)) else {
        return Some(CheckFault::new(
            format!("{RESOLV_CONF} does not exist"),
            "create it with a line `nameserver ADDRESS`",
        ));
    };
    if for_pods(files).is_some() {
        return None;
    }
    let problem = if own.servers.is_empty() {
        format!("{RESOLV_CONF} names no DNS server, so that pods cannot resolve names")
    } else {
        let servers: Vec<String> = own.servers.iter().map(ToString::to_string).collect();
        format!("{RESOLV_CONF} names only DNS servers that pods cannot reach: {}", servers.join(", "))
    };
    let help = format!(
        "add a line `nameserver ADDRESS` with a DNS server of your network to {RESOLV_CONF}; no list of systemd-resolved or NetworkManager names one"
    );
    Some(CheckFault::new(problem, help))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";

    fn file(path: &'static str, servers: &[&str]) -> ResolvConf {
        let text = servers.iter().fold(String::new(), |text, server| format!("{text}nameserver {server}\n"));
        ResolvConf::parse(Path::new(path), &text)
    }

    /// The stub file of systemd-resolved on Ubuntu 24.04, shortened.
    #[test]
    fn servers_are_read_as_the_kubelet_reads_them() {
        let text = "# nameserver 192.0.2.9\n\nnameserver 127.0.0.53\n nameserver\tfe80::1%eth0 # router\nnameserver\nnameserver dns\noptions edns0 trust-ad\nsearch .\n";
        let servers = ["127.0.0.53", "fe80::1"].map(|server| server.parse::<IpAddr>().unwrap());
        assert_eq!(ResolvConf::parse(Path::new(RESOLV_CONF), text).servers, servers);
    }

    #[test]
    fn pods_get_servers_that_they_can_reach() {
        let table: [(&[ResolvConf], Option<&str>); 6] = [
            (&[file(RESOLV_CONF, &["192.0.2.53"]), file(RESOLVED, &["192.0.2.54"])], Some(RESOLV_CONF)),
            (&[file(RESOLV_CONF, &["127.0.0.53"]), file(RESOLVED, &["192.0.2.54"])], Some(RESOLVED)),
            (&[file(RESOLV_CONF, &["127.0.0.1", "192.0.2.53"]), file(RESOLVED, &["192.0.2.54"])], Some(RESOLVED)),
            (&[file(RESOLV_CONF, &["127.0.0.1", "192.0.2.53"])], Some(RESOLV_CONF)),
            (&[file(RESOLV_CONF, &["::1", "0.0.0.0", "fe80::1%eth0"]), file(RESOLVED, &[])], None),
            (&[], None),
        ];
        for (files, expected) in table {
            assert_eq!(for_pods(files).map(|file| file.path), expected.map(Path::new), "{files:?}");
        }
    }

    #[test]
    fn a_machine_without_servers_for_pods_is_refused() {
        assert_eq!(resolv_conf(&[file(RESOLV_CONF, &["127.0.0.53"]), file(RESOLVED, &["192.0.2.54"])]), None);
        let problem = |files: &[ResolvConf]| resolv_conf(files).unwrap().problem;
        let local = problem(&[file(RESOLV_CONF, &["127.0.0.1", "::1"]), file(RESOLVED, &[])]);
        assert!(local.contains("cannot reach: 127.0.0.1, ::1"), "{local}");
        assert!(problem(&[file(RESOLV_CONF, &[])]).contains("names no DNS server"));
        assert!(problem(&[file(RESOLVED, &["192.0.2.54"])]).contains("does not exist"));
    }
}
