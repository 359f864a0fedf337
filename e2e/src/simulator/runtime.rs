//! The container runtime of a simulated machine. It is as strict as a real one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use keelway_api::{
    machine::{Container, ContainerPhase, ContainerState, SandboxState, ServerAdmin, ServerState},
    name::PodName,
};
use keelway_machine::action::{NewContainer, NewSandbox, ServerChange};
use tokio::time::Instant;

use super::{error::SimulatedRefusal, program::SimulatedProgram};

/// The exit code of a process that a reboot or SIGKILL ended.
pub(super) const KILLED: i32 = 137;

#[derive(Debug, Clone, Default)]
pub(super) struct SimulatedRuntime {
    /// Newest first.
    pub(super) sandboxes: Vec<SandboxState>,
    /// Newest first.
    pub(super) containers: Vec<SimulatedContainer>,
    pub(super) images: BTreeSet<String>,
    ids: u64,
}

/// A container of Keelway.
#[derive(Debug, Clone)]
pub(super) struct SimulatedContainer {
    pub(super) state: ContainerState,
    pub(super) pod: PodName,
    pub(super) made_from: Container,
    pub(super) process: Option<SimulatedProcess>,
}

#[derive(Debug, Clone)]
pub(super) struct SimulatedProcess {
    pub(super) program: SimulatedProgram,
    /// The files of its pod when it started, by path.
    pub(super) files: Arc<BTreeMap<String, Vec<u8>>>,
    pub(super) since: Instant,
    /// The earliest time at which the process can be ready.
    pub(super) up_at: Instant,
}

impl SimulatedRuntime {
    pub(super) fn create_sandbox(&mut self, pod: &PodName, new: &NewSandbox) -> Result<String, SimulatedRefusal> {
        let taken = |sandbox: &SandboxState| sandbox.pod == *pod && sandbox.attempt == new.attempt;
        if self.sandboxes.iter().any(taken) {
            return Err(SimulatedRefusal(format!("the name {pod} {} is reserved", new.attempt)));
        }
        let id = self.new_id();
        let state = SandboxState {
            id: id.clone(),
            pod: pod.clone(),
            attempt: new.attempt,
            digest: new.digest.clone(),
            ready: true,
        };
        self.sandboxes.insert(0, state);
        Ok(id)
    }

    pub(super) fn create_container(
        &mut self,
        pod: &PodName,
        sandbox: &str,
        new: &NewContainer,
    ) -> Result<String, SimulatedRefusal> {
        let found = self.sandboxes.iter().find(|found| found.id == sandbox);
        if !found.is_some_and(|found| found.ready) {
            return Err(SimulatedRefusal(format!("sandbox {sandbox} is not running")));
        }
        let wanted = &new.container;
        if !self.images.contains(&wanted.image) {
            return Err(SimulatedRefusal(format!("image {}: not found", wanted.image)));
        }
        let taken = |kept: &SimulatedContainer| {
            kept.pod == *pod && kept.state.name == wanted.name && kept.state.attempt == new.attempt
        };
        if self.containers.iter().any(taken) {
            return Err(SimulatedRefusal(format!("the name {pod} {} {} is reserved", wanted.name, new.attempt)));
        }
        let id = self.new_id();
        let state = ContainerState {
            id: id.clone(),
            sandbox: sandbox.to_owned(),
            name: wanted.name.clone(),
            attempt: new.attempt,
            phase: ContainerPhase::Created,
            stop_seconds: Some(wanted.stop_seconds),
        };
        self.containers
            .insert(0, SimulatedContainer { state, pod: pod.clone(), made_from: wanted.clone(), process: None });
        Ok(id)
    }

    /// Returns the container, if it can be started.
    pub(super) fn startable(&mut self, id: &str) -> Result<&mut SimulatedContainer, SimulatedRefusal> {
        let kept = self.containers.iter_mut().find(|kept| kept.state.id == id);
        let kept = kept.ok_or_else(|| SimulatedRefusal(format!("container {id}: not found")))?;
        if kept.state.phase != ContainerPhase::Created {
            return Err(SimulatedRefusal(format!("container {id} is in state {:?}", kept.state.phase)));
        }
        let sandbox = self.sandboxes.iter().find(|sandbox| sandbox.id == kept.state.sandbox);
        if sandbox.is_some_and(|sandbox| sandbox.ready) {
            Ok(kept)
        } else {
            Err(SimulatedRefusal(format!("the sandbox of container {id} is not running")))
        }
    }

