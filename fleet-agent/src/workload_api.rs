//! The API of the agent's own cluster.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::autoscaling::v2::HorizontalPodAutoscaler,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use keelway_fleet::names::AGENT_FIELD_MANAGER;
use kube::{
    Api, Client, Error, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions, PropagationPolicy},
    core::GroupVersionKind,
    discovery::{self, Scope},
    runtime::wait::{await_condition, conditions},
};
use serde_json::{Value, json};

use crate::{
    decision::{LiveFacts, LiveObject},
    manifest::{AppliedName, CREATED_ANNOTATION, MANAGED_LABEL},
    ownership::{FieldConflict, conflicts_of, owned_by_agent},
};

/// How long a new `CustomResourceDefinition` may take until the API server serves its kind.
const ESTABLISHED: Duration = Duration::from_secs(10);

/// An operation in the cluster failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkloadError {
    #[error("cannot {operation} {object}")]
    Api {
        operation: &'static str,
        object: AppliedName,
        #[source]
        source: Box<Error>,
    },
    #[error("the cluster does not serve {kind} of {group}/{version}; place its CustomResourceDefinition, or change the version", kind = .0.kind, group = .0.group, version = .0.version)]
    NotServed(AppliedName),
    #[error("the CustomResourceDefinition {0} is not established yet")]
    NotEstablished(String),
}

impl WorkloadError {
    /// Returns the reason for the Work's condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NotServed(_) => "KindNotServed",
            Self::NotEstablished(_) => "NotEstablished",
            Self::Api { source, .. } => {
                let code = if let Error::Api(status) = &**source { status.code } else { 0 };
                match code {
                    403 => "Forbidden",
                    400 | 413 | 415 | 422 => "Invalid",
                    _ => "ApplyFailed",
                }
            }
        }
    }
}

/// The outcome of one attempt to apply a manifest.
pub(crate) enum ApplyAttempt {
    Applied(Box<DynamicObject>),
    Conflicts(Vec<FieldConflict>),
    /// The namespace does not exist.
    NoNamespace(String),
}

/// A kind that the cluster serves.
#[derive(Debug, Clone)]
pub(crate) struct ServedKind {
    pub(crate) resource: ApiResource,
    is_namespaced: bool,
}

/// The API of the agent's own cluster.
pub(crate) struct WorkloadApi {
    client: Client,
    /// What discovery has found. A kind that the cluster no longer serves is removed.
    kinds: Mutex<BTreeMap<String, ServedKind>>,
}

