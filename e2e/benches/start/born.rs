//! A cluster that is made, with somebody who waits for its API meanwhile.

use std::{fs, net::SocketAddr, time::Instant};

use keelway_api::{Documents, documents::SecretName};
use keelway_e2e::{Keelway, Ran, control_plane::ingress_of, deadline, https::Https};

use crate::plain::ready;

/// Runs `reconcile`. Returns what came of it, and how many seconds after its start `/readyz` was answered through the ingress.
pub(crate) fn born(keelway: &Keelway, wanted: &[u8]) -> (Ran, f64) {
    let started = Instant::now();
    let reconcile = keelway.start(&["reconcile"], wanted);
    // Where the ingress is and whom to trust stands in the documents that are kept while it runs.
    let kept = keelway.state().join(format!("reconcile-{}.yaml", reconcile.pid()));
    deadline::until("the documents are kept", deadline::READ, || kept.exists());
    let (readyz, ingress) = entrance(&fs::read(&kept).unwrap());
    ready(&readyz, ingress);
    let took = started.elapsed();
    (keelway.end(reconcile).succeeded(), took.as_secs_f64())
}

/// The first documents that are kept have a place for all components, and all keys.
fn entrance(text: &[u8]) -> (Https, SocketAddr) {
    let documents = Documents::read(text).unwrap();
    let id = documents.clusters.values().next().unwrap().id().unwrap();
    let authority = &documents.secrets[&SecretName::of(id, "kubernetes-ca")];
    let bundle = &authority.data.as_ref().unwrap()["bundle.crt"].0;
    (Https::new(bundle, "kubernetes", None), ingress_of(&documents).unwrap())
}
