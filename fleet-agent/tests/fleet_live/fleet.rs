//! The fleet's side, as far as the agent needs it: kinds, rights, Works, and approval of certificates.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
        core::v1::{ConfigMap, Namespace, Secret},
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use keelway_fleet::{
    Work,
    bootstrap::{AUTHORITIES_KEY, BOOTSTRAPPERS, FLEET_INFORMATION, TOKEN_NAMESPACE, token_secret},
    names::{AGENT_SIGNER, GROUP, WORK_FINALIZER, agent_user, works_namespace},
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

/// Registers a cluster, with the rights that the fleet controller grants.
pub(crate) async fn register(admin: &Client, cluster: &str) {
    let namespace = works_namespace(cluster);
    let document = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    apply(&Api::<Namespace>::all(admin.clone()), document).await;
    let clusters: Api<keelway_fleet::WorkloadCluster> = Api::all(admin.clone());
    let document = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Cluster", "metadata": { "name": cluster }, "spec": {},
    });
    apply(&clusters, document).await;
    let agent = json!({ "kind": "User", "name": agent_user(cluster) });
    let own = format!("keelway:fleet-agent:{cluster}");
    let all = json!([
        { "apiGroups": [GROUP], "resources": ["works"], "verbs": ["get", "list", "watch", "patch", "update"] },
        { "apiGroups": [GROUP], "resources": ["works/status"], "verbs": ["get", "patch", "update"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["agent"],
          "verbs": ["get", "create", "patch", "update"] },
    ]);
    role(admin, "keelway:fleet-agent", all).await;
    let status = json!([
        { "apiGroups": [GROUP], "resources": ["clusters/status"], "resourceNames": [cluster], "verbs": ["get", "patch", "update"] },
    ]);
    role(admin, &own, status).await;
    let requests = json!([
        { "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["get", "list", "watch", "create"] },
    ]);
    role(admin, "keelway:fleet-agent-requests", requests).await;
    bind_in(admin, &namespace, cluster).await;
    bind(admin, &own, &own, &agent).await;
    bind(admin, &format!("{own}:requests"), "keelway:fleet-agent-requests", &agent).await;
    let bootstrappers = json!({ "kind": "Group", "name": BOOTSTRAPPERS });
    bind(admin, "keelway:fleet-bootstrappers", "keelway:fleet-agent-requests", &bootstrappers).await;
}

/// Publishes authorities, which every agent may read, as the fleet controller does.
pub(crate) async fn publish(admin: &Client, authorities: &str) {
    let information = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": FLEET_INFORMATION },
        "data": { AUTHORITIES_KEY: authorities },
    });
    apply(&Api::<ConfigMap>::namespaced(admin.clone(), TOKEN_NAMESPACE), information).await;
    for object in keelway_fleet::fleet_controller_role() {
        if object["metadata"]["name"] != "keelway:fleet-agent-information" {
            continue;
        }
        if object["kind"] == "Role" {
            apply(&Api::<Role>::namespaced(admin.clone(), TOKEN_NAMESPACE), object).await;
        } else {
            apply(&Api::<RoleBinding>::namespaced(admin.clone(), TOKEN_NAMESPACE), object).await;
        }
    }
}

/// Creates the bootstrap token of a cluster.
pub(crate) async fn token(admin: &Client, cluster: &str) {
    let token = format!("{}.{}", BOOTSTRAP.0, BOOTSTRAP.1).parse().unwrap();
    let expires = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_hours(1);
    let secret = token_secret(&token, cluster, expires);
    let api: Api<Secret> = Api::namespaced(admin.clone(), TOKEN_NAMESPACE);
    api.create(&PostParams::default(), &secret).await.unwrap();
}

async fn role(admin: &Client, name: &str, rules: Value) {
    let document = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules,
    });
    apply(&Api::<ClusterRole>::all(admin.clone()), document).await;
}

async fn bind(admin: &Client, name: &str, role: &str, subject: &Value) {
    let document = binding("ClusterRoleBinding", name, role, subject);
    apply(&Api::<ClusterRoleBinding>::all(admin.clone()), document).await;
}

/// Binds the role of agents in a namespace to the agent of a cluster.
pub(crate) async fn bind_in(admin: &Client, namespace: &str, cluster: &str) {
    let agent = json!({ "kind": "User", "name": agent_user(cluster) });
    let document = binding("RoleBinding", cluster, "keelway:fleet-agent", &agent);
    apply(&Api::<RoleBinding>::namespaced(admin.clone(), namespace), document).await;
}

/// Revokes the rights of an agent, as the fleet controller does with a removed cluster.
pub(crate) async fn unbind_in(admin: &Client, namespace: &str, cluster: &str) {
    let mut document = binding("RoleBinding", cluster, "keelway:fleet-agent", &json!({}));
    document["subjects"] = json!([]);
    apply(&Api::<RoleBinding>::namespaced(admin.clone(), namespace), document).await;
}

fn binding(kind: &str, name: &str, role: &str, subject: &Value) -> Value {
    let mut subject = subject.clone();
    subject["apiGroup"] = json!("rbac.authorization.k8s.io");
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [subject],
    })
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
