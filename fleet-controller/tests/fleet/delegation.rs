//! Another orchestrator submits objects in the cluster that the fleet chooses: a dispatcher for Kueue's MultiKueue, and what it relies on.

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1::Event};
use keelway_fleet::{
    SchedulePolicy, Work, WorkloadCluster, WorkloadPlacement,
    names::{TARGET_CLUSTER_LABEL, works_namespace},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{agents::TestAgent, placed::deleted, plane::Plane, registration::register, wait};

const FLEET: &str = "fleet.keelway.dev/v1alpha1";
const JOB: &str = "job.batch.default.train";

/// Reports as an agent with these flags does: nodes with so many free CPUs each.
async fn report(agent: &TestAgent, is_enabled: bool, cpus: u32) {
    agent.beat().await.unwrap();
    let rooms = json!([{ "nodes": 1, "free": { "cpu": cpus.to_string(), "memory": "8Gi", "pods": "110" } }]);
    let body = json!({
        "apiVersion": FLEET,
        "kind": "Cluster",
        "metadata": { "name": agent.cluster },
        "status": {
            "orchestrationEnabled": is_enabled,
            "reschedulingEnabled": is_enabled,
            "capacity": { "observedTime": "2026-01-01T00:00:00.000000Z", "nodes": 1, "nodeGroups": [{ "rooms": rooms }] },
        },
    });
    let api = Api::<WorkloadCluster>::all(agent.client.clone());
    let parameters = PatchParams::apply("keelway-fleet-agent").force();
    api.patch_status(&agent.cluster, &parameters, &Patch::Apply(&body)).await.unwrap();
}

/// Reports a Work as an agent does that applies nothing.
async fn tracked(agent: &TestAgent, work: &str, reason: &str, status: Option<Value>) {
    let api = Api::<Work>::namespaced(agent.client.clone(), &works_namespace(&agent.cluster));
    let generation = api.get(work).await.unwrap().metadata.generation;
    let is_there = if reason == "Tracked" { "True" } else { "False" };
    let condition = json!({
        "type": "Applied", "status": is_there, "reason": reason, "message": reason, "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let mut reported = json!({ "observedGeneration": generation, "objectGeneration": 1, "conditions": [condition] });
    if let Some(status) = status {
        reported["objectStatus"] = status;
    }
    let body = json!({ "apiVersion": FLEET, "kind": "Work", "metadata": { "name": work }, "status": reported });
    api.patch_status(work, &PatchParams::apply("keelway-fleet-agent").force(), &Patch::Apply(&body)).await.unwrap();
}

/// Waits until conditions of a Placement have these reasons: `Scheduled` and `Applied`.
async fn state(admin: &Client, placement: &str, expected: [&str; 2]) {
    let api = Api::<WorkloadPlacement>::namespaced(admin.clone(), "default");
    wait::until(&format!("{placement} is {expected:?}"), async || {
        let status = api.get_opt(placement).await.unwrap().and_then(|found| found.status).unwrap_or_default();
        let reason = |kind: &str| {
            let condition = status.conditions.iter().find(|condition| condition.type_ == kind);
            condition.map_or("none", |condition| condition.reason.as_str())
        };
        [reason("Scheduled"), reason("Applied")] == expected
    })
    .await;
}

/// A Job as the API server of Kueue's manager cluster has it: with what that server added.
fn queued_job() -> Value {
    let added = json!({ "controller-uid": "9f5c", "batch.kubernetes.io/controller-uid": "9f5c", "batch.kubernetes.io/job-name": "train", "app": "train" });
    let container = json!({ "name": "c", "image": "example.com/c", "resources": { "requests": { "cpu": "2" } } });
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "train", "namespace": "default", "uid": "9f5c", "resourceVersion": "17", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "kueue.x-k8s.io/queue-name": "training" },
        },
        "spec": {
            "parallelism": 1, "completions": 1, "suspend": true,
            "selector": { "matchLabels": { "batch.kubernetes.io/controller-uid": "9f5c" } },
            "template": { "metadata": { "labels": added }, "spec": { "restartPolicy": "Never", "containers": [container] } },
        },
        "status": {},
    })
}

