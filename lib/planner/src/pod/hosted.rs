//! Where components listen and how they reach each other: at addresses of machines, or, in a Kubernetes cluster, in pods with addresses of their own,
//! through Services.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use keelway_api::{
    component::ComponentSpec,
    machine::ContainerCheck,
    role::{CLIENT, Role},
};

use super::{PodInputs, flag};
use crate::{
    hosting::{POD_IP, POD_NAME, STORE_METRICS},
    text::url,
};

/// All addresses of a pod. Programs in Go listen on IPv6 as well.
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl PodInputs<'_> {
    /// The name of a replica, unique in its role.
    pub(super) fn replica_name(&self) -> String {
        self.world.hosting().map_or_else(|| self.pod.component.to_string(), |_| POD_NAME.to_string())
    }

    /// The address at which a component responds to probes. On a machine, the prober is the agent of this machine.
    pub(super) fn probed_address(&self) -> IpAddr {
        self.world.hosting().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |_| ANY)
    }

    /// The address on which an API server listens.
    pub(super) fn bound_address(&self) -> String {
        self.world.hosting().map_or_else(|| self.address(), |_| ANY.to_string())
    }

    /// The address that an API server advertises.
    pub(super) fn advertised_address(&self) -> String {
        self.world.hosting().map_or_else(|| self.address(), |_| POD_IP.to_string())
    }

    /// The URLs of the etcd members for API servers.
    pub(super) fn stores(&self) -> Vec<String> {
        let stores = self.siblings(Role::Etcd);
        let Some(hosting) = self.world.hosting() else {
            return stores
                .filter(|(pod, ..)| self.is_voter(&pod.component))
                .filter_map(|(_, spec, machine)| Some(url(machine.private.first()?, spec.port(CLIENT))))
                .collect();
        };
        let of_all = |(_, spec, _): (_, &ComponentSpec, _)| {
            let port = spec.port(CLIENT);
            hosting.members().map(move |(_, host)| format!("https://{host}:{port}"))
        };
        stores.flat_map(of_all).collect()
    }

    /// Where an etcd member listens.
    pub(super) fn listen_url(&self, port: &str) -> String {
        self.world.hosting().map_or_else(|| self.url(port), |_| url(&ANY, self.spec.port(port)))
    }

    /// Where others reach an etcd member.
    pub(super) fn member_url(&self, port: &str) -> String {
        let hosted = |host: String| format!("https://{host}:{}", self.spec.port(port));
        self.world.hosting().map_or_else(|| self.url(port), |hosting| hosted(hosting.member_host(POD_NAME)))
    }

    /// In a Kubernetes cluster, etcd reports health and metrics on a port of their own: a kubelet has no client certificate to present. No data is served
    /// there.
    pub(super) fn store_metrics_flag(&self) -> Option<String> {
        let address = self.store_metrics_address()?;
        Some(flag("listen-metrics-urls", format!("http://{address}")))
    }

    /// The liveness check of etcd at that port. None: etcd has no such port.
    pub(super) fn store_metrics_check(&self) -> Option<ContainerCheck> {
        let address = self.store_metrics_address()?;
        Some(ContainerCheck::Http { address, path: "/livez".to_string() })
    }

    fn store_metrics_address(&self) -> Option<SocketAddr> {
        self.world.hosting().map(|_| SocketAddr::new(ANY, self.spec.port(STORE_METRICS)))
    }
}
