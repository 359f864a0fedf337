//! A machine that is reached through its runtime's socket on this host. This process executes the actions that an agent would.

use std::{io, net::SocketAddr, path::Path, path::PathBuf, sync::Arc, time::Duration};

use keelway_api::{
    machine::{MachineState, UnreachableReason},
    name::HypervisorName,
};
use keelway_base::error_chain::chain_text;
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::{action::Action, report::Effect};
use keelway_machine_io::{local::LocalMachine, restore};
use keelway_planner::DataRestoration;
use tokio::{sync::Notify, task::JoinHandle};

use super::UnseenMachine;
use crate::{ApplyOutcome, RunControl, SnapshotParts};

pub(super) struct ConnectedRuntime(LocalMachine);

impl ConnectedRuntime {
    pub(super) async fn connect(socket: &Path, archives: PathBuf) -> Result<Self, String> {
        let machine = LocalMachine::connect(socket, Some(archives)).await;
        machine.map(Self).map_err(|error| chain_text(&error))
    }

    /// Notifies `changed` about each event of the runtime, and once when the stream of events ends.
    pub(super) fn listen(&self, changed: Arc<Notify>) -> JoinHandle<()> {
        let mut events = self.0.runtime().events();
        tokio::spawn(async move {
            while let Some(Ok(_)) = events.next().await {
                changed.notify_one();
            }
            changed.notify_one();
        })
    }

    pub(super) async fn observe(&self) -> Result<MachineState, UnseenMachine> {
        self.0.observe().await.map_err(|error| {
            let silent = if error.runtime_is_silent() { UnreachableReason::Runtime } else { UnreachableReason::Asked };
            UnseenMachine { silent, why: chain_text(&error) }
        })
    }

    pub(super) async fn execute(&self, name: &HypervisorName, actions: Vec<Action>, run: &RunControl) -> ApplyOutcome {
        let tell = |effect: Effect<'_>| match effect {
            Effect::Begins(action) => {
                tracing::debug!(machine = %name, %action, "begins");
                run.progress.effect(name, &action.to_string());
            }
            Effect::Done(action) => tracing::info!(machine = %name, %action, "done"),
            Effect::Failed(action, why) => tracing::info!(machine = %name, %action, why, "failed"),
        };
        let report = self.0.execute(actions, &run.stop, &tell).await;
        let failures = report.failed.iter().map(|failure| format!("{}: {}", failure.action, failure.error)).collect();
        ApplyOutcome { effects: report.done.len(), failures }
    }

    pub(super) async fn restore_data(
        &self,
        restoration: &DataRestoration,
        snapshot: SnapshotParts,
    ) -> Result<(), String> {
        let DataRestoration { name, pod, command } = restoration;
        let order = restore::MachineRestore { name, pod, command, length: snapshot.length };
        let restored = self.0.restore(order, snapshot.into_stream()).await;
        restored.map_err(|error| chain_text(&error))
    }

    pub(super) async fn dial(&self, address: SocketAddr, patience: Duration) -> io::Result<MachineConnection> {
        self.0.dial(address, patience).await.map(MachineConnection::from).map_err(io::Error::other)
    }
}
