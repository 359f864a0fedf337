//! Recovers documents from an older backup and from what the machines and the stores report. Both are only read.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use keelway_api::{
    Documents, Hypervisor, Time,
    documents::SecretName,
    jiff::Timestamp,
    machine::ObservedValue,
    name::{ClusterId, HypervisorName, InstallationId},
};
use keelway_pki::{SecretData, WireGuardKey};
use keelway_planner::{
    HeldConfig, HeldMachine, Recovery, StoreObservation, WIREGUARD, complete_clusters, complete_from_backup,
    keep_replicas, probes,
};
use tokio::time::timeout;

use crate::{Components, DialledComponents, Machines, observe::member_probes};

/// The time limit for reading the config of a machine, after the machine has responded. A config has megabytes at most.
const CONFIG: Duration = Duration::from_secs(30);

/// Reads what every machine holds, and derives the documents from it. If there is a backup, it completes the documents. Saves nothing, and changes
/// nothing on a machine.
pub async fn recover(
    machines: &Arc<dyn Machines>,
    documents: &Documents,
    backup: Option<&Documents>,
    now: Timestamp,
) -> Recovery {
    let mut restored = Vec::new();
    let mut source = Source::of(documents.clone());
    if let Some(backup) = backup {
        let completed = complete_from_backup(documents, backup);
        restored.extend(completed.restored);
        source = Source::of(completed.documents);
    }
    source.ask_machines(&**machines).await;
    let mut recovery = source.recover(now);
    if let Some(completed) = backup.and_then(|backup| complete_clusters(&source.documents, backup, &recovery)) {
        restored.extend(completed.restored);
        source = Source::of(completed.documents);
        source.ask_machines(&**machines).await;
        recovery = source.recover(now);
    }
    if !recovery.unobserved_stores.is_empty() {
        source.ask_stores(machines, &recovery).await;
        recovery = source.recover(now);
    }
    complete_gateway_keys(&source.documents, &mut recovery.documents);
    if backup.is_some() {
        keep_replicas(&mut recovery, |name| !documents.clusters.contains_key(name));
    }
    restored.append(&mut recovery.differences);
    recovery.differences = restored;
    recovery
}

/// What a recovery is decided from.
struct Source {
    documents: Documents,
    held: BTreeMap<HypervisorName, ObservedValue<HeldMachine>>,
    stores: BTreeMap<ClusterId, StoreObservation>,
}

impl Source {
    fn of(documents: Documents) -> Self {
        Self { documents, held: BTreeMap::new(), stores: BTreeMap::new() }
    }

    async fn ask_machines(&mut self, machines: &dyn Machines) {
        machines.load_credentials(&self.documents);
        let installation = self.documents.installation();
        let asked = self
            .documents
            .hypervisors
            .iter()
            .map(|(name, document)| async move { (name.clone(), held(machines, document, installation).await) });
        let held = join_all(asked).await.into_iter().collect();
        self.held = held;
    }

    /// Asks the stores whose members may have changed. A recovered component has the address of its member.
    async fn ask_stores(&mut self, machines: &Arc<dyn Machines>, recovery: &Recovery) {
        let documents = &recovery.documents;
        let probes = probes(documents).unwrap_or_default();
        let components = DialledComponents::new(Arc::clone(machines));
        let components = &components;
        let asked = recovery.unobserved_stores.iter().map(|id| {
            let members = member_probes(documents, &probes, id);
            async move { (id.clone(), components.store(documents, &members).await) }
        });
        self.stores = join_all(asked).await.into_iter().collect();
    }

    fn recover(&self, now: Timestamp) -> Recovery {
        keelway_planner::recover(&self.documents, &self.held, &self.stores, &Time(now))
    }
}

async fn held(
    machines: &dyn Machines,
    document: &Hypervisor,
    installation: Option<&InstallationId>,
) -> ObservedValue<HeldMachine> {
    let state = match machines.observe(document).await {
        ObservedValue::Known(state) => state,
        ObservedValue::Unreachable { silent, why } => return ObservedValue::Unreachable { silent, why },
    };
    let config = match installation.filter(|_| state.applied.is_some()) {
        None => HeldConfig::None,
        Some(installation) => config(machines, document, installation).await,
    };
    ObservedValue::Known(HeldMachine { state, config })
}

async fn config(machines: &dyn Machines, document: &Hypervisor, installation: &InstallationId) -> HeldConfig {
    match timeout(CONFIG, machines.config(document, installation)).await {
        Ok(Ok(Some(config))) => HeldConfig::Known(config),
        Ok(Ok(None)) => HeldConfig::None,
        Ok(Err(why)) => HeldConfig::Unknown(why),
        Err(_) => HeldConfig::Unknown(format!("no response within {} s", CONFIG.as_secs())),
    }
}

/// Adds the public halves of gateway keys. A machine holds only the private half, from which the public half follows.
fn complete_gateway_keys(before: &Documents, recovered: &mut Documents) {
    let private = [WIREGUARD, ".key"].concat();
    let key = |documents: &Documents, name: &SecretName| {
        documents.secrets.get(name)?.data.as_ref()?.get(&private).map(|key| key.0.clone())
    };
    let names: Vec<SecretName> = recovered.secrets.keys().filter(|name| name.is_of_a_cluster()).cloned().collect();
    for name in names {
        let Some(found) = key(recovered, &name).filter(|found| key(before, &name).as_ref() != Some(found)) else {
            continue;
        };
        // A value that is not a key never belonged to a gateway. The next pass mints it again.
        let Ok(pair) = WireGuardKey::from_base64(&found) else { continue };
        let mut data = SecretData::new();
        pair.write_to(&mut data, WIREGUARD);
        recovered.put_secret_values(&name, data.into_iter().map(|(key, value)| (key, keelway_api::ByteString(value))));
    }
}
