//! The cluster-controller.

use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::net::SocketAddr;

use keelway_api::{
    cluster::{AddonsSpec, KubeProxySpec, VPN_MTU_UNRECORDED},
    component::ComponentSpec,
    image_override::is_of_workers,
    machine::{OnChange, PodFile},
    registry::{RegistryCredentials, docker_config, repository_of},
    release::{Release, find, metrics_server_image},
    role::{API, Role},
    validated::ValidatedHypervisor,
};
use serde_json::{Value, json};

use super::{MissingKey, PodInputs, PodTemplate, STARTUP_SECONDS, at, document, flag, keelway_command, socket};
use crate::{component_set::are_colocated, secret_names};

/// The directory of its socket, in the pod and inside the container.
const SOCKETS: (&str, &str) = ("run", "/run/keelway-cluster-controller");
/// The file with credentials for the images of workers.
const REGISTRIES: &str = "registries.json";

impl PodInputs<'_> {
    pub(super) fn cluster_controller(&self) -> Result<PodTemplate, MissingKey> {
        let mut files = vec![
            self.cluster_controller_file(),
            self.kubeconfig(OnChange::PickedUp)?,
            // It publishes these authorities to workers.
            self.shared("ca.crt", secret_names::KUBERNETES, "bundle.crt", OnChange::PickedUp)?,
        ];
        files.extend(self.certificate("client")?);
        files.extend(self.worker_registries_file());
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
            "version": self.release().to_string(),
            "vpnCIDRs": cluster.vpn,
            "podCIDRs": cluster.pods,
            "serviceCIDRs": cluster.services,
            "dnsDomain": cluster.domain,
            "endpoints": endpoints,
            "authorities": at("ca.crt"),
            "workerTTL": cluster.certificates.worker_ttl,
            "addons": self.addons(),
        });
        if let (true, Some(fields)) = (self.has_streams(), content.as_object_mut()) {
            fields.insert("workerGrace".to_string(), json!(cluster.certificates.worker_grace));
        }
        let names: Vec<&str> = cluster.host.iter().chain(&cluster.extra_names).map(AsRef::as_ref).collect();
        if let (false, Some(fields)) = (names.is_empty(), content.as_object_mut()) {
            fields.insert("apiNames".to_string(), json!(names));
        }
        if let (Some(registry), Some(fields)) = (&cluster.registry, content.as_object_mut()) {
            fields.insert("registry".to_string(), json!(registry));
        }
        // The controller of v0.1.0 refuses the field.
        let has_overrides = self.follows_v0_1_0() && !cluster.image_overrides.is_empty();
        if let (true, Some(fields)) = (has_overrides, content.as_object_mut()) {
            fields.insert("imageOverrides".to_string(), json!(cluster.image_overrides));
        }
        // The controller of v0.1.0 refuses the field.
        if let (true, true, Some(fields)) =
            (self.follows_v0_1_0(), cluster.vpn_mtu != VPN_MTU_UNRECORDED, content.as_object_mut())
        {
            fields.insert("vpnMTU".to_string(), json!(cluster.vpn_mtu));
        }
        if let (Some(_), Some(fields)) = (self.worker_registries_file(), content.as_object_mut()) {
            fields.insert("registries".to_string(), json!(at(REGISTRIES)));
        }
        // The controller of v0.1.0 refuses the field.
        let issuer = self.next_issuer().filter(|_| self.follows_v0_1_0());
        if let (Some(issuer), Some(fields)) = (issuer, content.as_object_mut()) {
            fields.insert("issuer".to_string(), json!(issuer));
        }
        if let (Some(kubelets), Some(fields)) = (self.kubelet_upgrades(), content.as_object_mut()) {
            fields.insert("kubelets".to_string(), kubelets);
        }
        document("cluster-controller.json", &content, OnChange::PickedUp)
    }

    /// The controller of v0.1.0 refuses the addresses of NodePorts.
    fn addons(&self) -> AddonsSpec {
        let mut addons = self.cluster.addons.clone();
        if !self.follows_v0_1_0() {
            addons.kube_proxy.node_port_addresses = KubeProxySpec::default().node_port_addresses;
        }
        addons
    }

    /// How kubelets are upgraded. None: they stay as they are.
    fn kubelet_upgrades(&self) -> Option<Value> {
        let workers = &self.cluster.workers;
        let version = workers.version.as_ref()?;
        let may_run = find(version).is_some_and(|kubelet| self.may_workers_run(kubelet));
        // The controller of v0.1.0 refuses the field.
        (may_run && self.follows_v0_1_0()).then(|| {
            json!({
                "version": version,
                "maxUnavailable": workers.max_unavailable,
                "drainTimeout": workers.drain_timeout,
            })
        })
    }

    /// Whether the whole control plane runs what kubelets of this release follow, and worked with it: the release of the cluster or, if they are of an
    /// earlier minor version, at least that one. The latter upgrades kubelets that are too old for the next minor version.
    fn may_workers_run(&self, kubelet: Release) -> bool {
        let wanted = self.cluster.release;
        let is_followed = |version: &str| {
            find(version).is_some_and(|runs| {
                runs.minor() >= kubelet.minor() && (runs == wanted || kubelet.minor() < wanted.minor())
            })
        };
        let recorded = self.tenant.document.status.as_ref().and_then(|status| status.version.as_deref());
        let mut staying = self.tenant.components.iter().filter(|(_, component)| !component.is_leaving());
        recorded.is_some_and(is_followed) && staying.all(|(_, component)| is_followed(&component.spec.version))
    }

    /// The cluster's own credentials for the images that its workers pull. Those of a class belong to the operator, and users of the cluster, who are
    /// administrators of its workers, have no access to them.
    fn worker_registries_file(&self) -> Option<PodFile> {
        if !self.tenant.has_own_pull_secrets() || !self.follows_v0_1_0() {
            return None;
        }
        let (release, registry) = (self.release(), self.cluster.registry.as_deref());
        let images = [
            release.node_image(registry),
            release.pause_image(registry),
            release.kubernetes_image("kube-proxy", registry),
            release.coredns_image(registry),
            metrics_server_image(registry),
        ];
        // Workers may run other releases than the controller, whose images may be overridden or not.
        let overrides = self.cluster.image_overrides.iter().filter(|image| is_of_workers(image)).cloned();
        let images: Vec<String> = images.into_iter().chain(overrides).collect();
        let credentials = self.registries(&images.iter().map(String::as_str).collect::<Vec<_>>());
        // Only these repositories: pods on a worker can use what its kubelet can pull.
        let by_repository: BTreeMap<String, RegistryCredentials> =
            credentials.into_iter().map(|(image, found)| (repository_of(&image).to_string(), found)).collect();
        let is_empty = by_repository.is_empty();
        (!is_empty).then(|| document(REGISTRIES, &docker_config(&by_repository), OnChange::PickedUp))
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