impl WorkloadApi {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, kinds: Mutex::default() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Finds the resource of an object's kind by discovery.
    pub(crate) async fn kind(&self, object: &AppliedName) -> Result<ServedKind, WorkloadError> {
        let (kind, key) = (object.kind(), cache_key(&object.kind()));
        if let Some(known) = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(known.clone());
        }
        let found = match discovery::pinned_kind(&self.client, &kind).await {
            Ok(found) => found,
            Err(Error::Discovery(_)) => return Err(WorkloadError::NotServed(object.clone())),
            Err(Error::Api(status)) if status.code == 404 => return Err(WorkloadError::NotServed(object.clone())),
            Err(source) => return Err(failed("discover the kind of", object)(source)),
        };
        let (resource, capabilities) = found;
        let served = ServedKind { resource, is_namespaced: capabilities.scope == Scope::Namespaced };
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner).insert(key, served.clone());
        Ok(served)
    }

    fn forget(&self, object: &AppliedName) {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner).remove(&cache_key(&object.kind()));
    }

    async fn api(&self, object: &AppliedName) -> Result<Api<DynamicObject>, WorkloadError> {
        let kind = self.kind(object).await?;
        Ok(match (kind.is_namespaced, &object.namespace) {
            (true, Some(namespace)) => Api::namespaced_with(self.client.clone(), namespace, &kind.resource),
            (true, None) => Api::default_namespaced_with(self.client.clone(), &kind.resource),
            (false, _) => Api::all_with(self.client.clone(), &kind.resource),
        })
    }

    /// Reads what decides about an object. An object of a kind that is not served does not exist.
    pub(crate) async fn read(&self, object: &AppliedName) -> Result<LiveObject, WorkloadError> {
        let found = self.find(object).await?;
        Ok(found.map_or(LiveObject::Absent, |live| LiveObject::Present(facts(&live))))
    }

    /// Reads an object, if it exists.
    pub(crate) async fn find(&self, object: &AppliedName) -> Result<Option<DynamicObject>, WorkloadError> {
        let api = match self.api(object).await {
            Err(WorkloadError::NotServed(_)) => return Ok(None),
            api => api?,
        };
        let found = match api.get_opt(&object.name).await {
            Err(Error::Api(status)) if status.code == 404 => {
                // The definition of the kind was deleted. The next attempt discovers whether the kind is served.
                self.forget(object);
                Err(Error::Api(status))
            }
            found => found,
        };
        found.map_err(failed("read", object))
    }

    /// Applies a manifest once.
    pub(crate) async fn apply(
        &self,
        object: &AppliedName,
        manifest: &Value,
        force: bool,
    ) -> Result<ApplyAttempt, WorkloadError> {
        let api = self.api(object).await?;
        let parameters = PatchParams { force, ..PatchParams::apply(AGENT_FIELD_MANAGER) };
        let source = match api.patch(&object.name, &parameters, &Patch::Apply(manifest)).await {
            Ok(applied) => return Ok(ApplyAttempt::Applied(Box::new(applied))),
            Err(source) => source,
        };
        let Error::Api(status) = &source else { return Err(failed("apply", object)(source)) };
        if let Some(conflicts) = conflicts_of(status) {
            return Ok(ApplyAttempt::Conflicts(conflicts));
        }
        if status.code == 404 {
            let is_of_namespaces = status.details.as_ref().is_some_and(|details| details.kind == "namespaces");
            match &object.namespace {
                Some(namespace) if is_of_namespaces => return Ok(ApplyAttempt::NoNamespace(namespace.clone())),
                // The definition of the kind was deleted.
                _ => self.forget(object),
            }
        }
        Err(failed("apply", object)(source))
    }

    /// Creates a namespace that objects need. It has no label of the agent: no Work orders it, so none deletes it.
    pub(crate) async fn create_namespace(&self, name: &str, of: &AppliedName) -> Result<(), WorkloadError> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.client.clone());
        let parameters = PatchParams::apply(AGENT_FIELD_MANAGER);
        api.patch(name, &parameters, &Patch::Apply(&namespace)).await.map_err(failed("create the namespace of", of))?;
        Ok(())
    }

    /// Waits until the API server serves the kind of a definition.
    pub(crate) async fn established(&self, name: &str) -> Result<(), WorkloadError> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let established = await_condition(api, name, conditions::is_crd_established());
        match tokio::time::timeout(ESTABLISHED, established).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(WorkloadError::NotEstablished(name.to_owned())),
        }
    }

    /// Deletes this object and no other one of its name.
    pub(crate) async fn delete(&self, object: &AppliedName, uid: &str) -> Result<(), WorkloadError> {
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.api(object).await?.delete(&object.name, &parameters).await {
            Ok(_) => Ok(()),
            // Another object has the name by now, or none.
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => Err(failed("delete", object)(source)),
        }
    }

    /// Whether a `HorizontalPodAutoscaler` in the cluster decides on the replicas of an object.
    pub(crate) async fn is_autoscaled(&self, object: &AppliedName) -> Result<bool, WorkloadError> {
        let Some(namespace) = &object.namespace else { return Ok(false) };
        let api: Api<HorizontalPodAutoscaler> = Api::namespaced(self.client.clone(), namespace);
        let listed = api.list(&ListParams::default()).await.map_err(failed("list the autoscalers of", object))?;
        Ok(listed.items.into_iter().filter_map(|autoscaler| autoscaler.spec).any(|spec| {
            let target = spec.scale_target_ref;
            let group = target.api_version.as_deref().and_then(|version| version.rsplit_once('/'));
            target.kind == object.kind
                && target.name == object.name
                && group.map_or("", |(group, _)| group) == object.group
        }))
    }
}

/// Returns what decides about a live object.
pub(crate) fn facts(live: &DynamicObject) -> LiveFacts {
    LiveFacts {
        uid: live.uid().unwrap_or_default(),
        owned: owned_by_agent(live.metadata.managed_fields.as_deref().unwrap_or_default()),
        is_labelled: live.labels().get(MANAGED_LABEL).is_some_and(|manager| manager == AGENT_FIELD_MANAGER),
        is_created: live.annotations().get(CREATED_ANNOTATION).is_some_and(|creator| creator == AGENT_FIELD_MANAGER),
        is_deleting: live.metadata.deletion_timestamp.is_some(),
    }
}

fn cache_key(kind: &GroupVersionKind) -> String {
    format!("{}/{}", kind.api_version(), kind.kind)
}

fn failed(operation: &'static str, object: &AppliedName) -> impl FnOnce(Error) -> WorkloadError {
    move |source| WorkloadError::Api { operation, object: object.clone(), source: Box::new(source) }
}
