//! A simulated machine.

use std::{collections::BTreeSet, net::IpAddr};

use keelway_api::{
    machine::{CgroupDriver, MachineState, PortFacts, RuntimeFacts},
    name::{InstallationId, PodName},
};
use keelway_machine::{
    action::{Action, PodAction},
    layout::{file_path, pod_directory},
};
use keelway_machine_io::execute::CreatedIds;
use tokio::time::Instant;

use super::{disk::SimulatedDisk, error::SimulatedRefusal, runtime::SimulatedRuntime};

/// A machine with everything on it.
#[derive(Debug, Clone)]
pub(super) struct SimulatedHypervisor {
    pub(super) private: IpAddr,
    pub(super) disk: SimulatedDisk,
    pub(super) runtime: SimulatedRuntime,
    pub(super) reach: Reachability,
    /// The time until which writes fail because the disk is full.
    pub(super) full_until: Option<Instant>,
    pub(super) ephemeral: Option<(u16, u16)>,
    /// Objects on the machine that do not belong to this installation.
    pub(super) strangers: ForeignResources,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reachability {
    Up,
    /// The runtime hangs. Containers continue to run.
    Hangs {
        until: Instant,
    },
    /// The machine is off the network, or switched off.
    Off {
        until: Instant,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ForeignResources {
    /// Ports with listening processes.
    pub(super) ports: BTreeSet<u16>,
    /// Ids of sandboxes.
    pub(super) sandboxes: BTreeSet<String>,
    /// The installation that the machine obeys, if it is another one.
    pub(super) owner: Option<InstallationId>,
}

impl SimulatedHypervisor {
    pub(super) fn new(private: IpAddr) -> Self {
        Self {
            private,
            disk: SimulatedDisk::default(),
            runtime: SimulatedRuntime::default(),
            reach: Reachability::Up,
            full_until: None,
            ephemeral: Some((32768, 60999)),
            strangers: ForeignResources::default(),
        }
    }

    /// Returns whether the runtime responds.
    pub(super) fn answers(&self, now: Instant) -> bool {
        match self.reach {
            Reachability::Up => true,
            Reachability::Hangs { until } | Reachability::Off { until } => until <= now,
        }
    }

    /// Returns whether other machines can reach the processes of this one.
    pub(super) fn on_network(&self, now: Instant) -> bool {
        match self.reach {
            Reachability::Up | Reachability::Hangs { .. } => true,
            Reachability::Off { until } => until <= now,
        }
    }

    fn is_full(&self) -> bool {
        self.full_until.is_some_and(|until| until > Instant::now())
    }

    fn check_room(&self) -> Result<(), SimulatedRefusal> {
        if self.is_full() { Err(SimulatedRefusal("no space left on device".to_owned())) } else { Ok(()) }
    }

    pub(super) fn state(&self) -> MachineState {
        let ours = self.runtime.processes().flat_map(|(_, process)| process.program.listens());
        let listening = ours.map(|address| address.port()).chain(self.strangers.ports.iter().copied()).collect();
        let runtime = RuntimeFacts {
            name: "simulated".to_owned(),
            version: "1".to_owned(),
            cgroup_driver: CgroupDriver::Cgroupfs,
        };
        MachineState {
            owner: self.disk.owner.clone(),
            applied: self.disk.applied.clone(),
            sandboxes: self.runtime.sandboxes.clone(),
            containers: self.runtime.containers.iter().map(|kept| kept.state.clone()).collect(),
            files: self.disk.files(),
            data: self.disk.data(),
            servers: self.runtime.servers(),
            disk_pressure: self.is_full(),
            images: self.runtime.images.clone(),
            ports: PortFacts { ephemeral: self.ephemeral, unprivileged_from: Some(1024), listening },
            ..MachineState::empty(runtime)
        }
    }

    /// Executes one action that is not about a pod.
    pub(super) fn perform(&mut self, action: &Action) -> Result<(), SimulatedRefusal> {
        match action {
            Action::WriteOwner(installation) => {
                self.check_room()?;
                self.disk.write_owner(installation);
            }
            Action::ForgetCluster(cluster) => self.disk.remove(cluster.as_str()),
            Action::RecordApplied(applied) => {
                self.check_room()?;
                self.disk.record_applied(applied);
            }
            Action::Leave => self.disk.leave(),
            Action::Pod(..) => {}
        }
        Ok(())
    }

    /// Executes one action for a pod, except a start, which needs the rest of the simulation. Returns the id of a created object.
    pub(super) fn perform_for_pod(
        &mut self,
        pod: &PodName,
        action: &PodAction,
        made: &CreatedIds,
    ) -> Result<Option<String>, SimulatedRefusal> {
        if matches!(
            action,
            PodAction::EnsureImage(_)
                | PodAction::MakeDirectories(_)
                | PodAction::MarkData { .. }
                | PodAction::CopyData { .. }
                | PodAction::WriteFile { .. }
                | PodAction::CreateSandbox(_)
                | PodAction::CreateContainer(_)
        ) {
            self.check_room()?;
        }
        match action {
            PodAction::EnsureImage(image) => {
                self.runtime.images.insert(image.name.clone());
            }
            PodAction::MakeDirectories(directories) => {
                directories.iter().try_for_each(|directory| self.disk.make_directory(directory))?;
            }
            PodAction::MarkData { path } => self.disk.mark(path)?,
            PodAction::CopyData { from, to } => self.disk.copy(pod, (from, to))?,
            PodAction::ChangeServer { server, change } => self.runtime.change_server(pod, server, change)?,
            PodAction::WriteFile { file, user } => {
                self.disk.write_file(&file_path(pod, &file.path), *user, &file.content)?;
            }
            PodAction::RemovePath { path } => self.disk.remove(path),
            PodAction::RemoveTree => self.disk.remove(&pod_directory(pod)),
            PodAction::StopContainer { id, .. } => self.runtime.stop_container(id),
            PodAction::RemoveContainer { id, .. } => self.runtime.remove_container(id),
            PodAction::StopSandbox { id } => self.runtime.stop_sandbox(id),
            PodAction::RemoveSandbox { id } => self.runtime.remove_sandbox(id),
            PodAction::CreateSandbox(new) => return self.runtime.create_sandbox(pod, new).map(Some),
            PodAction::CreateContainer(new) => {
                let sandbox = new.sandbox_id.as_ref().or(made.sandbox.as_ref());
                let sandbox = sandbox.ok_or_else(|| SimulatedRefusal("no sandbox was made".to_owned()))?;
                self.check_mounts(pod, new.container.mounts.iter().map(|mount| mount.source.as_str()))?;
                return self.runtime.create_container(pod, sandbox, new).map(Some);
            }
            PodAction::StartContainer { .. } => {}
        }
        Ok(None)
    }

    fn check_mounts<'a>(&self, pod: &PodName, sources: impl Iterator<Item = &'a str>) -> Result<(), SimulatedRefusal> {
        let mut paths = sources.map(|source| format!("{}/{source}", pod_directory(pod)));
        match paths.find(|path| !self.disk.has_directory(path)) {
            Some(path) => Err(SimulatedRefusal(format!("cannot mount {path}: no such directory"))),
            None => Ok(()),
        }
    }

    pub(super) fn reboot(&mut self, until: Instant, loses_track: bool) {
        self.runtime.reboot(loses_track);
        self.reach = Reachability::Off { until };
    }

    /// Replaces the machine by an empty one with the same name and addresses.
    pub(super) fn empty(&mut self, until: Instant) {
        self.disk = SimulatedDisk::default();
        self.runtime = SimulatedRuntime::default();
        self.strangers = ForeignResources::default();
        self.full_until = None;
        self.reach = Reachability::Off { until };
    }
}
