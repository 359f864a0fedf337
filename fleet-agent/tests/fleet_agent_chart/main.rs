//! The chart of the agent renders the objects of `keelway fleet agent-manifests`, and objects that an API server accepts with each option.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "only the manager's plain manifests are a golden file")]
#[path = "../../../manager/tests/chart/helm.rs"]
mod helm;
#[expect(dead_code, reason = "the tests of the manager's chart use the rest")]
#[path = "../../../manager/tests/chart/objects.rs"]
mod objects;
#[path = "../../../manager/tests/chart/values.rs"]
mod values;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use keelway_api::release::fleet_agent_image;
use keelway_fleet::{AgentRights, agent_manifests};
use serde_json::Value;

use helm::HelmChart;
use objects::{Rendered, parse};

const TOKEN: &str = "dG9rZW4=";
/// The file of a token ends with a newline, as `keelway fleet token create` prints it.
const FROM_FILE: &str = "token=@dG9rZW4=\n";
/// What Helm adds to the metadata of each object.
const OF_HELM: [&str; 2] = ["app.kubernetes.io/managed-by", "app.kubernetes.io/version"];
const CHART: HelmChart = HelmChart {
    directory: "manifests/charts/keelway-fleet-agent",
    release: "keelway-fleet-agent",
    namespace: "keelway-fleet",
};
/// Sets of values, each rendered by itself.
const OPTIONS: [&[&str]; 12] = [
    &[FROM_FILE],
    &["tokenSecret=mine"],
    &[FROM_FILE, "rights.rbac=true", "rights.webhooks=true", "rights.resources[0]=widgets.example.com"],
    &[FROM_FILE, "proxy.url=http://proxy.example.com:3128", "proxy.noProxy=10.96.0.1"],
    &[FROM_FILE, "image.tag=v9.9.9", "image.pullPolicy=Always", "imagePullSecrets[0].name=registry"],
    &[FROM_FILE, "nodeSelector.a=b", "tolerations[0].operator=Exists", "priorityClassName=high"],
    &[
        FROM_FILE,
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key=metadata.name",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].operator=Exists",
    ],
    &[FROM_FILE, "podLabels.e=f", "podAnnotations.g=h", "logLevel=debug", "resources.limits.memory=1Gi"],
    &[FROM_FILE, "metrics.podMonitor.enabled=true", "metrics.podMonitor.labels.release=prometheus"],
    &[FROM_FILE, "metrics.prometheusRule.enabled=true", "metrics.prometheusRule.labels.release=prometheus"],
    &[FROM_FILE, "metrics.dashboard.enabled=true"],
    &[FROM_FILE, "orchestrationEnabled=false", "reschedulingEnabled=false"],
];

fn rendered(options: &[&str]) -> Rendered {
    parse(&CHART.template(options))
}

/// Returns objects by kind and name, without what Helm adds.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let named = objects.into_iter().filter(|object| !object.is_null()).map(|mut object| {
        if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
            labels.retain(|label, _| !OF_HELM.contains(&label.as_str()));
        }
        (format!("{} {}", object["kind"], object["metadata"]["name"]), object)
    });
    named.collect()
}

