//! Registration, renewal and heartbeats.

use k8s_openapi::api::core::v1::Secret;
use keelway_fleet::{
    CLUSTER_READY, WorkloadCluster,
    bootstrap::token_secret_name,
    names::{AGENTS_GROUP, agent_user},
};
use kube::{Api, Client, ResourceExt};

use crate::{
    agents::{Asked, REGION, TestAgent, new_key, request, usual, with_token},
    plane::Plane,
    wait,
};

pub(crate) async fn ready(admin: &Client, cluster: &str) -> Option<String> {
    let found = Api::<WorkloadCluster>::all(admin.clone()).get_opt(cluster).await.unwrap()?;
    let conditions = found.status?.conditions;
    conditions.into_iter().find(|condition| condition.type_ == CLUSTER_READY).map(|condition| condition.status)
}

/// Registers a cluster, and sends its first heartbeats.
pub(crate) async fn register(plane: &Plane, admin: &Client, cluster: &str) -> TestAgent {
    let (client, token) = with_token(plane, admin, cluster).await;
    let key = new_key();
    let certificate = request(&client, &usual(&agent_user(cluster)), &key).await.unwrap();
    let secrets = Api::<Secret>::namespaced(admin.clone(), "kube-system");
    let secret = token_secret_name(token.id());
    assert!(secrets.get_opt(&secret).await.unwrap().is_some(), "the agent may still need its token");
    let agent = TestAgent::new(plane, cluster, &certificate, &key).await;
    wait::until("the agent has its rights", async || agent.beat().await.is_ok()).await;
    wait::until("the cluster is ready", async || {
        agent.beat().await.unwrap();
        ready(admin, cluster).await.as_deref() == Some("True")
    })
    .await;
    wait::until("the token is used up", async || secrets.get_opt(&secret).await.unwrap().is_none()).await;
    agent
}

/// The Cluster exists before its agent sends anything, and is not ready.
pub(crate) async fn a_cluster_registers(plane: &Plane, admin: &Client) -> TestAgent {
    let agent = register(plane, admin, "west").await;
    let cluster = Api::<WorkloadCluster>::all(admin.clone()).get("west").await.unwrap();
    assert_eq!(cluster.labels()["kubernetes.io/metadata.name"], "west");
    assert_eq!(cluster.spec.region.as_deref(), Some(REGION));
    let clusters = Api::<WorkloadCluster>::all(admin.clone());
    wait::until("the region is a label", async || {
        clusters
            .get("west")
            .await
            .unwrap()
            .labels()
            .get("fleet.keelway.dev/region")
            .is_some_and(|region| region == REGION)
    })
    .await;
    agent
}

/// Requests that are denied, of a token and of an agent.
pub(crate) async fn requests_that_are_denied(plane: &Plane, admin: &Client, west: &TestAgent) {
    let (token, _) = with_token(plane, admin, "north").await;
    let (north, east, own) = (agent_user("north"), agent_user("east"), west.user());
    let key = new_key();
    let rows = [
        ("a token for another cluster", &token, usual(&east), "AnotherCluster"),
        ("a token for an administrator", &token, usual("admin"), "AnotherCluster"),
        (
            "a token in the group of the fleet's administrators",
            &token,
            Asked { organization: "keelway:admins", ..usual(&north) },
            "WrongSubject",
        ),
        (
            "a token for a server",
            &token,
            Asked { usages: &["digital signature", "server auth"], ..usual(&north) },
            "WrongUsages",
        ),
        ("an agent for another cluster", &west.client, usual(&east), "AnotherCluster"),
        ("an agent in another group", &west.client, Asked { organization: "keelway:x", ..usual(&own) }, "WrongSubject"),
    ];
    for (what, client, asked, reason) in rows {
        assert_eq!(request(client, &asked, &key).await, Err(reason.to_owned()), "{what}");
    }
    assert!(Api::<WorkloadCluster>::all(admin.clone()).get_opt("north").await.unwrap().is_none());
    request(&token, &usual(&north), &key).await.unwrap();
    assert_eq!(request(&token, &usual(&north), &new_key()).await, Err("TokenUsed".to_owned()), "{AGENTS_GROUP}");
    request(&token, &usual(&north), &key).await.unwrap();
    assert_eq!(ready(admin, "north").await.as_deref(), Some("False"), "no agent has sent a heartbeat");
}

/// An agent renews its own certificate.
pub(crate) async fn renewal(agent: &TestAgent) {
    request(&agent.client, &usual(&agent.user()), &new_key()).await.unwrap();
}

/// Heartbeats change the Lease and nothing else.
pub(crate) async fn heartbeats_write_nothing_else(agent: &TestAgent, admin: &Client) {
    let clusters = Api::<WorkloadCluster>::all(admin.clone());
    let version = async || clusters.get(&agent.cluster).await.unwrap().resource_version();
    let before = version().await;
    for _ in 0..5 {
        agent.beat().await.unwrap();
        // Each request is answered after the controller has observed the heartbeat before it.
        request(&agent.client, &usual(&agent.user()), &new_key()).await.unwrap();
    }
    assert_eq!(version().await, before);
}
