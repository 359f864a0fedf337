//! Sends changes of documents to an API server.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use keelway_api::{
    Cluster, Component, Documents, Hypervisor, ReadOptions, Shared, UnknownFields,
    cluster::FINALIZER,
    document::{Document, DocumentChange, DocumentName, DocumentRef},
    hypervisor,
    machine::{CLUSTER_LABEL, INSTALLATION_LABEL},
    name::NAMESPACE_PREFIX,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::{DynamicObject, ObjectMeta},
};
use serde_json::{Value as Json, json};
use tokio::sync::Semaphore;

use super::{
    KubernetesError, KubernetesStore, MANAGER,
    object::{ObjectRevision, is_released, text},
};
use crate::document_paths::path_of;

/// The number of requests of one step at one time.
const AT_ONCE: usize = 16;
/// The prefix of an installation's namespace.
const INSTALLATION_PREFIX: &str = "keelway-installation-";

impl KubernetesStore {
    /// Makes one change. The document that the API server returns is in effect afterwards.
    pub(super) async fn make(
        &self,
        change: &DocumentChange,
        since: &Documents,
        to: &Documents,
    ) -> Result<(), KubernetesError> {
        let name = change.name();
        match change.outcome(since, to) {
            Some(document) => self.put(name, since.get(name), document.as_ref()).await,
            None => self.remove(name, since).await,
        }
    }

    /// Writes a document again that another client deleted.
    pub(super) async fn rewrite(&self, name: &DocumentName, world: &Documents) -> Result<(), KubernetesError> {
        match world.get(name) {
            Some(document) => self.put(name, None, document).await,
            None => Ok(()),
        }
    }

    async fn put(
        &self,
        name: &DocumentName,
        before: Option<DocumentRef<'_>>,
        document: DocumentRef<'_>,
    ) -> Result<(), KubernetesError> {
        match document {
            DocumentRef::Component(component) => {
                let before = match before {
                    Some(DocumentRef::Component(before)) => Some(before),
                    _ => None,
                };
                let is_same =
                    |before: &Shared<Component>| before.spec == component.spec && before.metadata == component.metadata;
                if !before.is_some_and(is_same) {
                    self.own(name, document).await?;
                }
                let known = before.and_then(|before| before.status.as_ref());
                if component.status.is_some() && component.status.as_ref() != known {
                    self.status(name, document).await?;
                }
            }
            DocumentRef::Secret(_) => {
                self.own(name, document).await?;
            }
            DocumentRef::Cluster(cluster) => {
                if matches!(before, Some(DocumentRef::Cluster(before)) if before.spec != cluster.spec) {
                    return Err(KubernetesError::Spec(name.clone()));
                }
                if self.is_there(name) {
                    self.finalizers(name, cluster).await?;
                } else {
                    self.create(name, &document.json()).await?;
                }
                self.status(name, document).await?;
            }
            DocumentRef::ClusterClass(class) => {
                if matches!(before, Some(DocumentRef::ClusterClass(before)) if before.spec != class.spec) {
                    return Err(KubernetesError::Spec(name.clone()));
                }
                if !self.is_there(name) {
                    let object = self.create(name, &document.json()).await?;
                    self.accept_response(name, Some(document), Ok(object))?;
                }
            }
            DocumentRef::Hypervisor(machine) => {
                if matches!(before, Some(DocumentRef::Hypervisor(before)) if before.spec != machine.spec) {
                    return Err(KubernetesError::Spec(name.clone()));
                }
                if !self.is_there(name) {
                    self.create(name, &document.json()).await?;
                }
                if !machine.deleted() {
                    self.add_finalizer(name).await?;
                }
                self.status(name, document).await?;
            }
        }
        Ok(())
    }

    /// Adds a finalizer to the object of a machine, which then exists until this store releases it.
    async fn add_finalizer(&self, name: &DocumentName) -> Result<(), KubernetesError> {
        if self.shared.held().known(&path_of(name)).is_some_and(|version| version.has_finalizer) {
            return Ok(());
        }
        let mut body = self.body(name, json!({}));
        body["metadata"]["finalizers"] = json!([hypervisor::FINALIZER]);
        self.precondition(name, &mut body);
        let params = PatchParams::apply(MANAGER).force();
        let object = self.api(name).patch(name.name(), &params, &Patch::Apply(body)).await;
        let object = object.map_err(|cause| failed(name, cause))?;
        self.shared.held().record_write(path_of(name), ObjectRevision::of(&object));
        Ok(())
    }

