//! The ports of the network namespace that the calling thread is in.

mod sock_diag;

use std::{collections::BTreeSet, fs, io};

use keelway_api::machine::PortFacts;

/// `TCP_LISTEN` in the kernel's socket tables.
const TCP_LISTEN: &str = "0A";
/// A UDP socket without a peer: `TCP_CLOSE` in the kernel's socket tables.
const UDP_UNCONNECTED: &str = "07";

/// Reads the ports of the calling thread's namespace.
///
/// Reads the tables in `/proc` only if the kernel has no `sock_diag`. For these tables the kernel goes through the connections of all namespaces,
/// which takes milliseconds on a large machine.
pub(super) fn read() -> io::Result<PortFacts> {
    let listening = sock_diag::listening().or_else(|_| read_tables())?;
    let range = read_where_present("/proc/sys/net/ipv4/ip_local_port_range")?;
    let unprivileged = read_where_present("/proc/sys/net/ipv4/ip_unprivileged_port_start")?;
    Ok(PortFacts { ephemeral: parse_range(&range), unprivileged_from: unprivileged.trim().parse().ok(), listening })
}

fn read_tables() -> io::Result<BTreeSet<u16>> {
    let mut listening = BTreeSet::new();
    for (table, state) in
        [("tcp", TCP_LISTEN), ("tcp6", TCP_LISTEN), ("udp", UDP_UNCONNECTED), ("udp6", UDP_UNCONNECTED)]
    {
        let text = read_where_present(&format!("/proc/thread-self/net/{table}"))?;
        listening.extend(local_ports(&text, state));
    }
    Ok(listening)
}

/// Returns an empty text for a missing table. A kernel without IPv6 has no IPv6 tables.
pub(super) fn read_where_present(path: &str) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    }
}

/// Returns the local ports of the sockets in the given state. Lines are `sl local_address rem_address st ..`, with `ADDRESS:PORT` in hexadecimal
/// (Linux, Documentation/networking/proc_net_tcp.rst).
fn local_ports<'a>(table: &'a str, state: &'a str) -> impl Iterator<Item = u16> + 'a {
    table.lines().skip(1).filter_map(move |line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let local = columns.next()?;
        let found = columns.nth(1)?;
        let (_, port) = local.rsplit_once(':')?;
        (found == state).then(|| u16::from_str_radix(port, 16).ok()).flatten()
    })
}

fn parse_range(text: &str) -> Option<(u16, u16)> {
    let mut ends = text.split_ascii_whitespace().map(str::parse);
    Some((ends.next()?.ok()?, ends.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 3
";

    #[test]
    fn listening_ports_are_distinguished_from_connections() {
        assert_eq!(local_ports(TABLE, TCP_LISTEN).collect::<Vec<_>>(), [8080, 80]);
        assert_eq!(local_ports("", TCP_LISTEN).count(), 0);
    }

    #[test]
    fn both_ways_find_listening_sockets() {
        let [tcp, tcp6] = ["127.0.0.1:0", "[::1]:0"].map(|address| TcpListener::bind(address).unwrap());
        let [udp, udp6] = ["127.0.0.1:0", "[::1]:0"].map(|address| UdpSocket::bind(address).unwrap());
        let ports = [tcp.local_addr(), tcp6.local_addr(), udp.local_addr(), udp6.local_addr()];
        for found in [sock_diag::listening().unwrap(), read_tables().unwrap()] {
            assert!(ports.iter().all(|address| found.contains(&address.as_ref().unwrap().port())), "{found:?}");
        }
    }

    #[test]
    fn the_range_has_two_ends() {
        assert_eq!(parse_range("32768\t60999\n"), Some((32768, 60999)));
        assert_eq!(parse_range(""), None);
    }
}
