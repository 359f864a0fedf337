//! Reports each end of a container once.

use std::collections::BTreeSet;

use keelway_api::{
    machine::{ContainerPhase, MachineState, event::reason},
    name::PodName,
};
use keelway_machine_io::local::LocalMachine;

use super::journal::{EventJournal, EventSubject};

/// A container or sandbox that was observed to have ended.
#[derive(Debug)]
pub(super) struct Ending {
    pod: PodName,
    /// `None` for a sandbox.
    container: Option<String>,
    code: i32,
    oom: bool,
}

/// Returns the endings in a state that are not known yet. Queries the reasons at once, because ended containers are soon removed.
pub(super) async fn of(machine: &LocalMachine, state: &MachineState, known: &BTreeSet<String>) -> Vec<Ending> {
    let mut endings = Vec::new();
    for sandbox in state.sandboxes.iter().filter(|sandbox| !sandbox.ready && !known.contains(&sandbox.id)) {
        let pod = sandbox.pod.clone();
        endings.push(Ending { pod, container: None, code: 0, oom: false });
    }
    for found in &state.containers {
        let ContainerPhase::Exited { code } = found.phase else { continue };
        let sandbox = state.sandboxes.iter().find(|sandbox| sandbox.id == found.sandbox);
        let Some(pod) = sandbox.map(|sandbox| sandbox.pod.clone()).filter(|_| !known.contains(&found.id)) else {
            continue;
        };
        let exit = machine.runtime().container_status(&found.id).await.ok().and_then(|status| status.exit);
        let oom = exit.is_some_and(|exit| exit.reason == reason::OOM_KILLED);
        endings.push(Ending { pod, container: Some(found.name.clone()), code, oom });
    }
    endings
}

/// Returns the ids of what has ended in a state.
pub(super) fn ids(state: &MachineState) -> BTreeSet<String> {
    let sandboxes = state.sandboxes.iter().filter(|sandbox| !sandbox.ready).map(|sandbox| sandbox.id.clone());
    let over = |phase| matches!(phase, ContainerPhase::Exited { .. });
    sandboxes.chain(state.containers.iter().filter(|found| over(found.phase)).map(|found| found.id.clone())).collect()
}

impl Ending {
    pub(super) fn note(&self, journal: &EventJournal) {
        let about = EventSubject::pod(&self.pod, self.container.as_deref().unwrap_or_default());
        let (kind, message) = match &self.container {
            None => ((true, reason::SANDBOX_ENDED), "the sandbox exited".to_owned()),
            Some(name) if self.oom => {
                ((true, reason::OOM_KILLED), format!("container {name} exceeded its memory limit"))
            }
            Some(name) => {
                ((self.code != 0, reason::EXITED), format!("container {name} exited with code {}", self.code))
            }
        };
        journal.note(about, kind, message);
    }
}
