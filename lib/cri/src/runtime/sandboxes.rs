use std::collections::BTreeMap;

use k8s_cri::v1;
use tonic::Code;

use super::{CriRuntime, gone_is_fine, pid_of};
use crate::{CriError, CriSandbox, Operation, SandboxSpec};

impl CriRuntime {
    /// Creates and starts a sandbox, and returns its id. Returns [`CriError::Conflict`] if a sandbox of the same name, namespace, uid and attempt
    /// exists.
    pub async fn run_pod_sandbox(&self, spec: &SandboxSpec) -> Result<String, CriError> {
        let request = v1::RunPodSandboxRequest { config: Some(spec.into()), runtime_handler: String::new() };
        let answer =
            self.change("RunPodSandbox", &spec.name, Box::pin(self.runtime_service().run_pod_sandbox(request))).await?;
        Ok(answer.pod_sandbox_id)
    }

    /// Stops a sandbox and kills its containers without a grace period. Succeeds if the sandbox is stopped or gone.
    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let answer = self.change("StopPodSandbox", id, self.runtime_service().stop_pod_sandbox(request)).await;
        gone_is_fine(answer).map(|_| ())
    }

    /// Removes a sandbox with all its containers, also running ones. Succeeds if the sandbox is gone.
    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<(), CriError> {
        match self.try_to_remove_pod_sandbox(id).await {
            Err(CriError::Refused { answer, .. }) if answer.code() == Code::FailedPrecondition => {
                for container in self.list_containers(&BTreeMap::new()).await? {
                    if container.sandbox_id == id {
                        self.remove_container(&container.id).await?;
                    }
                }
                self.try_to_remove_pod_sandbox(id).await
            }
            answer => answer,
        }
    }

    async fn try_to_remove_pod_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let answer = self.change("RemovePodSandbox", id, self.runtime_service().remove_pod_sandbox(request)).await;
        gone_is_fine(answer).map(|_| ())
    }

    /// Returns the sandboxes that have all of these labels, in the order of their ids.
    pub async fn list_pod_sandboxes(&self, labels: &BTreeMap<String, String>) -> Result<Vec<CriSandbox>, CriError> {
        let filter =
            v1::PodSandboxFilter { label_selector: labels.clone().into_iter().collect(), ..Default::default() };
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        let answer = self.query("ListPodSandbox", "", self.runtime_service().list_pod_sandbox(request)).await?;
        let mut sandboxes: Vec<CriSandbox> = answer.items.into_iter().map(Into::into).collect();
        sandboxes.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(sandboxes)
    }

    /// Returns a sandbox, or [`CriError::NotFound`] if it is gone.
    pub async fn pod_sandbox_status(&self, id: &str) -> Result<CriSandbox, CriError> {
        let answer = self.sandbox_answer(id, false).await?;
        answer
            .status
            .map(Into::into)
            .ok_or_else(|| CriError::Malformed { operation: Operation::new("PodSandboxStatus", id), what: "no status" })
    }

    /// Returns the process id of a sandbox's own process in the runtime's pid namespace, if the process runs.
    pub async fn pod_sandbox_pid(&self, id: &str) -> Result<Option<u32>, CriError> {
        Ok(pid_of(&self.sandbox_answer(id, true).await?.info))
    }

    async fn sandbox_answer(&self, id: &str, verbose: bool) -> Result<v1::PodSandboxStatusResponse, CriError> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
        self.query("PodSandboxStatus", id, self.runtime_service().pod_sandbox_status(request)).await
    }
}
