//! The steps of one pod, in order. A later step can use what an earlier one created.

use std::time::Duration;

use keelway_api::name::PodName;
use keelway_machine::{
    action::{Action, NewContainer, NewSandbox, PodAction},
    layout::log_name,
};

use super::{ActionExecutor, CreatedIds, EffectError, spec};
use crate::{
    haproxy,
    image::Images,
    local::Machine,
    operation::{MachineIo, MachineOperation},
};

/// Executes actions through the machine's runtime and file system.
pub(crate) struct LocalExecutor<'a, S> {
    machine: &'a Machine<S>,
    images: Images<'a, S>,
}

impl<'a, S: MachineIo> LocalExecutor<'a, S> {
    pub(crate) fn new(machine: &'a Machine<S>) -> Self {
        Self { machine, images: Images::of(machine) }
    }
}

impl<S: MachineIo> ActionExecutor for LocalExecutor<'_, S> {
    type Error = EffectError;

    async fn on_machine(&self, action: &Action) -> Result<(), EffectError> {
        let work = match action.clone() {
            Action::WriteOwner(installation) => MachineOperation::WriteOwner(installation),
            Action::ForgetCluster(cluster) => MachineOperation::ForgetCluster(cluster),
            Action::RecordApplied(applied) => MachineOperation::RecordApplied(applied),
            Action::Leave => MachineOperation::Leave,
            Action::Pod(..) => return Ok(()),
        };
        Ok(self.machine.site.done(work).await?)
    }

    async fn for_pod(&self, pod: &PodName, action: &PodAction, made: &mut CreatedIds) -> Result<(), EffectError> {
        PodExecution { machine: self.machine, images: &self.images, pod, made }.apply(action).await
    }
}

struct PodExecution<'a, S> {
    machine: &'a Machine<S>,
    images: &'a Images<'a, S>,
    pod: &'a PodName,
    made: &'a mut CreatedIds,
}

impl<S: MachineIo> PodExecution<'_, S> {
    async fn apply(&mut self, action: &PodAction) -> Result<(), EffectError> {
        let runtime = &self.machine.runtime;
        match action {
            PodAction::EnsureImage(image) => {
                Box::pin(self.images.ensure(&image.name, image.credentials.as_ref())).await?;
            }
            PodAction::MakeDirectories(_)
            | PodAction::MarkData { .. }
            | PodAction::WriteFile { .. }
            | PodAction::RemovePath { .. }
            | PodAction::RemoveTree => self.apply_to_files(action).await?,
            PodAction::ChangeServer { server, change } => {
                haproxy::change(self.machine, self.pod, server, change).await?;
            }
            PodAction::StopContainer { id, grace_seconds, .. } => {
                let grace = Duration::from_secs((*grace_seconds).into());
                runtime.stop_container(id, grace).await?;
            }
            PodAction::RemoveContainer { id, .. } => runtime.remove_container(id).await?,
            PodAction::StopSandbox { id } => runtime.stop_pod_sandbox(id).await?,
            PodAction::RemoveSandbox { id } => runtime.remove_pod_sandbox(id).await?,
            PodAction::CreateSandbox(new) => self.create_sandbox(new).await?,
            PodAction::CreateContainer(new) => self.create_container(new).await?,
            PodAction::StartContainer { id, name } => {
                let id = id.as_ref().or_else(|| self.made.containers.get(name));
                runtime.start_container(id.ok_or(EffectError::OutOfOrder)?).await?;
            }
        }
        Ok(())
    }

    async fn apply_to_files(&self, action: &PodAction) -> Result<(), EffectError> {
        let pod = self.pod.clone();
        let work = match action.clone() {
            PodAction::MakeDirectories(directories) => MachineOperation::MakeDirectories(directories),
            PodAction::MarkData { path } => MachineOperation::MarkData { pod, path },
            PodAction::WriteFile { file, user } => MachineOperation::WriteFile { pod, user, file },
            PodAction::RemovePath { path } => MachineOperation::RemovePath(path),
            PodAction::RemoveTree => MachineOperation::RemoveTree(pod),
            PodAction::EnsureImage(_)
            | PodAction::StopContainer { .. }
            | PodAction::RemoveContainer { .. }
            | PodAction::StopSandbox { .. }
            | PodAction::RemoveSandbox { .. }
            | PodAction::CreateSandbox(_)
            | PodAction::CreateContainer(_)
            | PodAction::StartContainer { .. }
            | PodAction::ChangeServer { .. } => return Ok(()),
        };
        Ok(self.machine.site.done(work).await?)
    }

    async fn create_sandbox(&mut self, new: &NewSandbox) -> Result<(), EffectError> {
        let spec = spec::sandbox(self.pod, new);
        self.made.sandbox = Some(self.machine.runtime.run_pod_sandbox(&spec).await?);
        Ok(())
    }

    async fn create_container(&mut self, new: &NewContainer) -> Result<(), EffectError> {
        let sandbox = new.sandbox_id.as_ref().or(self.made.sandbox.as_ref());
        let sandbox = sandbox.ok_or(EffectError::OutOfOrder)?;
        self.make_room_for_log(new).await?;
        let id = self
            .machine
            .runtime
            .create_container(sandbox, &spec::sandbox(self.pod, &new.sandbox), &spec::container(self.pod, new))
            .await?;
        self.made.containers.insert(new.container.name.clone(), id);
        Ok(())
    }

    /// Removes the log before the last. The last log shows why there is a new container; earlier ones are not needed. A container that ends
    /// repeatedly therefore does not fill the disk.
    async fn make_room_for_log(&self, new: &NewContainer) -> Result<(), EffectError> {
        let useless = new.attempt.checked_sub(2);
        let useless = useless.map(|attempt| log_name(&new.container.name, attempt));
        Ok(self.machine.site.done(MachineOperation::MakeRoomForLog { pod: self.pod.clone(), useless }).await?)
    }
}
