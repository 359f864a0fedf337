//! The CRI runtime service on the fake's state.

use std::{pin::Pin, time::Duration};

use futures::{Stream, StreamExt};
use k8s_cri::v1::{self, runtime_service_server::RuntimeService};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};
use tonic::{Request, Response, Status};

use super::{Fake, behaviour, change::caller, now, state};
use crate::CriCgroupDriver;

/// A method that no client here calls, with the signature that `async_trait` generates for the others.
macro_rules! unimplemented_method {
    ($method:ident, $request:ident, $response:ident) => {
        fn $method<'life0, 'async_trait>(
            &'life0 self,
            _: Request<v1::$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<v1::$response>, Status>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented(stringify!($method))) })
        }
    };
}

type FakeResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn version(&self, _: Request<v1::VersionRequest>) -> FakeResult<v1::VersionResponse> {
        self.record_query("Version", "");
        let (runtime_name, runtime_version) = self.state().version.clone();
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name,
            runtime_version,
            runtime_api_version: "v1".into(),
        }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> FakeResult<v1::StatusResponse> {
        self.record_query("Status", "");
        let conditions = ["RuntimeReady", "NetworkReady"].map(|name| v1::RuntimeCondition {
            r#type: name.into(),
            status: true,
            ..Default::default()
        });
        let status = v1::RuntimeStatus { conditions: conditions.into() };
        Ok(Response::new(v1::StatusResponse { status: Some(status), ..Default::default() }))
    }

    async fn runtime_config(&self, _: Request<v1::RuntimeConfigRequest>) -> FakeResult<v1::RuntimeConfigResponse> {
        self.record_query("RuntimeConfig", "");
        let driver = match self.state().cgroup_driver {
            Some(CriCgroupDriver::Cgroupfs) => v1::CgroupDriver::Cgroupfs,
            Some(CriCgroupDriver::Systemd) => v1::CgroupDriver::Systemd,
            None => return Err(Status::unimplemented("unknown method RuntimeConfig")),
        };
        let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
        Ok(Response::new(v1::RuntimeConfigResponse { linux: Some(linux) }))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> FakeResult<v1::RunPodSandboxResponse> {
        let caller = caller(&request);
        let config = request.into_inner().config.unwrap_or_default();
        let name = config.metadata.clone().unwrap_or_default().name;
        self.change("RunPodSandbox", name, caller, async {
            let id = self.changing(|state| state.run_sandbox(config, now()))?;
            Ok(v1::RunPodSandboxResponse { pod_sandbox_id: id })
        })
        .await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> FakeResult<v1::StopPodSandboxResponse> {
        let caller = caller(&request);
        let id = request.into_inner().pod_sandbox_id;
        let name = self.state().name_of_sandbox(&id);
        self.change("StopPodSandbox", name, caller, async {
            self.changing(|state| state.stop_sandbox(&id, now()));
            Ok(v1::StopPodSandboxResponse {})
        })
        .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> FakeResult<v1::RemovePodSandboxResponse> {
        let caller = caller(&request);
        let id = request.into_inner().pod_sandbox_id;
        let name = self.state().name_of_sandbox(&id);
        self.change("RemovePodSandbox", name, caller, async {
            self.changing(|state| state.remove_sandbox(&id, now()));
            Ok(v1::RemovePodSandboxResponse {})
        })
        .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> FakeResult<v1::PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let state = self.state();
        let status = state.sandboxes.get(&id).map(|sandbox| sandbox.status(&id));
        self.record_query("PodSandboxStatus", state.name_of_sandbox(&id));
        let status = Some(status.ok_or_else(|| state::no_sandbox(&id))?);
        Ok(Response::new(v1::PodSandboxStatusResponse { status, ..Default::default() }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> FakeResult<v1::ListPodSandboxResponse> {
        self.record_query("ListPodSandbox", "");
        let filter = request.into_inner().filter.unwrap_or_default();
        let state = self.state();
        let items = state.sandboxes.iter().map(|(id, sandbox)| sandbox.listed(id));
        Ok(Response::new(v1::ListPodSandboxResponse {
            items: items
                .filter(|item| filter.id.is_empty() || filter.id == item.id)
                .filter(|item| filter.state.is_none_or(|wanted| wanted.state == item.state))
                .filter(|item| state::selected(&item.labels, &filter.label_selector))
                .collect(),
        }))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> FakeResult<v1::CreateContainerResponse> {
        let caller = caller(&request);
        let request = request.into_inner();
        let config = request.config.clone().unwrap_or_default();
        let pod = self.state().name_of_sandbox(&request.pod_sandbox_id);
        let name = format!("{pod}/{}", config.metadata.unwrap_or_default().name);
        self.change("CreateContainer", name, caller, async {
            let id = self.changing(|state| state.create_container(request, now()))?;
            Ok(v1::CreateContainerResponse { container_id: id })
        })
        .await
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> FakeResult<v1::StartContainerResponse> {
        let caller = caller(&request);
        let id = request.into_inner().container_id;
        let name = self.state().name_of_container(&id);
        self.change("StartContainer", name, caller, async {
            self.changing(|state| state.start_container(&id, now()))?;
            Ok(v1::StartContainerResponse {})
        })
        .await
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> FakeResult<v1::StopContainerResponse> {
        let caller = caller(&request);
        let v1::StopContainerRequest { container_id, timeout } = request.into_inner();
        let name = self.state().name_of_container(&container_id);
        self.change("StopContainer", name, caller, async {
            let grace = Duration::from_secs(timeout.try_into().unwrap_or(0));
            self.stop(&container_id, grace).await;
            Ok(v1::StopContainerResponse {})
        })
        .await
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> FakeResult<v1::RemoveContainerResponse> {
        let caller = caller(&request);
        let id = request.into_inner().container_id;
        let name = self.state().name_of_container(&id);
        self.change("RemoveContainer", name, caller, async {
            self.changing(|state| state.remove_container(&id, now()));
            Ok(v1::RemoveContainerResponse {})
        })
        .await
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> FakeResult<v1::ReopenContainerLogResponse> {
        let caller = caller(&request);
        let id = request.into_inner().container_id;
        let name = self.state().name_of_container(&id);
        // The fake writes no logs.
        self.change("ReopenContainerLog", name, caller, async {
            self.state().check_running(&id)?;
            Ok(v1::ReopenContainerLogResponse {})
        })
        .await
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> FakeResult<v1::ListContainersResponse> {
        self.record_query("ListContainers", "");
        let filter = request.into_inner().filter.unwrap_or_default();
        let state = self.state();
        let items = state.containers.iter().map(|(id, container)| container.listed(id));
        let in_pod =
            |item: &v1::Container| filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == item.pod_sandbox_id;
        Ok(Response::new(v1::ListContainersResponse {
            containers: items
                .filter(|item| filter.id.is_empty() || filter.id == item.id)
                .filter(in_pod)
                .filter(|item| filter.state.is_none_or(|wanted| wanted.state == item.state))
                .filter(|item| state::selected(&item.labels, &filter.label_selector))
                .collect(),
        }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> FakeResult<v1::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        let state = self.state();
        let status = state.containers.get(&id).map(|container| container.status(&id));
        self.record_query("ContainerStatus", state.name_of_container(&id));
        let status = Some(status.ok_or_else(|| state::no_container(&id))?);
        Ok(Response::new(v1::ContainerStatusResponse { status, ..Default::default() }))
    }

    async fn container_stats(
        &self,
        request: Request<v1::ContainerStatsRequest>,
    ) -> FakeResult<v1::ContainerStatsResponse> {
        let id = request.into_inner().container_id;
        let state = self.state();
        self.record_query("ContainerStats", state.name_of_container(&id));
        let container = state.containers.get(&id).ok_or_else(|| state::no_container(&id))?;
        let value = |value| Some(v1::UInt64Value { value });
        let running = container.state() == v1::ContainerState::ContainerRunning;
        let used = running.then(|| v1::ContainerStats {
            cpu: Some(v1::CpuUsage { usage_core_nano_seconds: value(1_000_000), ..Default::default() }),
            memory: Some(v1::MemoryUsage { working_set_bytes: value(1 << 20), ..Default::default() }),
            ..Default::default()
        });
        Ok(Response::new(v1::ContainerStatsResponse { stats: used }))
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> FakeResult<v1::ExecSyncResponse> {
        let v1::ExecSyncRequest { container_id, cmd, .. } = request.into_inner();
        let state = self.state();
        self.record_query("ExecSync", state.name_of_container(&container_id));
        let container = state.containers.get(&container_id);
        let container = container.ok_or_else(|| state::no_container(&container_id))?;
        if container.state() != v1::ContainerState::ContainerRunning {
            let state = container.state().as_str_name();
            return Err(Status::unknown(format!("container is in {state} state")));
        }
        let (stdout, exit_code) = behaviour::output(&cmd);
        Ok(Response::new(v1::ExecSyncResponse { stdout, stderr: Vec::new(), exit_code }))
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> FakeResult<v1::ExecResponse> {
        let id = request.into_inner().container_id;
        let state = self.state();
        self.record_query("Exec", state.name_of_container(&id));
        let url = state.streams.clone().ok_or_else(|| Status::unimplemented("the fake runtime has no streams"))?;
        Ok(Response::new(v1::ExecResponse { url }))
    }

    type GetContainerEventsStream = Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send>>;

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> FakeResult<Self::GetContainerEventsStream> {
        self.record_query("GetContainerEvents", "");
        let mut state = self.state();
        let later = BroadcastStream::new(self.shared.events.subscribe());
        let kept = futures::stream::iter(state.take_events().into_iter().map(Ok));
        let later = later.map(|event| {
            event.map_err(|BroadcastStreamRecvError::Lagged(lost)| {
                Status::aborted(format!("{lost} events were lost on a slow subscriber"))
            })
        });
        Ok(Response::new(Box::pin(kept.chain(later))))
    }

    unimplemented_method!(
        update_container_resources,
        UpdateContainerResourcesRequest,
        UpdateContainerResourcesResponse
    );
    unimplemented_method!(attach, AttachRequest, AttachResponse);
    unimplemented_method!(port_forward, PortForwardRequest, PortForwardResponse);
    unimplemented_method!(list_container_stats, ListContainerStatsRequest, ListContainerStatsResponse);
    unimplemented_method!(pod_sandbox_stats, PodSandboxStatsRequest, PodSandboxStatsResponse);
    unimplemented_method!(list_pod_sandbox_stats, ListPodSandboxStatsRequest, ListPodSandboxStatsResponse);
    unimplemented_method!(update_runtime_config, UpdateRuntimeConfigRequest, UpdateRuntimeConfigResponse);
    unimplemented_method!(checkpoint_container, CheckpointContainerRequest, CheckpointContainerResponse);
    unimplemented_method!(list_metric_descriptors, ListMetricDescriptorsRequest, ListMetricDescriptorsResponse);
    unimplemented_method!(list_pod_sandbox_metrics, ListPodSandboxMetricsRequest, ListPodSandboxMetricsResponse);
}
