//! A management cluster as a store of a pivot.

use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt as _;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use keelway_api::{
    Documents, cluster,
    document::{DocumentName, DocumentRef},
    hypervisor,
    name::{ClusterRef, InstallationId},
    registry::is_pull_secret,
};
use keelway_http_proxy::{KubeClientConfig, ProxySettings};
use keelway_lease::{Election, LeaseError, LeaseTimes, process};
use keelway_reconciler::{Store, StoreError};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
    core::DynamicObject,
    runtime::{
        WatchStreamExt as _,
        wait::{await_condition, conditions::is_deleted},
        watcher::watch_object,
    },
};
use serde_json::json;
use tokio::{task::AbortHandle, time::timeout};

use super::PivotStore;
use crate::kubernetes::{KubernetesStore, LEASE, MANAGER, ignore_not_found};

/// The annotation that records where the documents of a management cluster moved to. It is on the Lease of its managers.
pub const LEFT_FOR: &str = "keelway.dev/left-for";

/// The holder of the managers' Lease during a pivot.
const PIVOT: &str = "keelway-pivot";
/// The times of the Lease, the same as those of managers.
const TIMES: LeaseTimes = LeaseTimes {
    duration: Duration::from_secs(15),
    holder_deadline: Duration::from_secs(10),
    renewal: Duration::from_secs(2),
    again: Duration::from_secs(2),
};
/// How long a manager may take to end after it was stopped. A manager that was killed holds the Lease until it expires.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the deletion of a namespace may take.
const ENDING: Duration = Duration::from_secs(120);

/// Why a management cluster cannot be opened exclusively.
#[derive(Debug, thiserror::Error)]
pub enum ManagementClusterError {
    /// The namespace does not exist, so Keelway is not installed there.
    #[error(
        "namespace {0} not found; install Keelway in the cluster first, with no replicas, or set --namespace to its namespace"
    )]
    NoNamespace(String),
    /// The kubeconfig cannot be used.
    #[error("could not use the kubeconfig{}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Kubeconfig {
        /// The path of the kubeconfig; none for the default of kubectl.
        path: Option<PathBuf>,
        /// The cause.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The API server does not respond, or refuses the request.
    #[error("request to the API server failed")]
    Api(#[source] Box<kube::Error>),
    /// A manager holds the Lease.
    #[error(
        "a manager holds the Lease {0}/{LEASE}; stop it first, for example with kubectl -n {0} scale deployment --all --replicas 0"
    )]
    Held(String),
    /// The Lease cannot be acquired.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// A management cluster on which no manager works as long as this is held.
pub struct ManagementCluster {
    client: Client,
    store: KubernetesStore,
    election: Arc<Election>,
    renewal: AbortHandle,
    title: String,
}

impl ManagementCluster {
    /// Waits until no manager holds the Lease, and acquires it. Without `kubeconfig`, it uses the default of kubectl. `namespace` is that of the
    /// Lease.
    ///
    /// # Errors
    /// A manager continues to hold the Lease, or the API server refuses a request.
    pub async fn take(kubeconfig: Option<&Path>, namespace: &str) -> Result<Self, ManagementClusterError> {
        let title = kubeconfig.map_or_else(|| "kubernetes".to_owned(), |path| format!("kubernetes:{}", path.display()));
        let client = client(kubeconfig).await.map_err(|cause| {
            let path = kubeconfig.map(Path::to_owned);
            ManagementClusterError::Kubeconfig { path, cause }
        })?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        match namespaces.get_opt(namespace).await {
            Ok(Some(_)) => {}
            Ok(None) => return Err(ManagementClusterError::NoNamespace(namespace.to_owned())),
            Err(error) => return Err(ManagementClusterError::Api(Box::new(error))),
        }
        let election = Arc::new(Election::new(client.clone(), (namespace, LEASE), &process(PIVOT), TIMES));
        let held = || ManagementClusterError::Held(namespace.to_owned());
        let lease = tokio::select! {
            lease = timeout(PATIENCE, election.acquire(|| {})) => lease.map_err(|_| held())??,
            () = is_renewed(Api::namespaced(client.clone(), namespace)) => return Err(held()),
        };
        let keeping = election.clone();
        let renewal = tokio::spawn(async move { keeping.renew_until_lost(lease).await }).abort_handle();
        let client = election.fence().guard(client);
        let store = KubernetesStore::open(client.clone());
        Ok(Self { client, store, election, renewal, title })
    }

    /// Releases the Lease, so that managers can work again.
    pub async fn unlock(&self) {
        self.renewal.abort();
        self.election.release().await;
    }

    async fn delete_document(&self, name: &DocumentName, document: DocumentRef<'_>) -> kube::Result<()> {
        let api = self.store.api(name);
        match document {
            DocumentRef::Secret(secret) if is_pull_secret(secret) => return Ok(()),
            DocumentRef::Hypervisor(_) | DocumentRef::Cluster(_) => ignore_not_found(self.release(&api, name).await)?,
            DocumentRef::ClusterClass(_) | DocumentRef::Component(_) | DocumentRef::Secret(_) => {}
        }
        ignore_not_found(api.delete(name.name(), &DeleteParams::background()).await.map(drop))
    }

