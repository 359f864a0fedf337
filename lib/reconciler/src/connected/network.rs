//! Routes to machines on a network, and the credentials for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use keelway_agent_api::client::{DialTarget, HypervisorAgentClient};
use keelway_api::{
    Documents, Hypervisor,
    documents::SecretName,
    hypervisor::{AgentNetworkAddress, MachineTransport, SecretReference},
    name::{HypervisorName, InstallationId},
};
use keelway_base::error_chain::chain_text;
use keelway_cri::{CriRuntime, Deadlines};
use keelway_planner::{installation_authority, installation_driver};
use keelway_tls::component::client_from_pem;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tonic::transport::Channel;

use crate::tls::{ClientTlsError, TlsClients};

/// Why a machine's agent or proxy cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum AgentRouteError {
    /// The documents contain no client certificate of the driver yet, and agents accept only known clients.
    #[error("the driver has no client certificate for its agent yet: the next `keelway reconcile` issues it")]
    Nobody,
    /// The driver's certificate, or the authority, cannot be used.
    #[error("the certificate of the driver cannot be used")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The Secret with the credentials for the machine's proxy cannot be used.
    #[error("Secret {secret} cannot be used")]
    Secret {
        /// Namespace and name.
        secret: String,
        /// The cause. It contains no value of the Secret.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The document of the machine has no usable network address.
    #[error("its document has no address of its agent")]
    Nowhere,
    /// The document names an agent to connect through that has no address of its own.
    #[error("it is reached through {0}, whose document has no address of its agent")]
    Via(String),
}

/// Returns the route to a machine's agent, with the credentials of the documents' driver. Does not connect.
pub fn agent_way(documents: &Documents, machine: &Hypervisor) -> Result<DialTarget, AgentRouteError> {
    way(machine, &DirectAgents::of(documents), &driver(&TlsClients::default(), documents)?)
}

/// Returns a channel to a machine's agent, for calls only. Does not connect.
pub fn agent_channel(documents: &Documents, machine: &Hypervisor) -> Result<Channel, AgentRouteError> {
    Ok(agent_way(documents, machine)?.channel())
}

/// Agents that can forward connections to others, each with its socket or network address.
#[derive(Debug, Default, PartialEq, Eq)]
struct DirectAgents(BTreeMap<HypervisorName, DirectEndpoint>);

#[derive(Debug, PartialEq, Eq)]
enum DirectEndpoint {
    Socket(String),
    Address(String),
}

impl DirectAgents {
    fn of(documents: &Documents) -> Self {
        let place = |machine: &Hypervisor| match machine.spec.endpoint.way() {
            MachineTransport::Agent(socket) => Some(DirectEndpoint::Socket(socket.to_owned())),
            MachineTransport::Network(AgentNetworkAddress { address: Some(address), via: None }) => {
                Some(DirectEndpoint::Address(address.to_owned()))
            }
            MachineTransport::Cri(_) => machine.started_agent().map(|(address, _)| DirectEndpoint::Address(address)),
            MachineTransport::Runtime(_) | MachineTransport::Network(_) => None,
        };
        let machines = documents.hypervisors.iter();
        Self(machines.filter_map(|(name, machine)| Some((name.clone(), place(machine)?))).collect())
    }

    /// Returns the agents that have another address than before, or none.
    fn moved_since(&self, before: &Self) -> BTreeSet<HypervisorName> {
        before.0.iter().filter(|(name, place)| self.0.get(*name) != Some(place)).map(|(name, _)| name.clone()).collect()
    }
}

/// Returns the TLS client with which the driver of the documents authenticates to agents.
fn driver(clients: &TlsClients, documents: &Documents) -> Result<Arc<ClientConfig>, AgentRouteError> {
    let id = documents.installation().ok_or(AgentRouteError::Nobody)?;
    let found = clients.client(documents, &installation_authority(id), Some(&installation_driver(id)));
    found.map_err(|error| match error {
        ClientTlsError::Missing { .. } => AgentRouteError::Nobody,
        unusable @ ClientTlsError::Unusable(_) => AgentRouteError::Unusable(unusable.into()),
    })
}

