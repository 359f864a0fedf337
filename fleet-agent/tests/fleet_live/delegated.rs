//! An agent with `--orchestration-enabled=false`: another orchestrator submits objects, and the agent reads them.

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{ConfigMap, Namespace},
    rbac::v1::{Role, RoleBinding},
};
use keelway_fleet::{AgentRights, WorkloadCluster, agent_manifests, names::FLEET_NAMESPACE};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    agent::{self, ACCOUNT, Agent},
    fleet::{Works, apply, is_forbidden},
    heartbeat,
    plane::Plane,
    prepare, start, wait,
};

const FLAGS: [&str; 2] = ["--orchestration-enabled=false", "--rescheduling-enabled=false"];

fn job(labels: &Value) -> Value {
    let container = json!({ "name": "c", "image": "c:1" });
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": "train", "namespace": "shop", "labels": labels },
        "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [container] } } },
    })
}

async fn label(jobs: &Api<Job>, value: &Value) {
    let change = json!({ "metadata": { "labels": { "fleet.keelway.dev/schedule": value } } });
    jobs.patch("train", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
}

/// Sets the status of the Job as its controller would, and waits until the fleet has it.
async fn runs(jobs: &Api<Job>, works: &Works, active: i64) {
    let status = json!({ "status": { "active": active, "startTime": "2026-01-01T00:00:00Z" } });
    jobs.patch_status("train", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    wait::until(&format!("the fleet has {active} active"), async || {
        let status = works.get("train").await.and_then(|work| work.status?.object_status);
        status.is_some_and(|status| status["active"] == active)
    })
    .await;
}

pub(crate) async fn an_agent_tracks_what_another_orchestrator_submits() {
    let (fleet_plane, workload_plane) = start(None, None).await;
    let (fleet, workload) = (fleet_plane.admin().await, workload_plane.admin().await);
    prepare(&fleet, &workload).await;
    let rights = AgentRights { delegated: true, ..AgentRights::default() };
    agent::grant_rights(&workload, &rights).await;
    // The agent's own Secret is in its own namespace, where it has rights of its own.
    for object in agent_manifests("token", "image", &rights) {
        if object["kind"] == "Role" {
            apply(&Api::<Role>::namespaced(workload.clone(), FLEET_NAMESPACE), object).await;
        } else if object["kind"] == "RoleBinding" {
            apply(&Api::<RoleBinding>::namespaced(workload.clone(), FLEET_NAMESPACE), object).await;
        }
    }
    apply(
        &Api::<Namespace>::all(workload.clone()),
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } }),
    )
    .await;
    the_account_only_reads(&workload_plane).await;
    let agent = Agent::start_with(&fleet_plane, &workload_plane, &FLAGS);
    heartbeat(&fleet).await;
    flags_are_reported(&fleet).await;

    let works = Works::new(&fleet, "west");
    let jobs = Api::<Job>::namespaced(workload.clone(), "shop");
    works.put("train", job(&json!({})), json!({})).await;
    let message = works.reports("train", "False", "NotSubmitted").await;
    assert!(message.contains("another orchestrator has to submit it"), "{message}");
    assert!(jobs.get_opt("train").await.unwrap().is_none(), "the agent applies nothing");

    // The agent does not track an object without the label.
    let created = jobs.create(&PostParams::default(), &serde_json::from_value(job(&json!({}))).unwrap()).await.unwrap();
    works.put("train", job(&json!({ "app": "train" })), json!({})).await;
    let message = works.reports("train", "False", "NotSubmitted").await;
    assert!(message.contains("lacks the label"), "{message}");
    label(&jobs, &json!("false")).await;
    label(&jobs, &json!("true")).await;
    works.reports("train", "True", "Tracked").await;
    runs(&jobs, &works, 1).await;
    label(&jobs, &Value::Null).await;
    works.reports("train", "False", "NotSubmitted").await;
    label(&jobs, &json!("true")).await;
    works.reports("train", "True", "Tracked").await;

    // An agent that restarts writes nothing about what is settled.
    let settled = works.versions().await;
    agent.stop();
    let agent = Agent::start_with(&fleet_plane, &workload_plane, &FLAGS);
    works.put("next", config("next"), json!({})).await;
    works.reports("next", "False", "NotSubmitted").await;
    works.delete("next").await;
    works.is_gone("next").await;
    assert_eq!(works.versions().await, settled);

    // The order to delete ends the tracking. The orchestrator removes what it submitted.
    works.delete("train").await;
    works.is_gone("train").await;
    let left = jobs.get("train").await.unwrap();
    assert_eq!((left.uid(), left.metadata.deletion_timestamp), (created.uid(), None));
    let managers = left.metadata.managed_fields.unwrap_or_default();
    assert!(managers.iter().all(|entry| entry.manager.as_deref() != Some("keelway-fleet-agent")), "{managers:?}");

    works.put("train", job(&json!({})), json!({})).await;
    works.reports("train", "True", "Tracked").await;
    runs(&jobs, &works, 2).await;
    jobs.delete("train", &DeleteParams::background()).await.unwrap();
    works.reports("train", "False", "NotSubmitted").await;
    agent.stop();
}

fn config(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "shop" } })
}

/// The rights that `keelway fleet agent-manifests --orchestration-enabled=false` grants let the agent write nothing.
async fn the_account_only_reads(workload: &Plane) {
    let client = workload.client(ACCOUNT, &[]).await;
    let configs = Api::<ConfigMap>::namespaced(client.clone(), "shop");
    wait::until("the account reads", async || configs.get_opt("none").await.is_ok()).await;
    let one: ConfigMap = serde_json::from_value(config("one")).unwrap();
    assert!(is_forbidden(configs.create(&PostParams::default(), &one)).await);
    assert!(is_forbidden(configs.delete("one", &DeleteParams::default())).await);
    let jobs = Api::<Job>::namespaced(client, "shop");
    assert!(is_forbidden(jobs.patch("train", &PatchParams::default(), &Patch::Merge(&json!({})))).await);
}

async fn flags_are_reported(fleet: &Client) {
    let clusters = Api::<WorkloadCluster>::all(fleet.clone());
    wait::until("the Cluster has the flags of the agent", async || {
        let status = clusters.get("west").await.unwrap().status.unwrap_or_default();
        (status.orchestration_enabled, status.rescheduling_enabled) == (Some(false), Some(false))
    })
    .await;
}
