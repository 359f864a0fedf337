//! Adopts machines that obey another installation.

use futures::future::join_all;
use keelway_api::{
    Documents,
    machine::{MachineState, ObservedValue},
    name::{HypervisorName, InstallationId},
};

use keelway_planner::AgentOrder;

use crate::{AgentCertification, Minter, PassContext, PassError, enroll, pass::identified};

/// The error of [`adopt`].
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The documents cannot be loaded or saved.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The documents contain no Hypervisor of this name.
    #[error("there is no Hypervisor {0} in the documents")]
    Missing(HypervisorName),
    /// The caller named no machines, and no machine obeys this installation.
    #[error("no machine of the documents obeys installation {0}")]
    Nobody(InstallationId),
    /// The machine cannot be observed.
    #[error("{machine} cannot be observed: {why}")]
    Unreachable {
        /// The machine that cannot be observed.
        machine: HypervisorName,
        /// The cause.
        why: String,
    },
    /// A machine that the caller named obeys an installation other than `from`.
    #[error("{machine} obeys installation {owner}, not {from}: no machine was adopted; use --from {owner}")]
    AnotherOwner {
        /// The machine that the caller named.
        machine: HypervisorName,
        /// The installation that the machine obeys.
        owner: InstallationId,
        /// The installation that the caller expected.
        from: InstallationId,
    },
    /// A machine that the caller named obeys no installation.
    #[error("{0} obeys no installation: it needs no adoption; `keelway reconcile` claims it")]
    NoOwner(HypervisorName),
    /// The machine did not store the record of its new owner.
    #[error("{machine} was not adopted: {why}")]
    NotWritten {
        /// The machine that was not adopted.
        machine: HypervisorName,
        /// The cause.
        why: String,
    },
}

/// Makes machines that obey the installation `from` obey the installation of the documents. If `names` is empty, this applies to all machines
/// of the documents. If one of the named machines cannot be adopted, nothing changes. Returns the documents, which are saved before any effect,
/// and the machines that were adopted.
///
/// On a machine, only the record of its owner changes. The components of the other installation continue, and Keelway does not change them
/// until the documents contain their cluster.
pub async fn adopt(
    context: &PassContext,
    minter: &mut dyn Minter,
    from: &InstallationId,
    names: &[HypervisorName],
) -> Result<(Documents, Vec<HypervisorName>), AdoptError> {
    let loaded = context.store.load().await.map_err(PassError::from)?;
    let mut documents = identified(&loaded, minter)?;
    replace_agents(context, &mut documents, minter, from, names).await?;
    let found = observe_machines(context, &documents, from, names).await?;
    for (name, state) in &found {
        let Some(document) = documents.hypervisors.get_mut(name) else { continue };
        let status = document.status.get_or_insert_default();
        // The next config must have a higher term or generation than the config on the machine, or the machine refuses it.
        status.issued.clone_from(&state.applied);
        status.applied.clone_from(&state.applied);
    }
    context.store.save(&documents).await.map_err(PassError::from)?;
    for (name, _) in &found {
        write(context, &documents, name).await?;
    }
    Ok((documents, found.into_iter().map(|(name, _)| name).collect()))
}

/// Replaces the agents that the other installation started behind proxies, because they serve that installation only. Their configs are on the
/// machines' disks, so the new agents continue with these.
async fn replace_agents(
    context: &PassContext,
    documents: &mut Documents,
    minter: &mut dyn Minter,
    from: &InstallationId,
    names: &[HypervisorName],
) -> Result<(), AdoptError> {
    let is_adopted = |name: &HypervisorName| names.is_empty() || names.contains(name);
    let behind = documents.hypervisors.iter().filter(|(_, machine)| machine.spec.endpoint.cri().is_some());
    let behind: Vec<HypervisorName> = behind.map(|(name, _)| name.clone()).filter(is_adopted).collect();
    if behind.is_empty() {
        return Ok(());
    }
    let now = (context.clock)();
    *documents = enroll(documents, minter, now)?;
    context.store.save(documents).await.map_err(PassError::from)?;
    context.machines.load_credentials(documents);
    for name in behind {
        let Some(machine) = documents.hypervisors.get(&name) else { continue };
        let Some(agent) = machine.status.as_ref().and_then(|status| status.agent.as_ref()) else { continue };
        let order = AgentOrder::Start(agent.serial());
        let certifying = AgentCertification::new(documents, (&name, &order), now).replacing(from);
        let replaced = context.machines.certify(machine, &certifying, &context.run).await;
        if let Some(why) = replaced.failures.into_iter().next() {
            return Err(AdoptError::NotWritten { machine: name.clone(), why });
        }
    }
    Ok(())
}

/// Returns the machines to adopt, with their observed state.
async fn observe_machines(
    context: &PassContext,
    documents: &Documents,
    from: &InstallationId,
    names: &[HypervisorName],
) -> Result<Vec<(HypervisorName, MachineState)>, AdoptError> {
    if let Some(name) = names.iter().find(|name| !documents.hypervisors.contains_key(*name)) {
        return Err(AdoptError::Missing(name.clone()));
    }
    context.machines.load_credentials(documents);
    let machines = documents.hypervisors.iter().filter(|(name, _)| names.is_empty() || names.contains(name));
    let seen =
        join_all(machines.map(|(name, document)| async move { (name, context.machines.observe(document).await) }));
    let mut found = Vec::new();
    for (name, seen) in seen.await {
        let asked_for = !names.is_empty();
        match seen {
            ObservedValue::Unreachable { why, .. } => {
                return Err(AdoptError::Unreachable { machine: name.clone(), why });
            }
            ObservedValue::Known(state) if state.owner.as_ref() == Some(from) => found.push((name.clone(), state)),
            ObservedValue::Known(state) if asked_for => {
                return Err(match state.owner {
                    Some(owner) => AdoptError::AnotherOwner { machine: name.clone(), owner, from: from.clone() },
                    None => AdoptError::NoOwner(name.clone()),
                });
            }
            ObservedValue::Known(_) => {}
        }
    }
    if found.is_empty() { Err(AdoptError::Nobody(from.clone())) } else { Ok(found) }
}

async fn write(context: &PassContext, documents: &Documents, name: &HypervisorName) -> Result<(), AdoptError> {
    let document = documents.hypervisors.get(name);
    let installation = document.and_then(|document| document.status.as_ref()?.installation.clone());
    let (Some(document), Some(installation)) = (document, installation) else {
        return Err(AdoptError::Missing(name.clone()));
    };
    let applying = context.machines.adopt(document, &installation, &context.run).await;
    match applying.failures.into_iter().next() {
        Some(why) => Err(AdoptError::NotWritten { machine: name.clone(), why }),
        None => Ok(()),
    }
}
