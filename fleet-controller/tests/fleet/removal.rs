//! Removal of a cluster from its fleet.

use k8s_openapi::api::core::v1::Namespace;
use keelway_fleet::{WorkloadCluster, names::agent_user};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    agents::{TestAgent, new_key, request, usual, with_token},
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
