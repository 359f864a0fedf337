//! Observes all machines, components and clusters concurrently.

use std::{collections::BTreeMap, time::Duration};

use futures::{
    FutureExt,
    future::{self, BoxFuture, join_all, join4},
};
use keelway_api::{
    Cluster, Documents, Shared,
    fault::Faults,
    machine::{MachineState, ObservedValue, ServerState},
    name::{ClusterId, HypervisorName, PodName},
    role::Role,
    shared::Map,
};
use keelway_planner::{
    ComponentHealth, HealthWitness, ObservedCertificates, PassObservation, Probe, RestorableSnapshot, StoreObservation,
    begins_minor_upgrade, follows_trust, has_store, needs_store, probes, rewrites_secrets,
};
use tokio::time::timeout;

use crate::{Components, Machines, certificates, health::ready};

/// The time limit for the response of a component that was never ready. A component that starts accepts connections long before it responds,
/// and healthy components need not wait for it.
const STARTING: Duration = Duration::from_secs(1);

/// One observation for each machine. Several probes can wait for the same one.
type MachineLooks<'a> =
    BTreeMap<&'a HypervisorName, future::Shared<BoxFuture<'a, Shared<ObservedValue<MachineState>>>>>;

/// The stores that are observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreSelection {
    /// Those that a decision needs ([`needs_store`]).
    Needed,
    /// Every store that has worked.
    All,
}

/// Observes every machine, component and cluster of the documents, and the selected stores.
pub(crate) async fn observe(
    machines: &dyn Machines,
    components: &dyn Components,
    documents: &Documents,
    selected: StoreSelection,
) -> Result<PassObservation, Faults> {
    machines.load_credentials(documents);
    let look = |document| machines.observe(document).map(Shared::from).boxed().shared();
    let looks = documents.hypervisors.iter().map(|(name, document)| (name, look(document)));
    ask(looks.collect(), components, documents, (|_| true, selected), certificates::read(documents)).await
}

/// Observes components and clusters only, with earlier observations of the machines. Probes components that run. Reads the certificates of clusters
/// that `read` does not have.
pub(crate) async fn observe_looked(
    seen: &Map<HypervisorName, ObservedValue<MachineState>>,
    components: &dyn Components,
    documents: &Documents,
    read: &certificates::CertificateSnapshot,
) -> Result<PassObservation, Faults> {
    let found = |name| seen.get(name).cloned().unwrap_or_else(|| ObservedValue::unreachable("not observed yet").into());
    let looks = documents.hypervisors.keys().map(|name| (name, future::ready(found(name)).boxed().shared()));
    let may_run = |probe: &Probe| {
        let state = seen.get(&probe.machine).and_then(|seen| seen.known());
        state.is_none_or(|state| state.runs(&probe.component))
    };
    ask(looks.collect(), components, documents, (may_run, StoreSelection::Needed), read.again(documents)).await
}

async fn ask(
    looks: MachineLooks<'_>,
    components: &dyn Components,
    documents: &Documents,
    (may_run, selected): (impl Fn(&Probe) -> bool, StoreSelection),
    certificates: ObservedCertificates,
) -> Result<PassObservation, Faults> {
    let probes = probes(documents)?;
    let seen = join_all(looks.values().cloned());
    let health = join_all(probes.iter().map(|probe| async {
        if !may_run(probe) {
            return (probe.component.clone(), ComponentHealth::Unhealthy("it does not run".to_owned()));
        }
        if is_vouched(documents, probe, &looks).await {
            (probe.component.clone(), ComponentHealth::Healthy)
        } else {
            health(components, documents, probe).await
        }
    }));
    let (asked, starting): (Vec<_>, Vec<_>) = serving(documents)
        .partition(|id| api_server(documents, &probes, id).is_none_or(|probe| ready(documents, probe)));
    let bindings = join_all(asked.into_iter().map(|id| bindings(components, documents, id)));
    let stores = stores(components, documents, &probes, selected);
    let begins_upgrade = |cluster: &Cluster| begins_minor_upgrade(documents, cluster);
    let changes = future::join3(
        ask_each(documents, rewrites_secrets, |id| components.rewritten(documents, id)),
        ask_each(documents, follows_trust, |id| components.observed_trust(documents, id)),
        ask_each(documents, begins_upgrade, |id| components.upgrade_preflight(documents, id)),
    );
    let stores = future::join3(stores, restores(components, documents), changes);
    let (seen, health, bindings, (stores, restores, changes)) = join4(seen, health, bindings, stores).await;
    let (rewrites, trust, preflights) = changes;
    let health: BTreeMap<PodName, ComponentHealth> = health.into_iter().collect();
    let names: Vec<HypervisorName> = looks.into_keys().cloned().collect();
    let states = names.into_iter().zip(seen).collect();
    let mut bindings: BTreeMap<ClusterId, ObservedValue<String>> = bindings.into_iter().collect();
    let (up, down): (Vec<_>, Vec<_>) = starting.into_iter().partition(|id| {
        api_server(documents, &probes, id)
            .is_some_and(|probe| health.get(&probe.component) == Some(&ComponentHealth::Healthy))
    });
    bindings.extend(join_all(up.into_iter().map(|id| self::bindings(components, documents, id))).await);
    let none = || ObservedValue::unreachable("its API is not ready");
    bindings.extend(down.into_iter().map(|id| (id.clone(), none())));
    let refused = BTreeMap::new();
    Ok(PassObservation {
        refused,
        machines: states,
        health,
        bindings,
        certificates,
        stores,
        restores,
        rewrites,
        trust,
        preflights,
    })
}

