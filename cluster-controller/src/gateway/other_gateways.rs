//! The other gateways of the cluster: a list in a file, which is read again when it changes.

use std::path::{Path, PathBuf};

use keelway_base::error_chain::ErrorChain;
use tokio::sync::watch::{self, Receiver, Sender};
use tokio::task::JoinSet;

use keelway_tls::FilesVersion;

use super::{OtherGateway, config::GatewayList};
use keelway_component::configuration::{self, ConfigurationError};

/// The list, and its file.
pub(super) struct OtherGateways {
    pub(super) list: Vec<OtherGateway>,
    file: Option<(PathBuf, FilesVersion)>,
}

impl OtherGateways {
    /// Reads the file, if there is one.
    pub(super) fn read(path: Option<&Path>) -> Result<Self, ConfigurationError> {
        let Some(path) = path else { return Ok(Self { list: Vec::new(), file: None }) };
        let stamp = FilesVersion::of([path]);
        Ok(Self { list: configuration::read::<GatewayList>(path)?.0, file: Some((path.to_owned(), stamp)) })
    }

    /// Sends the list after each change of the file. A restart instead would interrupt every worker.
    pub(super) fn follow(self, tasks: &mut JoinSet<()>) -> Receiver<Vec<OtherGateway>> {
        let (sender, receiver) = watch::channel(self.list);
        if let Some((path, stamp)) = self.file {
            tasks.spawn(watch_file(path, stamp, sender));
        }
        receiver
    }
}

async fn watch_file(path: PathBuf, mut known: FilesVersion, sender: Sender<Vec<OtherGateway>>) {
    loop {
        known = known.next(&[&path]).await;
        match configuration::read::<GatewayList>(&path) {
            Ok(GatewayList(list)) => {
                tracing::info!(gateways = list.len(), "reloaded the other gateways");
                sender.send_replace(list);
            }
            Err(error) => {
                tracing::warn!("cannot reload the other gateways; keeping the previous list: {}", ErrorChain(&error));
            }
        }
    }
}