/// A dispatcher for MultiKueue. It asks the fleet for the cluster of each Job.
struct TestDispatcher {
    jobs: Api<Job>,
}

impl TestDispatcher {
    /// Submits a copy of a Job to the fleet, without what another API server added.
    async fn submit(&self, queued: &Value) -> Job {
        let mut copy = queued.clone();
        copy.as_object_mut().unwrap().remove("status");
        let metadata = copy["metadata"].as_object_mut().unwrap();
        metadata.retain(|field, _| ["name", "namespace", "labels"].contains(&field.as_str()));
        copy["spec"].as_object_mut().unwrap().remove("selector");
        let labels = copy["spec"]["template"]["metadata"]["labels"].as_object_mut().unwrap();
        labels.retain(|label, _| label == "app");
        self.jobs.create(&PostParams::default(), &serde_json::from_value(copy).unwrap()).await.unwrap()
    }

    /// Polls the label of the Job. Returns the value of `Workload.status.nominatedClusterNames`.
    async fn nominated(&self, name: &str) -> Vec<String> {
        let cluster = wait::some("the Job names its cluster", async || {
            self.jobs.get(name).await.unwrap().labels().get(TARGET_CLUSTER_LABEL).cloned()
        });
        vec![cluster.await]
    }

    /// The Workload is `Finished`, so the fleet does not need the Job any more.
    async fn finish(&self, name: &str) {
        self.jobs.delete(name, &DeleteParams::background()).await.unwrap();
    }
}

/// The fleet chooses the cluster of a Job, and another orchestrator submits it. The fleet has its status until the orchestrator deletes it.
pub(crate) async fn another_orchestrator_submits(plane: &Plane, admin: &Client) {
    let (small, large) = (register(plane, admin, "queue-a").await, register(plane, admin, "queue-b").await);
    report(&small, false, 1).await;
    report(&large, false, 8).await;
    let policy: SchedulePolicy = serde_json::from_value(json!({
        "apiVersion": FLEET,
        "kind": "SchedulePolicy",
        "metadata": { "name": "queue" },
        "spec": {
            "priority": 20,
            "resourceSelectors": { "labelSelectors": [{ "matchLabels": { "kueue.x-k8s.io/queue-name": "training" } }] },
            "clusterSelector": { "matchExpressions": [
                { "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["queue-a", "queue-b"] },
            ] },
        },
    }))
    .unwrap();
    Api::<SchedulePolicy>::all(admin.clone()).create(&PostParams::default(), &policy).await.unwrap();

    let dispatcher = TestDispatcher { jobs: Api::namespaced(admin.clone(), "default") };
    let submitted = dispatcher.submit(&queued_job()).await;
    assert_eq!(dispatcher.nominated("train").await, ["queue-b"], "the first one by name has no room");
    state(admin, "job.batch.train", ["Delegated", "NotSubmitted"]).await;
    let job = dispatcher.jobs.get("train").await.unwrap();
    assert_eq!((job.metadata.generation, job.spec), (submitted.metadata.generation, submitted.spec));
    assert_eq!(job.metadata.labels.unwrap().len(), 2, "the fleet adds one label");
    let in_small = Api::<Work>::namespaced(admin.clone(), "fleet-queue-a");
    assert!(in_small.get_opt(JOB).await.unwrap().is_none());
    // The agent has not found it. That is no failure.
    tracked(&large, JOB, "NotSubmitted", None).await;
    state(admin, "job.batch.train", ["Delegated", "NotSubmitted"]).await;
    let warned = Api::<Event>::namespaced(admin.clone(), "default");

    // MultiKueue creates the Job in the nominated cluster, with the label by which the agent tracks it.
    tracked(&large, JOB, "Tracked", Some(json!({ "active": 1, "ready": 1, "startTime": "2026-01-01T00:00:00Z" })))
        .await;
    state(admin, "job.batch.train", ["Delegated", "Tracked"]).await;
    wait::until("the fleet has the status", async || {
        dispatcher.jobs.get("train").await.unwrap().status.is_some_and(|status| status.active == Some(1))
    })
    .await;
    let ended = |kind: &str| json!({ "type": kind, "status": "True", "reason": "CompletionsReached", "lastProbeTime": "2026-01-01T00:01:00Z", "lastTransitionTime": "2026-01-01T00:01:00Z" });
    let complete = json!({
        "succeeded": 1, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z", "uncountedTerminatedPods": {},
        "conditions": [ended("SuccessCriteriaMet"), ended("Complete")],
    });
    tracked(&large, JOB, "Tracked", Some(complete)).await;
    wait::until("the Job is complete in the fleet", async || {
        let conditions = dispatcher.jobs.get("train").await.unwrap().status.and_then(|status| status.conditions);
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Complete" && one.status == "True"))
    })
    .await;
    let events = warned.list(&ListParams::default()).await.unwrap();
    let of_job = events.iter().filter(|event| event.involved_object.name.as_deref() == Some("train"));
    let warnings: Vec<_> = of_job.filter(|event| event.type_.as_deref() == Some("Warning")).collect();
    assert!(warnings.iter().all(|event| event.reason.as_deref() != Some("ApplyFailed")), "{warnings:#?}");

    dispatcher.finish("train").await;
    deleted(&large, JOB).await;
    let placements = Api::<WorkloadPlacement>::namespaced(admin.clone(), "default");
    wait::until("the Placement is gone", async || placements.get_opt("job.batch.train").await.unwrap().is_none()).await;
    spread_is_refused(admin).await;
    the_label_follows_the_agent(admin, &large).await;
}

fn web(name: &str, annotations: &Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": { "name": name, "annotations": annotations },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "c", "image": "example.com/c" }] },
            },
        },
    }))
    .unwrap()
}

