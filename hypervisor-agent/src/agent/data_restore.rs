//! Makes the data of an etcd member from a snapshot that the driver sends.

use std::{io, sync::Arc};

use futures::{Stream, StreamExt, future::ready, stream};
use keelway_agent_api::proto;
use keelway_api::name::{InstallationId, NameError, PodName};
use keelway_base::error_chain::chain_text;
use keelway_machine::leader::Leader;
use keelway_machine_io::{
    local::LocalMachine,
    restore::{MachineRestore, RestoreError},
};
use tokio::sync::Mutex;
use tonic::{Status, Streaming};

use super::config_store::{ConfigStore, FenceError};

/// Restores the data of members, one at a time.
pub(super) struct DataRestorer {
    machine: Arc<LocalMachine>,
    config_store: Arc<ConfigStore>,
    turn: Mutex<()>,
}

impl DataRestorer {
    pub(super) fn new(machine: Arc<LocalMachine>, config_store: Arc<ConfigStore>) -> Self {
        Self { machine, config_store, turn: Mutex::default() }
    }

    /// Restores the data of one member of the config in effect.
    pub(super) async fn restore(&self, mut requests: Streaming<proto::RestoreDataRequest>) -> Result<(), Status> {
        let first = requests.message().await?;
        let Some(proto::RestoreDataRequest { order: Some(order), data }) = first else {
            return Err(Status::invalid_argument("the first message has no order"));
        };
        let name = pod(order.pod)?;
        self.check_term(&order.installation, order.term).await?;
        let turn = self.turn.try_lock();
        let _turn = turn.map_err(|_| Status::unavailable("another member is being restored on this machine"))?;
        let stored = self.config_store.current();
        let found = stored.as_ref().and_then(|stored| stored.config.pods.get(&name));
        let found = found.ok_or_else(|| Status::failed_precondition(format!("the config in effect has no {name}")))?;
        let (command, length) = (&order.command, order.length);
        let restoration = MachineRestore { name: &name, pod: found, command, length };
        tracing::info!(pod = %name, length, "restores a snapshot");
        let restored = self.machine.restore(restoration, parts(data, requests)).await;
        restored.inspect(|()| tracing::info!(pod = %name, "restored the snapshot")).map_err(|error| status(&error))
    }

    /// Refuses the drivers of earlier terms, as configs do.
    async fn check_term(&self, installation: &str, term: u64) -> Result<(), Status> {
        let installation: InstallationId = installation.parse().map_err(|error: NameError| invalid(&error))?;
        let known = self.config_store.fence(Leader { installation, term }).await;
        let known = known.map_err(|error| match &error {
            FenceError::Refused(_) => Status::failed_precondition(chain_text(&error)),
            FenceError::Keep(_) => Status::internal(chain_text(&error)),
        })?;
        if known > term {
            let why = format!("the term of the driver is {term}, and the machine obeys term {known}");
            return Err(Status::failed_precondition(why));
        }
        Ok(())
    }
}

fn pod(name: Option<proto::PodName>) -> Result<PodName, Status> {
    let name = name.ok_or_else(|| Status::invalid_argument("the order has no pod"))?;
    let cluster = name.cluster.parse().map_err(|error: NameError| invalid(&error))?;
    let component = name.component.parse().map_err(|error: NameError| invalid(&error))?;
    Ok(PodName { cluster, component })
}

fn invalid(error: &NameError) -> Status {
    Status::invalid_argument(error.to_string())
}

fn parts(
    first: Vec<u8>,
    requests: Streaming<proto::RestoreDataRequest>,
) -> impl Stream<Item = io::Result<Vec<u8>>> + Send {
    let rest = requests.map(|request| request.map(|request| request.data).map_err(io::Error::other));
    stream::once(ready(Ok(first))).chain(rest)
}

fn status(error: &RestoreError) -> Status {
    let why = chain_text(error);
    tracing::warn!(why, "cannot restore a snapshot");
    match error {
        RestoreError::Observe(_) | RestoreError::Broken(_) | RestoreError::Silent => Status::unavailable(why),
        RestoreError::MayStart(_)
        | RestoreError::NotEmpty(_)
        | RestoreError::NoContainer(_)
        | RestoreError::Length { .. }
        | RestoreError::Failed { .. }
        | RestoreError::Endless
        | RestoreError::Files(_)
        | RestoreError::Effect(_) => Status::failed_precondition(why),
    }
}
