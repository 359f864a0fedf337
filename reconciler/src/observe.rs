//! What is there now, asked of everybody at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{self, BoxFuture, join_all, join3},
};
use keelway_api::{
    Documents, Shared,
    fault::Faults,
    machine::{MachineState, ObservedValue, ServerAdmin, ServerState},
    name::{ClusterId, HypervisorName, PodName},
    role::Role,
    shared::Map,
};
use keelway_planner::{ComponentHealth, HealthWitness, ObservedCertificates, PassObservation, Probe, probes};
use tokio::time::timeout;

use crate::{Components, Machines, certificates, health::ready};

/// How long the answer of a component may take that was never ready. One that starts takes connections long before it
/// answers on them, and nothing that is well waits for it.
const STARTING: Duration = Duration::from_secs(1);

/// The look at each machine, which many wait for.
type MachineLooks<'a> =
    BTreeMap<&'a HypervisorName, future::Shared<BoxFuture<'a, Shared<ObservedValue<MachineState>>>>>;

/// Looks at every machine, component and cluster of the documents.
pub(crate) async fn observe(
    machines: &dyn Machines,
    components: &dyn Components,
    documents: &Documents,
) -> Result<PassObservation, Faults> {
    machines.load_credentials(documents);
    let look = |document| machines.observe(document).map(Shared::from).boxed().shared();
    let looks = documents.hypervisors.iter().map(|(name, document)| (name, look(document)));
    ask(
        looks.collect(),
        components,
        documents,
        ObservationHints { bindings: &BTreeMap::new(), well: &BTreeSet::new(), may_run: |_: &Probe| true },
        certificates::read(documents),
    )
    .await
}

/// What need not be asked.
struct ObservationHints<'a, F> {
    /// Bindings of clusters.
    bindings: &'a BTreeMap<ClusterId, ObservedValue<String>>,
    /// Components that are well.
    well: &'a BTreeSet<PodName>,
    /// Whether a component may run.
    may_run: F,
}

/// The same where machines were looked at before: only components and clusters are asked, and of these only what was seen to run, and
/// those bindings, and those components to be well, that are not known. Certificates are those of clusters.
pub(crate) async fn observe_looked(
    seen: &Map<HypervisorName, ObservedValue<MachineState>>,
    components: &dyn Components,
    documents: &Documents,
    (bindings, well): (&BTreeMap<ClusterId, ObservedValue<String>>, &BTreeSet<PodName>),
    read: &certificates::CertificateSnapshot,
) -> Result<PassObservation, Faults> {
    let found =
        |name| seen.get(name).cloned().unwrap_or_else(|| ObservedValue::unreachable("nobody looked yet").into());
    let looks = documents.hypervisors.keys().map(|name| (name, future::ready(found(name)).boxed().shared()));
    let may_run = |probe: &Probe| {
        let state = seen.get(&probe.machine).and_then(|seen| seen.known());
        state.is_none_or(|state| state.runs(&probe.component))
    };
    ask(looks.collect(), components, documents, ObservationHints { bindings, well, may_run }, read.again(documents))
        .await
}

