//! Finds ingresses by name if none of the known ones responds: all of them may have got other addresses while the worker was away.

use std::{collections::BTreeSet, io, net::SocketAddr, time::Duration};

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
            let found = self.resolve(cluster).await;
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

    async fn resolve(&self, cluster: &ClusterInformation) -> BTreeSet<SocketAddr> {
        let Some(port) = cluster.endpoints.first().map(|endpoint| endpoint.address.port()) else {
            return BTreeSet::new();
        };
        let mut all = BTreeSet::new();
        for name in &cluster.names {
            match self.resolver.resolve(name, port).await {
                Ok(found) => all.extend(found.into_iter().filter(|address| !address.ip().is_unspecified())),
                Err(error) => tracing::debug!(name, "cannot resolve a name of the cluster: {}", ErrorChain(&error)),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };

    use serde_json::json;

    use super::*;
    use crate::samples;

    /// Names with their addresses.
    #[derive(Debug, Clone, Default)]
    struct LocalResolver {
        names: Arc<Mutex<BTreeMap<String, Vec<SocketAddr>>>>,
    }

    impl LocalResolver {
        fn set(&self, name: &str, addresses: &[&str]) {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            self.names.lock().unwrap().insert(name.to_owned(), addresses);
        }
    }

    impl IngressResolver for LocalResolver {
        async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            assert_eq!(port, 20000);
            let found = self.names.lock().unwrap().get(name).cloned();
            found.ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }

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
        resolver.set("api.example.com", &["198.51.100.9:20000", "203.0.113.1:20000"]);
        let (cluster, mut names) = (cluster(), IngressNames::new(resolver.clone()));
        let began = Instant::now();
        names.changed(&cluster, || status(Some(false))).await;
        assert!(began.elapsed() >= PATIENCE && began.elapsed() < PATIENCE * 2, "{:?}", began.elapsed());
        let found = addresses(&["203.0.113.1:20000", "198.51.100.9:20000"]);
        assert_eq!(names.ingresses(&cluster), found, "each ingress once, the known ones first");

        // The same addresses are no change. Others are.
        let same = timeout(AGAIN * 10, names.changed(&cluster, || status(Some(false)))).await;
        assert!(same.is_err());
        resolver.set("api.example.com", &["198.51.100.10:20000"]);
        names.changed(&cluster, || status(Some(false))).await;
        assert_eq!(names.ingresses(&cluster), addresses(&["203.0.113.1:20000", "198.51.100.10:20000"]));

        // An outage of the resolver removes nothing.
        resolver.names.lock().unwrap().clear();
        assert!(timeout(AGAIN * 10, names.changed(&cluster, || status(Some(false)))).await.is_err());
        assert_eq!(names.ingresses(&cluster).len(), 2);
        names.forget();
        assert_eq!(names.ingresses(&cluster), addresses(&["203.0.113.1:20000"]));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_resolved_while_an_ingress_responds_or_was_not_checked_yet() {
        for answers in [Some(true), None] {
            let resolver = LocalResolver::default();
            resolver.set("api.example.com", &["198.51.100.9:20000"]);
            let (cluster, mut names) = (cluster(), IngressNames::new(resolver));
            assert!(timeout(AGAIN * 10, names.changed(&cluster, || status(answers))).await.is_err());
        }
    }

    #[tokio::test]
    async fn the_machine_resolves_names() {
        let found = MachineResolver.resolve("localhost", 20000).await.unwrap();
        assert!(found.iter().any(|address| address.ip().is_loopback() && address.port() == 20000), "{found:?}");
    }
}
