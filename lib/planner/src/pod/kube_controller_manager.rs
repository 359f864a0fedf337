//! kube-controller-manager.

use alloc::{
    string::{String, ToString},
    vec,
    vec::Vec,
};

use keelway_api::{
    machine::{ContainerCheck, OnChange},
    role::SECURE,
};

use super::{MissingKey, PodInputs, PodTemplate, STARTUP_SECONDS, at, flag, fleet};
use crate::{probe::controller_liveness, secret_names};

/// All controllers except the one that approves kubelets' certificates by Kubernetes' rules. The cluster-controller approves them by ours.
const CONTROLLERS: &str = "*,token-cleaner-controller,-certificatesigningrequest-approving-controller";

impl PodInputs<'_> {
    pub(super) fn kube_controller_manager(&self) -> Result<PodTemplate, MissingKey> {
        let mut files = self.controller_files()?;
        files.extend([
            self.shared("signer.crt", secret_names::KUBERNETES, "active.crt", OnChange::PickedUp)?,
            self.shared("signer.key", secret_names::KUBERNETES, "active.key", OnChange::PickedUp)?,
            self.shared("service-account.key", secret_names::SERVICE_ACCOUNT, "active.key", OnChange::Restart)?,
        ]);
        let join = |ranges: &[ipnet::IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = vec!["kube-controller-manager".to_string()];
        command.extend(self.controller_flags());
        command.push(flag("cluster-name", &self.cluster.reference.name));
        if !self.cluster.is_fleet {
            command.extend([
                flag("allocate-node-cidrs", true),
                flag("cluster-cidr", join(&self.cluster.pods)),
                flag("service-cluster-ip-range", join(&self.cluster.services)),
            ]);
        }
        command.extend([
            flag("cluster-signing-cert-file", at("signer.crt")),
            flag("cluster-signing-key-file", at("signer.key")),
            flag("cluster-signing-duration", self.cluster.certificates.worker_ttl),
            flag("root-ca-file", at("ca.crt")),
            flag("service-account-private-key-file", at("service-account.key")),
            flag("use-service-account-credentials", true),
            flag("controllers", if self.cluster.is_fleet { fleet::CONTROLLERS } else { CONTROLLERS }),
        ]);
        command.extend(self.extra_flags());
        Ok(PodTemplate {
            files,
            data: vec![],
            servers: None,
            image: self.kubernetes_image(),
            command,
            check: self.controller_check(),
            startup_seconds: Some(STARTUP_SECONDS),
            beside: vec![],
        })
    }

    /// Files of both kube-controller-manager and kube-scheduler.
    pub(super) fn controller_files(&self) -> Result<Vec<keelway_api::machine::PodFile>, MissingKey> {
        let mut files = vec![
            self.kubeconfig(OnChange::Restart)?,
            self.shared("ca.crt", secret_names::KUBERNETES, "bundle.crt", OnChange::Restart)?,
            self.shared("front-proxy-ca.crt", secret_names::FRONT_PROXY, "bundle.crt", OnChange::PickedUp)?,
            // Not for the program, but for the check, which verifies the program's certificate with it.
            self.shared("server-ca.crt", secret_names::INFRASTRUCTURE, "bundle.crt", OnChange::PickedUp)?,
        ];
        files.extend(self.certificate("client")?);
        files.extend(self.certificate("server")?);
        Ok(files)
    }

    /// The liveness check of kube-controller-manager and kube-scheduler.
    pub(super) fn controller_check(&self) -> ContainerCheck {
        let role = self.spec.role;
        self.https(None, SECURE, controller_liveness(role), (role.row().name, "server-ca.crt"), None)
    }

    /// Flags of both. Their health and metrics are on loopback: health is open, and for the rest they authenticate clients at the API server.
    pub(super) fn controller_flags(&self) -> Vec<String> {
        vec![
            flag("kubeconfig", at("kubeconfig.json")),
            flag("authentication-kubeconfig", at("kubeconfig.json")),
            flag("authorization-kubeconfig", at("kubeconfig.json")),
            flag("bind-address", self.probed_address()),
            flag("secure-port", self.spec.port(SECURE)),
            flag("tls-cert-file", at("server.crt")),
            flag("tls-private-key-file", at("server.key")),
            flag("tls-min-version", "VersionTLS12"),
            flag("client-ca-file", at("ca.crt")),
            flag("requestheader-client-ca-file", at("front-proxy-ca.crt")),
            flag("leader-elect", true),
            flag("profiling", false),
        ]
    }
}
