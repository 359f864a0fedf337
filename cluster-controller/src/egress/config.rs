//! The configuration of an egress.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use rustls_pki_types::ServerName;
use serde::{Deserialize, Serialize};

use keelway_tls::TlsFiles;

use keelway_component::configuration::{FieldFault, ValidateConfiguration};

/// The configuration file of an egress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressConfig {
    /// Connections to workers.
    pub cluster: ClusterEgress,
    /// All other connections of the API server.
    pub control_plane: ControlPlaneEgress,
    /// The permissions of both sockets, in octal.
    #[serde(default)]
    pub socket_mode: SocketMode,
    /// The most concurrent tunnels on each socket. Further ones are refused.
    #[serde(default = "default_most_tunnels")]
    pub max_tunnels: usize,
    /// How long the egress waits for open tunnels when it stops, in seconds.
    #[serde(default = "default_grace")]
    pub shutdown_grace_seconds: u64,
    /// The address of the health server, which needs no authentication: a loopback address.
    pub health: SocketAddr,
    /// The path of the metrics socket, in a directory of the component's own.
    #[serde(default)]
    pub metrics: Option<PathBuf>,
}

fn default_most_tunnels() -> usize {
    1024
}

fn default_grace() -> u64 {
    60
}

/// Connections to workers, through gateways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterEgress {
    /// The socket of the selection `cluster` in `EgressSelectorConfiguration`.
    pub socket: PathBuf,
    /// The gateways of the cluster. A change of the list takes effect within seconds, without a restart.
    pub gateways: Vec<EgressGateway>,
    /// The DNS name that each gateway's certificate must have.
    pub server_name: String,
    /// The egress's certificate and key, and the authorities that it trusts.
    pub tls: TlsFiles,
}

/// A gateway of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressGateway {
    /// The name of the gateway, for logs and metrics.
    pub name: String,
    /// The address on which the gateway accepts CONNECT.
    pub address: SocketAddr,
}

/// Connections to webhooks, OIDC issuers and the like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControlPlaneEgress {
    /// The socket of the selection `controlplane` in `EgressSelectorConfiguration`.
    pub socket: PathBuf,
    /// Ranges to which the egress never connects, such as those of hypervisors.
    #[serde(rename = "forbiddenCIDRs")]
    pub forbidden_cidrs: Vec<IpNet>,
}

/// The permissions of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(pub u32);

impl Default for SocketMode {
    fn default() -> Self {
        Self(0o600)
    }
}

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| mode & !0o660 == 0);
        mode.map(Self)
            .ok_or_else(|| format!("{text:?} is not a valid mode of a socket for its user and group, such as \"0660\""))
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> Self {
        format!("{:04o}", mode.0)
    }
}

impl ValidateConfiguration for EgressConfig {
    fn check(&self) -> Result<(), FieldFault> {
        let mut names = BTreeSet::new();
        for (at, gateway) in self.cluster.gateways.iter().enumerate() {
            if !names.insert(&gateway.name) {
                let field = format!("cluster.gateways[{at}].name");
                return Err(FieldFault::new(field, "another gateway has this name", "use a unique name for each"));
            }
        }
        if let Err(error) = ServerName::try_from(self.cluster.server_name.as_str()) {
            return Err(FieldFault::new("cluster.serverName", error.to_string(), "use a DNS name of the certificate"));
        }
        if self.cluster.socket == self.control_plane.socket {
            let problem = "must differ from cluster.socket";
            return Err(FieldFault::new("controlPlane.socket", problem, "use two sockets"));
        }
        if self.max_tunnels == 0 {
            return Err(FieldFault::new("maxTunnels", "must be greater than zero", "use 1 or more"));
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

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
cluster:
  socket: /run/egress/cluster.sock
  gateways:
  - {name: gateway-0, address: '10.0.0.5:20010'}
  - {name: gateway-1, address: '10.0.0.6:20010'}
  serverName: gateway.keelway
  tls: {certificateFile: a.crt, keyFile: a.key, authorityFile: ca.crt}
controlPlane:
  socket: /run/egress/controlplane.sock
  forbiddenCIDRs: [10.0.0.0/24]
socketMode: '0660'
health: 127.0.0.1:20012
";

    fn read(text: &str) -> Result<EgressConfig, String> {
        let config: EgressConfig = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|fault| fault.to_string())?;
        Ok(config)
    }

    #[test]
    fn yaml_and_json_are_equivalent() {
        let config = read(GOOD).unwrap();
        assert_eq!(config.socket_mode, SocketMode(0o660));
        assert_eq!(read(&serde_json::to_string(&config).unwrap()), Ok(config));
    }

    #[test]
    fn each_fault_names_its_field() {
        let table = [
            ("gateway-1", "gateway-0", "cluster.gateways[1].name"),
            ("gateway.keelway", "a b", "cluster.serverName"),
            ("/run/egress/controlplane.sock", "/run/egress/cluster.sock", "controlPlane.socket"),
            ("'0660'", "'0666'", "not a valid mode"),
            ("'0660'", "'rw'", "not a valid mode"),
            ("'0660'", "'0660'\nmaxTunnels: 0", "maxTunnels"),
            ("127.0.0.1:20012", "10.0.0.5:20012", "health"),
            ("10.0.0.0/24", "10.0.0.0/33", "forbiddenCIDRs"),
            ("health", "healthy: true\nhealth", "healthy"),
        ];
        for (from, to, named) in table {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let fault = read(&text).unwrap_err();
            assert!(fault.contains(named), "{named}: {fault}");
        }
    }
}