/// Returns the runtime of a machine behind a proxy, and the installation. Does not connect.
fn proxied_runtime(
    documents: &Documents,
    machine: &Hypervisor,
) -> Result<(CriRuntime, InstallationId), AgentRouteError> {
    let cri = machine.spec.endpoint.cri().ok_or(AgentRouteError::Nowhere)?;
    let SecretReference { namespace, name } = &cri.secret_ref;
    let secret = SecretName { namespace: namespace.clone(), name: name.clone() };
    let unusable = |source| AgentRouteError::Secret { secret: format!("{namespace}/{name}"), source };
    let data = documents.user_secrets.get(&secret).and_then(|found| found.data.as_ref());
    let value = |key: &str| {
        let value = data.and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        value.ok_or_else(|| unusable(format!("it has no {key}").into()))
    };
    let shown = (value("tls.crt")?, value("tls.key")?);
    let mut config = client_from_pem(value("ca.crt")?, Some(shown)).map_err(|error| unusable(error.into()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let proxy = ServerName::try_from(cri.name().to_owned()).map_err(|_| AgentRouteError::Nowhere)?;
    let way = DialTarget::to(&cri.address, proxy, Arc::new(keelway_tls::TlsClient::of(Arc::new(config))));
    let installation = documents.installation().ok_or(AgentRouteError::Nobody)?.clone();
    Ok((CriRuntime::on_channel(way.channel(), Deadlines::default()), installation))
}

fn way(machine: &Hypervisor, direct: &DirectAgents, driver: &Arc<ClientConfig>) -> Result<DialTarget, AgentRouteError> {
    let started = machine.started_agent().map(|(address, _)| address);
    let (address, via) = match machine.spec.endpoint.way() {
        MachineTransport::Network(AgentNetworkAddress { address, via }) => (address, via),
        MachineTransport::Cri(_) => (started.as_deref(), None),
        MachineTransport::Runtime(_) | MachineTransport::Agent(_) => return Err(AgentRouteError::Nowhere),
    };
    let name = machine.metadata.name.as_ref().and_then(|name| name.parse::<HypervisorName>().ok());
    let name = name.ok_or(AgentRouteError::Nowhere)?;
    let identity = || Arc::new(keelway_tls::TlsClient::of(Arc::clone(driver)));
    let way = match (via, address) {
        (None, Some(address)) => DialTarget::to_machine(&name, address, identity()),
        (None, None) => return Err(AgentRouteError::Nowhere),
        (Some(via), address) => {
            let address = address.map(str::parse).transpose().map_err(|_| AgentRouteError::Nowhere)?;
            DialTarget::through(client(via, direct, identity())?, &name, address, identity())
        }
    };
    way.map_err(|_| AgentRouteError::Nowhere)
}

/// Returns the client of the agent that forwards connections. Each machine has its own connection to that agent, so that a machine that does
/// not read delays no other machine.
fn client(
    via: &str,
    direct: &DirectAgents,
    identity: Arc<keelway_tls::TlsClient>,
) -> Result<HypervisorAgentClient, AgentRouteError> {
    let unknown = || AgentRouteError::Via(via.to_owned());
    let name: HypervisorName = via.parse().map_err(|_| unknown())?;
    match direct.0.get(&name).ok_or_else(unknown)? {
        DirectEndpoint::Socket(socket) => Ok(HypervisorAgentClient::on_socket(Path::new(socket))),
        DirectEndpoint::Address(address) => {
            let way = DialTarget::to_machine(&name, address, identity).map_err(|_| unknown())?;
            Ok(HypervisorAgentClient::on_channel(way.channel()))
        }
    }
}

/// What changed in the documents that existing connections depend on.
pub(super) struct CredentialChanges {
    /// The driver's credentials changed.
    driver: bool,
    /// Agents that forward connections and whose address changed.
    direct: BTreeSet<HypervisorName>,
}

impl CredentialChanges {
    /// Returns whether a connection to an agent is still valid. The agent's own address is part of the connection's key.
    pub(super) fn is_agent_connection_valid(&self, via: Option<&str>) -> bool {
        let moved = |via: &str| self.direct.iter().any(|name| name.as_str() == via);
        !self.driver && !via.is_some_and(moved)
    }
}

/// The credentials of the last documents.
#[derive(Default)]
pub(super) struct MachineCredentials {
    clients: TlsClients,
    learnt: Mutex<LearntCredentials>,
}

#[derive(Default)]
struct LearntCredentials {
    driver: Option<Result<Arc<ClientConfig>, String>>,
    direct: DirectAgents,
    /// The Secrets with the credentials for proxies, and the machines that name them.
    documents: Documents,
}

impl MachineCredentials {
    /// Loads credentials and forwarding agents from the documents. Returns what changed.
    pub(super) fn update(&self, documents: &Documents) -> CredentialChanges {
        let found = driver(&self.clients, documents).map_err(|error| chain_text(&error));
        let direct = DirectAgents::of(documents);
        let mut held = self.held();
        // `driver` returns the same client as long as its certificates stay the same.
        let same = matches!((&held.driver, &found), (Some(Ok(known)), Ok(now)) if Arc::ptr_eq(known, now));
        let moved = direct.moved_since(&held.direct);
        held.driver = Some(found);
        held.direct = direct;
        held.documents.user_secrets.clone_from(&documents.user_secrets);
        held.documents.hypervisors.clone_from(&documents.hypervisors);
        CredentialChanges { driver: !same, direct: moved }
    }

    /// Returns the runtime of a machine behind a proxy, and the installation.
    pub(super) fn runtime(&self, machine: &Hypervisor) -> Result<(CriRuntime, InstallationId), AgentRouteError> {
        proxied_runtime(&self.held().documents, machine)
    }

    /// Returns the route to a machine's agent.
    pub(super) fn way(&self, machine: &Hypervisor) -> Result<DialTarget, String> {
        let nobody = || Err(chain_text(&AgentRouteError::Nobody));
        let held = self.held();
        let driver = held.driver.clone().unwrap_or_else(nobody)?;
        way(machine, &held.direct, &driver).map_err(|error| chain_text(&error))
    }

    fn held(&self) -> MutexGuard<'_, LearntCredentials> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(values: &str) -> Documents {
        let text = format!(
            "apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {{name: hv-1}}
spec:
  role: Private
  endpoint: {{cri: {{address: \"10.0.0.11:7444\", secretRef: {{name: hv-1}}}}}}
  addresses: {{private: [10.0.0.11]}}
status: {{installation: 00000000000000aa}}
---
apiVersion: v1
kind: Secret
metadata: {{name: hv-1}}
stringData: {values}
"
        );
        Documents::read(text.as_bytes()).unwrap()
    }

    /// Returns documents with agents at these addresses.
    fn agents(addresses: &[&str]) -> Documents {
        let machine = |(number, address): (usize, &&str)| {
            format!(
                "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-{number}}}\nspec: {{role: Private, \
                 endpoint: {{agent: {{address: '{address}:7443'}}}}, addresses: {{private: [10.0.0.{number}]}}}}\n"
            )
        };
        let text: String = (1..).zip(addresses).map(machine).collect();
        Documents::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn connections_are_dropped_to_those_alone_whose_way_or_credentials_changed() {
        let since = |before: &Documents, after: &Documents| CredentialChanges {
            driver: false,
            direct: DirectAgents::of(after).moved_since(&DirectAgents::of(before)),
        };
        let (two, three) = (agents(&["10.0.0.1", "10.0.0.2"]), agents(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
        let added = since(&two, &three);
        assert!(
            added.is_agent_connection_valid(None) && added.is_agent_connection_valid(Some("hv-1")),
            "one that is added concerns nobody else"
        );
        let moved = since(&two, &agents(&["10.0.0.9", "10.0.0.2"]));
        assert!(
            moved.is_agent_connection_valid(None)
                && moved.is_agent_connection_valid(Some("hv-2"))
                && !moved.is_agent_connection_valid(Some("hv-1"))
        );
        let gone = since(&three, &two);
        assert!(gone.is_agent_connection_valid(Some("hv-1")) && !gone.is_agent_connection_valid(Some("hv-3")));
    }

    #[tokio::test]
    async fn a_secret_that_cannot_be_used_is_named_and_not_quoted() {
        const WORD: &str = "the-quick-brown-fox";
        for values in [
            format!("{{tls.crt: {WORD}, tls.key: {WORD}, ca.crt: {WORD}}}"),
            format!(
                "{{tls.crt: {WORD}, tls.key: '-----BEGIN PRIVATE KEY----- {WORD}', ca.crt: '-----BEGIN CERTIFICATE----- {WORD}'}}"
            ),
        ] {
            let documents = documents(&values);
            let machine = documents.hypervisors.values().next().unwrap();
            let Err(error) = proxied_runtime(&documents, machine) else { panic!("it is used") };
            let said = format!("{} {error:?} {documents:?}", chain_text(&error));
            assert!(said.contains("default/hv-1") && !said.contains(WORD), "{said}");
        }
    }
}