    /// Removes Keelway's finalizers from an object.
    async fn release(&self, api: &Api<DynamicObject>, name: &DocumentName) -> kube::Result<()> {
        let object = api.get(name.name()).await?;
        let others = object.metadata.finalizers.unwrap_or_default();
        let others: Vec<String> = others
            .into_iter()
            .filter(|name| ![cluster::FINALIZER, hypervisor::FINALIZER].contains(&name.as_str()))
            .collect();
        let patch =
            json!({ "metadata": { "finalizers": others, "resourceVersion": object.metadata.resource_version } });
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(name.name(), &params, &Patch::Merge(patch)).await.map(drop)
    }
}

#[async_trait]
impl Store for ManagementCluster {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        self.store.load().await
    }

    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        self.store.save(documents).await
    }
}

#[async_trait]
impl PivotStore for ManagementCluster {
    fn title(&self) -> String {
        self.title.clone()
    }

    async fn pivot_target(&self) -> Result<Option<String>, StoreError> {
        let noted = self.election.annotation(LEFT_FOR).await.map_err(|cause| failed("load", cause))?;
        Ok(noted.filter(|target| !target.is_empty()))
    }

    async fn set_pivot_target(&self, target: Option<&str>) -> Result<(), StoreError> {
        self.election.note(LEFT_FOR, target.unwrap_or_default()).await.map_err(|cause| failed("save", cause))
    }

    /// Creates the namespaces of users. Namespaces of clusters are created when their documents are saved.
    async fn prepare(&self, documents: &Documents) -> Result<(), StoreError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let clusters = documents.clusters.keys().map(|name| name.namespace.clone());
        let of_users = documents
            .secrets
            .iter()
            .filter(|(name, secret)| !name.namespace.starts_with("keelway-") || is_pull_secret(secret));
        let secrets =
            documents.user_secrets.keys().chain(of_users.map(|(name, _)| name)).map(|name| name.namespace.clone());
        let all = clusters.chain(secrets);
        for name in all.collect::<std::collections::BTreeSet<_>>() {
            let patch = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            let made = namespaces.patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(patch)).await;
            made.map_err(|cause| failed("save", cause))?;
        }
        for name in own_namespaces(documents) {
            is_not_ending(&namespaces, &name).await.map_err(|cause| StoreError { operation: "save", cause })?;
        }
        Ok(())
    }

    async fn pause(&self, clusters: &[ClusterRef]) -> Result<(), StoreError> {
        for name in clusters {
            let api = self.store.api(&DocumentName::Cluster(name.clone()));
            let patch = Patch::Merge(json!({ "spec": { "paused": true } }));
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            api.patch(&name.name, &params, &patch).await.map_err(|cause| failed("save", cause))?;
        }
        Ok(())
    }

    async fn forget(&self, documents: &Documents) -> Result<(), StoreError> {
        // A document is removed before those that it refers to.
        let mut names: Vec<DocumentName> = documents.names().collect();
        names.sort_by_key(|name| match name {
            DocumentName::Component(_) => 0,
            DocumentName::Secret(_) => 1,
            DocumentName::Cluster(_) => 2,
            DocumentName::ClusterClass(_) | DocumentName::Hypervisor(_) => 3,
        });
        for name in names {
            let Some(document) = documents.get(&name) else { continue };
            self.delete_document(&name, document).await.map_err(|cause| failed("save", cause))?;
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for name in own_namespaces(documents) {
            let deleted = namespaces.delete(&name, &DeleteParams::background()).await.map(drop);
            ignore_not_found(deleted).map_err(|cause| failed("save", cause))?;
        }
        Ok(())
    }
}

/// Returns once a manager renews the Lease, which shows that it continues.
async fn is_renewed(api: Api<Lease>) {
    let mut seen = pin!(watch_object(api, LEASE).default_backoff());
    let mut last = None;
    while let Some(next) = seen.next().await {
        let Ok(Some(Lease { spec: Some(spec), .. })) = next else { continue };
        let holder = spec.holder_identity.filter(|holder| !holder.is_empty() && !holder.starts_with(PIVOT));
        let Some(renewed) = holder.map(|holder| (holder, spec.renew_time)) else { continue };
        if last.replace(renewed.clone()).is_some_and(|last| last.0 == renewed.0 && last.1 != renewed.1) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

async fn client(kubeconfig: Option<&Path>) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    let settings = ProxySettings::from_environment();
    let config = match kubeconfig {
        Some(path) => KubeClientConfig::read(path, &settings).await?,
        None => KubeClientConfig::infer(&settings).await?,
    };
    Ok(config.client()?)
}

/// Returns the namespaces of clusters and of the installation.
fn own_namespaces(documents: &Documents) -> impl Iterator<Item = String> {
    let clusters = documents.clusters.values().filter_map(|cluster| Some(cluster.id()?.namespace()));
    clusters.chain(documents.installation().map(InstallationId::namespace))
}

/// Waits for the end of a namespace that is being deleted. Until then, nothing can be created in it.
async fn is_not_ending(
    namespaces: &Api<Namespace>,
    name: &str,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let Some(Namespace { metadata, .. }) = namespaces.get_opt(name).await? else { return Ok(()) };
    if let (Some(uid), Some(_)) = (metadata.uid, metadata.deletion_timestamp) {
        let gone = await_condition(namespaces.clone(), name, is_deleted(&uid));
        timeout(ENDING, gone).await.map_err(|_| format!("namespace {name} is still being deleted"))??;
    }
    Ok(())
}

fn failed(operation: &'static str, cause: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError { operation, cause: Box::new(cause) }
}
