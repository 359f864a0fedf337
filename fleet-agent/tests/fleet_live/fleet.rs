//! The fleet's side, as far as the agent needs it: kinds, rights, Works, and approval of certificates.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
        core::v1::{Namespace, Secret},
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use keelway_fleet::{
    Work,
    names::{AGENT_SIGNER, WORK_FINALIZER, agent_user, works_namespace},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt,
        wait::{await_condition, conditions},
        watcher,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::wait;

/// The id and the secret of the bootstrap token.
pub(crate) const BOOTSTRAP: (&str, &str) = ("abcdef", "0123456789abcdef");

pub(crate) async fn apply<K>(api: &Api<K>, document: Value)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let name = document["metadata"]["name"].as_str().unwrap().to_owned();
    api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&document)).await.unwrap();
}

/// Applies the kinds of a fleet, and waits until they are served.
pub(crate) async fn define(admin: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(admin.clone());
    for definition in keelway_fleet::crds() {
        let name = definition.name_any();
        api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&definition)).await.unwrap();
        await_condition(api.clone(), &name, conditions::is_crd_established()).await.unwrap();
    }
}

/// Registers a cluster: its namespace, its rights, and a bootstrap token.
pub(crate) async fn register(admin: &Client, cluster: &str) {
    let namespace = works_namespace(cluster);
    apply(
        &Api::<Namespace>::all(admin.clone()),
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
    )
    .await;
    let clusters: Api<keelway_fleet::WorkloadCluster> = Api::all(admin.clone());
    apply(
        &clusters,
        json!({
            "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Cluster", "metadata": { "name": cluster }, "spec": {},
        }),
    )
    .await;
    let rbac = |kind: &str, name: &str| json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": { "name": name } });
    let with = |mut document: Value, fields: Value| {
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        document
    };
    let subject = json!([{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": agent_user(cluster) }]);
    apply(
        &Api::<Role>::namespaced(admin.clone(), &namespace),
        with(
            rbac("Role", "agent"),
            json!({ "rules": [
        { "apiGroups": ["fleet.keelway.dev"], "resources": ["works"], "verbs": ["get", "list", "watch", "patch"] },
        { "apiGroups": ["fleet.keelway.dev"], "resources": ["works/status"], "verbs": ["patch"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"] },
    ] }),
        ),
    )
    .await;
    let role = |kind: &str, name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
    apply(
        &Api::<RoleBinding>::namespaced(admin.clone(), &namespace),
        with(
            rbac("RoleBinding", "agent"),
            json!({
                "roleRef": role("Role", "agent"), "subjects": subject,
            }),
        ),
    )
    .await;
    let own = format!("agent-{cluster}");
    apply(&Api::<ClusterRole>::all(admin.clone()), with(rbac("ClusterRole", &own), json!({ "rules": [
        { "apiGroups": ["fleet.keelway.dev"], "resources": ["clusters/status"], "resourceNames": [cluster], "verbs": ["patch"] },
        { "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create", "get", "list", "watch"] },
    ] }))).await;
    let subjects = json!([
        { "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": agent_user(cluster) },
        { "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers" },
    ]);
    apply(
        &Api::<ClusterRoleBinding>::all(admin.clone()),
        with(
            rbac("ClusterRoleBinding", &own),
            json!({
                "roleRef": role("ClusterRole", &own), "subjects": subjects,
            }),
        ),
    )
    .await;
    let data = BTreeMap::from([
        ("token-id", BOOTSTRAP.0),
        ("token-secret", BOOTSTRAP.1),
        ("usage-bootstrap-authentication", "true"),
    ]);
    apply(
        &Api::<Secret>::namespaced(admin.clone(), "kube-system"),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": format!("bootstrap-token-{}", BOOTSTRAP.0) },
            "type": "bootstrap.kubernetes.io/token", "stringData": data,
        }),
    )
    .await;
}

/// Approves the requests of agents, as the fleet controller does.
pub(crate) async fn approve_agents(admin: Client) {
    let api: Api<CertificateSigningRequest> = Api::all(admin);
    let mut requests = Box::pin(watcher(api.clone(), watcher::Config::default()).default_backoff().applied_objects());
    while let Some(request) = requests.next().await {
        let Ok(mut request) = request else { continue };
        if request.spec.signer_name != AGENT_SIGNER
            || request.status.as_ref().is_some_and(|status| status.conditions.is_some())
        {
            continue;
        }
        let condition = CertificateSigningRequestCondition {
            type_: "Approved".to_owned(),
            status: "True".to_owned(),
            reason: Some("Test".to_owned()),
            ..CertificateSigningRequestCondition::default()
        };
        request.status.get_or_insert_default().conditions = Some(vec![condition]);
        let name = request.name_any();
        // A request that changed meanwhile is seen again.
        let _ = api.replace_subresource("approval", &name, &PostParams::default(), &request).await;
    }
}

/// The Works of a cluster.
#[derive(Clone)]
pub(crate) struct Works(pub(crate) Api<Work>);

impl Works {
    pub(crate) fn new(admin: &Client, cluster: &str) -> Self {
        Self(Api::namespaced(admin.clone(), &works_namespace(cluster)))
    }

    /// Writes a Work, as the fleet controller does.
    pub(crate) async fn put(&self, name: &str, manifest: Value, options: Value) {
        let mut spec = json!({ "manifest": manifest, "placement": { "namespace": "shop", "name": name } });
        spec.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        apply(
            &self.0,
            json!({
                "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Work",
                "metadata": { "name": name, "finalizers": [WORK_FINALIZER] }, "spec": spec,
            }),
        )
        .await;
    }

    pub(crate) async fn get(&self, name: &str) -> Option<Work> {
        self.0.get_opt(name).await.ok().flatten()
    }

    /// Waits until the agent reports this status and reason for the current generation. Returns the message.
    pub(crate) async fn reports(&self, name: &str, status: &str, reason: &str) -> String {
        let last = std::cell::RefCell::new(None);
        wait::some(&format!("{name}: {status} {reason}"), async || {
            let work = self.get(name).await?;
            let reported = work.status?;
            let condition = reported.conditions.into_iter().find(|condition| condition.type_ == "Applied")?;
            let is_current = reported.observed_generation == work.metadata.generation;
            if last.replace(Some(condition.message.clone())).as_ref() != Some(&condition.message) {
                println!("            {name}: {} {}: {}", condition.status, condition.reason, condition.message);
            }
            (is_current && condition.status == status && condition.reason == reason).then_some(condition.message)
        })
        .await
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.0.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn is_gone(&self, name: &str) {
        wait::until(&format!("the Work {name} is gone"), async || matches!(self.0.get_opt(name).await, Ok(None))).await;
    }

    /// Returns the number of writes that a settled agent makes to Works: their resource versions.
    pub(crate) async fn versions(&self) -> Vec<String> {
        let listed = self.0.list(&kube::api::ListParams::default()).await.unwrap();
        listed.items.iter().filter_map(ResourceExt::resource_version).collect()
    }
}

/// Returns whether a request is refused for want of rights.
pub(crate) async fn is_forbidden<T>(call: impl Future<Output = kube::Result<T>>) -> bool {
    matches!(call.await, Err(kube::Error::Api(status)) if status.code == 403)
}

/// Returns the first event of a watch, or its error.
pub(crate) async fn first_event(api: &Api<Work>) -> kube::Result<()> {
    let mut events = Box::pin(api.watch(&kube::api::WatchParams::default().timeout(1), "0").await?);
    while let Some(event) = events.try_next().await? {
        if let kube::api::WatchEvent::Error(status) = event {
            return Err(kube::Error::Api(status));
        }
    }
    Ok(())
}
