//! The way to agents on a network, and as whom they are spoken with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keelway_api::{Documents, Hypervisor, name::HypervisorName};
use keelway_hypervisor_agent::{client::channel, report::chain_text};
use keelway_planner::{installation_authority, installation_driver};
use rustls::ClientConfig;
use tonic::transport::Channel;

use crate::tls::{Clients, TlsError};

/// Why there is no way to a machine's agent.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// It takes no strangers.
    #[error("there is no certificate yet to show to its agent: the next `keelway reconcile` makes it")]
    Nobody,
    /// The certificate, or the authority, cannot be used.
    #[error("the certificate of the driver cannot be used")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The document names no machine on a network.
    #[error("its document does not say where its agent listens")]
    Nowhere,
}

/// The way to the agent of a machine on a network, as the driver of the documents. Nothing is dialled yet.
pub fn agent_channel(documents: &Documents, machine: &Hypervisor) -> Result<Channel, NetworkError> {
    channel_to(machine, driver(&Clients::default(), documents)?)
}

/// As whom the driver of the documents is known to agents.
fn driver(clients: &Clients, documents: &Documents) -> Result<Arc<ClientConfig>, NetworkError> {
    let id = documents.installation().ok_or(NetworkError::Nobody)?;
    let found = clients.client(documents, &installation_authority(id), Some(&installation_driver(id)));
    found.map_err(|error| match error {
        TlsError::Missing { .. } => NetworkError::Nobody,
        unusable @ TlsError::Unusable(_) => NetworkError::Unusable(unusable.into()),
    })
}

fn channel_to(machine: &Hypervisor, driver: Arc<ClientConfig>) -> Result<Channel, NetworkError> {
    let address = machine.spec.endpoint.address().ok_or(NetworkError::Nowhere)?;
    let name = machine.metadata.name.as_ref().and_then(|name| name.parse::<HypervisorName>().ok());
    let name = name.ok_or(NetworkError::Nowhere)?;
    channel(address, &name, Arc::new(keelway_tls::Client::of(driver))).map_err(|_| NetworkError::Nowhere)
}

/// What was learnt last.
#[derive(Default)]
pub(super) struct Introduction {
    clients: Clients,
    driver: Mutex<Option<Result<Arc<ClientConfig>, String>>>,
}

impl Introduction {
    /// Learns as whom agents are spoken with. Returns whether that is somebody else than before.
    pub(super) fn learn(&self, documents: &Documents) -> bool {
        let found = driver(&self.clients, documents).map_err(|error| chain_text(&error));
        let mut held = self.held();
        // A client is made once of the same certificates.
        let same = matches!((&*held, &found), (Some(Ok(known)), Ok(now)) if Arc::ptr_eq(known, now));
        *held = Some(found);
        !same
    }

    pub(super) fn channel(&self, machine: &Hypervisor) -> Result<Channel, String> {
        let nobody = || Err(chain_text(&NetworkError::Nobody));
        let driver = self.held().clone().unwrap_or_else(nobody)?;
        channel_to(machine, driver).map_err(|error| chain_text(&error))
    }

    fn held(&self) -> MutexGuard<'_, Option<Result<Arc<ClientConfig>, String>>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
