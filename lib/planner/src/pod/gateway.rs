//! The gateway beside an ingress.

use alloc::{format, vec, vec::Vec};
use core::net::{IpAddr, SocketAddr};

use keelway_api::{
    cluster::VPN_MTU_UNRECORDED,
    component::ComponentSpec,
    machine::{OnChange, Pod, PodFile},
    name::PodName,
    reserved,
    role::{CONNECT, Role},
    validated::ValidatedHypervisor,
};
use serde_json::{Value, json};

use super::{
    MissingKey, PodInputs, PodTemplate, STARTUP_SECONDS, at, document, gateway_streams::TUNNEL_CERTIFICATE,
    keelway_command,
};
use crate::secret_names::{self, EGRESS_NAME, WIREGUARD};

/// The file with the configuration of a gateway.
const CONFIGURATION: &str = "gateway.json";
/// The directory in which a gateway stores its peers, inside its container.
const PEERS: &str = "/var/lib/keelway-gateway";
/// The file with the other gateways.
const OTHERS: &str = "gateways.json";

/// The MTU in the configuration of a gateway. None: the pod is no gateway.
pub(crate) fn gateway_mtu(pod: &Pod) -> Option<u16> {
    let file = pod.files.iter().find(|file| file.path == CONFIGURATION)?;
    let content: Value = serde_json::from_slice(&file.content).ok()?;
    let mtu = content.get("wireGuard")?.get("mtu").and_then(Value::as_u64);
    mtu.map_or(Some(VPN_MTU_UNRECORDED), |mtu| mtu.try_into().ok())
}

impl PodInputs<'_> {
    pub(super) fn gateway(&self) -> Result<PodTemplate, MissingKey> {
        let key = format!("{WIREGUARD}.key");
        let mut files = vec![
            self.gateway_file()?,
            self.other_gateways(),
            Self::kubeconfig_of(&self.ingress_beside()?, OnChange::PickedUp),
            self.shared(&key, self.pod.component.as_str(), &key, OnChange::Restart)?,
            self.shared("ca.crt", secret_names::KUBERNETES, "bundle.crt", OnChange::PickedUp)?,
            self.shared("infrastructure-ca.crt", secret_names::INFRASTRUCTURE, "bundle.crt", OnChange::PickedUp)?,
        ];
        files.extend(self.certificate("client")?);
        files.extend(self.certificate("server")?);
        if self.has_streams() {
            files.extend(self.certificate(TUNNEL_CERTIFICATE)?);
        }
        Ok(PodTemplate {
            files,
            data: vec![("peers", PEERS)],
            servers: None,
            image: self.own_image(),
            command: keelway_command("gateway", CONFIGURATION),
            check: self.health_check(),
            startup_seconds: Some(STARTUP_SECONDS),
            beside: vec![],
        })
    }

    /// The file is read once. If it changes, the gateways are replaced one after the other.
    fn gateway_file(&self) -> Result<PodFile, MissingKey> {
        let cluster = self.cluster;
        let mut content = json!({
            "wireGuard": {
                "privateKeyFile": at(&format!("{WIREGUARD}.key")),
                "listenPort": self.number()?,
                "addresses": self.vpn_addresses(self.spec.index),
                "addressCIDRs": cluster.vpn,
                "podCIDRs": cluster.pods,
            },
            "gatewaysFile": at(OTHERS),
            "peers": { "kubeconfig": at("kubeconfig.json"), "file": format!("{PEERS}/peers.json") },
            "connect": {
                "listen": [Self::connect_address(self.spec, self.machine).ok_or_else(|| MissingKey::new("a private address of its machine"))?],
                "tls": {
                    "certificateFile": at("server.crt"),
                    "keyFile": at("server.key"),
                    "authorityFile": at("infrastructure-ca.crt"),
                },
                "clients": [EGRESS_NAME],
            },
            "health": self.health_address(),
            "metrics": format!("{PEERS}/metrics.sock"),
        });
        if cluster.vpn_mtu != VPN_MTU_UNRECORDED {
            content["wireGuard"]["mtu"] = json!(cluster.vpn_mtu);
        }
        if self.has_streams() {
            content["streams"] = self.stream_listener()?;
        }
        Ok(document(CONFIGURATION, &content, OnChange::Restart))
    }

    /// A running gateway reads this file again, so gateways are added and removed without a restart.
    fn other_gateways(&self) -> PodFile {
        let others = self.siblings(Role::Gateway).filter(|(name, ..)| *name != self.pod);
        let others: Vec<Value> = others.filter_map(|(name, spec, machine)| self.other(name, spec, machine)).collect();
        document(OTHERS, &Value::from(others), OnChange::PickedUp)
    }

    /// Another gateway. None: it has no key yet.
    fn other(&self, name: &PodName, spec: &ComponentSpec, machine: &ValidatedHypervisor) -> Option<Value> {
        let endpoint = SocketAddr::new(*machine.public.first()?, self.number().ok()?);
        Some(json!({
            "name": name.component,
            "publicKey": self.public_key_of(name)?,
            "endpoint": endpoint,
            "addresses": self.vpn_addresses(spec.index),
        }))
    }

    /// The public half of a gateway's key.
    pub(super) fn public_key_of(&self, gateway: &PodName) -> Option<&str> {
        let key = self.tenant.value(gateway.component.as_str(), &format!("{WIREGUARD}.pub"))?;
        core::str::from_utf8(key).ok()
    }

    /// The addresses of a gateway in the VPN.
    pub(super) fn vpn_addresses(&self, index: u32) -> Vec<IpAddr> {
        self.cluster.vpn.iter().filter_map(|range| reserved::of_gateway(range, index)).collect()
    }

    /// The address at which a gateway accepts an API server's requests for connections.
    pub(super) fn connect_address(spec: &ComponentSpec, machine: &ValidatedHypervisor) -> Option<SocketAddr> {
        Some(SocketAddr::new(*machine.private.first()?, spec.port(CONNECT)))
    }

    /// The port of the cluster on public machines.
    pub(super) fn number(&self) -> Result<u16, MissingKey> {
        self.tenant
            .document
            .status
            .as_ref()
            .and_then(|status| status.ingress_port)
            .ok_or_else(|| MissingKey::new("status.ingressPort"))
    }

    /// The address of the API for a gateway. It is the ingress on its machine, because private machines cannot be reached from there. It is the
    /// address on which the ingress listens: a machine may not reach its own translated address.
    fn ingress_beside(&self) -> Result<SocketAddr, MissingKey> {
        let address = self.machine.bind.first().ok_or_else(|| MissingKey::new("a public address of its machine"))?;
        Ok(SocketAddr::new(*address, self.number()?))
    }
}
