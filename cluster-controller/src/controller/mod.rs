//! The cluster-controller: what runs inside a cluster for its workers, so that they join, renew and leave with no other part of Keelway
//! running.

mod addresses;
mod configuration;
mod context;
mod csr;
mod keeper;
mod lease;
mod metrics;
mod objects;
mod pauses;
mod registry;
mod tombstones;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::{
    Api, Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
    runtime::wait::{await_condition, conditions},
};
use prometheus_client::registry::Registry;
use tokio::{join, select};
use tower::timeout::TimeoutLayer;

use self::{context::Context, keeper::Keeper, lease::Election, metrics::Metrics};
use crate::{
    configuration::{self as files, ConfigurationError},
    health::{self, Entrances, Health, HealthError},
};

pub use self::{
    configuration::{Addons, Configuration, LeaseName, Switch},
    context::ControllerError,
    csr::NODES,
    objects::ObjectError,
};

/// The name by which API servers know who wrote what.
pub use keelway_api::worker::CLUSTER_CONTROLLER_MANAGER as MANAGER;
/// All that the controller may do.
pub use keelway_api::worker::CLUSTER_CONTROLLER_ROLE as ROLE;
/// The user that [`ROLE`] is bound to.
pub use keelway_api::worker::CLUSTER_CONTROLLER_USER as USER;

/// How long an answer of an API server may take to begin.
const ANSWER: Duration = Duration::from_secs(15);
/// How soon work begins again that ended early.
const AGAIN: Duration = Duration::from_secs(1);

/// The controller cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its configuration cannot be used.
    #[error("cannot use the configuration")]
    Configuration(#[source] ConfigurationError),
    /// Its kubeconfig cannot be used.
    #[error("cannot use {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// A client cannot be made of its kubeconfig.
    #[error("cannot make a client")]
    Client(#[source] Box<kube::Error>),
    /// The authorities cannot be read.
    #[error("cannot read {}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What it applies cannot be put together.
    #[error("cannot put together what is applied")]
    Objects(#[source] ObjectError),
    /// Nobody can ask about its health.
    #[error("cannot tell health and metrics")]
    Health(#[source] HealthError),
}

/// Runs until `stop`.
pub async fn run(path: &Path, identity: &str, stop: impl Future<Output = ()>) -> Result<(), RunError> {
    let configuration: Configuration = files::read(path).map_err(RunError::Configuration)?;
    let authorities = fs::read_to_string(&configuration.authorities)
        .map_err(|source| RunError::Authorities { path: configuration.authorities.clone(), source })?;
    let definitions = objects::definitions().map_err(RunError::Objects)?;
    let wanted = objects::wanted(&configuration, &authorities).map_err(RunError::Objects)?;
    let client = client(&configuration.kubeconfig).await?;
    let election = Election::new(
        client.clone(),
        &configuration.lease.namespace,
        &configuration.lease.name,
        &lease::process(identity),
    );

    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let is_ready = Arc::new(AtomicBool::new(false));
    let entrances = Entrances::open(configuration.health, configuration.metrics.as_deref()).await;
    let entrances = entrances.map_err(RunError::Health)?;
    let questions = health::serve(entrances, health(registry, Arc::clone(&is_ready)));
    let context = Arc::new(Context::new(client, configuration, metrics, election.fence(), identity));

    let terms = async {
        loop {
            let held = match election.acquire(|| is_ready.store(true, Ordering::Relaxed)).await {
                Ok(held) => held,
                Err(error) => {
                    is_ready.store(false, Ordering::Relaxed);
                    report("cannot have the Lease", error);
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            tracing::info!(identity, "holds the Lease");
            context.metrics.set_leading(true);
            select! {
                biased;
                () = election.keep(held) => tracing::warn!(identity, "has lost the Lease"),
                () = work(&context, &definitions, &wanted) => {}
            }
            context.metrics.set_leading(false);
        }
    };
    select! {
        () = terms => {}
        () = questions => {}
        () = stop => {}
    }
    election.release().await;
    Ok(())
}

fn health(registry: Registry, is_ready: Arc<AtomicBool>) -> Health {
    let why = "it has not reached an API server yet, or may not have the Lease";
    let readiness = move || if is_ready.load(Ordering::Relaxed) { Ok(()) } else { Err(why.to_owned()) };
    Health { registry, readiness: Box::new(readiness) }
}

async fn client(path: &Path) -> Result<Client, RunError> {
    let wrong = |source| RunError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(wrong)?;
    let builder = ClientBuilder::try_from(config).map_err(|source| RunError::Client(Box::new(source)))?;
    Ok(builder.with_layer(&TimeoutLayer::new(ANSWER)).build())
}

/// All that is done while the Lease is held.
async fn work(context: &Arc<Context>, definitions: &[kube::core::DynamicObject], wanted: &[kube::core::DynamicObject]) {
    while let Err(error) = define(context, definitions).await {
        report("cannot define the kinds", error);
        tokio::time::sleep(AGAIN).await;
    }
    let all = definitions.iter().chain(wanted).cloned().collect();
    join!(
        Keeper::new(Arc::clone(context), all).run(),
        csr::run(Arc::clone(context)),
        addresses::run(Arc::clone(context)),
        tombstones::run(Arc::clone(context)),
        registry::run(Arc::clone(context)),
    );
}

/// Applies the definitions of our kinds and waits until they are in effect: nothing can be watched before.
async fn define(context: &Arc<Context>, definitions: &[kube::core::DynamicObject]) -> Result<(), ControllerError> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    Keeper::new(Arc::clone(context), definitions.to_vec()).apply_all().await?;
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

fn report(what: &str, error: ControllerError) {
    let error = format!("{:#}", anyhow::Error::from(error));
    tracing::warn!(error, "{what}");
}
