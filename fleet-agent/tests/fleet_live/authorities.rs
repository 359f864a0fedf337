//! An agent whose fleet publishes other authorities.

use k8s_openapi::api::coordination::v1::Lease;
use keelway_api::{machine::sha256_hex, worker::TRUSTED_AUTHORITIES};
use kube::{Api, Client, ResourceExt};

use crate::{agent::Agent, fleet, wait};

/// The agent adopts authorities with which it can verify the API of the fleet, and reports them. It keeps them if the fleet publishes others.
pub(crate) async fn only_what_verifies_is_adopted(admin: &Client, (own, foreign): (&str, &str)) {
    let both = [own, foreign].concat();
    fleet::publish(admin, &both).await;
    reports(admin, &both).await;
    fleet::publish(admin, foreign).await;
    wait::until("the agent does not adopt them", async || Agent::logged("cannot be verified") > 0).await;
    let renewed = lease(admin).await.spec.unwrap().renew_time;
    wait::until("its session continues", async || lease(admin).await.spec.unwrap().renew_time > renewed).await;
    reports(admin, &both).await;
    fleet::publish(admin, own).await;
    reports(admin, own).await;
}

async fn reports(admin: &Client, authorities: &str) {
    let wanted = sha256_hex(authorities.as_bytes());
    wait::until("the agent reports them", async || {
        lease(admin).await.annotations().get(TRUSTED_AUTHORITIES) == Some(&wanted)
    })
    .await;
}

async fn lease(admin: &Client) -> Lease {
    Api::namespaced(admin.clone(), "fleet-west").get("agent").await.unwrap()
}
