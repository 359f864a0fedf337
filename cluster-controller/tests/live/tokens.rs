//! Bootstrap tokens that expired or were revoked.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{plane::Plane, wait};

const SECRET: &str = "0123456789abcdef";

/// Returns the time in this many minutes, as the Secret of a token has it.
fn in_minutes(minutes: i64) -> String {
    let end = Timestamp::now() + SignedDuration::from_mins(minutes);
    end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the Secret of a token that expires in this many minutes.
fn secret(id: &str, minutes: i64) -> Secret {
    serde_json::from_value(json!({
        "metadata": { "name": format!("bootstrap-token-{id}") },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id,
            "token-secret": SECRET,
            "expiration": in_minutes(minutes),
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:keelway:workers",
        },
    }))
    .unwrap()
}

/// Returns the HTTP status for a holder that reads what workers read when they join.
async fn status(holder: &Api<ConfigMap>) -> u16 {
    match holder.get("keelway-endpoints").await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

/// A token is refused once it expires, or once its Secret is deleted.
pub(crate) async fn end(plane: &Plane, admin: &Client) {
    let secrets = Api::<Secret>::namespaced(admin.clone(), "kube-system");
    let holder =
        async |id: &str| Api::<ConfigMap>::namespaced(plane.bearer(&format!("{id}.{SECRET}")).await, "kube-system");
    let (ended, later) = (holder("ended0").await, holder("later0").await);
    secrets.create(&PostParams::default(), &secret("ended0", -1)).await.unwrap();
    secrets.create(&PostParams::default(), &secret("later0", 60)).await.unwrap();
    // By then, the API server has observed the first token as well.
    wait::until("a token", async || status(&later).await == 200).await;
    assert_eq!(status(&ended).await, 401, "a token that has ended");

    let name = "bootstrap-token-ended0";
    let end_in = async |minutes| {
        let end = json!({ "stringData": { "expiration": in_minutes(minutes) } });
        secrets.patch(name, &PatchParams::default(), &Patch::Merge(&end)).await.unwrap();
    };
    end_in(60).await;
    wait::until("without its end: the same token", async || status(&ended).await == 200).await;
    end_in(-1).await;
    wait::until("with its end, again: nothing", async || status(&ended).await == 401).await;

    secrets.delete("bootstrap-token-later0", &DeleteParams::default()).await.unwrap();
    wait::until("a token that was revoked: nothing", async || status(&later).await == 401).await;
    secrets.create(&PostParams::default(), &secret("later0", 60)).await.unwrap();
    wait::until("with its Secret, again: the same token", async || status(&later).await == 200).await;
}
