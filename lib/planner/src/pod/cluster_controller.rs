//! The cluster-controller.

use alloc::{string::ToString, vec, vec::Vec};
use core::net::SocketAddr;

use keelway_api::{
    cluster::VPN_MTU_UNRECORDED,
    component::ComponentSpec,
    machine::{OnChange, PodFile},
    role::{API, Role},
    validated::ValidatedHypervisor,
};
use serde_json::{Value, json};

use super::{MissingKey, PodInputs, PodTemplate, STARTUP_SECONDS, at, document, flag, keelway_command, socket};
use crate::{component_set::are_colocated, secret_names};

/// The directory of its socket, in the pod and inside the container.
const SOCKETS: (&str, &str) = ("run", "/run/keelway-cluster-controller");

impl PodInputs<'_> {
    pub(super) fn cluster_controller(&self) -> Result<PodTemplate, MissingKey> {
        let mut files = vec![
            self.cluster_controller_file(),
            self.kubeconfig(OnChange::PickedUp)?,
            // It publishes these authorities to workers.
            self.shared("ca.crt", secret_names::KUBERNETES, "bundle.crt", OnChange::PickedUp)?,
        ];
        files.extend(self.certificate("client")?);
        let mut command = keelway_command("run", "cluster-controller.json");
        command.extend([
            flag("identity", &self.pod.component),
            flag("health", self.health_address()),
            flag("metrics", socket(SOCKETS, "metrics")),
        ]);
        Ok(PodTemplate {
            files,
            data: vec![SOCKETS],
            servers: None,
            image: self.own_image(),
            command,
            check: self.health_check(),
            startup_seconds: Some(STARTUP_SECONDS),
            beside: vec![],
        })
    }

    /// Like all its files it is read again when it changes, so add-ons and ingresses change without a restart.
    fn cluster_controller_file(&self) -> PodFile {
        let ingresses = self.siblings(Role::Ingress);
        let endpoints: Vec<Value> = ingresses.flat_map(|(_, spec, machine)| self.endpoints_of(spec, machine)).collect();
        let cluster = self.cluster;
        let mut content = json!({
            "kubeconfig": at("kubeconfig.json"),
            "version": self.release().kubernetes,
            "vpnCIDRs": cluster.vpn,
            "podCIDRs": cluster.pods,
            "serviceCIDRs": cluster.services,
            "dnsDomain": cluster.domain,
            "endpoints": endpoints,
            "authorities": at("ca.crt"),
            "workerTTL": cluster.certificates.worker_ttl,
            "addons": cluster.addons,
        });
        let names: Vec<&str> = cluster.host.iter().chain(&cluster.extra_names).map(AsRef::as_ref).collect();
        if let (false, Some(fields)) = (names.is_empty(), content.as_object_mut()) {
            fields.insert("apiNames".to_string(), json!(names));
        }
        if let (Some(registry), Some(fields)) = (&cluster.registry, content.as_object_mut()) {
            fields.insert("registry".to_string(), json!(registry));
        }
        // The controller of v0.1.0 refuses the field.
        if let (true, true, Some(fields)) =
            (self.is_recorded_release(), cluster.vpn_mtu != VPN_MTU_UNRECORDED, content.as_object_mut())
        {
            fields.insert("vpnMTU".to_string(), json!(cluster.vpn_mtu));
        }
        document("cluster-controller.json", &content, OnChange::PickedUp)
    }

    /// The endpoints at which workers reach an ingress, with the gateway beside it.
    fn endpoints_of(&self, ingress: &ComponentSpec, machine: &ValidatedHypervisor) -> Vec<Value> {
        let mut gateways = self.siblings(Role::Gateway);
        let gateway = gateways.find(|(_, gateway, _)| are_colocated(gateway, ingress));
        let gateway = gateway.and_then(|(name, spec, _)| {
            Some(json!({ "publicKey": self.public_key_of(name)?, "addresses": self.vpn_addresses(spec.index) }))
        });
        let endpoint = |address| {
            let mut endpoint = json!({ "address": SocketAddr::new(address, ingress.port(API)) });
            if let (Some(gateway), Some(fields)) = (&gateway, endpoint.as_object_mut()) {
                fields.insert("gateway".to_string(), gateway.clone());
            }
            endpoint
        };
        machine.public.iter().copied().map(endpoint).collect()
    }
}