/// Observes the selected stores.
async fn stores(
    components: &dyn Components,
    documents: &Documents,
    probes: &[Probe],
    selected: StoreSelection,
) -> BTreeMap<ClusterId, StoreObservation> {
    let is_selected = |cluster: &&Shared<Cluster>| match selected {
        StoreSelection::Needed => needs_store(documents, cluster),
        StoreSelection::All => has_store(cluster),
    };
    let ids = documents.clusters.values().filter(is_selected).filter_map(|cluster| cluster.id());
    let each = ids.map(|id| async {
        let members = member_probes(documents, probes, id);
        (id.clone(), components.store(documents, &members).await)
    });
    join_all(each).await.into_iter().collect()
}

/// Reads the snapshots of requested restores, before anything of their clusters stops.
async fn restores(
    components: &dyn Components,
    documents: &Documents,
) -> BTreeMap<ClusterId, Result<RestorableSnapshot, String>> {
    let requested = documents.clusters.values().filter(|cluster| cluster.pending_restore().is_some());
    let each = requested.filter_map(|cluster| Some((cluster, cluster.id()?)));
    let each = each.map(|(cluster, id)| async { (id.clone(), components.restorable(documents, cluster).await) });
    join_all(each).await.into_iter().collect()
}

/// Asks the clusters that have something to report.
async fn ask_each<'a, T, F: Future<Output = T>>(
    documents: &'a Documents,
    is_asked: impl Fn(&Cluster) -> bool,
    ask: impl Fn(&'a ClusterId) -> F,
) -> BTreeMap<ClusterId, T> {
    let asked = documents.clusters.values().filter(|cluster| is_asked(cluster)).filter_map(|cluster| cluster.id());
    let answers = asked.map(|id| {
        let answer = ask(id);
        async { (id.clone(), answer.await) }
    });
    join_all(answers).await.into_iter().collect()
}

/// Returns the health checks of a cluster's etcd members.
pub(crate) fn member_probes(documents: &Documents, probes: &[Probe], id: &ClusterId) -> Vec<Probe> {
    of_cluster(probes, id).iter().filter(|probe| is_of(documents, probe, Role::Etcd)).cloned().collect()
}

/// Returns the health checks of a cluster. All are sorted by component.
fn of_cluster<'a>(probes: &'a [Probe], id: &ClusterId) -> &'a [Probe] {
    let from = probes.partition_point(|probe| probe.component.cluster < *id);
    let to = probes.partition_point(|probe| probe.component.cluster <= *id);
    probes.get(from..to).unwrap_or_default()
}

fn is_of(documents: &Documents, probe: &Probe, role: Role) -> bool {
    documents.components.get(&probe.component).is_some_and(|component| component.spec.role == role)
}

/// Returns the clusters that should have an API. A cluster that sleeps has none.
fn serving(documents: &Documents) -> impl Iterator<Item = &ClusterId> {
    documents.clusters.values().filter(|cluster| cluster.is_awake()).filter_map(|cluster| cluster.id())
}

/// Returns the API server from which a cluster's bindings are read: the first.
fn api_server<'a>(documents: &Documents, probes: &'a [Probe], id: &ClusterId) -> Option<&'a Probe> {
    of_cluster(probes, id).iter().find(|probe| is_of(documents, probe, Role::KubeApiserver))
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
        let silent = |_| ComponentHealth::NoAnswer(format!("{} does not respond yet", probe.path));
        timeout(STARTING, answer).await.unwrap_or_else(silent)
    };
    (probe.component.clone(), health)
}

/// Returns whether an agent or a haproxy probed the component a moment ago. They resume TLS sessions; a probe from here would cost another
/// handshake.
async fn is_vouched(documents: &Documents, probe: &Probe, looks: &MachineLooks<'_>) -> bool {
    match &probe.witness {
        HealthWitness::None => false,
        HealthWitness::Agent => agent_vouches(probe, looks).await,
        // We probe servers that were never ready, so that the creation of a cluster finds out at once when they are.
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

/// Returns whether the haproxy of this probe has a server that requests can be sent to.
async fn has_servers(probe: &Probe, looks: &MachineLooks<'_>) -> bool {
    let Some(look) = looks.get(&probe.machine) else { return false };
    let ObservedValue::Known(state) = &*look.clone().await else { return false };
    state.servers.get(&probe.component).is_some_and(|servers| servers.values().any(ServerState::serves))
}

/// Returns whether at least one haproxy reports this server, and each haproxy that reports its servers calls this one ready.
async fn all_vouch(server: &str, ingresses: &[(PodName, HypervisorName)], looks: &MachineLooks<'_>) -> bool {
    let reports = join_all(ingresses.iter().map(|(ingress, machine)| async {
        let state = looks.get(machine)?.clone().await;
        let ObservedValue::Known(state) = &*state else { return None };
        let found = state.servers.get(ingress)?.get(server);
        Some(found.is_some_and(ServerState::serves))
    }));
    let reports: Vec<bool> = reports.await.into_iter().flatten().collect();
    !reports.is_empty() && reports.into_iter().all(|ready| ready)
}

#[cfg(test)]
pub(crate) mod tests;
