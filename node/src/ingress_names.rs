//! Finds ingresses by name if none of the known ones responds: all of them may have got other addresses while the worker was away.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    time::Duration,
};

use futures::future::join_all;
use keelway_api::worker::ClusterInformation;
use keelway_base::error_chain::ErrorChain;
use tokio::{
    net::lookup_host,
    time::{Instant, sleep_until, timeout},
};

use crate::status::IngressStatus;

/// How long no ingress responds before the names are resolved.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval at which the names are resolved again while no ingress responds.
const AGAIN: Duration = Duration::from_secs(30);
/// The interval at which the ingresses are observed.
const LOOK: Duration = Duration::from_secs(1);
/// How long the resolution of a name may take.
const RESOLVE: Duration = Duration::from_secs(5);

/// Resolves names.
pub(crate) trait IngressResolver {
    /// Returns the addresses of a name, with this port.
    fn resolve(&self, name: &str, port: u16) -> impl Future<Output = io::Result<Vec<SocketAddr>>> + Send;
}

/// The resolver of this machine.
#[derive(Debug, Default)]
pub(crate) struct MachineResolver;

impl IngressResolver for MachineResolver {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = timeout(RESOLVE, lookup_host((name, port))).await;
        Ok(found.map_err(|_| io::ErrorKind::TimedOut)??.collect())
    }
}

/// The outcome of the resolution of several names.
#[derive(Debug)]
pub(crate) struct ResolvedNames {
    /// Each address, with a name that has it.
    pub(crate) addresses: BTreeMap<SocketAddr, String>,
    /// The names that could not be resolved.
    pub(crate) failures: Vec<(String, io::Error)>,
}

/// Resolves all names at the same time. Leaves out unspecified addresses, at which the machine would connect to itself.
pub(crate) async fn resolve_names(resolver: &impl IngressResolver, names: &[String], port: u16) -> ResolvedNames {
    let outcomes = names.iter().map(|name| async move { (name, resolver.resolve(name, port).await) });
    let mut all = ResolvedNames { addresses: BTreeMap::new(), failures: Vec::new() };
    for (name, outcome) in join_all(outcomes).await {
        match outcome {
            Ok(found) => {
                let usable = found.into_iter().filter(|address| !address.ip().is_unspecified());
                all.addresses.extend(usable.map(|address| (address, name.clone())));
            }
            Err(error) => all.failures.push((name.clone(), error)),
        }
    }
    all
}

/// Returns the addresses that the names of a cluster resolve to, with the port of its ingresses.
pub(crate) async fn addresses_of_names(
    resolver: &impl IngressResolver,
    cluster: &ClusterInformation,
) -> BTreeSet<SocketAddr> {
    let Some(port) = cluster.endpoints.first().map(|endpoint| endpoint.address.port()) else {
        return BTreeSet::new();
    };
    let of_names = resolve_names(resolver, &cluster.names, port).await;
    for (name, error) in &of_names.failures {
        tracing::debug!(name, "cannot resolve a name of the cluster: {}", ErrorChain(error));
    }
    of_names.addresses.into_keys().collect()
}

/// Whether all ingresses failed their last check.
fn are_lost(ingresses: &[IngressStatus]) -> bool {
    ingresses.iter().all(|ingress| ingress.answers == Some(false))
}

/// The ingresses of a cluster: those of its information, and those that were found by name.
#[derive(Debug)]
pub(crate) struct IngressNames<R> {
    resolver: R,
    found: BTreeSet<SocketAddr>,
    /// When the names are due, while no ingress responds.
    due: Option<Instant>,
}

impl<R: IngressResolver> IngressNames<R> {
    pub(crate) fn new(resolver: R) -> Self {
        Self { resolver, found: BTreeSet::new(), due: None }
    }

    /// Returns the ingresses to use: first those of the information.
    pub(crate) fn ingresses(&self, cluster: &ClusterInformation) -> Vec<SocketAddr> {
        let known: Vec<SocketAddr> = cluster.endpoints.iter().map(|endpoint| endpoint.address).collect();
        let found: Vec<SocketAddr> = self.found.iter().copied().filter(|address| !known.contains(address)).collect();
        [known, found].concat()
    }

