//! The egress beside an API server, which makes the API server's connections to workers, webhooks and issuers.

use alloc::{string::ToString, vec, vec::Vec};

use keelway_api::{
    machine::{Container, OnChange, PodFile},
    role::{EGRESS, EGRESS_RESOURCES, EGRESS_STOP_SECONDS, Role},
};
use serde_json::{Value, json};

use super::{MissingKey, PodInputs, STARTUP_SECONDS, at, document, keelway_command, socket};
use crate::secret_names::{self, GATEWAY_NAME};

/// The directory of the sockets, in the pod and inside both containers.
pub(super) const SOCKETS: (&str, &str) = ("egress", "/run/keelway-egress");
/// The file that configures the API server to use the sockets.
pub(super) const SELECTION: &str = "egress-selection.json";

impl PodInputs<'_> {
    /// Whether the API server has an egress. A component of an earlier release runs without one until it has the port.
    pub(super) fn has_egress(&self) -> bool {
        self.cluster.vpn_enabled && self.spec.ports.contains_key(EGRESS)
    }

    /// The files of the egress and of its API server.
    pub(super) fn egress_files(&self) -> Result<Vec<PodFile>, MissingKey> {
        let mut files = vec![
            self.egress_file(),
            selection(),
            self.shared("infrastructure-ca.crt", secret_names::INFRASTRUCTURE, "bundle.crt", OnChange::PickedUp)?,
        ];
        files.extend(self.certificate("egress")?);
        Ok(files)
    }

    /// The container. It starts before the API server and stops after it.
    pub(super) fn egress(&self) -> Container {
        let check = self.loopback_check(EGRESS);
        Container {
            name: EGRESS.to_string(),
            image: self.own_image(),
            command: keelway_command("egress", "egress.json"),
            mounts: super::mounts(&[SOCKETS]),
            resources: EGRESS_RESOURCES,
            stop_seconds: EGRESS_STOP_SECONDS,
            liveness: Some(super::liveness(check, Some(STARTUP_SECONDS))),
        }
    }

    /// A running egress reads gateways and forbidden ranges again, which change. Everything else follows from the component.
    fn egress_file(&self) -> PodFile {
        let gateways = self.siblings(Role::Gateway).filter_map(|(name, spec, machine)| {
            Some(json!({ "name": name.component, "address": Self::connect_address(spec, machine)? }))
        });
        let gateways: Vec<Value> = gateways.collect();
        let content = json!({
            "cluster": {
                "socket": socket(SOCKETS, "cluster"),
                "gateways": gateways,
                "serverName": GATEWAY_NAME,
                "tls": {
                    "certificateFile": at("egress.crt"),
                    "keyFile": at("egress.key"),
                    "authorityFile": at("infrastructure-ca.crt"),
                },
            },
            "controlPlane": {
                "socket": socket(SOCKETS, "controlplane"),
                "forbiddenCIDRs": self.world.ranges_of_machines(),
            },
            "health": self.loopback(EGRESS),
            "metrics": socket(SOCKETS, "metrics"),
        });
        document("egress.json", &content, OnChange::PickedUp)
    }
}

/// An `EgressSelectorConfiguration`.
fn selection() -> PodFile {
    let way = |name: &str| {
        let transport = json!({ "uds": { "udsName": socket(SOCKETS, name) } });
        json!({ "name": name, "connection": { "proxyProtocol": "HTTPConnect", "transport": transport } })
    };
    let content = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [way("cluster"), way("controlplane")],
    });
    document(SELECTION, &content, OnChange::Restart)
}
