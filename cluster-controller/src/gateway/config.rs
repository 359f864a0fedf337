//! The configuration of a gateway.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use keelway_api::reserved::of_api_on_workers;
use keelway_vpn::PublicKey;
use serde::{Deserialize, Serialize};

use keelway_tls::TlsFiles;

use super::streams::StreamListenerConfig;
use keelway_component::configuration::{FieldFault, ValidateConfiguration};

/// The most addresses that the relay's TCP/IP stack can have.
const MOST_ADDRESSES: usize = 8;

/// The configuration file of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayConfig {
    /// This end of the VPN.
    pub wire_guard: WireGuard,
    /// The file with the other gateways of the cluster, a list. A change of the file takes effect within seconds, without a restart. Without
    /// a file, the gateway is the only one.
    #[serde(default)]
    pub gateways_file: Option<PathBuf>,
    /// The source of peers.
    pub peers: PeerSource,
    /// The listener for connections of API servers.
    pub connect: Connect,
    /// The listener for workers whose network lets no UDP through. Without it, such workers do not reach this gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamListenerConfig>,
    /// The address of the health server, which needs no authentication: a loopback address.
    pub health: SocketAddr,
    /// The path of the metrics socket, in a directory of the component's own.
    #[serde(default)]
    pub metrics: Option<PathBuf>,
}

/// This end of the VPN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WireGuard {
    /// The file with the private key, in base64, mode 0600.
    pub private_key_file: PathBuf,
    /// The UDP port, on all addresses of the machine.
    pub listen_port: u16,
    /// The gateway's own addresses inside the VPN.
    pub addresses: Vec<IpAddr>,
    /// The largest inner packet, in bytes.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Seconds between keepalives to each worker whose endpoint is known. They reconnect a restarted gateway to workers that have nothing to
    /// send.
    #[serde(default = "default_keepalive")]
    pub persistent_keepalive_seconds: u16,
    /// The ranges of nodes' addresses.
    #[serde(rename = "addressCIDRs")]
    pub address_cidrs: Vec<IpNet>,
    /// The ranges of nodes' pod ranges.
    #[serde(rename = "podCIDRs", default)]
    pub pod_cidrs: Vec<IpNet>,
    /// Further addresses that no peer may have, in addition to the one in each range at which every worker serves the API.
    #[serde(default)]
    pub reserved_addresses: Vec<IpAddr>,
}

fn default_mtu() -> u16 {
    1420
}

fn default_keepalive() -> u16 {
    15
}

/// Another gateway of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OtherGateway {
    /// The name of the gateway, for logs.
    pub name: String,
    /// The public key of the gateway.
    #[serde(with = "key_text")]
    pub public_key: PublicKey,
    /// The endpoint of the gateway.
    pub endpoint: SocketAddr,
    /// The gateway's addresses inside the VPN.
    pub addresses: Vec<IpAddr>,
}

/// The source of peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PeerSource {
    /// The kubeconfig for the cluster whose `WireGuardPeer` objects the gateway watches. Without it, the file is the only source.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// The file in which peers and their last endpoints are stored.
    pub file: PathBuf,
}

/// The listener for connections of API servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Connect {
    /// The addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// The gateway's certificate and key, and the authorities that it trusts.
    pub tls: TlsFiles,
    /// Common names of the clients that may connect.
    pub clients: BTreeSet<String>,
    /// The most concurrent tunnels. Further ones are refused.
    #[serde(default = "default_most_tunnels")]
    pub max_tunnels: usize,
}

fn default_most_tunnels() -> usize {
    1024
}

