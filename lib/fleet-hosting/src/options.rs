//! What a person decides about a control plane in a Kubernetes cluster.

use std::{fmt, net::IpAddr, str::FromStr};

use keelway_api::name::is_subdomain;
use keelway_planner::HostingNamespace;

/// The port of HTTPS: firewalls of workload clusters allow it.
const HTTPS: u16 = 443;

/// What a person decides about a control plane in a Kubernetes cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostingOptions {
    /// The namespace.
    pub namespace: String,
    /// Where people and fleet agents reach the API.
    pub endpoint: ApiEndpoint,
    /// The number of etcd members, of API servers and of controller managers.
    pub replicas: u32,
    /// The type of the Service of the API servers.
    pub service_type: ServiceType,
    /// The Kubernetes release. None: the newest, or the one that the fleet runs.
    pub version: Option<String>,
    /// The registry of all images. None: their public registries.
    pub registry: Option<String>,
    /// The StorageClass of the etcd members. None: the default one of the cluster.
    pub storage_class: Option<String>,
    /// The size of the volume of an etcd member, as a quantity.
    pub storage_size: String,
}

/// The type of the Service of the API servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceType {
    /// The cluster provides an address or a host name.
    LoadBalancer,
    /// A port of every node.
    NodePort,
    /// An address inside the cluster, for a proxy that the user operates.
    ClusterIp,
}

/// The Service of the API servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiService {
    /// Its type.
    pub service_type: ServiceType,
    /// The port of the endpoint. None: it is not known yet.
    pub endpoint_port: Option<u16>,
}

/// `HOST:PORT`. The host is a DNS name or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiEndpoint {
    host: EndpointHost,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum EndpointHost {
    Name(String),
    Address(IpAddr),
}

/// A text is not an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an endpoint: write a DNS name or an address, such as fleet.example.com, 192.0.2.10:6443 or [2001:db8::10]:443"
)]
pub struct ApiEndpointError(String);

impl ServiceType {
    /// The type, as Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LoadBalancer => "LoadBalancer",
            Self::NodePort => "NodePort",
            Self::ClusterIp => "ClusterIP",
        }
    }
}

impl ApiEndpoint {
    /// The DNS name. None: the host is an address.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.host {
            EndpointHost::Name(name) => Some(name),
            EndpointHost::Address(_) => None,
        }
    }

    /// The address. None: the host is a name.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match &self.host {
            EndpointHost::Name(_) => None,
            EndpointHost::Address(address) => Some(*address),
        }
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for ApiEndpoint {
    type Err = ApiEndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ApiEndpointError(text.to_owned());
        let (host, port) = match text.rsplit_once(':') {
            // Colons without brackets are those of an IPv6 address.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?)
            }
            _ => (text, HTTPS),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let last_is_number =
            || host.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        let host = match bare.parse::<IpAddr>() {
            Ok(address) => EndpointHost::Address(address),
            Err(_) if is_subdomain(host) && !last_is_number() => EndpointHost::Name(host.to_owned()),
            Err(_) => return Err(wrong()),
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for ApiEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            EndpointHost::Name(name) => write!(f, "{name}:{}", self.port),
            EndpointHost::Address(IpAddr::V4(address)) => write!(f, "{address}:{}", self.port),
            EndpointHost::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
        }
    }
}

impl ApiService {
    /// The port of the Service. A load balancer has the port of the endpoint. The port of a node is another one than that of its Service.
    pub(crate) fn port(self) -> u16 {
        match self.service_type {
            ServiceType::LoadBalancer => self.endpoint_port.unwrap_or(HTTPS),
            ServiceType::NodePort | ServiceType::ClusterIp => HTTPS,
        }
    }

    /// The port of every node. None: the cluster chooses one, or the Service has none.
    pub(crate) fn node_port(self) -> Option<u16> {
        self.endpoint_port.filter(|_| self.service_type == ServiceType::NodePort)
    }
}

impl HostingOptions {
    /// The Service of the API servers.
    pub(crate) fn api_service(&self) -> ApiService {
        ApiService { service_type: self.service_type, endpoint_port: Some(self.endpoint.port()) }
    }

    /// Where the control plane runs, as the planner needs to know it.
    #[must_use]
    pub fn hosting(&self) -> HostingNamespace {
        HostingNamespace {
            name: self.namespace.clone(),
            endpoint: self.endpoint.to_string(),
            port: self.api_service().port(),
            members: self.replicas,
        }
    }
}
