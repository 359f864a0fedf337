//! The API of a fleet, as commands use it.

use std::{fmt::Debug, io::Read, path::PathBuf, time::Duration};

use clap::Args;
use keelway_http_proxy::{KubeClientConfig, ProxySettings};
use kube::{Api, Client, Error, api::ListParams, runtime::watcher};
use serde::de::DeserializeOwned;
use tower::timeout::TimeoutLayer;

use crate::exit::CommandFailure;

/// How long a response may take to begin.
const ANSWER: Duration = Duration::from_secs(20);

/// The fleet of a command.
#[derive(Args)]
pub(crate) struct FleetArgument {
    /// The kubeconfig of the fleet [default: as kubectl]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

impl FleetArgument {
    /// Returns a client of the fleet, and the URL of its API. Call it in a runtime.
    pub(super) async fn client(&self) -> Result<(Client, String), CommandFailure> {
        let settings = ProxySettings::from_environment();
        let config = match &self.kubeconfig {
            Some(path) => KubeClientConfig::read(path, &settings).await,
            None => KubeClientConfig::infer(&settings).await,
        };
        let config = config.map_err(CommandFailure::other)?;
        let builder = config.builder().map_err(CommandFailure::other)?;
        Ok((builder.with_layer(&TimeoutLayer::new(ANSWER)).build(), config.server().to_string()))
    }
}

/// The API version of Placements, Clusters and SchedulePolicies.
pub(super) const FLEET_API: &str = "fleet.keelway.dev/v1alpha1";
/// How many objects a page of a list has.
const PAGE: u32 = 500;

/// Lists all objects, page by page.
pub(super) async fn list_all<K>(api: &Api<K>) -> Result<Vec<K>, Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut parameters = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&parameters).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(all),
        }
    }
}

/// Reads a file, or stdin for `-`.
pub(super) fn read_or_stdin(path: &str) -> Result<String, CommandFailure> {
    if path != "-" {
        let read = std::fs::read_to_string(path);
        return read.map_err(|error| {
            CommandFailure::usage(format!("cannot read {path}: {error}"), "name a file, or - for stdin")
        });
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(CommandFailure::other)?;
    Ok(text)
}

/// Whether the API server refused to watch, so that trying again does not help.
pub(super) fn is_refused(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(Error::Api(status))
        | watcher::Error::WatchStartFailed(Error::Api(status))
        | watcher::Error::WatchError(status) => matches!(status.code, 401 | 403),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}
