//! kube-apiserver.

use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{
    change::ClusterBirth,
    machine::{OnChange, PodFile, sha256_hex},
    name::ComponentName,
    role::SECURE,
    rotation::{RotatedKey, RotationPhase},
};
use serde_json::json;

use super::egress::{SELECTION, SOCKETS};
use super::{MissingKey, PodInputs, PodTemplate, STARTUP_SECONDS, at, document, flag, fleet, text};
use crate::{
    rebuild::rebuild_of,
    secret_names::{self, API_SERVER_NAME},
};

/// How long an API server that is stopping continues to serve while its `/readyz` already fails. An ingress checks each second, and sends
/// no more connections after the first such response, which takes a moment. This is more than twice as long.
const DRAIN: &str = "4s";

/// etcd is left out, because a restart of API servers does not bring a store back.
const LIVENESS: &str = "/livez?exclude=etcd";
/// The share of HTTP/2 requests after which a client is asked to reconnect, so that connections spread to new API servers and leave an ingress
/// that is stopping. It does not depend on the number of API servers, so a change of that number restarts none.
const GOAWAY_CHANCE: &str = "0.001";

impl PodInputs<'_> {
    pub(super) fn kube_apiserver(&self) -> Result<PodTemplate, MissingKey> {
        // Before the creation of the store some members may have no machine, and therefore no address.
        self.first_members()?;
        // Aggregated API servers learn of this authority from the ConfigMap `extension-apiserver-authentication`, which API servers write when they
        // have read the file.
        let on_other_front_proxy = self.on_rotation_of(RotatedKey::FrontProxyAuthority);
        // API servers verify kubelets with what they read when they started.
        let on_other_kubernetes = self.on_rotation_of(RotatedKey::KubernetesAuthority);
        let mut files = vec![
            self.shared("etcd-ca.crt", secret_names::ETCD, "bundle.crt", OnChange::Restart)?,
            self.shared("ca.crt", secret_names::KUBERNETES, "bundle.crt", on_other_kubernetes)?,
            self.shared("front-proxy-ca.crt", secret_names::FRONT_PROXY, "bundle.crt", on_other_front_proxy)?,
            self.shared("service-account.pub", secret_names::SERVICE_ACCOUNT, "bundle.pub", OnChange::Restart)?,
            self.shared("service-account.key", secret_names::SERVICE_ACCOUNT, "active.key", OnChange::Restart)?,
            self.encryption()?,
            authentication(),
        ];
        files.extend(self.serving_certificate()?);
        // The order of files is part of the pod's digest.
        for name in ["etcd-client", "kubelet-client", "front-proxy-client"] {
            if name != "kubelet-client" || !self.cluster.is_fleet {
                files.extend(self.certificate(name)?);
            }
        }
        if self.cluster.is_fleet {
            files.push(fleet::no_egress());
        }
        let has_egress = self.has_egress();
        if has_egress {
            files.extend(self.egress_files()?);
        }
        Ok(PodTemplate {
            files,
            data: if has_egress { vec![SOCKETS] } else { vec![] },
            servers: None,
            image: self.kubernetes_image(),
            command: self.command(),
            check: self.https(self.machine.private.first(), SECURE, LIVENESS, (API_SERVER_NAME, "ca.crt"), None),
            startup_seconds: Some(STARTUP_SECONDS),
            beside: if has_egress { vec![self.egress()] } else { vec![] },
        })
    }

    fn command(&self) -> Vec<String> {
        let mut command = vec![
            "kube-apiserver".to_string(),
            flag("advertise-address", self.advertised_address()),
            flag("bind-address", self.bound_address()),
            flag("secure-port", self.spec.port(SECURE)),
            flag("etcd-servers", self.stores().join(",")),
            flag("etcd-cafile", at("etcd-ca.crt")),
            flag("etcd-certfile", at("etcd-client.crt")),
            flag("etcd-keyfile", at("etcd-client.key")),
            flag("encryption-provider-config", at("encryption.json")),
            flag("encryption-provider-config-automatic-reload", true),
        ];
        command.extend(serving_flags());
        command.extend(self.identity_flags());
        command.extend(self.network_flags());
        command.extend(self.extra_flags());
        command
    }

    /// Whether an etcd member is not merely being added. A learner serves no requests. While a store is rebuilt, one member counts.
    pub(super) fn is_voter(&self, member: &ComponentName) -> bool {
        if let Some(rebuild) = rebuild_of(self.tenant.document) {
            return rebuild.member == *member;
        }
        let store = self.tenant.document.status.as_ref().and_then(|status| status.etcd.as_ref());
        store.is_none_or(|store| {
            let is_member = store.members.contains_key(member) || store.initial_cluster.contains_key(member);
            is_member && !store.change.as_ref().is_some_and(|change| change.adds(member))
        })
    }

    fn identity_flags(&self) -> Vec<String> {
        let issuer = self.issuer();
        let authorization = if self.cluster.is_fleet { "RBAC" } else { "Node,RBAC" };
        let admission = if self.cluster.is_fleet {
            flag("disable-admission-plugins", fleet::DISABLED_ADMISSION)
        } else {
            flag("enable-admission-plugins", "NodeRestriction")
        };
        vec![
            flag("client-ca-file", at("ca.crt")),
            flag("authentication-config", at("authentication.json")),
            flag("authorization-mode", authorization),
            flag("enable-bootstrap-token-auth", true),
            admission,
            flag("allow-privileged", true),
            flag("requestheader-client-ca-file", at("front-proxy-ca.crt")),
            flag("requestheader-allowed-names", "front-proxy-client"),
            flag("requestheader-username-headers", "X-Remote-User"),
            flag("requestheader-group-headers", "X-Remote-Group"),
            flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
            flag("proxy-client-cert-file", at("front-proxy-client.crt")),
            flag("proxy-client-key-file", at("front-proxy-client.key")),
            flag("service-account-issuer", &issuer),
            // Otherwise the discovery document names the private address of an API server.
            flag("service-account-jwks-uri", format!("{issuer}/openid/v1/jwks")),
            flag("service-account-key-file", at("service-account.pub")),
            flag("service-account-signing-key-file", at("service-account.key")),
        ]
    }

    /// The issuer with which the cluster was created, because API servers do not accept tokens of another issuer.
    fn issuer(&self) -> String {
        let document = self.tenant.document;
        let birth = document.birth().cloned().unwrap_or_else(|| ClusterBirth::of(&document.spec));
        birth.service_account_issuer
    }

    fn network_flags(&self) -> Vec<String> {
        let services: Vec<String> = self.cluster.services.iter().map(ToString::to_string).collect();
        let mut flags = vec![
            flag("service-cluster-ip-range", services.join(",")),
            // The API server must not write the `kubernetes` EndpointSlice: it would publish private machines to workers.
            flag("endpoint-reconciler-type", "none"),
        ];
        if self.cluster.is_fleet {
            flags.push(flag("egress-selector-config-file", at(fleet::NO_EGRESS)));
            return flags;
        }
        flags.extend([
            flag("enable-aggregator-routing", true),
            flag("kubelet-certificate-authority", at("ca.crt")),
            flag("kubelet-client-certificate", at("kubelet-client.crt")),
            flag("kubelet-client-key", at("kubelet-client.key")),
            flag("kubelet-preferred-address-types", "InternalIP"),
        ]);
        if self.has_egress() {
            flags.push(flag("egress-selector-config-file", at(SELECTION)));
        }
        flags
    }

    /// The authorities are appended to the certificate: a worker that joins knows them by their hashes, and looks for a match before it sends
    /// anything.
    fn serving_certificate(&self) -> Result<[PodFile; 2], MissingKey> {
        let [mut certificate, key] = self.certificate("server")?;
        certificate.content.extend(self.value(secret_names::KUBERNETES, "bundle.crt")?);
        Ok([certificate, key])
    }

    /// Secrets are encrypted from the first one on, so API servers never need to read an unencrypted one.
    fn encryption(&self) -> Result<PodFile, MissingKey> {
        let keys = ["active.key", "next.key", "previous.key"]
            .into_iter()
            .filter_map(|key| self.value(secret_names::ENCRYPTION, key).ok())
            .map(|key| json!({ "name": key_name(&key), "secret": STANDARD.encode(&key) }))
            .collect::<Vec<_>>();
        if keys.is_empty() {
            return Err(MissingKey::of_secret(secret_names::ENCRYPTION, "active.key"));
        }
        let content = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "EncryptionConfiguration",
            "resources": [{ "resources": ["secrets"], "providers": [{ "secretbox": { "keys": keys } }] }],
        });
        Ok(document("encryption.json", &content, self.on_rotation_of(RotatedKey::Encryption)))
    }

    /// API servers read such a file again without a restart, but nothing reports which keys they have read. While a rotation needs to know, they are
    /// replaced, so that the digest of a pod shows its keys.
    fn on_rotation_of(&self, key: RotatedKey) -> OnChange {
        let rotation = self.tenant.document.running_rotation(key);
        let is_kept = || self.value(secret_names::secret_of(key), "previous.crt").is_ok();
        if rotation.is_some_and(|rotation| rotation.phase < RotationPhase::Retiring || is_kept()) {
            OnChange::Restart
        } else {
            OnChange::PickedUp
        }
    }
}

fn serving_flags() -> Vec<String> {
    vec![
        flag("tls-cert-file", at("server.crt")),
        flag("tls-private-key-file", at("server.key")),
        flag("tls-min-version", "VersionTLS12"),
        flag("profiling", false),
        flag("shutdown-delay-duration", DRAIN),
        flag("shutdown-send-retry-after", true),
        flag("goaway-chance", GOAWAY_CHANCE),
    ]
}

/// etcd stores the name beside every object that the key encrypted, so the name stays with the key through every rotation.
pub(crate) fn key_name(key: &[u8]) -> String {
    sha256_hex(key).chars().take(16).collect()
}

/// Anonymous clients may request health paths and nothing else (structured authentication, KEP-3331).
fn authentication() -> PodFile {
    text("authentication.json", include_str!("authentication.json"), OnChange::PickedUp)
}
