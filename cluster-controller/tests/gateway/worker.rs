//! A worker: a real device, and servers on it.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use ipnet::IpNet;
use keelway_vpn::{Device, DeviceConfig, PeerConfig, PublicKey};
use serde_json::{Value, json};

use crate::lan::{Lan, address};
use crate::support::{Namespace, private_key, public_key};

/// The ranges that a worker sends into its only tunnel.
pub(crate) const RANGES: [&str; 2] = ["100.80.0.0/16", "10.244.0.0/16"];

/// Worker N has the address 100.80.0.N and the pod range 10.244.N.0/24. 10.244.N.1 is one of its pods.
pub(crate) struct Worker {
    pub(crate) number: u8,
    pub(crate) machine: Namespace,
    _device: Device,
}

impl Worker {
    /// Creates a worker for these gateways. A gateway should run by now, because a lost initiation is repeated only after five seconds.
    /// With a keepalive of 0, the worker sends nothing by itself.
    pub(crate) fn new(lan: &Lan, number: u8, gateways: &[(u8, PublicKey)], keepalive: u16) -> Self {
        Self::with_ranges(lan, number, gateways, keepalive, &RANGES)
    }

    /// Creates a worker that sends these ranges and addresses into its only tunnel, and accepts them from it.
    pub(crate) fn with_ranges(
        lan: &Lan,
        number: u8,
        gateways: &[(u8, PublicKey)],
        keepalive: u16,
        ranges: &[&str],
    ) -> Self {
        let machine = lan.machine(number);
        let config = DeviceConfig {
            name: "kw0".to_owned(),
            private_key: Some(private_key(number)),
            listen_port: 51820,
            ..DeviceConfig::default()
        };
        let device = machine.within(|| Device::start(config).unwrap());
        let peers = gateways.iter().map(|(gateway, key)| PeerConfig {
            endpoint: Some(format!("{}:31000", address(*gateway)).parse().unwrap()),
            persistent_keepalive: keepalive,
            allowed_ips: if gateways.len() == 1 {
                ranges.iter().map(|range| prefix(range)).collect()
            } else {
                BTreeSet::from([format!("100.80.255.{gateway}/32").parse().unwrap()])
            },
            ..PeerConfig::new(*key)
        });
        device.set_peers(&peers.collect());
        machine.ip(&["link", "set", "kw0", "up", "mtu", "1420"]);
        for own in [format!("100.80.0.{number}/32"), format!("10.244.{number}.1/32")] {
            machine.ip(&["addr", "add", &own, "dev", "lo"]);
        }
        let source = format!("100.80.0.{number}");
        machine.ip(&["route", "add", "100.80.0.0/16", "dev", "kw0", "src", &source]);
        Self { number, machine, _device: device }
    }

    /// Adds an address that need not be the worker's own.
    pub(crate) fn add_address(&self, address: &str) {
        self.machine.ip(&["addr", "add", address, "dev", "lo"]);
    }

    /// Echoes what a port receives, on all addresses, until the test ends.
    pub(crate) fn echo(&self, port: u16) {
        let listener = self.machine.within(move || TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || echo(stream.unwrap()));
            }
        });
    }

    /// Sends a datagram to a gateway's address in the VPN.
    pub(crate) fn speak(&self, gateway: u8) {
        let to = format!("100.80.255.{gateway}:9");
        self.machine.within(move || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"hello", to).unwrap();
        });
    }

    /// Disconnects the worker without notice.
    pub(crate) fn unplug(&self) {
        self.machine.ip(&["link", "set", "eth0", "down"]);
    }
}

/// Parses a range or a single address.
fn prefix(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|_| IpNet::from(text.parse::<IpAddr>().unwrap()))
}

/// Returns the object of a worker, as a gateway stores it.
pub(crate) fn object(number: u8) -> Value {
    json!({
        "name": format!("w{number}"),
        "created": format!("2026-01-01T00:00:{number:02}Z"),
        "publicKey": public_key(number).to_string(),
        "addresses": [format!("100.80.0.{number}")],
        "podCIDRs": [format!("10.244.{number}.0/24")],
    })
}

fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

/// Returns the effective capabilities of a process as hexadecimal digits.
pub(crate) fn capabilities(id: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim().to_owned()
}
