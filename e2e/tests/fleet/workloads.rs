//! Workloads of a fleet.

use keelway_e2e::{
    Kubectl, deadline,
    worker_fleet::{AGNHOST, WorkerFleet},
};

use crate::Member;

/// A policy without a cluster selector places an application in one cluster, the first one by name.
pub(crate) fn one_cluster_runs_it(fleet: &Kubectl, chosen: &Member, other: &Member) {
    fleet.apply(&policy("web", ("app", "web"), "{}"));
    fleet.apply(&application("web", 2));
    fleet.wait("jsonpath={.status.readyReplicas}=2", &["deployment/web"]);
    for object in ["deployment/web", "service/web", "configmap/web"] {
        assert_eq!(chosen.cluster.kubectl.run(&["get", object]).code(), 0, "{object}");
        assert_ne!(other.cluster.kubectl.run(&["get", object]).code(), 0, "{object}");
    }
    let events = fleet.run(&["get", "events", "-o", "jsonpath={.items[*].reason}"]).succeeded();
    assert!(events.text().contains("SchedulePolicyMatched"), "{}", events.text());
}

/// A drain moves the application to the other cluster, and its end moves nothing back.
pub(crate) fn a_drain_moves_it(worker_fleet: &WorkerFleet, fleet: &Kubectl, drained: &Member, other: &Member) {
    let kubeconfig = fleet.file().to_str().unwrap();
    for (command, outcome) in [("drain", "drained"), ("uncordon", "uncordoned")] {
        let arguments = ["fleet", command, drained.name, "--kubeconfig", kubeconfig];
        let finished = worker_fleet.fleet.keelway.run(&arguments, &[]).succeeded();
        assert_eq!(finished.text().trim_end(), format!("cluster.fleet.keelway.dev/{} {outcome}", drained.name));
        fleet.wait("jsonpath={.status.readyReplicas}=2", &["deployment/web"]);
        for object in ["deployment/web", "service/web", "configmap/web"] {
            assert_eq!(other.cluster.kubectl.run(&["get", object]).code(), 0, "{object}");
            assert_ne!(drained.cluster.kubectl.run(&["get", object]).code(), 0, "{object}");
        }
    }
    let cause = format!("moves from {} to {}: the cluster is being drained", drained.name, other.name);
    deadline::until("an Event names the cause", deadline::KUBERNETES, || {
        fleet.run(&["get", "events", "-o", "jsonpath={.items[*].message}"]).text().contains(&cause)
    });
}

/// An annotation places an object in the cluster that it names.
pub(crate) fn an_annotation_names_the_cluster(fleet: &Kubectl, named: &Member, other: &Member) {
    let manifest = format!(
        "
apiVersion: v1
kind: ConfigMap
metadata: {{name: named, annotations: {{fleet.keelway.dev/cluster: {}}}}}
data: {{key: value}}
",
        named.name
    );
    fleet.apply(&manifest);
    is_there(named, "configmap/named");
    assert_ne!(other.cluster.kubectl.run(&["get", "configmap/named"]).code(), 0);
}

/// A policy that divides gives each cluster its part of the replicas. The Deployment in the fleet has the sum.
pub(crate) fn replicas_are_divided(fleet: &Kubectl, members: &[&Member]) {
    fleet.apply(&policy("split", ("app", "split"), "{spreadConstraints: {spreadMode: Divide}}"));
    fleet.apply(&application("split", 4));
    fleet.wait("jsonpath={.status.readyReplicas}=4", &["deployment/split"]);
    for member in members {
        assert_eq!(member.cluster.value("deployment/split", "{.spec.replicas}"), "2", "{}", member.name);
        assert_eq!(member.cluster.kubectl.run(&["get", "configmap/split"]).code(), 0, "{}", member.name);
    }
}

/// An object that is deleted in a cluster comes back, and a changed field is corrected.
pub(crate) fn drift_is_corrected(member: &Member) {
    let kubectl = &member.cluster.kubectl;
    let _ = kubectl.run(&["delete", "configmap/named"]).succeeded();
    is_there(member, "configmap/named");
    let patch = r#"{"data":{"key":"changed"}}"#;
    let _ = kubectl.run(&["patch", "configmap/named", "--type=merge", "-p", patch]).succeeded();
    kubectl.wait("jsonpath={.data.key}=value", &["configmap/named"]);
}

/// A deletion in the fleet deletes in its clusters, and nothing else.
pub(crate) fn deletion_reaches_the_clusters(fleet: &Kubectl, members: &[&Member]) {
    let _ = fleet.run(&["delete", "deployment/split", "configmap/named"]).succeeded();
    for member in members {
        deadline::until(&format!("{} deletes its part", member.name), deadline::KUBERNETES, || {
            let left = member.cluster.kubectl.run(&["get", "deployments,configmaps", "-o", "name"]).succeeded();
            !left.text().contains("deployment.apps/split") && !left.text().contains("configmap/named")
        });
        assert_eq!(member.cluster.kubectl.run(&["get", "configmap/split"]).code(), 0, "{}", member.name);
    }
}

fn is_there(member: &Member, object: &str) {
    deadline::until(&format!("{object} in {}", member.name), deadline::KUBERNETES, || {
        member.cluster.kubectl.run(&["get", object]).code() == 0
    });
}

/// A policy for the objects with this label. `rest` is the rest of its spec, as a YAML flow mapping.
pub(crate) fn policy(name: &str, (label, value): (&str, &str), rest: &str) -> String {
    let rest: serde_json::Value = serde_saphyr::from_str(rest).unwrap();
    let mut spec =
        serde_json::json!({ "resourceSelectors": { "labelSelectors": [{ "matchLabels": { label: value } }] } });
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    let policy = serde_json::json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "SchedulePolicy",
        "metadata": { "name": name },
        "spec": spec,
    });
    policy.to_string()
}

/// The spec of a Deployment whose pods have the label `app`, and serve on port 8080.
pub(crate) fn serving(app: &str, replicas: u32) -> serde_json::Value {
    serde_json::json!({
        "replicas": replicas,
        "selector": { "matchLabels": { "app": app } },
        "template": {
            "metadata": { "labels": { "app": app } },
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "serves", "image": AGNHOST, "args": ["netexec", "--http-port=8080"] }],
            },
        },
    })
}

/// A Deployment, a Service and a ConfigMap with the label `app`.
fn application(app: &str, replicas: u32) -> String {
    let spec = serving(app, replicas);
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {app}, labels: {{app: {app}}}}}
spec: {spec}
---
apiVersion: v1
kind: Service
metadata: {{name: {app}, labels: {{app: {app}}}}}
spec: {{selector: {{app: {app}}}, ports: [{{port: 80, targetPort: 8080}}]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: {app}, labels: {{app: {app}}}}}
data: {{key: value}}
"
    )
}
