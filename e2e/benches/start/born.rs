//! A cluster that is made, with somebody who waits for its API meanwhile.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use keelway_api::{Documents, documents::SecretName};
use keelway_e2e::{FinishedCommand, Keelway, control_plane::ingress_of, deadline, https::HttpsClient};

use crate::plain::ready;

/// A cluster's first moments.
pub(crate) struct Born {
    /// What came of `reconcile`.
    pub(crate) ran: FinishedCommand,
    /// From its start to an answer of `/readyz` through the ingress.
    pub(crate) took: Duration,
    /// When that was answered.
    pub(crate) ready: Instant,
}

/// Runs `reconcile` to its end.
pub(crate) fn born(keelway: &Keelway, wanted: &[u8]) -> Born {
    let started = Instant::now();
    let reconcile = keelway.start(&["reconcile"], wanted);
    // Where the ingress is and whom to trust stands in the documents that are kept while it runs.
    let kept = keelway.state().join(format!("reconcile-{}.yaml", reconcile.pid()));
    deadline::until("the documents are kept", deadline::READ, || kept.exists());
    let (readyz, ingress) = entrance(&fs::read(&kept).unwrap());
    let ready = ready(&readyz, ingress);
    Born { ran: keelway.end(reconcile).succeeded(), took: ready - started, ready }
}

/// The first documents that are kept have a place for all components, and all keys.
fn entrance(text: &[u8]) -> (HttpsClient, SocketAddr) {
    let documents = Documents::read(text).unwrap();
    let id = documents.clusters.values().next().unwrap().id().unwrap();
    let authority = &documents.secrets[&SecretName::of(id, "kubernetes-ca")];
    let bundle = &authority.data.as_ref().unwrap()["bundle.crt"].0;
    (HttpsClient::new(bundle, "kubernetes", None), ingress_of(&documents).unwrap())
}
