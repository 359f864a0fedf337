//! Issues certificates to agents on a network, for keys that the agents made, and sends them the authorities to trust.

use futures::future::join_all;
use keelway_agent_api::enrollment::{DriverTrust, GrantedIdentity};
use keelway_api::{
    Documents, Hypervisor,
    documents::SecretName,
    jiff::Timestamp,
    name::{HypervisorName, InstallationId},
};
use keelway_base::error_chain::chain_text;
use keelway_pki::EnrollmentToken;
use keelway_planner::{
    AgentOrder, ENROLLMENT_TOKEN, Plan, REVOCATION_LIST, agent_grant, enrollment_secret, installation_authority,
    installation_revoked,
};

use crate::{PassContext, PassFailure, mint, tls};

/// An order for one agent, with the documents that its certificate and trust are made from.
pub struct AgentCertification<'a> {
    documents: &'a Documents,
    machine: &'a HypervisorName,
    order: &'a AgentOrder,
    replaces: Option<&'a InstallationId>,
    now: Timestamp,
}

impl<'a> AgentCertification<'a> {
    pub(crate) fn new(
        documents: &'a Documents,
        (machine, order): (&'a HypervisorName, &'a AgentOrder),
        now: Timestamp,
    ) -> Self {
        Self { documents, machine, order, replaces: None, now }
    }

    /// Permits the order to replace the agent of this installation.
    pub(crate) fn replacing(self, installation: &'a InstallationId) -> Self {
        Self { replaces: Some(installation), ..self }
    }

    /// Returns the installation whose agent the order may replace.
    #[must_use]
    pub fn replaces(&self) -> Option<&InstallationId> {
        self.replaces
    }

    /// Returns the machine of the agent.
    #[must_use]
    pub fn machine(&self) -> &HypervisorName {
        self.machine
    }

    /// Returns the decision of the planner for this agent.
    #[must_use]
    pub fn order(&self) -> &AgentOrder {
        self.order
    }

    /// Returns the token with which the agent enrolls.
    pub fn token(&self) -> Result<EnrollmentToken, String> {
        let id = self.documents.installation().ok_or("the documents do not record an installation")?;
        let text = self.text(&enrollment_secret(id, self.machine), ENROLLMENT_TOKEN)?;
        text.parse().map_err(|error| chain_text(&error))
    }

    /// Returns the authorities and the revocation list by which the agent recognizes its driver.
    pub fn trust(&self) -> Result<DriverTrust, String> {
        let id = self.documents.installation().ok_or("the documents do not record an installation")?;
        let authorities = self.text(&installation_authority(id), "bundle.crt")?;
        Ok(DriverTrust { authorities, revoked: self.text(&installation_revoked(id), REVOCATION_LIST)? })
    }

    /// Signs the certificate for the key of a signing request. Returns it with the authorities that the agent is to trust.
    pub fn grant(&self, signing_request: &str) -> Result<GrantedIdentity, String> {
        let (AgentOrder::Enroll(serial) | AgentOrder::Renew(serial) | AgentOrder::Start(serial)) = self.order else {
            return Err("no certificate is planned for this agent".to_owned());
        };
        let id = self.documents.installation().ok_or("the documents do not record an installation")?;
        let (subject, authority, ttl) = agent_grant(id, self.machine);
        let certified = mint::certify(self.documents, (&authority, &subject, ttl), signing_request, serial, self.now);
        Ok(GrantedIdentity { certificate: certified.map_err(|error| chain_text(&error))?, trust: self.trust()? })
    }

    fn text(&self, secret: &SecretName, key: &str) -> Result<String, String> {
        let value = tls::value(self.documents, secret, key).map_err(|error| chain_text(&error))?;
        String::from_utf8(value.to_vec()).map_err(|_| format!("{key} of Secret {} is not text", secret.name))
    }
}

/// Executes the orders for all agents concurrently.
pub(crate) async fn certify(context: &PassContext, plan: &Plan) -> Vec<(usize, Vec<PassFailure>)> {
    let documents = &plan.documents;
    let agents = plan.agents.iter();
    let found = agents.filter_map(|(name, order)| Some((name, documents.hypervisors.get(name)?, order)));
    join_all(found.map(|(name, document, order)| one(context, documents, (name, document), order))).await
}

async fn one(
    context: &PassContext,
    documents: &Documents,
    (machine, document): (&HypervisorName, &Hypervisor),
    order: &AgentOrder,
) -> (usize, Vec<PassFailure>) {
    if context.run.stop.is_cancelled() {
        return (0, Vec::new());
    }
    let certifying = AgentCertification::new(documents, (machine, order), (context.clock)());
    let applying = context.machines.certify(document, &certifying, &context.run).await;
    let fail = |why| PassFailure { subject: machine.to_string(), reason: why };
    (applying.effects, applying.failures.into_iter().map(fail).collect())
}