/// Public keys in base64.
mod key_text {
    use keelway_vpn::PublicKey;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(key: &PublicKey, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(key)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PublicKey, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

impl ValidateConfiguration for GatewayConfig {
    fn check(&self) -> Result<(), FieldFault> {
        self.wire_guard.check()?;
        self.connect.check()?;
        if self.streams.as_ref().is_some_and(|streams| !streams.listen.ip().is_loopback()) {
            return Err(FieldFault::new(
                "streams.listen",
                "must be a loopback address, because the ingress limits the streams of each client",
                "use 127.0.0.1 or [::1]",
            ));
        }
        if !self.health.ip().is_loopback() {
            return Err(FieldFault::new(
                "health",
                "must be a loopback address, because it requires no authentication",
                "use 127.0.0.1 or [::1]",
            ));
        }
        Ok(())
    }
}

/// The file of the other gateways.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct GatewayList(pub(super) Vec<OtherGateway>);

impl ValidateConfiguration for GatewayList {
    fn check(&self) -> Result<(), FieldFault> {
        let (mut addresses, mut keys) = (BTreeSet::new(), BTreeSet::new());
        for (at, gateway) in self.0.iter().enumerate() {
            let field = format!("[{at}]");
            if !keys.insert(gateway.public_key) {
                let help = "use a unique key for each gateway";
                return Err(FieldFault::new(field + ".publicKey", "another gateway has this key", help));
            }
            if let Some(twice) = gateway.addresses.iter().find(|address| !addresses.insert(**address)) {
                let problem = format!("{twice} is an address of another gateway");
                return Err(FieldFault::new(field + ".addresses", problem, "use unique addresses for each gateway"));
            }
        }
        Ok(())
    }
}

impl ValidateConfiguration for WireGuard {
    fn check(&self) -> Result<(), FieldFault> {
        let fault =
            |field: &str, problem: &str, help: &str| Err(FieldFault::new(format!("wireGuard.{field}"), problem, help));
        if self.listen_port == 0 {
            return fault("listenPort", "must not be zero, because workers need a fixed port", "set a port");
        }
        if self.addresses.is_empty() || self.addresses.len() > MOST_ADDRESSES {
            return fault("addresses", "must contain one to eight addresses", "set one per family");
        }
        if self.address_cidrs.is_empty() {
            return fault(
                "addressCIDRs",
                "must contain a range, so that nodes can have addresses",
                "set the ranges of the VPN",
            );
        }
        let of_api = |address: &&IpAddr| self.address_cidrs.iter().any(|range| of_api_on_workers(range) == **address);
        if let Some(taken) = self.addresses.iter().find(of_api) {
            return fault("addresses", &format!("{taken} is reserved for the API on every worker"), "use another one");
        }
        if self.mtu < 576 {
            return fault(
                "mtu",
                "must be at least 576, the size that every IPv4 host supports (RFC 791)",
                "use 576 or more",
            );
        }
        if self.persistent_keepalive_seconds == 0 {
            let problem = "must be greater than zero, or a restarted gateway could not reach silent workers";
            return fault("persistentKeepaliveSeconds", problem, "use 1 or more");
        }
        Ok(())
    }
}

impl ValidateConfiguration for Connect {
    fn check(&self) -> Result<(), FieldFault> {
        let fault =
            |field: &str, problem: &str, help: &str| Err(FieldFault::new(format!("connect.{field}"), problem, help));
        if self.listen.is_empty() {
            return fault("listen", "must contain an address", "set one of the private network");
        }
        if self.clients.is_empty() {
            return fault("clients", "must contain a name", "set the common name of the egress");
        }
        if self.max_tunnels == 0 {
            return fault("maxTunnels", "must be greater than zero", "use 1 or more");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    const GOOD: &str = "
wireGuard:
  privateKeyFile: /etc/gateway/wireguard.key
  listenPort: 31000
  addresses: [100.80.255.1]
  addressCIDRs: [100.80.0.0/16]
  podCIDRs: [10.244.0.0/16]
gatewaysFile: /etc/gateway/gateways.yaml
peers: {kubeconfig: /etc/gateway/kubeconfig, file: /var/lib/gateway/peers.json}
connect:
  listen: ['10.0.0.5:20010']
  tls: {certificateFile: a.crt, keyFile: a.key, authorityFile: ca.crt}
  clients: ['keelway:egress']
streams:
  listen: 127.0.0.1:31000
  tls: {certificateFile: tunnel.crt, keyFile: tunnel.key, authorityFile: cluster-ca.crt}
health: 127.0.0.1:20011
";

    const OTHERS: &str = "
- name: gateway-1
  publicKey: ooPHGddg5ghUsg0iks4pMrtrImczzFbmLZN17p1RFSQ=
  endpoint: 203.0.113.2:31000
  addresses: [100.80.255.2]
- name: gateway-2
  publicKey: 7z3R1Yq4kY3cSCZ7pQFqo3k7Qb0oF0dS0C1Wm5n4Bxg=
  endpoint: 203.0.113.3:31000
  addresses: [100.80.255.3]
";

    fn read<T: DeserializeOwned + ValidateConfiguration>(text: &str) -> Result<T, String> {
        let config: T = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|fault| fault.to_string())?;
        Ok(config)
    }

    #[test]
    fn yaml_and_json_are_equivalent() {
        let config: GatewayConfig = read(GOOD).unwrap();
        assert_eq!((config.wire_guard.mtu, config.connect.max_tunnels), (1420, 1024));
        assert_eq!(read(&serde_json::to_string(&config).unwrap()), Ok(config));
        let GatewayList(others) = read(OTHERS).unwrap();
        assert_eq!(others.len(), 2);
        assert_eq!(read(&serde_json::to_string(&others).unwrap()), Ok(GatewayList(others)));
    }

    #[test]
    fn each_fault_of_the_list_names_its_field() {
        let table = [
            (
                "7z3R1Yq4kY3cSCZ7pQFqo3k7Qb0oF0dS0C1Wm5n4Bxg=",
                "ooPHGddg5ghUsg0iks4pMrtrImczzFbmLZN17p1RFSQ=",
                "[1].publicKey",
            ),
            ("100.80.255.3", "100.80.255.2", "[1].addresses"),
            ("ooPHGddg5ghUsg0iks4pMrtrImczzFbmLZN17p1RFSQ=", "AAAA", "32 bytes"),
            ("  endpoint: 203.0.113.3", "  mtu: 1400\n  endpoint: 203.0.113.3", "mtu"),
        ];
        for (from, to, named) in table {
            let text = OTHERS.replacen(from, to, 1);
            assert_ne!(text, OTHERS, "{from}");
            let fault = read::<GatewayList>(&text).unwrap_err();
            assert!(fault.contains(named), "{named}: {fault}");
        }
    }

    #[test]
    fn each_fault_names_its_field() {
        let table = [
            ("listenPort: 31000", "listenPort: 0", "wireGuard.listenPort"),
            ("addresses: [100.80.255.1]", "addresses: []", "wireGuard.addresses"),
            ("addresses: [100.80.255.1]", "addresses: [100.80.0.1]", "reserved for the API"),
            ("addressCIDRs: [100.80.0.0/16]", "addressCIDRs: []", "wireGuard.addressCIDRs"),
            ("  podCIDRs", "  persistentKeepaliveSeconds: 0\n  podCIDRs", "wireGuard.persistentKeepaliveSeconds"),
            ("  podCIDRs", "  mtu: 500\n  podCIDRs", "wireGuard.mtu"),
            ("['10.0.0.5:20010']", "[]", "connect.listen"),
            ("['keelway:egress']", "[]", "connect.clients"),
            ("  clients", "  maxTunnels: 0\n  clients", "connect.maxTunnels"),
            ("127.0.0.1:20011", "10.0.0.5:20011", "health"),
            ("127.0.0.1:31000", "0.0.0.0:31000", "streams.listen"),
            ("listenPort: 31000", "listenPort: 31000\n  postUp: reboot", "postUp"),
        ];
        for (from, to, named) in table {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let fault = read::<GatewayConfig>(&text).unwrap_err();
            assert!(fault.contains(named), "{named}: {fault}");
        }
    }
}
