//! The controller's configuration: one file, which may change while the controller runs.

use std::path::PathBuf;

use keelway_component::{
    configuration::{FieldFault, ValidateConfiguration},
    leader::LeaseName,
};
use keelway_fleet::names::CONTROLLER_FIELD_MANAGER;
use keelway_pki::CertificateFacts;
use serde::{Deserialize, Serialize};

/// The configuration that `keelway-fleet-controller run --config` reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FleetControllerConfiguration {
    /// The kubeconfig for the fleet.
    pub kubeconfig: PathBuf,
    /// The endpoints at which agents reach the fleet, `HOST:PORT` each.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// The file with the certificates of the fleet's authorities, PEM.
    #[serde(default)]
    pub authorities: Option<PathBuf>,
    /// The authority that signs certificates of agents, PEM, while certificates of the previous one are replaced. Agents request new ones.
    #[serde(default)]
    pub issuer: Option<String>,
    /// The Lease of the active replica.
    #[serde(default = "own_lease")]
    pub lease: LeaseName,
}

fn own_lease() -> LeaseName {
    LeaseName { namespace: "kube-system".to_owned(), name: CONTROLLER_FIELD_MANAGER.to_owned() }
}

impl FleetControllerConfiguration {
    /// Returns the subject key identifier of the issuer in hexadecimal digits.
    pub(crate) fn issuer_key(&self) -> Option<String> {
        CertificateFacts::from_pem(self.issuer.as_deref()?).ok()?.key_digits()
    }
}

impl ValidateConfiguration for FleetControllerConfiguration {
    fn check(&self) -> Result<(), FieldFault> {
        if self.issuer.is_some() && self.issuer_key().is_none() {
            let problem = "must be one certificate with a subject key identifier";
            return Err(FieldFault::new("issuer", problem, "set the certificate of the authority in PEM"));
        }
        let is_endpoint = |text: &str| {
            let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
            matches!(port, Some(Ok(port)) if port > 0)
        };
        match self.endpoints.iter().position(|endpoint| !is_endpoint(endpoint)) {
            None => Ok(()),
            Some(at) => {
                let problem = format!("{:?} is not an endpoint", self.endpoints[at]);
                Err(FieldFault::new(format!("endpoints[{at}]"), problem, "use a form such as api.example.com:443"))
            }
        }
    }
}
