//! Starts a cluster, and waits for its API meanwhile.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use keelway_api::{Documents, documents::SecretName};
use keelway_e2e::{FinishedCommand, Keelway, control_plane::ingress_of, deadline, https::HttpsClient};

use crate::plain::ready;

/// A cluster that was just created, or woke up.
pub(crate) struct StartedCluster {
    /// The result of `reconcile`.
    pub(crate) finished: FinishedCommand,
    /// The time from the start of `reconcile` to a successful response of `/readyz` through the ingress.
    pub(crate) took: Duration,
    /// When that response arrived.
    pub(crate) ready: Instant,
}

/// Runs `reconcile` until it exits.
pub(crate) fn start_cluster(keelway: &Keelway, wanted: &[u8]) -> StartedCluster {
    let started = Instant::now();
    let reconcile = keelway.start(&["reconcile"], wanted);
    // The endpoint of the ingress and the certificate authority are in the documents that `reconcile` saves while it runs.
    let kept = keelway.state().join(format!("reconcile-{}.yaml", reconcile.pid()));
    deadline::until("the documents are kept", deadline::READ, || kept.exists());
    let (readyz, ingress) = entrance(&fs::read(&kept).unwrap());
    let ready = ready(&readyz, ingress);
    StartedCluster { finished: keelway.end(reconcile).succeeded(), took: ready - started, ready }
}

/// Lets a cluster fall asleep, and wakes it.
pub(crate) fn wake_cluster(keelway: &Keelway, text: &[u8]) -> StartedCluster {
    let asleep = keelway.run(&["cluster", "sleep", "--name", "c1"], text).succeeded().stdout;
    let asleep = keelway.run(&["reconcile"], &asleep).succeeded().stdout;
    let waking = keelway.run(&["cluster", "wake", "--name", "c1"], &asleep).succeeded().stdout;
    start_cluster(keelway, &waking)
}

/// Returns the client and the endpoint of the ingress. The first documents that are saved already place all components and contain all keys.
fn entrance(text: &[u8]) -> (HttpsClient, SocketAddr) {
    let documents = Documents::read(text).unwrap();
    let id = documents.clusters.values().next().unwrap().id().unwrap();
    let authority = &documents.secrets[&SecretName::of(id, "kubernetes-ca")];
    let bundle = &authority.data.as_ref().unwrap()["bundle.crt"].0;
    (HttpsClient::new(bundle, "kubernetes", None), ingress_of(&documents).unwrap())
}