#[test]
fn the_chart_renders_the_plain_manifests() {
    let resources = vec!["widgets.example.com".to_owned()];
    let all = AgentRights { rbac: true, webhooks: true, resources, ..AgentRights::default() };
    let delegated = AgentRights { delegated: true, pinned: true, ..all.clone() };
    let flags = ["orchestrationEnabled=false", "reschedulingEnabled=false"];
    let asked = ["rights.rbac=true", "rights.webhooks=true", "rights.resources[0]=widgets.example.com"];
    let registry = "image.repository=registry.example.com/fleet-agent";
    for (rights, options, own) in [
        (AgentRights::default(), vec![FROM_FILE], None),
        (all, [&[FROM_FILE][..], &asked].concat(), None),
        (delegated, [&[FROM_FILE][..], &asked, &flags].concat(), None),
        (AgentRights::default(), vec![FROM_FILE, registry], Some("registry.example.com")),
    ] {
        let chart = by_name(serde_saphyr::from_multiple(&CHART.template(&options)).unwrap());
        let mut plain = by_name(agent_manifests(TOKEN, &fleet_agent_image(own), &rights));
        // `helm install --create-namespace` creates it.
        assert!(plain.remove("\"Namespace\" \"keelway-fleet\"").is_some());
        assert_eq!(chart.keys().collect::<Vec<_>>(), plain.keys().collect::<Vec<_>>());
        for (name, object) in &plain {
            assert_eq!(&chart[name], object, "{name}: the chart and `keelway fleet agent-manifests` differ");
        }
    }
}

#[test]
fn every_option_renders_valid_objects() {
    for options in OPTIONS {
        CHART.lint(options);
        rendered(options).check();
    }
}

#[test]
fn an_existing_secret_is_used() {
    let objects = rendered(&["tokenSecret=mine"]);
    assert!(!objects.has("Secret"));
    let deployment: Deployment = objects.one("Deployment");
    let volumes = deployment.spec.unwrap().template.spec.unwrap().volumes.unwrap();
    assert_eq!(volumes[0].secret.as_ref().unwrap().secret_name.as_deref(), Some("mine"));
}

#[test]
fn the_pod_connects_through_the_proxy() {
    let objects = rendered(&[FROM_FILE, "proxy.url=http://proxy.example.com:3128", "proxy.noProxy=10.96.0.1"]);
    let deployment: Deployment = objects.one("Deployment");
    let containers = deployment.spec.unwrap().template.spec.unwrap().containers;
    let variables = containers[0].env.as_ref().unwrap();
    for (name, value) in [("HTTPS_PROXY", "http://proxy.example.com:3128"), ("NO_PROXY", "10.96.0.1")] {
        let found = variables.iter().find(|variable| variable.name == name).unwrap();
        assert_eq!(found.value.as_deref(), Some(value));
    }
}

#[test]
fn the_rules_and_the_dashboard_are_those_of_the_tree() {
    let objects = rendered(&[FROM_FILE, "metrics.prometheusRule.enabled=true", "metrics.dashboard.enabled=true"]);
    let rules: Value = serde_saphyr::from_str(&helm::read("manifests/monitoring/fleet-rules.yaml")).unwrap();
    assert_eq!(objects.object("PrometheusRule")["spec"], rules);
    let board: Value = serde_json::from_str(&helm::read("manifests/monitoring/fleet-dashboard.json")).unwrap();
    let shown = objects.object("ConfigMap")["data"]["keelway-fleets.json"].as_str().unwrap().to_owned();
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), board);
}

#[test]
fn meaningless_values_are_refused() {
    for (options, field) in [
        (vec![], "there is no token"),
        (vec![FROM_FILE, "tokenSecret=mine"], "token and tokenSecret"),
        (vec![FROM_FILE, "replicas=2"], "replicas"),
        (vec![FROM_FILE, "orchestrationEnabled=perhaps"], "orchestrationEnabled"),
        (vec![FROM_FILE, "rights.resources[0]=widgets"], "resources"),
        (vec![FROM_FILE, "proxy.url=proxy:3128"], "proxy"),
        (vec![FROM_FILE, "image.digest=sha256:1"], "digest"),
        (vec![FROM_FILE, "metrics.podMonitor.interval=soon"], "interval"),
    ] {
        let refused = CHART.refuses(&options);
        assert!(refused.contains(field), "{options:?}:\n{refused}");
    }
}

#[test]
fn every_value_is_in_the_schema_and_explained() {
    CHART.explains_every_value();
}

#[test]
fn the_chart_has_the_version_of_this_release() {
    CHART.has_this_version();
}