    /// Drops what was found, because the information is current again.
    pub(crate) fn forget(&mut self) {
        self.found.clear();
        self.due = None;
    }

    /// Waits until the ingresses have changed. It can be cancelled.
    pub(crate) async fn changed(&mut self, cluster: &ClusterInformation, observe: impl Fn() -> Vec<IngressStatus>) {
        loop {
            sleep_until(Instant::now() + LOOK).await;
            if !self.is_due(&observe(), Instant::now()) {
                continue;
            }
            let found = addresses_of_names(&self.resolver, cluster).await;
            self.due = Some(Instant::now() + AGAIN);
            // A name that cannot be resolved removes nothing.
            if !found.is_empty() && found != self.found {
                tracing::info!(?found, "no ingress responds; trying the addresses of the cluster's names");
                self.found = found;
                return;
            }
        }
    }

    fn is_due(&mut self, ingresses: &[IngressStatus], now: Instant) -> bool {
        if !are_lost(ingresses) {
            self.due = None;
            return false;
        }
        *self.due.get_or_insert(now + PATIENCE) <= now
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::{self, LocalResolver};

    fn cluster() -> ClusterInformation {
        let endpoints = serde_json::from_value(json!([{ "address": "203.0.113.1:20000" }])).unwrap();
        let names = ["api.example.com", "gone.example.com"].map(str::to_owned).to_vec();
        ClusterInformation { endpoints, names, ..samples::cluster() }
    }

    fn status(answers: Option<bool>) -> Vec<IngressStatus> {
        vec![IngressStatus {
            address: "203.0.113.1:20000".parse().unwrap(),
            answers,
            connections: 0,
            proxy: None,
            problem: None,
        }]
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_resolved_once_no_ingress_responds() {
        let resolver = LocalResolver::default();
        resolver.set("api.example.com", &["198.51.100.9", "203.0.113.1", "0.0.0.0"]);
        let (cluster, mut names) = (cluster(), IngressNames::new(resolver.clone()));
        let began = Instant::now();
        names.changed(&cluster, || status(Some(false))).await;
        assert!(began.elapsed() >= PATIENCE && began.elapsed() < PATIENCE * 2, "{:?}", began.elapsed());
        let found = addresses(&["203.0.113.1:20000", "198.51.100.9:20000"]);
        assert_eq!(names.ingresses(&cluster), found, "each ingress once, the known ones first");

        // The same addresses are no change. Others are.
        let same = timeout(AGAIN * 10, names.changed(&cluster, || status(Some(false)))).await;
        assert!(same.is_err());
        resolver.set("api.example.com", &["198.51.100.10"]);
        names.changed(&cluster, || status(Some(false))).await;
        assert_eq!(names.ingresses(&cluster), addresses(&["203.0.113.1:20000", "198.51.100.10:20000"]));

        // An outage of the resolver removes nothing.
        resolver.forget_all();
        assert!(timeout(AGAIN * 10, names.changed(&cluster, || status(Some(false)))).await.is_err());
        assert_eq!(names.ingresses(&cluster).len(), 2);
        names.forget();
        assert_eq!(names.ingresses(&cluster), addresses(&["203.0.113.1:20000"]));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_resolved_while_an_ingress_responds_or_was_not_checked_yet() {
        for answers in [Some(true), None] {
            let resolver = LocalResolver::default();
            resolver.set("api.example.com", &["198.51.100.9"]);
            let (cluster, mut names) = (cluster(), IngressNames::new(resolver.clone()));
            assert!(timeout(AGAIN * 10, names.changed(&cluster, || status(answers))).await.is_err());
            assert_eq!(resolver.queries(), 0);
        }
    }

    #[tokio::test]
    async fn the_machine_resolves_names() {
        let found = MachineResolver.resolve("localhost", 20000).await.unwrap();
        assert!(found.iter().any(|address| address.ip().is_loopback() && address.port() == 20000), "{found:?}");
    }
}
