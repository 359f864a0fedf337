//! The controller's configuration: one file, which may change while the controller runs.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

use ipnet::IpNet;
use keelway_api::{
    cluster::{AddonsSpec, VPN_MTU_UNRECORDED},
    duration::Span,
    name::is_subdomain,
    release,
    worker::{
        ApiAddress, ClusterInformation, CniInformation, IngressEndpoint, KubeProxyInformation, NodeNameFault,
        check_node_name,
    },
};
use keelway_component::{
    configuration::{FieldFault, ValidateConfiguration},
    leader::LeaseName,
};
use keelway_pki::CertificateFacts;
use serde::{Deserialize, Serialize};

use super::{addresses::Pool, worker_upgrades::KubeletUpgrades};

/// The port on which every worker's own balancer serves the API.
pub(crate) const API_PORT: u16 = 6443;

/// The configuration that `keelway-cluster-controller run --config` reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControllerConfiguration {
    /// The kubeconfig for the managed cluster.
    pub kubeconfig: PathBuf,
    /// The cluster's Kubernetes release, such as 1.37.0. Add-ons have the same release.
    pub version: String,
    /// A registry that contains the images of workers and add-ons under the same names and tags as the public registries.
    #[serde(default)]
    pub registry: Option<String>,
    /// Images to use in place of those with the same name and tag, each with its digest.
    #[serde(default)]
    pub image_overrides: Vec<String>,
    /// A file with credentials for these images, in docker's format. The controller publishes them to workers.
    #[serde(default)]
    pub registries: Option<PathBuf>,
    /// Ranges of the VPN, one per family. In each, the first address is for the API, the next 15 are for gateways, and the others for workers.
    #[serde(rename = "vpnCIDRs")]
    pub vpn_cidrs: Vec<IpNet>,
    /// The largest packet inside the VPN, in bytes.
    #[serde(rename = "vpnMTU", default = "vpn_mtu")]
    pub vpn_mtu: u16,
    /// Ranges of pods.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of Services.
    #[serde(rename = "serviceCIDRs")]
    pub service_cidrs: Vec<IpNet>,
    /// The cluster's DNS domain.
    pub dns_domain: String,
    /// Names of the API in addition to those of the Service `kubernetes`. A worker cannot have such a name.
    #[serde(default)]
    pub api_names: Vec<String>,
    /// The endpoints at which workers reach the cluster's ingresses, each with its gateway.
    pub endpoints: Vec<IngressEndpoint>,
    /// The file with the certificates of all authorities that workers trust, PEM.
    pub authorities: PathBuf,
    /// The certificate of the authority that issues the certificates of workers, PEM. It is set while that authority is replaced: workers then
    /// replace their certificates of another one.
    #[serde(default)]
    pub issuer: Option<String>,
    /// The lifetime of workers' certificates. The address of a deleted worker is reserved for the same time.
    #[serde(rename = "workerTTL", default = "worker_ttl")]
    pub worker_ttl: Span,
    /// How long after the end of its last certificate a worker can renew it with the key of that certificate.
    #[serde(default = "worker_grace")]
    pub worker_grace: Span,
    /// The enabled add-ons. If an add-on is disabled, the controller deletes the objects that it applied for it.
    #[serde(default)]
    pub addons: AddonsSpec,
    /// How the kubelets of workers are upgraded. If it is not set, they stay as they are.
    #[serde(default)]
    pub kubelets: Option<KubeletUpgrades>,
    /// The Lease of the active replica.
    #[serde(default = "own_lease")]
    pub lease: LeaseName,
}

fn own_lease() -> LeaseName {
    LeaseName { namespace: "kube-system".to_owned(), name: super::MANAGER.to_owned() }
}

fn vpn_mtu() -> u16 {
    VPN_MTU_UNRECORDED
}

fn worker_ttl() -> Span {
    Span::hours(720)
}

fn worker_grace() -> Span {
    Span::hours(2160)
}

impl ControllerConfiguration {
    /// Returns the address pools of the VPN, one for each range.
    pub(crate) fn pools(&self) -> Vec<Pool> {
        self.vpn_cidrs.iter().copied().map(Pool::new).collect()
    }

    /// Returns the reserved addresses at which every worker reaches the API, one per family.
    pub(crate) fn api_addresses(&self) -> Vec<IpAddr> {
        self.pools().iter().filter_map(Pool::api).collect()
    }

