//! The process: files that change, the election, and the work of the replica that holds the Lease.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use keelway_base::error_chain::ErrorChain;
use keelway_component::{
    configuration::{self, ConfigurationError},
    files,
    health::{self, HealthListeners, HealthServerError},
    kubeconfig::{ClientError, client, files_of},
    leader::{self, LEASE, LeaderReport, LeaseName},
};
use keelway_lease::Election;
use keelway_tls::FilesVersion;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::{join, select, time::sleep};

use crate::{
    FleetControllerConfiguration, cluster_reconciler,
    context::{FleetContext, FleetControllerError},
    definitions,
    metrics::FleetMetrics,
    placement, registration,
};

/// How long a response of an API server may take to begin.
const ANSWER: Duration = Duration::from_secs(15);
/// The pause before the definitions are applied again after an error.
const AGAIN: Duration = Duration::from_secs(1);

/// The controller cannot run.
#[derive(Debug, thiserror::Error)]
pub enum FleetControllerRunError {
    /// The configuration cannot be used.
    #[error("cannot use the configuration")]
    Configuration(#[source] ConfigurationError),
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Client(ClientError),
    /// The file of the authorities cannot be read.
    #[error("cannot read {}", path.display())]
    Authorities {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The health server cannot be started.
    #[error("cannot serve health and metrics")]
    Health(#[source] HealthServerError),
}

/// The options that a process keeps until it ends. All others are in its files, which may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetControllerOptions {
    /// The file with its [`FleetControllerConfiguration`].
    pub config: PathBuf,
    /// The unique name of this replica.
    pub identity: String,
    /// The address of the health server, which needs no authentication: an address of loopback.
    pub health: SocketAddr,
    /// The path of the metrics socket, in a directory of its own.
    pub metrics: Option<PathBuf>,
}

/// The configuration, and what was built from it and from the files that it names.
struct FleetSettings {
    /// All files, the configuration first.
    files: Vec<PathBuf>,
    version: FilesVersion,
    path: PathBuf,
    configuration: FleetControllerConfiguration,
    /// The fleet's authorities, PEM.
    authorities: Option<String>,
    client: Client,
}

impl FleetSettings {
    async fn read(path: &Path) -> Result<Self, FleetControllerRunError> {
        // The version of each file is determined before the file is read, so that a concurrent change leads to another read.
        let own = FilesVersion::of([path]);
        let configuration: FleetControllerConfiguration =
            configuration::read(path).map_err(FleetControllerRunError::Configuration)?;
        let mut others = files_of(&configuration.kubeconfig);
        others.extend(configuration.authorities.clone());
        let version = own.with(FilesVersion::of(&others));
        let client = client(&configuration.kubeconfig, ANSWER).await.map_err(FleetControllerRunError::Client)?;
        let authorities = configuration.authorities.as_ref().map(|path| {
            let wrong = |source| FleetControllerRunError::Authorities { path: path.clone(), source };
            std::fs::read_to_string(path).map_err(wrong)
        });
        let authorities = authorities.transpose()?;
        let files = [path.to_owned()].into_iter().chain(others).collect();
        Ok(Self { files, version, path: path.to_owned(), configuration, authorities, client })
    }

    async fn replaced(&self) -> Self {
        files::replaced(&self.version, &self.files, async || Self::read(&self.path).await).await
    }
}

/// Runs until `stop`. Changes of files take effect at once, under the same Lease.
pub async fn run(
    process: &FleetControllerOptions,
    stop: impl Future<Output = ()>,
) -> Result<(), FleetControllerRunError> {
    let mut settings = FleetSettings::read(&process.config).await?;
    // The holder name stays the same across reloads, so that a reload keeps its own Lease.
    let holder = keelway_lease::process(&process.identity);
    let mut registry = Registry::default();
    let metrics = FleetMetrics::new(&mut registry);
    let report = LeaderReport {
        identity: process.identity.clone(),
        is_ready: Arc::default(),
        leading: metrics.leading().clone(),
    };
    let listeners = HealthListeners::open(process.health, process.metrics.as_deref()).await;
    let listeners = listeners.map_err(FleetControllerRunError::Health)?;
    let mut serving = pin!(health::serve(listeners, report.health(registry)));
    let mut stop = pin!(stop);
    loop {
        let replica = FleetReplica::new(&settings, &holder, &metrics, &report);
        let next = select! {
            next = settings.replaced() => next,
            never = replica.act() => match never {},
            () = &mut serving => break replica.election.release().await,
            () = &mut stop => break replica.election.release().await,
        };
        report.leading.set(0);
        tracing::info!("reloaded changed files");
        settings = next;
    }
    Ok(())
}

/// A replica of the controller with one version of its files.
struct FleetReplica<'a> {
    election: Election,
    settings: &'a FleetSettings,
    metrics: &'a FleetMetrics,
    report: &'a LeaderReport,
}

impl<'a> FleetReplica<'a> {
    fn new(settings: &'a FleetSettings, holder: &str, metrics: &'a FleetMetrics, report: &'a LeaderReport) -> Self {
        let LeaseName { namespace, name } = &settings.configuration.lease;
        let election = Election::new(settings.client.clone(), (namespace, name), holder, LEASE);
        Self { election, settings, metrics, report }
    }

    async fn act(&self) -> Infallible {
        leader::lead(&self.election, self.report, async || self.work().await).await
    }

    /// Does all work of the Lease holder. What it observed does not outlive the Lease.
    async fn work(&self) {
        let fence = self.election.fence();
        let context = FleetContext::new(&self.settings.client, self.metrics.clone(), fence, &self.report.identity);
        while let Err(error) = self.prepare(&context).await {
            context.metrics.count_failure();
            tracing::warn!("cannot prepare the fleet: {}", ErrorChain(&error));
            sleep(AGAIN).await;
        }
        let context = Arc::new(context);
        join!(
            registration::run(Arc::clone(&context)),
            cluster_reconciler::run(Arc::clone(&context)),
            placement::run(Arc::clone(&context)),
            Box::pin(self.keep_published(&context)),
        );
    }

    async fn keep_published(&self, context: &FleetContext) {
        let FleetSettings { configuration, authorities, .. } = self.settings;
        if let Some(authorities) = authorities {
            definitions::keep_published(configuration, authorities, context).await;
        }
    }

    /// Applies what everything else relies on.
    async fn prepare(&self, context: &FleetContext) -> Result<(), FleetControllerError> {
        definitions::apply(context).await?;
        let FleetSettings { configuration, authorities, .. } = self.settings;
        match authorities {
            Some(authorities) => definitions::publish(configuration, authorities, context).await,
            None => Ok(()),
        }
    }
}