    pub(super) fn stop_container(&mut self, id: &str) {
        self.end(|kept| kept.state.id == id, 0);
    }

    pub(super) fn remove_container(&mut self, id: &str) {
        self.containers.retain(|kept| kept.state.id != id);
    }

    pub(super) fn stop_sandbox(&mut self, id: &str) {
        self.end(|kept| kept.state.sandbox == id, KILLED);
        for sandbox in self.sandboxes.iter_mut().filter(|sandbox| sandbox.id == id) {
            sandbox.ready = false;
        }
    }

    pub(super) fn remove_sandbox(&mut self, id: &str) {
        self.sandboxes.retain(|sandbox| sandbox.id != id);
        self.containers.retain(|kept| kept.state.sandbox != id);
    }

    /// Ends the processes of the selected containers.
    pub(super) fn end(&mut self, which: impl Fn(&SimulatedContainer) -> bool, code: i32) {
        let ending =
            self.containers.iter_mut().filter(|kept| kept.state.phase == ContainerPhase::Running && which(kept));
        for kept in ending {
            kept.process = None;
            kept.state.phase = ContainerPhase::Exited { code };
        }
    }

    /// Ends all processes. The runtime then reports their containers as exited or, with `loses_track`, as unknown.
    pub(super) fn reboot(&mut self, loses_track: bool) {
        for sandbox in &mut self.sandboxes {
            sandbox.ready = false;
        }
        for kept in &mut self.containers {
            if kept.process.take().is_some() {
                kept.state.phase =
                    if loses_track { ContainerPhase::Unknown } else { ContainerPhase::Exited { code: KILLED } };
            }
        }
    }

    /// Returns the servers that each haproxy reports.
    pub(super) fn servers(&self) -> BTreeMap<PodName, BTreeMap<String, ServerState>> {
        let of = |(kept, process): (&SimulatedContainer, &SimulatedProcess)| {
            let SimulatedProgram::Proxy { servers, .. } = &process.program else { return None };
            Some((kept.pod.clone(), servers.clone()))
        };
        self.processes().filter_map(of).collect()
    }

    pub(super) fn change_server(
        &mut self,
        pod: &PodName,
        server: &str,
        change: &ServerChange,
    ) -> Result<(), SimulatedRefusal> {
        let mut processes =
            self.containers.iter_mut().filter(|kept| kept.pod == *pod).filter_map(|kept| kept.process.as_mut());
        let Some(SimulatedProgram::Proxy { servers, .. }) = processes.next().map(|process| &mut process.program) else {
            return Err(SimulatedRefusal("no haproxy answers".to_owned()));
        };
        match (change, servers.get_mut(server)) {
            (ServerChange::Add { address, .. }, None) => {
                let state = ServerState { address: *address, admin: ServerAdmin::Serves, sessions: 0, ready: false };
                servers.insert(server.to_owned(), state);
            }
            (ServerChange::Enable, Some(found)) => found.admin = ServerAdmin::Serves,
            (ServerChange::Drain, Some(found)) => found.admin = ServerAdmin::Drains,
            (ServerChange::Remove, Some(_)) => {
                servers.remove(server);
            }
            (ServerChange::Remove, None) => {}
            (ServerChange::Add { .. }, Some(_)) => return Err(SimulatedRefusal(format!("{server} is there already"))),
            (ServerChange::Enable | ServerChange::Drain, None) => {
                return Err(SimulatedRefusal(format!("no server {server}")));
            }
        }
        Ok(())
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = (&SimulatedContainer, &SimulatedProcess)> {
        self.containers.iter().filter_map(|kept| Some((kept, kept.process.as_ref()?)))
    }

    fn new_id(&mut self) -> String {
        self.ids += 1;
        format!("{:04}", self.ids)
    }
}
