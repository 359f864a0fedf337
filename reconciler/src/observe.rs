//! What is there now, asked of everybody at once.

use std::{collections::BTreeMap, time::Duration};

use futures::future::{join_all, join3};
use keelway_api::{
    Documents,
    fault::Faults,
    machine::{MachineState, Seen},
    name::{ClusterId, PodName},
    role::Role,
};
use keelway_planner::{Health, Observation, Probe, probes};
use tokio::time::timeout;

use crate::{Components, Machines, certificates, health::ready};

/// How long the answer of a component may take that was never ready. One that starts takes connections long before it
/// answers on them, and nothing that is well waits for it.
const STARTING: Duration = Duration::from_secs(1);

/// Looks at every machine, component and cluster of the documents.
pub(crate) async fn observe(
    machines: &dyn Machines,
    components: &dyn Components,
    documents: &Documents,
) -> Result<Observation, Faults> {
    let probes = probes(documents)?;
    let (liveness, others): (Vec<_>, Vec<_>) = probes.iter().partition(|probe| probe.is_liveness);
    let seen = join_all(documents.hypervisors.iter().map(|(name, document)| {
        let probes: Vec<_> = liveness.iter().copied().filter(|probe| probe.machine == *name).collect();
        async move {
            let state = machines.observe(document).await;
            let health = join_all(probes.into_iter().map(|probe| liveness_of(components, documents, probe, &state)));
            let health = health.await;
            (name.clone(), state, health)
        }
    }));
    let health = join_all(others.into_iter().map(|probe| health(components, documents, probe)));
    let (asked, starting): (Vec<_>, Vec<_>) = serving(documents)
        .partition(|id| api_server(documents, &probes, id).is_none_or(|probe| ready(documents, probe)));
    let bindings = join_all(asked.into_iter().map(|id| bindings(components, documents, id)));
    let (seen, health, bindings) = join3(seen, health, bindings).await;
    let mut health: BTreeMap<PodName, Health> = health.into_iter().collect();
    let mut states = BTreeMap::new();
    for (name, state, answers) in seen {
        states.insert(name, state);
        health.extend(answers);
    }
    let mut bindings: BTreeMap<ClusterId, Seen<String>> = bindings.into_iter().collect();
    let (up, down): (Vec<_>, Vec<_>) = starting.into_iter().partition(|id| {
        api_server(documents, &probes, id).is_some_and(|probe| health.get(&probe.component) == Some(&Health::Healthy))
    });
    bindings.extend(join_all(up.into_iter().map(|id| self::bindings(components, documents, id))).await);
    let none = || Seen::unreachable("its API to be ready");
    bindings.extend(down.into_iter().map(|id| (id.clone(), none())));
    Ok(Observation {
        refused: BTreeMap::new(),
        machines: states,
        health,
        bindings,
        certificates: certificates::read(documents),
    })
}

/// Clusters that are to have an API.
fn serving(documents: &Documents) -> impl Iterator<Item = &ClusterId> {
    documents.clusters.values().filter(|cluster| !cluster.deleted()).filter_map(|cluster| cluster.id())
}

/// The API server that a cluster's bindings are asked of: its first.
fn api_server<'a>(documents: &Documents, probes: &'a [Probe], id: &ClusterId) -> Option<&'a Probe> {
    let is_one = |probe: &&Probe| {
        let component = documents.components.get(&probe.component);
        component.is_some_and(|component| component.spec.role == Role::KubeApiserver)
    };
    // Probes are in the order of components.
    let from = probes.partition_point(|probe| probe.component.cluster < *id);
    probes.get(from..)?.iter().take_while(|probe| probe.component.cluster == *id).find(is_one)
}

async fn bindings(components: &dyn Components, documents: &Documents, id: &ClusterId) -> (ClusterId, Seen<String>) {
    (id.clone(), components.bindings(documents, id).await)
}

async fn health(components: &dyn Components, documents: &Documents, probe: &Probe) -> (PodName, Health) {
    let answer = components.health(documents, probe);
    let health = if ready(documents, probe) {
        answer.await
    } else {
        let silent = |_| Health::Unhealthy(format!("{} does not answer yet", probe.path));
        timeout(STARTING, answer).await.unwrap_or_else(silent)
    };
    (probe.component.clone(), health)
}

/// An agent has asked the same a moment ago, over a session that it resumes: nobody pays for another handshake.
async fn liveness_of(
    components: &dyn Components,
    documents: &Documents,
    probe: &Probe,
    machine: &Seen<MachineState>,
) -> (PodName, Health) {
    match machine {
        Seen::Known(state) if state.vouches(&probe.component) => (probe.component.clone(), Health::Healthy),
        Seen::Known(_) | Seen::Unreachable { .. } => health(components, documents, probe).await,
    }
}

#[cfg(test)]
mod tests;
