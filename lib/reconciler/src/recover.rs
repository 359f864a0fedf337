//! Recovers documents from an older backup and from what the machines hold. Machines are only read.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use keelway_api::{
    Documents, Hypervisor, Time,
    documents::SecretName,
    jiff::Timestamp,
    machine::ObservedValue,
    name::{HypervisorName, InstallationId},
};
use keelway_pki::{SecretData, WireGuardKey};
use keelway_planner::{HeldConfig, HeldMachine, Recovery, WIREGUARD};
use tokio::time::timeout;

use crate::Machines;

/// The time limit for reading the config of a machine, after the machine has responded. A config has megabytes at most.
const CONFIG: Duration = Duration::from_secs(30);

/// Reads what every machine holds, and derives the documents from it. Saves nothing, and changes nothing on a machine.
pub async fn recover(machines: &dyn Machines, documents: &Documents, now: Timestamp) -> Recovery {
    machines.load_credentials(documents);
    let installation = documents.installation();
    let asked = documents
        .hypervisors
        .iter()
        .map(|(name, document)| async move { (name.clone(), held(machines, document, installation).await) });
    let held: BTreeMap<HypervisorName, ObservedValue<HeldMachine>> = join_all(asked).await.into_iter().collect();
    let mut recovery = keelway_planner::recover(documents, &held, &Time(now));
    complete_gateway_keys(documents, &mut recovery.documents);
    recovery
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
