//! The administrator of another cluster, for whom its own authority signs any certificate.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    plane::{CLIENTS, Plane, client_identity, replace},
    strangers::status,
    wait,
};

/// Only the trusted authority distinguishes a cluster's own administrators from others.
pub(crate) async fn are_nobody_here(plane: &Plane) {
    let theirs = Plane::another_authority();
    let identity = client_identity(&theirs, "kubernetes-admin", &["system:masters"]);
    let certificate = STANDARD.encode(&identity.certificate_pem);
    let administrator = plane.identified(&certificate, &STANDARD.encode(identity.key_pem.expose())).await;
    let nodes = "/api/v1/nodes";
    assert_eq!(status(&administrator, nodes).await, 401, "another cluster's administrator");

    replace(CLIENTS, &format!("{}{}", plane.authority(), theirs.certificate().pem()));
    wait::until("with both authorities: another cluster's administrator", async || {
        status(&administrator, nodes).await == 200
    })
    .await;
    replace(CLIENTS, plane.authority());
    wait::until("with its own alone, again: nobody", async || status(&administrator, nodes).await == 401).await;
}
