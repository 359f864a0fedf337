//! Listening sockets, as the kernel's tables of a network namespace list them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use crate::process;

/// The state `TCP_LISTEN`.
const LISTEN: &str = "0A";
/// The state of a UDP socket without a peer: `TCP_CLOSE`.
const UNCONNECTED: &str = "07";

/// Returns the addresses with a TCP listener in the network of this process.
pub fn tcp(pid: u32) -> BTreeSet<SocketAddr> {
    sockets(pid, ["tcp", "tcp6"], LISTEN)
}

/// Returns the addresses with a bound and unconnected UDP socket in the network of this process.
pub fn udp(pid: u32) -> BTreeSet<SocketAddr> {
    sockets(pid, ["udp", "udp6"], UNCONNECTED)
}

fn sockets(pid: u32, tables: [&str; 2], state: &str) -> BTreeSet<SocketAddr> {
    // A kernel without IPv6 does not have the tables for it.
    let texts = tables.map(|table| String::from_utf8(process::file(pid, &format!("net/{table}")).unwrap_or_default()));
    texts.into_iter().flat_map(|text| parse(&text.unwrap(), state)).collect()
}

/// Parses lines of the form `sl local_address rem_address st ..` (Linux, Documentation/networking/proc_net_tcp.rst).
fn parse(table: &str, state: &str) -> Vec<SocketAddr> {
    let lines = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    lines.filter(|words| words[3] == state).map(|words| address(words[1])).collect()
}

/// Parses `ADDRESS:PORT` in hexadecimal digits. Addresses are 32-bit words in the byte order of the machine.
fn address(text: &str) -> SocketAddr {
    let (address, port) = text.split_once(':').unwrap();
    let words: Vec<u8> = (0..address.len() / 8)
        .flat_map(|word| u32::from_str_radix(&address[word * 8..][..8], 16).unwrap().to_ne_bytes())
        .collect();
    let ip = match <[u8; 4]>::try_from(words.as_slice()) {
        Ok(four) => IpAddr::from(Ipv4Addr::from(four)),
        Err(_) => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(words).unwrap())),
    };
    SocketAddr::new(ip, u16::from_str_radix(port, 16).unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 3
";

    #[test]
    fn the_tables_are_read() {
        let expected: [SocketAddr; 2] = ["127.0.0.1:8080".parse().unwrap(), "[::1]:80".parse().unwrap()];
        assert_eq!(parse(TABLE, LISTEN), expected);
    }
}
