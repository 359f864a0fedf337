//! The cluster-controller: it runs for the workers of one cluster, so that they can join, renew certificates and leave while no other part of
//! Keelway runs.

mod addresses;
mod configuration;
mod context;
mod csr;
mod identities;
mod metrics;
mod network_policies;
mod object_backoffs;
mod object_reconciler;
mod objects;
mod published_authority;
mod registry;
mod settings;
mod tombstones;
mod worker_upgrades;

use std::{convert::Infallible, io, net::SocketAddr, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use keelway_component::{
    configuration::ConfigurationError,
    health::{self, HealthListeners, HealthServerError},
    kubeconfig::ClientError,
    leader::{self, LEASE, LeaderReport, LeaseName},
};
use keelway_lease::Election;
use kube::{
    Api,
    core::DynamicObject,
    runtime::wait::{await_condition, conditions},
};
use prometheus_client::registry::Registry;
use tokio::{join, select};

pub use self::{
    configuration::ControllerConfiguration, context::ControllerError, csr::NODES, objects::ObjectError,
    worker_upgrades::KubeletUpgrades,
};
use self::{
    context::ControllerContext, metrics::ControllerMetrics, object_reconciler::ObjectReconciler,
    settings::ControllerSettings,
};

/// The field manager of the controller's writes.
pub use keelway_api::worker::CLUSTER_CONTROLLER_MANAGER as MANAGER;
/// The permissions of the controller.
pub use keelway_api::worker::CLUSTER_CONTROLLER_ROLE as ROLE;
/// The user that is bound to [`ROLE`].
pub use keelway_api::worker::CLUSTER_CONTROLLER_USER as USER;

/// How long a response of an API server may take to begin.
const ANSWER: Duration = Duration::from_secs(15);
/// The pause before work that ended early is started again.
const AGAIN: Duration = Duration::from_secs(1);

/// The controller cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerRunError {
    /// The configuration cannot be used.
    #[error("cannot use the configuration")]
    Configuration(#[source] ConfigurationError),
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Client(ClientError),
    /// A file that is published to workers cannot be read.
    #[error("cannot read {}", path.display())]
    PublishedFile {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The objects to apply cannot be built.
    #[error("cannot build the objects to apply")]
    Objects(#[source] ObjectError),
    /// The health server cannot be started.
    #[error("cannot serve health and metrics")]
    Health(#[source] HealthServerError),
}

/// The options that a process keeps until it ends. All others are in its files, which may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerOptions {
    /// The file with its [`ControllerConfiguration`].
    pub config: PathBuf,
    /// The unique name of this replica.
    pub identity: String,
    /// The address of the health server, which needs no authentication: an address of loopback.
    pub health: SocketAddr,
    /// The path of the metrics socket, in a directory of its own.
    pub metrics: Option<PathBuf>,
}

/// Runs until `stop`. Changes of files take effect at once, under the same Lease.
pub async fn run(process: &ControllerOptions, stop: impl Future<Output = ()>) -> Result<(), ControllerRunError> {
    let mut settings = ControllerSettings::read(&process.config).await?;
    let identity = &process.identity;
    // The holder name stays the same across reloads, so that a reload keeps its own Lease.
    let holder = keelway_lease::process(identity);
    let mut registry = Registry::default();
    let metrics = ControllerMetrics::new(&mut registry);
    let report =
        LeaderReport { identity: identity.clone(), is_ready: Arc::default(), leading: metrics.leading().clone() };
    let entrances =
        HealthListeners::open(process.health, process.metrics.as_deref()).await.map_err(ControllerRunError::Health)?;
    let mut questions = pin!(health::serve(entrances, report.health(registry)));
    let mut stop = pin!(stop);
    loop {
        let replica = Replica::new(&settings, &holder, &metrics, &report);
        let next = select! {
            next = settings.replaced() => next,
            never = replica.act() => match never {},
            () = &mut questions => break replica.election.release().await,
            () = &mut stop => break replica.election.release().await,
        };
        report.leading.set(0);
        tracing::info!("reloaded changed files");
        settings = next;
    }
    Ok(())
}

/// A replica of the controller with one version of its files.
struct Replica<'a> {
    settings: &'a ControllerSettings,
    election: Election,
    context: Arc<ControllerContext>,
    report: &'a LeaderReport,
}

impl<'a> Replica<'a> {
    fn new(
        settings: &'a ControllerSettings,
        holder: &str,
        metrics: &ControllerMetrics,
        report: &'a LeaderReport,
    ) -> Self {
        let ControllerSettings { configuration, client, .. } = settings;
        let LeaseName { namespace, name } = &configuration.lease;
        let election = Election::new(client.clone(), (namespace, name), holder, LEASE);
        let (metrics, identity) = (metrics.clone(), &report.identity);
        let context =
            ControllerContext::new(client.clone(), configuration.clone(), metrics, election.fence(), identity);
        Self { settings, election, context: Arc::new(context), report }
    }

    async fn act(&self) -> Infallible {
        Box::pin(leader::lead(&self.election, self.report, async || Box::pin(work(&self.context, self.settings)).await))
            .await
    }
}

/// Does all work of the Lease holder.
async fn work(context: &Arc<ControllerContext>, settings: &ControllerSettings) {
    while let Err(error) = define(context, &settings.definitions).await {
        report("cannot apply the CustomResourceDefinitions", error);
        tokio::time::sleep(AGAIN).await;
    }
    join!(
        Box::pin(published_authority::keep_objects(context, settings)),
        csr::run(Arc::clone(context)),
        identities::run(Arc::clone(context)),
        addresses::run(Arc::clone(context)),
        tombstones::run(Arc::clone(context)),
        network_policies::run(Arc::clone(context)),
        registry::run(Arc::clone(context)),
        worker_upgrades::run(Arc::clone(context)),
    );
}

/// Applies the definitions of Keelway's kinds, and waits until they are established. A watch of such a kind would fail before.
async fn define(context: &Arc<ControllerContext>, definitions: &[DynamicObject]) -> Result<(), ControllerError> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    ObjectReconciler::new(Arc::clone(context), definitions.to_vec()).apply_all().await?;
    let api = Api::<CustomResourceDefinition>::all(context.client.clone());
    for definition in definitions {
        let name = definition.metadata.name.as_deref().unwrap_or_default();
        let established = await_condition(api.clone(), name, conditions::is_crd_established());
        match tokio::time::timeout(ANSWER, established).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return Err(ControllerError::NotDefined(name.to_owned())),
        }
    }
    Ok(())
}

fn report(what: &str, error: impl std::error::Error + Send + Sync + 'static) {
    let error = format!("{:#}", anyhow::Error::from(error));
    tracing::warn!(error, "{what}");
}
