//! Removal of a cluster from its fleet.

use k8s_openapi::api::core::v1::Namespace;
use keelway_fleet::{Work, WorkloadCluster, names::agent_user};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    agents::{TestAgent, new_key, request, usual, with_token},
    placed::deleted,
    plane::Plane,
    wait,
};

/// A removed cluster has no rights, and its name rests while its certificate is valid. Other clusters keep theirs.
pub(crate) async fn a_removed_cluster_has_no_rights(plane: &Plane, admin: &Client, west: &TestAgent, east: &TestAgent) {
    let clusters = Api::<WorkloadCluster>::all(admin.clone());
    clusters.delete("west", &DeleteParams::default()).await.unwrap();
    let is_gone = async || clusters.get_opt("west").await.unwrap().is_none();
    wait::until("the Cluster is gone", is_gone).await;
    assert!(matches!(west.beat().await, Err(kube::Error::Api(status)) if status.code == 403));
    let namespaces = Api::<Namespace>::all(admin.clone());
    wait::until("its namespace is gone", async || namespaces.get_opt("fleet-west").await.unwrap().is_none()).await;

    let (token, _) = with_token(plane, admin, "west").await;
    let denied = request(&token, &usual(&agent_user("west")), &new_key()).await;
    assert_eq!(
        denied,
        Err("NameRests".to_owned()),
        "the certificate of the removed cluster would have its rights again"
    );
    assert!(is_gone().await);
    east.beat().await.unwrap();

    // Without the record, the name is free.
    let records = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(admin.clone(), "kube-system");
    let forget = json!({ "data": { "west": null } });
    records.patch("keelway-fleet-agents", &PatchParams::default(), &Patch::Merge(&forget)).await.unwrap();
    request(&token, &usual(&agent_user("west")), &new_key()).await.unwrap();
    wait::until("the certificate of the removed cluster has its rights again", async || west.beat().await.is_ok())
        .await;
}

/// A cluster that leaves with its workloads is there until its agent has deleted the last of them. The agent has its rights until then.
pub(crate) async fn the_last_work_ends_a_removal(admin: &Client, east: &TestAgent) {
    let clusters = Api::<WorkloadCluster>::all(admin.clone());
    let annotation = json!({ "metadata": { "annotations": { "fleet.keelway.dev/workloads": "Delete" } } });
    clusters.patch("east", &PatchParams::default(), &Patch::Merge(&annotation)).await.unwrap();
    clusters.delete("east", &DeleteParams::default()).await.unwrap();
    let works = Api::<Work>::namespaced(admin.clone(), "fleet-east");
    let found = works.list(&ListParams::default()).await.unwrap().items;
    assert!(!found.is_empty());
    for work in found {
        assert!(clusters.get_opt("east").await.unwrap().is_some());
        east.beat().await.unwrap();
        deleted(east, &work.name_any()).await;
    }
    wait::until("the Cluster is gone", async || {
        // An object of the cluster that was removed before may have moved here since.
        for work in works.list(&ListParams::default()).await.unwrap() {
            deleted(east, &work.name_any()).await;
        }
        clusters.get_opt("east").await.unwrap().is_none()
    })
    .await;
    assert!(matches!(east.beat().await, Err(kube::Error::Api(status)) if status.code == 403));
}
