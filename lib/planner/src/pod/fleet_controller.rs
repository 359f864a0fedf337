//! The fleet-controller.

use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::net::SocketAddr;

use keelway_api::{
    machine::{OnChange, PodFile},
    release::fleet_controller_image,
    role::{API, Role},
};
use serde_json::json;

use super::{MissingKey, PodInputs, PodTemplate, STARTUP_SECONDS, at, document, flag, socket};
use crate::secret_names;

/// The directory of its socket, in the pod and inside the container.
const SOCKETS: (&str, &str) = ("run", "/run/keelway-fleet-controller");

impl PodInputs<'_> {
    pub(super) fn fleet_controller(&self) -> Result<PodTemplate, MissingKey> {
        let mut files = vec![
            self.fleet_controller_file(),
            self.kubeconfig(OnChange::PickedUp)?,
            // It publishes these authorities to fleet agents, and tokens contain them.
            self.shared("ca.crt", secret_names::KUBERNETES, "bundle.crt", OnChange::PickedUp)?,
        ];
        files.extend(self.certificate("client")?);
        let command = vec![
            "/keelway-fleet-controller".to_string(),
            "run".to_string(),
            flag("config", at("fleet-controller.json")),
            flag("identity", self.replica_name()),
            flag("health", self.health_address()),
            flag("metrics", socket(SOCKETS, "metrics")),
        ];
        let version = self.tenant.document.keelway_version();
        Ok(PodTemplate {
            files,
            data: vec![SOCKETS],
            servers: None,
            image: fleet_controller_image(self.cluster.registry.as_deref(), version),
            command,
            check: self.health_check(),
            startup_seconds: Some(STARTUP_SECONDS),
            beside: vec![],
        })
    }

    /// Like all its files it is read again when it changes, so ingresses change without a restart.
    fn fleet_controller_file(&self) -> PodFile {
        let mut content = json!({
            "kubeconfig": at("kubeconfig.json"),
            "endpoints": self.public_endpoints(),
            "authorities": at("ca.crt"),
        });
        if let (Some(issuer), Some(fields)) = (self.next_issuer(), content.as_object_mut()) {
            fields.insert("issuer".to_string(), json!(issuer));
        }
        document("fleet-controller.json", &content, OnChange::PickedUp)
    }

    /// The endpoints at which fleet agents reach the API, `HOST:PORT` each: the user's name for all ingresses, or else the address of each.
    fn public_endpoints(&self) -> Vec<String> {
        if let Some(hosting) = self.world.hosting() {
            return vec![hosting.endpoint.clone()];
        }
        let host = self.cluster.host.as_deref();
        let of_ingress = |port: u16, public: &[core::net::IpAddr]| match host {
            Some(host) => vec![format!("{host}:{port}")],
            None => public.iter().map(|address| SocketAddr::new(*address, port).to_string()).collect(),
        };
        let ingresses = self.siblings(Role::Ingress);
        let mut endpoints: Vec<String> =
            ingresses.flat_map(|(_, spec, machine)| of_ingress(spec.port(API), &machine.public)).collect();
        // All ingresses have the same port, and so the same endpoint if they have one name.
        endpoints.dedup();
        endpoints
    }
}