    /// Writes an object of Keelway's own, whole, by server-side apply.
    async fn own(&self, name: &DocumentName, document: DocumentRef<'_>) -> Result<(), KubernetesError> {
        self.ensure_namespace(name).await?;
        let body = |json: &Json| {
            let mut body = self.body(name, json!({}));
            for field in ["labels", "annotations"] {
                if let Some(map) = json["metadata"].get(field) {
                    body["metadata"][field] = map.clone();
                }
            }
            for field in ["spec", "type", "immutable", "data"] {
                if let Some(value) = json.get(field) {
                    body[field] = value.clone();
                }
            }
            body
        };
        let answer = self.apply(name, document, WriteTarget::Object, body).await;
        if let (Err(_), Some(namespace)) = (&answer, name.namespace()) {
            self.shared.held().lost_namespace(&namespace);
        }
        self.accept_response(name, Some(document), answer)
    }

    async fn status(&self, name: &DocumentName, document: DocumentRef<'_>) -> Result<(), KubernetesError> {
        let body = |json: &Json| {
            self.body(name, json!({ "status": json.get("status").cloned().unwrap_or_else(|| json!({})) }))
        };
        let answer = self.apply(name, document, WriteTarget::Status, body).await;
        self.accept_response(name, Some(document), answer)
    }

    /// Sends a server-side apply. An apply removes fields of this manager that it omits, so it includes the fields of a newer release. If the
    /// definitions were downgraded as well, the API server has dropped those fields and refuses them, and they are omitted.
    async fn apply(
        &self,
        name: &DocumentName,
        document: DocumentRef<'_>,
        target: WriteTarget,
        body: impl Fn(&Json) -> Json,
    ) -> kube::Result<DynamicObject> {
        let send = async |json: Json| {
            let mut body = body(&json);
            self.precondition(name, &mut body);
            let params = PatchParams::apply(MANAGER).force();
            match target {
                WriteTarget::Object => self.api(name).patch(name.name(), &params, &Patch::Apply(body)).await,
                WriteTarget::Status => self.api(name).patch_status(name.name(), &params, &Patch::Apply(body)).await,
            }
        };
        match send(document.json()).await {
            Err(kube::Error::Api(refusal))
                if document.has_newer_fields() && is_of_undeclared_field(&refusal.message) =>
            {
                tracing::warn!(document = %name, "the CustomResourceDefinitions no longer have the fields of a newer release: {}", refusal.message);
                send(document.json_of_known_fields()).await
            }
            answer => answer,
        }
    }