    /// Checks whether a worker may have this name.
    pub(crate) fn check_node_name(&self, name: &str) -> Result<(), NodeNameFault> {
        check_node_name(name, &self.dns_domain, self.api_names.iter().map(String::as_str))
    }

    /// Returns the information that workers read.
    pub(crate) fn information(&self) -> ClusterInformation {
        ClusterInformation {
            version: self.version.clone(),
            registry: self.registry.clone(),
            image_overrides: self.image_overrides.clone(),
            registry_credentials: self.registries.is_some(),
            endpoints: self.endpoints.clone(),
            names: self.api_names.iter().filter(|name| is_subdomain(name)).cloned().collect(),
            api: ApiAddress { addresses: self.api_addresses(), port: API_PORT },
            vpn_cidrs: self.vpn_cidrs.clone(),
            vpn_mtu: self.vpn_mtu,
            pod_cidrs: self.pod_cidrs.clone(),
            service_cidrs: self.service_cidrs.clone(),
            dns_domain: self.dns_domain.clone(),
            dns_address: self.dns_address(),
            cni: CniInformation { enabled: self.addons.cni.enabled },
            kube_proxy: KubeProxyInformation { enabled: self.addons.kube_proxy.enabled },
            issuer: self.issuer.as_deref().and_then(key_id),
        }
    }

    /// Returns the address of the cluster's DNS: the tenth of the first range of Services, as in kubeadm.
    pub(crate) fn dns_address(&self) -> IpAddr {
        let tenth = |range: &IpNet| match range.network() {
            IpAddr::V4(first) => IpAddr::V4(first.to_bits().saturating_add(10).into()),
            IpAddr::V6(first) => IpAddr::V6(first.to_bits().saturating_add(10).into()),
        };
        self.service_cidrs.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), tenth)
    }
}

/// Returns the subject key identifier of a certificate in hexadecimal digits. `None`: it is no certificate, or has none.
fn key_id(pem: &str) -> Option<String> {
    CertificateFacts::from_pem(pem).ok()?.key_digits()
}

impl ValidateConfiguration for ControllerConfiguration {
    fn check(&self) -> Result<(), FieldFault> {
        let fault = |field: &str, problem: String, help: &str| Err(FieldFault::new(field, problem, help));
        if release::find(&self.version).is_none() {
            return fault(
                "version",
                format!("{:?} is not a supported Kubernetes release", self.version),
                &format!("use one of {}", release::names()),
            );
        }
        for (field, ranges) in
            [("vpnCIDRs", &self.vpn_cidrs), ("podCIDRs", &self.pod_cidrs), ("serviceCIDRs", &self.service_cidrs)]
        {
            if ranges.is_empty() {
                return fault(field, "must contain a range".to_owned(), "set one per family");
            }
            if let Some(range) = ranges.iter().find(|range| range.trunc() != **range) {
                return fault(
                    field,
                    format!("{range} has bits set after its prefix"),
                    &format!("use {}", range.trunc()),
                );
            }
            let families = |v4: bool| ranges.iter().filter(|range| matches!(range, IpNet::V4(_)) == v4).count();
            if families(true) > 1 || families(false) > 1 {
                return fault(field, "must not contain two ranges of one family".to_owned(), "keep one per family");
            }
        }
        if let Some(range) = self.vpn_cidrs.iter().find(|range| !Pool::new(**range).has_room()) {
            return fault(
                "vpnCIDRs",
                format!("{range} has no room for workers"),
                "use a range of 32 addresses or more",
            );
        }
        if self.endpoints.is_empty() {
            return fault("endpoints", "must contain an endpoint".to_owned(), "set one per ingress");
        }
        if self.issuer.as_deref().is_some_and(|pem| key_id(pem).is_none()) {
            return fault(
                "issuer",
                "must be one certificate with a subject key identifier".to_owned(),
                "set the certificate of the authority in PEM",
            );
        }
        if self.kubelets.as_ref().is_some_and(|kubelets| release::find(&kubelets.version).is_none()) {
            return fault(
                "kubelets.version",
                "is not a supported Kubernetes release".to_owned(),
                &format!("use one of {}", release::names()),
            );
        }
        if !is_subdomain(&self.dns_domain) {
            return fault(
                "dnsDomain",
                format!("{:?} is not a valid DNS domain", self.dns_domain),
                "use a form such as cluster.local",
            );
        }
        Ok(())
    }
}
