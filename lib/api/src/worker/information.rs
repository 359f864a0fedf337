//! The information about a cluster that its workers read.

use core::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{cluster::VPN_MTU_UNRECORDED, image_override::overridden, release::Release};

/// The ConfigMap in `kube-system` that contains the information.
pub const INFORMATION: &str = "keelway-endpoints";
/// The key of [`ClusterInformation`] in the ConfigMap, as JSON. It is one document, so that readers never see a partial change.
pub const INFORMATION_KEY: &str = "cluster.json";
/// The key of the authorities that workers trust, in PEM.
pub const AUTHORITIES_KEY: &str = "ca.crt";

/// The name of the file with the default CNI configuration. Of all files in its directory, containerd uses the first one by name.
pub const CNI_FILE: &str = "10-keelway.conflist";

/// The endpoints and ranges of a cluster. The cluster-controller writes them, and every worker reads them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInformation {
    /// The Kubernetes release that workers run, such as 1.37.0.
    pub version: String,
    /// A registry that serves the images of workers under the same names and tags as the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// Images to use in place of those with the same name and tag, each with its digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_overrides: Vec<String>,
    /// Whether the cluster has the Secret [`super::REGISTRIES`].
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub registry_credentials: bool,
    /// The ingresses of the cluster, each with its gateway.
    pub endpoints: Vec<IngressEndpoint>,
    /// DNS names of the ingresses. A worker resolves them if none of the endpoints responds. Empty if the field is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// The endpoint of the API on every worker, which is the worker's own balancer.
    pub api: ApiAddress,
    /// The ranges of the VPN, one per address family, as for pods and Services.
    #[serde(rename = "vpnCIDRs")]
    pub vpn_cidrs: Vec<IpNet>,
    /// The largest packet inside the VPN, in bytes. If the field is missing, it is 1420.
    #[serde(rename = "vpnMTU", default = "vpn_mtu")]
    pub vpn_mtu: u16,
    /// The ranges of pods.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<IpNet>,
    /// The ranges of Services.
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: Vec<IpNet>,
    /// The cluster's DNS domain.
    pub dns_domain: String,
    /// The address of the cluster's DNS.
    pub dns_address: IpAddr,
    /// The default CNI configuration.
    #[serde(default)]
    pub cni: CniInformation,
    /// kube-proxy, as the cluster-controller maintains it.
    #[serde(default)]
    pub kube_proxy: KubeProxyInformation,
    /// The subject key identifier of the authority that issues the certificates of workers, in lowercase hexadecimal digits. If the field is
    /// missing, no authority is being replaced, and a worker keeps its certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
}

impl ClusterInformation {
    /// Returns the image with the programs that workers of a release run outside containers.
    #[must_use]
    pub fn node_image(&self, release: &Release) -> String {
        overridden(release.node_image(self.registry.as_deref()), &self.image_overrides)
    }
}

fn vpn_mtu() -> u16 {
    VPN_MTU_UNRECORDED
}

/// Whether workers have the default CNI configuration. If the field is missing, they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CniInformation {
    /// If `false`, the cluster provides its own configuration.
    pub enabled: bool,
}

impl Default for CniInformation {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// Whether kube-proxy runs on workers. If the field is missing, it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeProxyInformation {
    /// If `false`, the cluster has a replacement.
    pub enabled: bool,
}

impl Default for KubeProxyInformation {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// An ingress with its gateway. They share one address and port number: TCP for the API, and UDP for WireGuard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressEndpoint {
    /// The public address and port.
    pub address: SocketAddr,
    /// The gateway, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayInformation>,
}

/// The properties of a gateway that workers need.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayInformation {
    /// The public key of WireGuard: 32 bytes in base64.
    pub public_key: String,
    /// The addresses of the gateway in the VPN, one per address family. A worker routes each into the tunnel to this gateway.
    pub addresses: Vec<IpAddr>,
}

/// The addresses and the port of the API, which are the same on every worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiAddress {
    /// The reserved addresses, one per family.
    pub addresses: Vec<IpAddr>,
    /// The port.
    pub port: u16,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written() -> Value {
        json!({
            "version": "1.37.0",
            "registry": "registry.example.com/mirror",
            "endpoints": [
                {
                    "address": "203.0.113.1:20000",
                    "gateway": { "publicKey": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "addresses": ["100.80.0.2", "fd00::2"] },
                },
                { "address": "[2001:db8::1]:20000" },
            ],
            "names": ["api.example.com"],
            "api": { "addresses": ["100.80.0.1", "fd00::1"], "port": 6443 },
            "vpnCIDRs": ["100.80.0.0/16", "fd00::/64"],
            "vpnMTU": 1280,
            "podCIDRs": ["10.244.0.0/16"],
            "serviceCIDRs": ["10.96.0.0/16"],
            "dnsDomain": "cluster.local",
            "dnsAddress": "10.96.0.10",
            "cni": { "enabled": false },
            "kubeProxy": { "enabled": false },
            "issuer": "0011223344556677889900aabbccddeeff001122",
        })
    }

    #[test]
    fn the_form_is_read_and_written_alike() {
        let read: ClusterInformation = serde_json::from_value(written()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), written());
    }

    #[test]
    fn fields_of_a_newer_controller_are_ignored() {
        let expected: ClusterInformation = serde_json::from_value(written()).unwrap();
        let mut newer = written();
        newer["surprise"] = json!(1);
        newer["endpoints"][0]["transport"] = json!("tcp");
        newer["endpoints"][0]["gateway"]["mtu"] = json!(1420);
        newer["api"]["name"] = json!("kubernetes");
        newer["cni"]["mtu"] = json!(1420);
        assert_eq!(serde_json::from_value::<ClusterInformation>(newer).unwrap(), expected);
    }
    #[test]
    fn fields_missing_from_an_older_controller_have_its_defaults() {
        let mut older = written();
        for field in ["cni", "kubeProxy", "vpnMTU", "issuer"] {
            older.as_object_mut().unwrap().remove(field);
        }
        let read = serde_json::from_value::<ClusterInformation>(older).unwrap();
        assert!(read.cni.enabled && read.kube_proxy.enabled);
        assert_eq!((read.vpn_mtu, &read.issuer), (1420, &None));
        assert_eq!(serde_json::to_value(read).unwrap().get("issuer"), None);
    }
}
