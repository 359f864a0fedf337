//! What the files say. They are read again when they change, so that neither process nor Lease ends.

use std::{
    fs,
    path::{Path, PathBuf},
};

use keelway_vpn::error::Chain;
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
    core::DynamicObject,
};
use tower::timeout::TimeoutLayer;

use super::{ANSWER, Configuration, RunError, objects};
use crate::{configuration, kubeconfig::files_of};
use keelway_tls::Stamp;

/// The configuration, and what was made of it and of the files that it names.
pub(super) struct Settings {
    /// All of them, the configuration first.
    files: Vec<PathBuf>,
    stamp: Stamp,
    path: PathBuf,
    pub(super) configuration: Configuration,
    pub(super) client: Client,
    /// Definitions of kinds, which come before all else.
    pub(super) definitions: Vec<DynamicObject>,
    /// All else that is kept in the cluster.
    pub(super) wanted: Vec<DynamicObject>,
}

impl Settings {
    /// Reads all of them.
    pub(super) async fn read(path: &Path) -> Result<Self, RunError> {
        // Each file's stamp is of before it is read: what changes meanwhile is read again.
        let own = Stamp::of([path]);
        let configuration: Configuration = configuration::read(path).map_err(RunError::Configuration)?;
        let mut others = files_of(&configuration.kubeconfig);
        others.push(configuration.authorities.clone());
        let stamp = own.with(Stamp::of(&others));
        let authorities = fs::read_to_string(&configuration.authorities)
            .map_err(|source| RunError::Authorities { path: configuration.authorities.clone(), source })?;
        Ok(Self {
            files: [path.to_owned()].into_iter().chain(others).collect(),
            stamp,
            path: path.to_owned(),
            client: client(&configuration.kubeconfig).await?,
            definitions: objects::definitions().map_err(RunError::Objects)?,
            wanted: objects::wanted(&configuration, &authorities).map_err(RunError::Objects)?,
            configuration,
        })
    }

    /// Waits until the files say something else that can be used.
    pub(super) async fn replaced(&self) -> Self {
        let mut stamp = self.stamp.clone();
        loop {
            stamp = stamp.next(&self.files).await;
            match Self::read(&self.path).await {
                Ok(next) => return next,
                Err(error) => tracing::warn!("files have changed, and are passed over: {}", Chain(&error)),
            }
        }
    }
}

async fn client(path: &Path) -> Result<Client, RunError> {
    let wrong = |source| RunError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(wrong)?;
    let builder = ClientBuilder::try_from(config).map_err(|source| RunError::Client(Box::new(source)))?;
    Ok(builder.with_layer(&TimeoutLayer::new(ANSWER)).build())
}
