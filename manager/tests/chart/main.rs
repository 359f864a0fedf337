//! The chart renders objects that an API server accepts, with its default values and with each option.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod helm;
mod objects;
mod values;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        networking::v1::NetworkPolicy,
        rbac::v1::{ClusterRole, Role},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use keelway_api::release;
use serde_json::Value;

use helm::HelmChart;
use objects::{Rendered, parse};

const CHART: HelmChart =
    HelmChart { directory: "manifests/charts/keelway", release: "keelway", namespace: "keelway-system" };
/// Sets of values, each rendered by itself. Most of them add or remove objects.
const OPTIONS: [&[&str]; 20] = [
    &[],
    &["replicas=1"],
    &["replicas=3", "podDisruptionBudget.maxUnavailable=50%"],
    &["replicas=0", "podDisruptionBudget.enabled=false"],
    &["crds.enabled=false"],
    &["rbac.create=false"],
    &["tenants.aggregate=false"],
    &["tenants.classesFor[0]=system:authenticated"],
    &["serviceAccount.create=false", "serviceAccount.name=other"],
    &["serviceAccount.annotations.a=b", "service.annotations.c=d", "podLabels.e=f", "podAnnotations.g=h"],
    &["networkPolicy.enabled=false"],
    &["networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus"],
    &["networkPolicy.egress.to=null", "networkPolicy.egress.dns=null"],
    &["metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.labels.release=prometheus"],
    &["metrics.prometheusRule.enabled=true", "metrics.prometheusRule.labels.release=prometheus"],
    &["metrics.dashboard.enabled=true"],
    &["traces.endpoint=https://collector.monitoring:4317", "traces.authority=collector"],
    &["image.tag=v9.9.9", "imagePullSecrets[0].name=registry", "extraArgs[0]=--images=/images"],
    &["nodeSelector.a=b", "tolerations[0].operator=Exists", "priorityClassName=high", "topologySpreadConstraints=null"],
    &[
        "fullnameOverride=kw",
        "service.port=8080",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key=metadata.name",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].operator=Exists",
    ],
];

fn rendered(options: &[&str]) -> Rendered {
    parse(&CHART.template(options))
}

#[test]
fn every_option_renders_valid_objects() {
    for options in OPTIONS {
        CHART.lint(options);
        rendered(options).check();
    }
}

/// The role permits the manager to update its Lease, and is in the namespace of the Lease.
#[test]
fn the_lease_is_in_the_namespace_of_the_role() {
    let objects = rendered(&[]);
    let role: Role = objects.one("Role");
    let namespace = role.metadata.namespace.clone().unwrap();
    let rules = role.rules.unwrap();
    let named = rules.iter().find(|rule| rule.resource_names.is_some()).unwrap();
    assert_eq!(named.resource_names.as_deref(), Some(&["keelway-manager".to_owned()][..]));
    assert_eq!(named.verbs, ["get", "list", "watch", "update"]);
    let deployment: Deployment = objects.one("Deployment");
    let arguments = deployment.spec.unwrap().template.spec.unwrap().containers[0].args.clone().unwrap();
    assert!(arguments.contains(&format!("--leader-elect-resource-namespace={namespace}")), "{arguments:?}");
}

/// The pod meets the profile "restricted" of the Pod Security Standards, and limits more than that.
#[test]
fn the_manager_has_no_right_on_its_node() {
    let deployment: Deployment = rendered(&[]).one("Deployment");
    let spec = deployment.spec.unwrap();
    assert_eq!(spec.replicas, Some(2));
    let rolling = spec.strategy.unwrap().rolling_update.unwrap();
    assert_eq!(rolling.max_unavailable, Some(IntOrString::Int(0)), "the next one stands by before one ends");
    let pod = spec.template.spec.unwrap();
    let security = pod.security_context.unwrap();
    assert_eq!(security.run_as_non_root, Some(true));
    assert_eq!(security.seccomp_profile.unwrap().type_, "RuntimeDefault");
    let volumes = pod.volumes.clone().unwrap_or_default();
    assert!(volumes.len() == 1 && volumes[0].empty_dir.is_some(), "{volumes:?}");
    assert!(pod.host_network.is_none() && pod.host_pid.is_none());
    assert_eq!(pod.topology_spread_constraints.unwrap().len(), 2);
    let [container] = &pod.containers[..] else { panic!("one container") };
    let security = container.security_context.as_ref().unwrap();
    assert_eq!(security.allow_privilege_escalation, Some(false));
    assert_eq!(security.read_only_root_filesystem, Some(true));
    assert_eq!(security.capabilities.as_ref().unwrap().drop.as_deref(), Some(&["ALL".to_owned()][..]));
    let resources = container.resources.as_ref().unwrap();
    assert!(resources.limits.as_ref().unwrap().contains_key("memory"));
    assert!(container.liveness_probe.is_some() && container.readiness_probe.is_some());
    assert_eq!(container.image.as_deref(), Some(&*release::manager_image(None)));
    assert_eq!(container.args.as_ref().unwrap()[..3], ["run", "--store=kubernetes", "--leader-elect"]);
}

