//! Ends tasks of containers that containerd itself can no longer end.
//!
//! If the client of StartContainer goes away at the wrong moment, containerd reports that the container exited with 128, while its task runs. Each
//! RemoveContainer fails from then on, because containerd deletes no container with a running task (containerd issue 11037). The task can still be
//! ended over containerd's own API.

use containerd_client::services::v1::{DeleteTaskRequest, KillRequest, WaitRequest, tasks_client::TasksClient};
use rustix::process::Signal;
use tonic::{Code, Response, Status, transport::Channel};

use crate::containerd::in_namespace;

/// Kills the task of a container and deletes it. Succeeds if there is no task.
pub(crate) async fn end(channel: Channel, container: &str) -> Result<(), Status> {
    let mut tasks = TasksClient::new(channel);
    let container_id = container.to_owned();
    let kill = KillRequest {
        container_id: container_id.clone(),
        signal: Signal::KILL.as_raw().unsigned_abs(),
        all: true,
        ..Default::default()
    };
    // Without its shim, a task cannot be killed, and may be deleted nevertheless.
    if tasks.kill(in_namespace(kill)).await.is_ok() {
        let wait = WaitRequest { container_id: container_id.clone(), ..Default::default() };
        unless_gone(tasks.wait(in_namespace(wait)).await)?;
    }
    unless_gone(tasks.delete(in_namespace(DeleteTaskRequest { container_id })).await)
}

/// The task may be gone already, because containerd handles the end of a task as well.
fn unless_gone<T>(answer: Result<Response<T>, Status>) -> Result<(), Status> {
    match answer {
        Err(status) if status.code() != Code::NotFound => Err(status),
        _ => Ok(()),
    }
}
