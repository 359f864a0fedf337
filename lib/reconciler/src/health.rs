//! Health checks of components.

use std::{error::Error, sync::Arc, time::Duration};

use futures::future::select_all;
use http::StatusCode;
use keelway_api::{
    Component, Documents,
    condition::{self, reason::ConditionReason},
};
use keelway_base::error_chain::root_cause;
use keelway_planner::{ComponentHealth, Probe, probes};
use keelway_tls::https;
use tokio::time::{MissedTickBehavior, interval};

use crate::{Components, Machines, dial::DIAL, tls::TlsClients};

/// The time limit for a response.
const ANSWER: Duration = Duration::from_secs(3);

/// Probes one component.
pub(crate) async fn ask(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    probe: &Probe,
) -> ComponentHealth {
    match tokio::time::timeout(ANSWER, get(machines, clients, documents, probe)).await {
        Ok(Ok(StatusCode::OK)) => ComponentHealth::Healthy,
        Ok(Ok(status)) => ComponentHealth::Unhealthy(format!("{} returned {status}", probe.path)),
        // An expired certificate or a connection that fails does not show that the component is down.
        Ok(Err(error)) => ComponentHealth::NoAnswer(root_cause(error.as_ref())),
        Err(_) => ComponentHealth::NoAnswer(format!("{} did not respond within {} s", probe.path, ANSWER.as_secs())),
    }
}

/// Returns when one of the selected components is healthy. Each is probed at this interval, and a slow response delays no other probe.
pub(crate) async fn wait_for_recovery(
    components: &dyn Components,
    documents: &Documents,
    which: impl Fn(&Documents, &Probe) -> bool,
    pause: Duration,
) {
    let probes = probes(documents).unwrap_or_default();
    let waiting = probes.iter().filter(|probe| which(documents, probe));
    let each: Vec<_> = waiting.map(|probe| Box::pin(until_well(components, documents, probe, pause))).collect();
    if each.is_empty() {
        return std::future::pending().await;
    }
    select_all(each).await;
}

async fn until_well(components: &dyn Components, documents: &Documents, probe: &Probe, pause: Duration) {
    let mut again = interval(pause);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        again.tick().await;
        if components.health(documents, probe).await == ComponentHealth::Healthy {
            return;
        }
    }
}

/// Returns whether the documents record the component as ready.
pub(crate) fn ready(documents: &Documents, probe: &Probe) -> bool {
    let component = documents.components.get(&probe.component);
    let status = component.and_then(|component| component.status.as_ref());
    status.is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
}

/// Returns whether the documents do not record the component as ready.
pub(crate) fn is_not_ready(documents: &Documents, probe: &Probe) -> bool {
    !ready(documents, probe)
}

/// Returns whether a component is not ready because of a probe, and not because of the state of its machine or pod.
pub(crate) fn is_unhealthy(documents: &Documents, probe: &Probe) -> bool {
    documents.components.get(&probe.component).is_some_and(|component| answers_ill(component))
}

/// Returns whether [`is_unhealthy`] holds for any component.
pub(crate) fn is_any_unhealthy(documents: &Documents) -> bool {
    documents.components.values().any(|component| answers_ill(component))
}

fn answers_ill(component: &Component) -> bool {
    let status = component.status.as_ref();
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    let waits = [ConditionReason::Unhealthy, ConditionReason::NotAsked].map(ConditionReason::as_str);
    conditions.any(|condition| condition.type_ == "Ready" && waits.contains(&condition.reason.as_str()))
}

async fn get(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    probe: &Probe,
) -> Result<StatusCode, Box<dyn Error + Send + Sync>> {
    let machine = documents.hypervisors.get(&probe.machine).ok_or("its machine has no document")?;
    let Some(tls) = &probe.tls else {
        let stream = machines.dial(machine, probe.address, DIAL).await?;
        return Ok(https::get_plain(stream, probe.address, probe.path).await?);
    };
    let config = clients.client(documents, &tls.authority, tls.identity.as_ref())?;
    let stream = machines.dial(machine, probe.address, DIAL).await?;
    Ok(https::get(config, &tls.server_name, stream, probe.address, probe.path).await?)
}