async fn ask(
    looks: MachineLooks<'_>,
    components: &dyn Components,
    documents: &Documents,
    known: ObservationHints<'_, impl Fn(&Probe) -> bool>,
    certificates: ObservedCertificates,
) -> Result<PassObservation, Faults> {
    let probes = probes(documents)?;
    let seen = join_all(looks.values().cloned());
    let may_run = &known.may_run;
    let health = join_all(probes.iter().map(|probe| async {
        if !may_run(probe) {
            return (probe.component.clone(), ComponentHealth::Unhealthy("it does not run".to_owned()));
        }
        let vouched = known.well.contains(&probe.component) || is_vouched(documents, probe, &looks).await;
        if vouched {
            (probe.component.clone(), ComponentHealth::Healthy)
        } else {
            health(components, documents, probe).await
        }
    }));
    let (asked, starting): (Vec<_>, Vec<_>) = serving(documents)
        .filter(|id| !known.bindings.contains_key(*id))
        .partition(|id| api_server(documents, &probes, id).is_none_or(|probe| ready(documents, probe)));
    let bindings = join_all(asked.into_iter().map(|id| bindings(components, documents, id)));
    let (seen, health, bindings) = join3(seen, health, bindings).await;
    let health: BTreeMap<PodName, ComponentHealth> = health.into_iter().collect();
    let names: Vec<HypervisorName> = looks.into_keys().cloned().collect();
    let states = names.into_iter().zip(seen).collect();
    let mut bindings: BTreeMap<ClusterId, ObservedValue<String>> = bindings.into_iter().collect();
    bindings.extend(known.bindings.clone());
    let (up, down): (Vec<_>, Vec<_>) = starting.into_iter().partition(|id| {
        api_server(documents, &probes, id)
            .is_some_and(|probe| health.get(&probe.component) == Some(&ComponentHealth::Healthy))
    });
    bindings.extend(join_all(up.into_iter().map(|id| self::bindings(components, documents, id))).await);
    let none = || ObservedValue::unreachable("its API to be ready");
    bindings.extend(down.into_iter().map(|id| (id.clone(), none())));
    Ok(PassObservation { refused: BTreeMap::new(), machines: states, health, bindings, certificates })
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

async fn bindings(
    components: &dyn Components,
    documents: &Documents,
    id: &ClusterId,
) -> (ClusterId, ObservedValue<String>) {
    (id.clone(), components.bindings(documents, id).await)
}

async fn health(components: &dyn Components, documents: &Documents, probe: &Probe) -> (PodName, ComponentHealth) {
    let answer = components.health(documents, probe);
    let health = if ready(documents, probe) {
        answer.await
    } else {
        let silent = |_| ComponentHealth::Unhealthy(format!("{} does not answer yet", probe.path));
        timeout(STARTING, answer).await.unwrap_or_else(silent)
    };
    (probe.component.clone(), health)
}

/// Whether others have asked the same a moment ago, over sessions that they resume: nobody pays for another handshake.
async fn is_vouched(documents: &Documents, probe: &Probe, looks: &MachineLooks<'_>) -> bool {
    match &probe.witness {
        HealthWitness::None => false,
        HealthWitness::Agent => agent_vouches(probe, looks).await,
        // Those that were never ready are asked, so that a birth learns of them at once.
        HealthWitness::Servers => {
            ready(documents, probe) && agent_vouches(probe, looks).await && has_servers(probe, looks).await
        }
        HealthWitness::Ingresses { server, ingresses } => {
            ready(documents, probe) && agent_vouches(probe, looks).await && all_vouch(server, ingresses, looks).await
        }
    }
}

async fn agent_vouches(probe: &Probe, looks: &MachineLooks<'_>) -> bool {
    let Some(look) = looks.get(&probe.machine) else { return false };
    matches!(&*look.clone().await, ObservedValue::Known(state) if state.reports_healthy(&probe.component))
}

/// Whether the probe's own haproxy has a server to pass requests on to.
async fn has_servers(probe: &Probe, looks: &MachineLooks<'_>) -> bool {
    let Some(look) = looks.get(&probe.machine) else { return false };
    let ObservedValue::Known(state) = &*look.clone().await else { return false };
    state.servers.get(&probe.component).is_some_and(|servers| servers.values().any(serves))
}

/// Whether there is a haproxy that tells of its servers, and each that does calls this one ready.
async fn all_vouch(server: &str, ingresses: &[(PodName, HypervisorName)], looks: &MachineLooks<'_>) -> bool {
    let told = join_all(ingresses.iter().map(|(ingress, machine)| async {
        let state = looks.get(machine)?.clone().await;
        let ObservedValue::Known(state) = &*state else { return None };
        let found = state.servers.get(ingress)?.get(server);
        Some(found.is_some_and(serves))
    }));
    let told: Vec<bool> = told.await.into_iter().flatten().collect();
    !told.is_empty() && told.into_iter().all(|ready| ready)
}

fn serves(server: &ServerState) -> bool {
    server.ready && server.admin == ServerAdmin::Serves
}

#[cfg(test)]
pub(crate) mod tests;
