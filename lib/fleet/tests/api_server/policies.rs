//! What an API server accepts, and what it refuses.

use keelway_fleet::{
    SchedulePolicy, SpreadMode, WorkloadCluster, WorkloadClusterSpec, names::LONGEST_CLUSTER_NAME, refused_policies,
};
use kube::{Api, Client, api::PostParams, core::DynamicObject, discovery::ApiResource};
use serde_json::{Value as Json, json};

const DOCUMENTATION: &str = include_str!("../../../../docs/fleet-policies.md");

fn dry() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

/// Returns the error of an API server for an object, as any client would send it.
async fn create(client: &Client, object: &Json) -> Result<DynamicObject, String> {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let resource = ApiResource::erase::<SchedulePolicy>(&());
    let policies: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    policies.create(&dry(), &object).await.map_err(|error| error.to_string())
}

pub(crate) async fn contradictory_ones_are_refused(client: &Client) {
    for case in refused_policies() {
        let error = create(client, &case.policy).await.err().unwrap_or_else(|| panic!("{}: accepted", case.title));
        let is_expected = error.contains(case.field) && error.contains(case.message);
        assert!(is_expected, "{}: {error}", case.title);
    }
}

pub(crate) async fn those_of_the_documentation_are_accepted(client: &Client) {
    let blocks = DOCUMENTATION.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let objects = blocks.map(|(block, _)| serde_saphyr::from_str::<Json>(block).unwrap());
    let policies: Vec<Json> = objects.filter(|object| object["kind"] == "SchedulePolicy").collect();
    assert!(policies.len() > 2);
    for policy in policies {
        create(client, &policy).await.unwrap();
    }
}

pub(crate) async fn defaults_are_written(client: &Client) {
    let policy = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "SchedulePolicy",
        "metadata": { "name": "all" },
        "spec": { "resourceSelectors": { "labelSelectors": [{}] }, "spreadConstraints": {} },
    });
    let stored = serde_json::to_value(create(client, &policy).await.unwrap()).unwrap();
    let spread = &stored["spec"]["spreadConstraints"];
    assert_eq!(
        (&spread["spreadMode"], &spread["topologyKey"]),
        (&json!("Divide"), &json!("kubernetes.io/metadata.name"))
    );
    assert_eq!((&stored["spec"]["conflictResolution"], &stored["spec"]["drift"]), (&json!("Fail"), &json!("Correct")));
    let read: SchedulePolicy = serde_json::from_value(stored).unwrap();
    assert_eq!(read.spec.spread_constraints.map(|spread| spread.spread_mode), Some(SpreadMode::Divide));
}

pub(crate) async fn names_of_clusters_fit_their_namespaces(client: &Client) {
    let clusters: Api<WorkloadCluster> = Api::all(client.clone());
    let named = |name: String| WorkloadCluster::new(&name, WorkloadClusterSpec::default());
    clusters.create(&dry(), &named("x".repeat(LONGEST_CLUSTER_NAME))).await.unwrap();
    for name in ["x".repeat(LONGEST_CLUSTER_NAME + 1), "a.b".to_owned()] {
        let error = clusters.create(&dry(), &named(name)).await.unwrap_err().to_string();
        assert!(error.contains("metadata.name: must be an RFC 1123 label"), "{error}");
    }
}
