//! Rotates the logs of running containers by size and number, as a kubelet does.

use std::{sync::Arc, time::Duration};

use keelway_api::{
    machine::{ContainerPhase, MachineState},
    name::PodName,
};
use keelway_base::error_chain::chain_text;
use keelway_machine::{layout::log_directory, log::Log};
use keelway_machine_io::{
    files::{MachineFileError, MachineFiles, PodLogs},
    local::{FilesError, LocalMachine},
};
use tokio::time::{MissedTickBehavior, interval};

use super::reconciler_channel::ReconcilerChannel;

/// Limits on the size and number of logs.
#[derive(Debug, Clone, Copy)]
pub struct LogLimits {
    /// A log that is larger than this many bytes is rotated (`containerLogMaxSize` of a kubelet).
    pub max_size: u64,
    /// How many files of a container's log are kept, including the one that is written to: at least 2 (`containerLogMaxFiles`).
    pub max_files: u32,
    /// How often the sizes are checked (`containerLogMonitorInterval`).
    pub interval: Duration,
}

impl Default for LogLimits {
    /// The defaults of a kubelet.
    fn default() -> Self {
        Self { max_size: 10 << 20, max_files: 5, interval: Duration::from_secs(10) }
    }
}

/// A log that a container writes to.
#[derive(Debug, Clone)]
struct Written {
    container: String,
    pod: PodName,
    log: Log,
}

/// Rotates logs for as long as it is polled. For a log that does not grow, it only reads the size.
pub(super) async fn rotate_logs(machine: Arc<LocalMachine>, board: Arc<ReconcilerChannel>, limits: LogLimits) {
    let mut turns = interval(limits.interval);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let written: Vec<Written> = board.last().iter().flat_map(|state| written(state)).collect();
        if written.is_empty() {
            continue;
        }
        let due = machine.with_files(move |files| Ok(due(files, written, limits.max_size))).await;
        match due {
            Ok(due) => {
                for one in due {
                    rotate(&machine, one, limits.max_files).await;
                }
            }
            Err(error) => tracing::warn!(why = chain_text(&error), "cannot list logs"),
        }
    }
}

fn written(state: &MachineState) -> impl Iterator<Item = Written> {
    let running = state.containers.iter().filter(|container| container.phase == ContainerPhase::Running);
    running.filter_map(|container| {
        let sandbox = state.sandboxes.iter().find(|sandbox| sandbox.id == container.sandbox)?;
        let log = Log { container: container.name.clone(), attempt: container.attempt };
        Some(Written { container: container.id.clone(), pod: sandbox.pod.clone(), log })
    })
}

/// Returns the logs that are due. Logs that cannot be read are left out, because their pod may be in removal.
fn due(files: MachineFiles<'_>, written: Vec<Written>, most: u64) -> Vec<Written> {
    let is_due = |one: &Written| {
        let logs = files.logs(&one.pod).ok().flatten();
        logs.is_some_and(|logs| logs.is_due(&one.log, most).unwrap_or_default())
    };
    written.into_iter().filter(is_due).collect()
}

/// Rotates a log. If the runtime does not reopen it, the log continues as before.
async fn rotate(machine: &LocalMachine, one: Written, kept: u32) {
    let Written { container, pod, log } = &one;
    if let Err(error) = on_log(machine, &one, move |logs, log| logs.rotate(log, kept)).await {
        tracing::warn!(%pod, container = log.container, why = chain_text(&error), "cannot rotate a log");
        return;
    }
    let Err(error) = machine.runtime().reopen_container_log(container).await else {
        tracing::debug!(%pod, container = log.container, "rotated a log");
        return;
    };
    tracing::info!(%pod, container = log.container, why = chain_text(&error), "cannot reopen a rotated log");
    if let Err(error) = on_log(machine, &one, PodLogs::rotate_back).await {
        tracing::warn!(%pod, container = log.container, why = chain_text(&error), "cannot restore a log");
    }
}

async fn on_log(
    machine: &LocalMachine,
    one: &Written,
    work: impl FnOnce(&PodLogs, &Log) -> std::io::Result<()> + Send + 'static,
) -> Result<(), FilesError> {
    let (pod, log) = (one.pod.clone(), one.log.clone());
    let on_files = move |files: MachineFiles<'_>| match files.logs(&pod)? {
        Some(logs) => work(&logs, &log).map_err(MachineFileError::write(&log_directory(&pod))),
        None => Ok(()),
    };
    machine.with_files(on_files).await
}