/// An object that is spread is not delegated. Its Placement says so, and no cluster gets it.
async fn spread_is_refused(admin: &Client) {
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "default");
    let spread = web("spread", &json!({ "fleet.keelway.dev/spread-onto": "queue-a,queue-b" }));
    deployments.create(&PostParams::default(), &spread).await.unwrap();
    state(admin, "deployment.apps.spread", ["SpreadRefused", "NoCluster"]).await;
    assert!(!deployments.get("spread").await.unwrap().labels().contains_key(TARGET_CLUSTER_LABEL));
    for cluster in ["queue-a", "queue-b"] {
        let works = Api::<Work>::namespaced(admin.clone(), &works_namespace(cluster));
        assert!(works.get_opt("deployment.apps.default.spread").await.unwrap().is_none());
    }
}

/// If the agent applies objects again, no orchestrator is asked any more.
async fn the_label_follows_the_agent(admin: &Client, agent: &TestAgent) {
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "default");
    report(agent, false, 8).await;
    let solo = web("solo", &json!({ "fleet.keelway.dev/cluster": agent.cluster }));
    deployments.create(&PostParams::default(), &solo).await.unwrap();
    let labelled = async |expected: Option<&str>| {
        wait::until(&format!("the label is {expected:?}"), async || {
            let found = deployments.get("solo").await.unwrap();
            found.labels().get(TARGET_CLUSTER_LABEL).map(String::as_str) == expected
        })
        .await;
    };
    labelled(Some(&agent.cluster)).await;
    // A person who removes the label gets it back.
    let none = json!({ "metadata": { "labels": { TARGET_CLUSTER_LABEL: null } } });
    deployments.patch("solo", &PatchParams::default(), &Patch::Merge(&none)).await.unwrap();
    labelled(Some(&agent.cluster)).await;
    report(agent, true, 8).await;
    labelled(None).await;
    state(admin, "deployment.apps.solo", ["Scheduled", "NotApplied"]).await;
}
