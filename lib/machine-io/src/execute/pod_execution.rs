//! The steps of one pod, in order. A later step can use what an earlier one created.

use std::time::Duration;

use keelway_api::name::PodName;
use keelway_machine::{
    action::{Action, NewContainer, NewSandbox, PodAction},
    layout::log_name,
};

use super::{ActionExecutor, CreatedIds, EffectError, spec};
use crate::{files::MachineFiles, haproxy, image::Images, local::LocalMachine};

/// Executes actions through the machine's runtime and file system.
pub(crate) struct LocalExecutor<'a> {
    machine: &'a LocalMachine,
    images: Images<'a>,
}

impl<'a> LocalExecutor<'a> {
    pub(crate) fn new(machine: &'a LocalMachine) -> Self {
        Self { machine, images: Images::of(machine) }
    }
}

impl ActionExecutor for LocalExecutor<'_> {
    type Error = EffectError;

    async fn on_machine(&self, action: &Action) -> Result<(), EffectError> {
        let action = action.clone();
        let work = move |files: MachineFiles<'_>| match action {
            Action::WriteOwner(installation) => files.write_owner(&installation),
            Action::ForgetCluster(cluster) => files.forget_cluster(&cluster),
            Action::RecordApplied(applied) => files.record_applied(&applied),
            Action::Leave => files.leave(),
            Action::Pod(..) => Ok(()),
        };
        Ok(self.machine.access.with_files(work).await?)
    }

    async fn for_pod(&self, pod: &PodName, action: &PodAction, made: &mut CreatedIds) -> Result<(), EffectError> {
        PodExecution { machine: self.machine, images: &self.images, pod, made }.apply(action).await
    }
}

struct PodExecution<'a> {
    machine: &'a LocalMachine,
    images: &'a Images<'a>,
    pod: &'a PodName,
    made: &'a mut CreatedIds,
}

impl PodExecution<'_> {
    async fn apply(&mut self, action: &PodAction) -> Result<(), EffectError> {
        let runtime = &self.machine.runtime;
        match action {
            PodAction::EnsureImage(image) => {
                Box::pin(self.images.ensure(&image.name, image.credentials.as_ref())).await?;
            }
            PodAction::MakeDirectories(_)
            | PodAction::MarkData { .. }
            | PodAction::CopyData { .. }
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
        let (pod, action) = (self.pod.clone(), action.clone());
        let work = move |files: MachineFiles<'_>| match action {
            PodAction::MakeDirectories(directories) => {
                directories.iter().try_for_each(|directory| files.make_directory(directory))
            }
            PodAction::MarkData { path } => files.mark_data(&pod, &path),
            PodAction::CopyData { from, to } => files.copy_data(&from, &to),
            PodAction::WriteFile { file, user } => files.write_file(&pod, user, &file),
            PodAction::RemovePath { path } => files.remove(&path),
            PodAction::RemoveTree => files.remove_pod(&pod),
            PodAction::EnsureImage(_)
            | PodAction::StopContainer { .. }
            | PodAction::RemoveContainer { .. }
            | PodAction::StopSandbox { .. }
            | PodAction::RemoveSandbox { .. }
            | PodAction::CreateSandbox(_)
            | PodAction::CreateContainer(_)
            | PodAction::StartContainer { .. }
            | PodAction::ChangeServer { .. } => Ok(()),
        };
        Ok(self.machine.access.with_files(work).await?)
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
        let pod = self.pod.clone();
        let work = move |files: MachineFiles<'_>| {
            files.make_log_directory(&pod)?;
            useless.map_or(Ok(()), |log| files.remove_log(&pod, &log))
        };
        Ok(self.machine.access.with_files(work).await?)
    }
}
