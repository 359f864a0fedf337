//! The way to machines on a network, and as whom they are spoken with.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keelway_api::{
    Documents, Hypervisor,
    documents::SecretName,
    hypervisor::{SecretReference, Way},
    name::HypervisorName,
};
use keelway_cri::{Deadlines, Runtime};
use keelway_hypervisor_agent::{
    client::{self, channel},
    helper::Identity,
    report::chain_text,
    tls::client_from_pem,
};
use keelway_planner::{installation_authority, installation_driver};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
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
    /// The Secret with which its proxy is spoken with cannot be used.
    #[error("Secret {secret} cannot be used")]
    Secret {
        /// Namespace and name.
        secret: String,
        /// Why. No line of it is quoted.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
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

/// The runtime of a machine without an agent behind its proxy, and whose helper it gets. Nothing is dialled yet.
pub(super) fn bare_runtime(documents: &Documents, machine: &Hypervisor) -> Result<(Runtime, Identity), NetworkError> {
    let Way::Cri(cri) = machine.spec.endpoint.way() else { return Err(NetworkError::Nowhere) };
    let SecretReference { namespace, name } = &cri.secret_ref;
    let secret = SecretName { namespace: namespace.clone(), name: name.clone() };
    let unusable = |source| NetworkError::Secret { secret: format!("{namespace}/{name}"), source };
    let data = documents.given.get(&secret).and_then(|found| found.data.as_ref());
    let value = |key: &str| {
        let value = data.and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        value.ok_or_else(|| unusable(format!("it has no {key}").into()))
    };
    let shown = (value("tls.crt")?, value("tls.key")?);
    let mut config = client_from_pem(value("ca.crt")?, Some(shown)).map_err(|error| unusable(error.into()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let proxy = ServerName::try_from(cri.name().to_owned()).map_err(|_| NetworkError::Nowhere)?;
    let channel = client::channel_to(&cri.address, proxy, Arc::new(keelway_tls::Client::of(Arc::new(config))));
    let installation = documents.installation().ok_or(NetworkError::Nobody)?.clone();
    let machine = machine.metadata.name.as_ref().and_then(|name| name.parse().ok()).ok_or(NetworkError::Nowhere)?;
    Ok((Runtime::on_channel(channel, Deadlines::default()), Identity { installation, machine }))
}

fn channel_to(machine: &Hypervisor, driver: Arc<ClientConfig>) -> Result<Channel, NetworkError> {
    let address = machine.spec.endpoint.address().ok_or(NetworkError::Nowhere)?;
    let name = machine.metadata.name.as_ref().and_then(|name| name.parse::<HypervisorName>().ok());
    let name = name.ok_or(NetworkError::Nowhere)?;
    channel(address, &name, Arc::new(keelway_tls::Client::of(driver))).map_err(|_| NetworkError::Nowhere)
}

/// Whether the driver is whom it was, for those that it met.
pub(super) struct Met {
    pub(super) by_agents: bool,
    pub(super) by_proxies: bool,
}

/// What was learnt last.
#[derive(Default)]
pub(super) struct Introduction {
    clients: Clients,
    driver: Mutex<Option<Result<Arc<ClientConfig>, String>>>,
    /// What proxies are spoken with by is in the documents themselves.
    documents: Mutex<Documents>,
}

impl Introduction {
    /// Learns as whom machines are spoken with. Returns whether that is somebody else than before.
    pub(super) fn learn(&self, documents: &Documents) -> Met {
        let found = driver(&self.clients, documents).map_err(|error| chain_text(&error));
        let shown = self.remember(documents);
        let mut held = self.held();
        // A client is made once of the same certificates.
        let same = matches!((&*held, &found), (Some(Ok(known)), Ok(now)) if Arc::ptr_eq(known, now));
        *held = Some(found);
        Met { by_agents: same, by_proxies: shown }
    }

    /// Returns whether proxies are shown what they were before.
    fn remember(&self, documents: &Documents) -> bool {
        let mut held = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        let same = held.given == documents.given && held.installation() == documents.installation();
        if !same || held.hypervisors != documents.hypervisors {
            held.given.clone_from(&documents.given);
            held.hypervisors.clone_from(&documents.hypervisors);
        }
        same
    }

    /// The runtime of a machine without an agent, and whose helper it gets.
    pub(super) fn runtime(&self, machine: &Hypervisor) -> Result<(Runtime, Identity), String> {
        let held = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        bare_runtime(&held, machine).map_err(|error| chain_text(&error))
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
            let Err(error) = bare_runtime(&documents, machine) else { panic!("it is used") };
            let said = format!("{} {error:?} {documents:?}", chain_text(&error));
            assert!(said.contains("default/hv-1") && !said.contains(WORD), "{said}");
        }
    }
}
