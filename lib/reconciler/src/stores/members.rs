//! Clients of etcd members, over connections that their machines open.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use keelway_api::{
    Documents, Hypervisor, Shared,
    name::{ClusterId, PodName},
};
use keelway_base::error_chain::root_cause;
use keelway_etcd_client::{EtcdClient, MemberTls};
use keelway_planner::Probe;
use rustls::ClientConfig;

use super::Members;
use crate::{
    Machines,
    dial::DIAL,
    tls::{ClientTlsError, TlsClients},
};

/// Why a member has no client.
#[derive(Debug, thiserror::Error)]
enum MemberAccessError {
    #[error("its machine has no document")]
    NoMachine,
    #[error("it has no certificates")]
    NoTls,
    #[error(transparent)]
    Tls(#[from] ClientTlsError),
    #[error("its name is not valid in a certificate")]
    Name(#[from] rustls_pki_types::InvalidDnsNameError),
}

/// Keeps the connections to members between the passes of a cluster that is not settled.
#[derive(Default)]
pub(crate) struct StoreClients(Mutex<BTreeMap<PodName, ConnectedMember>>);

/// A member, and what its connection was made of.
struct ConnectedMember {
    address: SocketAddr,
    machine: Shared<Hypervisor>,
    tls: Arc<ClientConfig>,
    client: EtcdClient,
}

impl StoreClients {
    /// Returns the clients of the members that these probes check. Does not connect.
    pub(crate) fn of(
        &self,
        machines: &Arc<dyn Machines>,
        clients: &TlsClients,
        documents: &Documents,
        probes: &[Probe],
    ) -> Members {
        let member = |probe: &Probe| {
            let client = self.client(machines, clients, documents, probe);
            (probe.component.component.clone(), client.map_err(|error| root_cause(&error)))
        };
        probes.iter().map(member).collect()
    }

    /// Closes the connections to the members of a cluster.
    pub(crate) fn forget(&self, id: &ClusterId) {
        self.held().retain(|pod, _| pod.cluster != *id);
    }

    fn client(
        &self,
        machines: &Arc<dyn Machines>,
        clients: &TlsClients,
        documents: &Documents,
        probe: &Probe,
    ) -> Result<EtcdClient, MemberAccessError> {
        let machine = documents.hypervisors.get(&probe.machine).ok_or(MemberAccessError::NoMachine)?;
        let shown = probe.tls.as_ref().ok_or(MemberAccessError::NoTls)?;
        let tls = clients.client(documents, &shown.authority, shown.identity.as_ref())?;
        let mut held = self.held();
        let is_current = |known: &&ConnectedMember| {
            known.address == probe.address && known.machine.spec == machine.spec && Arc::ptr_eq(&known.tls, &tls)
        };
        if let Some(known) = held.get(&probe.component).filter(is_current) {
            return Ok(known.client.clone());
        }
        let client = connect(machines, machine, probe.address, MemberTls::new(&tls, &shown.server_name)?);
        let member = ConnectedMember { address: probe.address, machine: machine.clone(), tls, client: client.clone() };
        held.insert(probe.component.clone(), member);
        Ok(client)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<PodName, ConnectedMember>> {
        // A panic with the lock held leaves whole entries, so poisoning is ignored.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(
    machines: &Arc<dyn Machines>,
    machine: &Shared<Hypervisor>,
    address: SocketAddr,
    tls: MemberTls,
) -> EtcdClient {
    let (machines, machine) = (Arc::clone(machines), machine.clone());
    EtcdClient::new(tls, move || {
        let (machines, machine) = (Arc::clone(&machines), machine.clone());
        async move { machines.dial(&machine, address, DIAL).await }
    })
}