#[test]
fn no_rule_has_wildcards() {
    let objects = rendered(&["tenants.classesFor[0]=system:authenticated"]);
    let roles: Vec<ClusterRole> = objects.all("ClusterRole");
    assert_eq!(roles.len(), 4);
    for rule in roles.into_iter().flat_map(|role| role.rules.unwrap()) {
        let named = [rule.api_groups.clone(), rule.resources.clone(), Some(rule.verbs.clone())];
        assert!(named.iter().flatten().flatten().all(|name| name != "*"), "{rule:?}");
        let secrets = rule.resources.iter().flatten().any(|resource| resource == "secrets");
        assert!(!secrets || !rule.verbs.iter().any(|verb| verb == "deletecollection"), "{rule:?}");
    }
}

/// The roles for tenants contain no resource that belongs to all tenants or to Keelway.
#[test]
fn tenants_may_access_only_clusters() {
    let roles: Vec<ClusterRole> = rendered(&[]).all("ClusterRole");
    let of_tenants = roles.into_iter().filter(|role| role.metadata.name.as_ref().unwrap().contains("-tenant-"));
    let given: Vec<_> = of_tenants.flat_map(|role| role.rules.unwrap()).collect();
    assert_eq!(given.len(), 3);
    for resource in given.iter().flat_map(|rule| rule.resources.iter().flatten()) {
        assert!(["clusters", "clusters/scale"].contains(&resource.as_str()), "{resource}");
    }
}

#[test]
fn only_named_clients_can_connect() {
    let policy: NetworkPolicy = rendered(&[]).one("NetworkPolicy");
    let spec = policy.spec.unwrap();
    assert_eq!(spec.policy_types.unwrap(), ["Ingress", "Egress"]);
    assert_eq!(spec.ingress, None);
    let policy: NetworkPolicy =
        rendered(&["networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus"]).one("NetworkPolicy");
    assert_eq!(policy.spec.unwrap().ingress.unwrap()[0].from.as_ref().unwrap().len(), 1);
}

#[test]
fn a_disruption_budget_requires_several_replicas() {
    assert!(rendered(&[]).has("PodDisruptionBudget"));
    assert!(!rendered(&["replicas=1"]).has("PodDisruptionBudget"));
}

#[test]
fn a_digest_replaces_the_tag() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let deployment: Deployment = rendered(&[&format!("image.digest={digest}")]).one("Deployment");
    let image = deployment.spec.unwrap().template.spec.unwrap().containers[0].image.clone().unwrap();
    assert_eq!(image, format!("registry.keelway.dev/manager@{digest}"));
}

#[test]
fn the_rules_and_the_dashboard_are_those_of_the_tree() {
    let objects = rendered(&["metrics.prometheusRule.enabled=true", "metrics.dashboard.enabled=true"]);
    let rules: Value = serde_saphyr::from_str(&helm::read("manifests/monitoring/rules.yaml")).unwrap();
    assert_eq!(objects.object("PrometheusRule")["spec"], rules);
    let board: Value = serde_json::from_str(&helm::read("manifests/monitoring/dashboard.json")).unwrap();
    let shown = objects.object("ConfigMap")["data"]["keelway.json"].as_str().unwrap().to_owned();
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), board);
}

#[test]
fn meaningless_values_are_refused() {
    for (value, field) in [
        ("replica=2", "replica"),
        ("replicas=many", "replicas"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.digest=sha256:1", "digest"),
        ("service.port=0", "port"),
        ("extraArgs[0]=run", "extraArgs"),
        ("metrics.serviceMonitor.interval=soon", "interval"),
        ("traces.endpoint=http://collector:4317", "endpoint"),
        ("traces.endpoint=https://collector:4317", "traces.authority"),
    ] {
        let refused = CHART.refuses(&[value]);
        assert!(refused.contains(field), "{value}:\n{refused}");
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

/// `kubectl apply -f manifests/keelway-manager.yaml` installs what the chart renders with its default values.
#[test]
fn the_plain_file_is_the_chart() {
    let text = format!("{}{}", include_str!("namespace.yaml"), CHART.template(&[]));
    parse(&text).check();
    helm::golden("manifests/keelway-manager.yaml", &text);
}
