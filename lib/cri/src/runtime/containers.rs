use std::{collections::BTreeMap, time::Duration};

use k8s_cri::v1;
use tonic::Code;

use super::{CriRuntime, gone_is_fine, pid_of, within};
use crate::{
    ContainerSpec, ContainerStatus, ContainerUsage, CriContainer, CriError, ExecOutput, Operation, SandboxSpec,
    leaked_task,
};

impl CriRuntime {
    /// Creates a container in a sandbox and returns its id. `sandbox` must be the spec that the sandbox was run from. Returns [`CriError::Conflict`]
    /// if the sandbox has a container of the same name and attempt, and [`CriError::NotFound`] if the sandbox or the image is not on the machine.
    pub async fn create_container(
        &self,
        sandbox_id: &str,
        sandbox: &SandboxSpec,
        spec: &ContainerSpec,
    ) -> Result<String, CriError> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(spec.into()),
            sandbox_config: Some(sandbox.into()),
        };
        let name = format!("{}/{}", sandbox.name, spec.name);
        let answer =
            self.change("CreateContainer", &name, Box::pin(self.runtime_service().create_container(request))).await?;
        Ok(answer.container_id)
    }

    /// Starts a container. A container can be started once.
    pub async fn start_container(&self, id: &str) -> Result<(), CriError> {
        let request = v1::StartContainerRequest { container_id: id.to_owned() };
        self.change("StartContainer", id, self.runtime_service().start_container(request)).await.map(|_| ())
    }

    /// Stops a container: sends its stop signal, and SIGKILL after `grace` (rounded down to whole seconds; 0 kills at once). Succeeds if the
    /// container is stopped or gone.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: seconds(grace) };
        let deadline = self.deadlines.change.saturating_add(grace);
        let operation = Operation::new("StopContainer", id);
        let mut service = self.runtime_service();
        let call = within(deadline, operation, service.stop_container(request));
        gone_is_fine(call.await).map(|_| ())
    }

    /// Removes a container, and kills it first if it runs. Succeeds if the container is gone.
    pub async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        match self.try_to_remove_container(id).await {
            Err(CriError::Refused { answer, .. }) if answer.code() == Code::FailedPrecondition => {
                self.end_leaked_task(id, answer.message()).await;
                self.try_to_remove_container(id).await
            }
            answer => answer,
        }
    }

    async fn try_to_remove_container(&self, id: &str) -> Result<(), CriError> {
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        let answer = self.change("RemoveContainer", id, self.runtime_service().remove_container(request)).await;
        gone_is_fine(answer).map(|_| ())
    }

    /// Ends the task of a container that the runtime refused to remove. If this fails, the runtime refuses the next attempt, too.
    async fn end_leaked_task(&self, id: &str, refusal: &str) {
        match tokio::time::timeout(self.deadlines.change, leaked_task::end(self.channel(), id)).await {
            Ok(Ok(())) => tracing::info!(container = id, refusal, "ended the task of a container"),
            Ok(Err(status)) => tracing::warn!(container = id, refusal, %status, "cannot end the task of a container"),
            Err(_) => tracing::warn!(container = id, refusal, "the task of a container does not end"),
        }
    }

    /// Makes the runtime open the log of a running container again at its path, after a rotation moved the file.
    pub async fn reopen_container_log(&self, id: &str) -> Result<(), CriError> {
        let request = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
        self.change("ReopenContainerLog", id, self.runtime_service().reopen_container_log(request)).await.map(|_| ())
    }

    /// Returns the containers that have all of these labels, in the order of their ids.
    pub async fn list_containers(&self, labels: &BTreeMap<String, String>) -> Result<Vec<CriContainer>, CriError> {
        let filter = v1::ContainerFilter { label_selector: labels.clone().into_iter().collect(), ..Default::default() };
        let request = v1::ListContainersRequest { filter: Some(filter) };
        let answer = self.query("ListContainers", "", self.runtime_service().list_containers(request)).await?;
        let mut containers: Vec<CriContainer> = answer.containers.into_iter().map(Into::into).collect();
        containers.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(containers)
    }

    /// Returns the status of a container, or [`CriError::NotFound`] if it is gone.
    pub async fn container_status(&self, id: &str) -> Result<ContainerStatus, CriError> {
        let answer = self.container_answer(id, false).await?;
        answer
            .status
            .map(Into::into)
            .ok_or_else(|| CriError::Malformed { operation: Operation::new("ContainerStatus", id), what: "no status" })
    }

    /// Returns the process id of a container's first process in the runtime's pid namespace, if the process runs.
    pub async fn container_pid(&self, id: &str) -> Result<Option<u32>, CriError> {
        Ok(pid_of(&self.container_answer(id, true).await?.info))
    }

    /// Returns the CPU and memory that a container uses.
    pub async fn container_usage(&self, id: &str) -> Result<ContainerUsage, CriError> {
        let request = v1::ContainerStatsRequest { container_id: id.to_owned() };
        let answer = self.query("ContainerStats", id, self.runtime_service().container_stats(request)).await?;
        Ok(answer.stats.map(Into::into).unwrap_or_default())
    }

    /// Runs a command in a running container. `limit` is rounded down to whole seconds, and is at least one.
    pub async fn exec_sync(&self, id: &str, command: &[String], limit: Duration) -> Result<ExecOutput, CriError> {
        let request = v1::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            // 0 means no limit.
            timeout: seconds(limit).max(1),
        };
        let deadline = self.deadlines.look.saturating_add(limit);
        let mut service = self.runtime_service();
        let call = within(deadline, Operation::new("ExecSync", id), service.exec_sync(request));
        let answer = call.await?;
        Ok(ExecOutput { stdout: answer.stdout, stderr: answer.stderr, exit_code: answer.exit_code })
    }

    async fn container_answer(&self, id: &str, verbose: bool) -> Result<v1::ContainerStatusResponse, CriError> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose };
        self.query("ContainerStatus", id, self.runtime_service().container_status(request)).await
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