    /// Creates a user's document that is new in this store, without its status. It takes effect once the status is written: a Cluster without its
    /// id is another Cluster.
    async fn create(&self, name: &DocumentName, json: &Json) -> Result<DynamicObject, KubernetesError> {
        let mut body = self.body(name, json!({}));
        for field in ["labels", "annotations", "finalizers"] {
            if let Some(value) = json["metadata"].get(field) {
                body["metadata"][field] = value.clone();
            }
        }
        body["spec"] = json["spec"].clone();
        if matches!(name, DocumentName::Hypervisor(_)) {
            let mut finalizers = json["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            finalizers.push(json!(hypervisor::FINALIZER));
            body["metadata"]["finalizers"] = json!(finalizers);
        }
        let object: DynamicObject = serde_json::from_value(body).map_err(|error| broken(name, error))?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let object = self.api(name).create(&params, &object).await.map_err(|cause| failed(name, cause))?;
        self.shared.held().record_write(path_of(name), ObjectRevision::of(&object));
        Ok(object)
    }

    /// Writes Keelway's finalizer, and keeps those of other programs.
    async fn finalizers(&self, name: &DocumentName, cluster: &Cluster) -> Result<(), KubernetesError> {
        let wanted = cluster.metadata.finalizers.clone().unwrap_or_default();
        let world = self.shared.held().documents.clone().unwrap_or_default();
        let mut known = Vec::new();
        if let Some(DocumentRef::Cluster(cluster)) = world.get(name) {
            known = cluster.metadata.finalizers.clone().unwrap_or_default();
        }
        if wanted == known || cluster.deleted() {
            return Ok(());
        }
        let answer = self.set_finalizers(name, &wanted).await;
        self.accept_response(name, None, answer)
    }

    async fn set_finalizers(&self, name: &DocumentName, wanted: &[String]) -> kube::Result<DynamicObject> {
        let mut patch = json!({ "metadata": { "finalizers": wanted } });
        self.precondition(name, &mut patch);
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        self.api(name).patch(name.name(), &params, &Patch::Merge(patch)).await
    }

    async fn remove(&self, name: &DocumentName, since: &Documents) -> Result<(), KubernetesError> {
        match since.get(name) {
            Some(DocumentRef::Cluster(cluster)) => self.release(name, cluster).await?,
            Some(DocumentRef::Hypervisor(machine)) => self.let_go(name, machine).await?,
            Some(DocumentRef::ClusterClass(_) | DocumentRef::Component(_) | DocumentRef::Secret(_)) | None => {
                self.delete(name).await?;
            }
        }
        let mut held = self.shared.held();
        held.removed(path_of(name));
        held.count(name, None);
        Ok(())
    }

    /// Releases a Cluster whose machines hold nothing of it: deletes its namespace, then removes Keelway's finalizer.
    async fn release(&self, name: &DocumentName, cluster: &Cluster) -> Result<(), KubernetesError> {
        if !cluster.deleted() {
            return Err(KubernetesError::Deletion(name.clone()));
        }
        if let Some(id) = cluster.id() {
            let namespaces: Api<Namespace> = Api::all(self.client.clone());
            let deleted = namespaces.delete(&id.namespace(), &DeleteParams::default()).await;
            ignore_not_found(deleted.map(drop)).map_err(|cause| failed(name, cause))?;
        }
        let finalizers = cluster.metadata.finalizers.clone().unwrap_or_default();
        let others: Vec<String> = finalizers.into_iter().filter(|finalizer| finalizer != FINALIZER).collect();
        self.without_finalizer(name, &others).await
    }

    /// Releases a machine on which nothing depends: removes Keelway's finalizer.
    async fn let_go(&self, name: &DocumentName, machine: &Hypervisor) -> Result<(), KubernetesError> {
        if !machine.deleted() {
            return Err(KubernetesError::Deletion(name.clone()));
        }
        let others = machine.metadata.finalizers.clone().unwrap_or_default();
        self.without_finalizer(name, &others).await
    }

    async fn without_finalizer(&self, name: &DocumentName, others: &[String]) -> Result<(), KubernetesError> {
        match self.set_finalizers(name, others).await {
            Ok(object) => {
                // Finalizers of other programs may keep the object.
                self.shared.held().record_write(path_of(name), ObjectRevision::of(&object));
                Ok(())
            }
            Err(cause) => ignore_not_found(Err(cause)).map_err(|cause| failed(name, cause)),
        }
    }

    async fn delete(&self, name: &DocumentName) -> Result<(), KubernetesError> {
        let version = self.shared.held().known(&path_of(name)).unwrap_or_default();
        let preconditions = Preconditions {
            resource_version: Some(version.number.to_string()),
            uid: version.uid.as_deref().map(str::to_owned),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        let deleted = self.api(name).delete(name.name(), &params).await;
        ignore_not_found(deleted.map(drop)).map_err(|cause| failed(name, cause))
    }

    /// Creates the namespaces of documents that are about to be written.
    pub(super) async fn ensure_namespaces(&self, changes: &[DocumentChange]) -> Result<(), KubernetesError> {
        let written =
            changes.iter().filter(|change| matches!(change, DocumentChange::Put(_))).map(DocumentChange::name);
        let is_own = |name: &&DocumentName| matches!(name, DocumentName::Component(_) | DocumentName::Secret(_));
        let one_of_each: BTreeMap<_, _> = written.filter(is_own).map(|name| (name.namespace(), name)).collect();
        at_once(one_of_each.into_values().map(|name| self.ensure_namespace(name))).await
    }

    /// Creates the namespace of a cluster or an installation, with its label.
    async fn ensure_namespace(&self, name: &DocumentName) -> Result<(), KubernetesError> {
        let Some(namespace) = name.namespace() else { return Ok(()) };
        let (label, id) = match (namespace.strip_prefix(INSTALLATION_PREFIX), namespace.strip_prefix(NAMESPACE_PREFIX))
        {
            (Some(id), _) => (INSTALLATION_LABEL, id),
            (None, Some(id)) => (CLUSTER_LABEL, id),
            (None, None) => return Ok(()),
        };
        if self.shared.held().has_namespace(&namespace) {
            return Ok(());
        }
        let metadata = ObjectMeta {
            name: Some(namespace.clone()),
            labels: Some([(label.to_owned(), id.to_owned())].into()),
            ..ObjectMeta::default()
        };
        let body = Namespace { metadata, ..Namespace::default() };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let applied = namespaces.patch(&namespace, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await;
        applied.map(drop).map_err(|cause| failed(name, cause))?;
        self.shared.held().record_namespace(namespace);
        Ok(())
    }

    fn is_there(&self, name: &DocumentName) -> bool {
        self.shared.held().known(&path_of(name)).is_some()
    }

    pub(crate) fn api(&self, name: &DocumentName) -> Api<DynamicObject> {
        self.resources.api(&self.client, name)
    }

    /// Returns the fields that every request needs, with `rest`.
    pub(super) fn body(&self, name: &DocumentName, rest: Json) -> Json {
        let resource = self.resources.of(name);
        let mut body = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": { "name": name.name() },
        });
        if let Some(namespace) = name.namespace() {
            body["metadata"]["namespace"] = json!(namespace);
        }
        if let (Json::Object(body), Json::Object(rest)) = (&mut body, rest) {
            body.extend(rest);
        }
        body
    }

    /// Adds the known version to a request. The API server refuses the request if the object has another version.
    fn precondition(&self, name: &DocumentName, body: &mut Json) {
        if let Some(version) = self.shared.held().known(&path_of(name)) {
            body["metadata"]["resourceVersion"] = json!(version.number.to_string());
        }
    }

    /// Puts the returned document into effect. If it equals the sent document, both share memory.
    fn accept_response(
        &self,
        name: &DocumentName,
        sent: Option<DocumentRef<'_>>,
        answer: kube::Result<DynamicObject>,
    ) -> Result<(), KubernetesError> {
        let object = answer.map_err(|cause| failed(name, cause))?;
        let resource = self.resources.of(name);
        let bytes = text(resource, &object);
        let (_, document) = Document::read(
            &bytes,
            &name.to_string(),
            ReadOptions { unknown: UnknownFields::Kept, ..ReadOptions::default() },
        )
        .map_err(|faults| broken(name, faults))?;
        let document = sent.filter(|sent| document.as_ref() == *sent).map_or(document, DocumentRef::owned);
        let mut held = self.shared.held();
        held.record_write(path_of(name), ObjectRevision::of(&object));
        held.count(name, (!is_released(resource, &object)).then_some(document));
        Ok(())
    }
}

/// The part of an object that a request writes.
#[derive(Clone, Copy)]
enum WriteTarget {
    Object,
    Status,
}

/// Recognizes the message of server-side apply (`structured-merge-diff`, `typed/validate.go`).
fn is_of_undeclared_field(message: &str) -> bool {
    message.contains("field not declared in schema")
}

/// Completes all of these requests, with a limit of how many are sent at one time. A request that was cancelled could still take effect, and
/// would look like the write of another client.
pub(super) async fn at_once(
    requests: impl Iterator<Item = impl Future<Output = Result<(), KubernetesError>>>,
) -> Result<(), KubernetesError> {
    let turns = Semaphore::new(AT_ONCE);
    let turns = &turns;
    let in_turn = requests.map(|request| async move {
        let _turn = turns.acquire().await;
        request.await
    });
    join_all(in_turn).await.into_iter().collect()
}

/// Treats an object that does not exist as deleted.
pub(crate) fn ignore_not_found(done: kube::Result<()>) -> kube::Result<()> {
    if let Err(kube::Error::Api(status)) = &done
        && status.code == 404
    {
        return Ok(());
    }
    done
}

fn failed(name: &DocumentName, cause: kube::Error) -> KubernetesError {
    // 404: another client deleted the object.
    if let kube::Error::Api(status) = &cause
        && matches!(status.code, 404 | 409)
    {
        return KubernetesError::Changed(name.clone());
    }
    KubernetesError::Write { name: name.clone(), cause: Box::new(cause) }
}

/// Returns the error for a response that does not contain the expected document.
fn broken(name: &DocumentName, cause: impl std::error::Error + Send + Sync + 'static) -> KubernetesError {
    let cause = kube::Error::Service(Box::new(cause));
    KubernetesError::Write { name: name.clone(), cause: Box::new(cause) }
}
