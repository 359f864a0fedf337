//! An agent whose cluster was removed from the fleet.

use kube::Client;

use crate::{
    agent::Agent,
    cases::{edit, has},
    fleet::{self, Works},
    wait,
};

/// The agent reports that the fleet refuses it, and goes on with what it has. It carries out no order, until it has its rights again.
pub(crate) async fn an_agent_without_rights_changes_nothing(
    fleet: &Client,
    works: &Works,
    workload: &Client,
    agent: &Agent,
) {
    assert!(agent.readiness().await.contains("200 OK"));
    assert_eq!(Agent::refusals(), 0);
    fleet::unbind_in(fleet, "fleet-west", "west").await;
    wait::until("the agent is not ready", async || agent.readiness().await.contains("the fleet refuses this agent"))
        .await;
    works.delete("plain").await;
    let before = Agent::refusals();
    wait::until("the agent is refused again", async || Agent::refusals() > before).await;
    edit(workload, "plain", "edited without rights").await;
    has(workload, "plain", "three").await;
    assert!(works.get("plain").await.is_some(), "the order waits");

    fleet::bind_in(fleet, "fleet-west", "west").await;
    works.is_gone("plain").await;
    assert!(agent.readiness().await.contains("200 OK"));
}
