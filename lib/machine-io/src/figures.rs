//! The size of components' data, from their files and from their own reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use keelway_api::{
    machine::{DataState, ETCD_DATABASE, Figures, GATEWAY_METRICS, SandboxState},
    name::PodName,
};
use keelway_base::error_chain::chain_text;
use keelway_machine::layout::pod_directory;
use tokio::time::Instant;

use crate::{
    access::MachineAccess,
    local::{FilesError, LocalMachine},
    socket,
};

/// The metric in which a gateway reports its number of peers.
const PEERS: &str = "keelway_gateway_peers ";

/// How long the count of a gateway is reused. A gateway has to render all of its metrics for it, and no decision depends on it.
const STANDS: Duration = Duration::from_secs(10);

/// The peer counts of gateways, with the time of each query.
#[derive(Debug, Default)]
pub(crate) struct PeerCounts(Mutex<BTreeMap<PodName, (Instant, u64)>>);

impl PeerCounts {
    /// Returns the counts that are recent enough. Drops all others.
    fn cached_counts(&self, gateways: &BTreeSet<&PodName>) -> BTreeMap<PodName, u64> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|pod, (asked, _)| gateways.contains(pod) && asked.elapsed() < STANDS);
        counts.iter().map(|(pod, (_, peers))| (pod.clone(), *peers)).collect()
    }

    fn record_count(&self, pod: &PodName, peers: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(pod.clone(), (Instant::now(), peers));
    }
}

/// Returns the figures of the pods that own these data directories and databases. A component that does not respond is left out.
pub(crate) async fn observe(
    machine: &LocalMachine,
    sandboxes: &[SandboxState],
    data: &BTreeMap<String, DataState>,
    databases: &BTreeMap<String, u64>,
) -> BTreeMap<PodName, Figures> {
    let ready: BTreeSet<&PodName> =
        sandboxes.iter().filter(|sandbox| sandbox.ready).map(|sandbox| &sandbox.pod).collect();
    let mut figures: BTreeMap<PodName, Figures> = BTreeMap::new();
    for pod in &ready {
        if let Some(bytes) = databases.get(&format!("{}/{ETCD_DATABASE}", pod_directory(pod))) {
            figures.entry((*pod).clone()).or_default().database_bytes = Some(*bytes);
        }
    }
    let folder = GATEWAY_METRICS.rsplit_once('/').map_or("", |(folder, _)| folder);
    let is_gateway = |pod: &&PodName| data.contains_key(&format!("{}/{folder}", pod_directory(pod)));
    let gateways: BTreeSet<&PodName> = ready.into_iter().filter(is_gateway).collect();
    let known = machine.peers.cached_counts(&gateways);
    let asked = gateways.into_iter().filter(|pod| !known.contains_key(*pod));
    let asked = asked.map(|pod| async move { (pod, count_peers(&machine.access, pod).await) });
    for (pod, answer) in join_all(asked).await {
        match answer {
            Ok(peers) => {
                machine.peers.record_count(pod, peers);
                figures.entry(pod.clone()).or_default().peers = Some(peers);
            }
            Err(error) => tracing::debug!(%pod, error = chain_text(&error), "cannot read the peers of a gateway"),
        }
    }
    for (pod, peers) in known {
        figures.entry(pod).or_default().peers = Some(peers);
    }
    figures
}

/// Queries a gateway for its number of peers.
async fn count_peers(access: &MachineAccess, pod: &PodName) -> Result<u64, FilesError> {
    let question = "GET /metrics HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n";
    let answer = socket::request(access, (pod.clone(), GATEWAY_METRICS), question).await?;
    peers(&answer).ok_or(FilesError::Unexpected("its metrics"))
}

fn peers(answer: &str) -> Option<u64> {
    answer.lines().find_map(|line| line.strip_prefix(PEERS)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_from_openmetrics() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n# HELP keelway_gateway_peers Peers.\n\
                      # TYPE keelway_gateway_peers gauge\nkeelway_gateway_peers 12\n# EOF\n";
        assert_eq!(peers(answer), Some(12));
        assert_eq!(peers("HTTP/1.1 503 Service Unavailable\r\n\r\n"), None);
    }
}
