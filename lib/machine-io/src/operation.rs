//! Operations on a machine beside its runtime: on its files, its facts, and the sockets among its files.
//!
//! All operations are data, so that this process and a helper execute them in the same way.

mod bounds;
mod http_query;
mod log_page;
#[cfg(test)]
mod tests;

use futures::try_join;
use keelway_api::{
    hypervisor::Applied,
    machine::{PodFile, PortFacts},
    name::{ClusterId, InstallationId, PodName},
};
use serde::{Deserialize, Serialize};

use keelway_machine::{layout::MachineDirectory, log::Log};

use crate::{
    access::MachineAccess,
    fetched_images::FetchRecord,
    figures,
    files::{Inventory, MachineFileError, MachineFiles, ObservedFiles},
    haproxy,
    helper::HelperError,
    local::FilesError,
    logs::LogRange,
};

pub use bounds::OutOfBounds;
pub use http_query::{HttpQuery, HttpQueryTls};
pub use log_page::{LogPage, LogTail, ReadLog};

/// An operation on a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum MachineOperation {
    /// Observe files, records, disk, capacity and ports.
    Look,
    /// Record the installation that the machine obeys.
    WriteOwner(InstallationId),
    /// Remove what a cluster left behind.
    ForgetCluster(ClusterId),
    /// Record the config that was applied.
    RecordApplied(Applied),
    /// Record which images were fetched.
    RecordFetched(FetchRecord),
    /// Remove the machine's records, and Keelway's top directories if nothing else is in them.
    Leave,
    /// Remove only the machine's records.
    LeaveRecords,
    /// Create directories, parents first.
    MakeDirectories(Vec<MachineDirectory>),
    /// Write a pod's mark into one of its data directories.
    MarkData {
        /// The pod that owns the directory.
        pod: PodName,
        /// The directory, relative to [`keelway_api::machine::STATE_DIRECTORY`].
        path: String,
    },
    /// Write a file of a pod atomically.
    WriteFile {
        /// The pod that owns the file.
        pod: PodName,
        /// The user and group id of the file.
        user: u32,
        /// The file to write.
        file: PodFile,
    },
    /// Remove a file or directory, by its path relative to [`keelway_api::machine::STATE_DIRECTORY`].
    RemovePath(String),
    /// Remove a pod's logs, files and data.
    RemoveTree(PodName),
    /// Create a pod's log directory, and remove a log that is no longer needed.
    MakeRoomForLog {
        /// The pod that owns the logs.
        pod: PodName,
        /// The name of the log to remove.
        useless: Option<String>,
    },
    /// Send a command to a pod's haproxy.
    Ask {
        /// The pod that runs haproxy.
        pod: PodName,
        /// The command, one line.
        command: String,
    },
    /// Query the number of a gateway's peers.
    CountPeers(PodName),
    /// Query the health of a component on the machine's loopback.
    Get(HttpQuery),
    /// List the logs of a pod.
    ListLogs(PodName),
    /// Find the range of the selected lines of a log.
    FindTail(LogTail),
    /// Read a part of a log.
    ReadLog(ReadLog),
}

/// The result of an operation.
#[derive(Debug, Serialize, Deserialize)]
pub enum OperationResult {
    /// The operation is done.
    Done,
    /// The observed state.
    Found(Box<HostObservation>),
    /// The response of a haproxy.
    Said(String),
    /// The number of peers.
    Counted(u64),
    /// The HTTP status, or the reason why there is no response.
    Answered(Result<u16, String>),
    /// The logs of the pod. `None` if the pod has no log directory.
    Logs(Option<Vec<Log>>),
    /// The range of lines.
    Tail(LogRange),
    /// A part of a log.
    Page(LogPage),
}

/// The observed state of a machine beside its runtime.
#[derive(Debug, Serialize, Deserialize)]
pub struct HostObservation {
    /// Records and files.
    pub observed: ObservedFiles,
    /// Facts and capacity.
    pub inventory: Inventory,
    /// Ports in use.
    pub ports: PortFacts,
}

/// Executes operations on a machine.
pub trait MachineIo: Sync {
    /// Executes an operation.
    fn work(&self, work: MachineOperation) -> impl Future<Output = Result<OperationResult, FilesError>> + Send;

    /// Executes an operation that has no result.
    fn done(&self, work: MachineOperation) -> impl Future<Output = Result<(), FilesError>> + Send {
        async { self.work(work).await.map(|_| ()) }
    }

    /// Observes the machine.
    fn observe(&self) -> impl Future<Output = Result<HostObservation, FilesError>> + Send {
        async {
            let OperationResult::Found(found) = self.work(MachineOperation::Look).await? else {
                return Err(HelperError::Answer.into());
            };
            Ok(*found)
        }
    }

    /// Sends a command to a pod's haproxy, and returns the response.
    fn ask(&self, pod: &PodName, command: &str) -> impl Future<Output = Result<String, FilesError>> + Send {
        let work = MachineOperation::Ask { pod: pod.clone(), command: command.to_owned() };
        async {
            let OperationResult::Said(said) = self.work(work).await? else { return Err(HelperError::Answer.into()) };
            Ok(said)
        }
    }

    /// Returns the number of a gateway's peers.
    fn count_peers(&self, pod: &PodName) -> impl Future<Output = Result<u64, FilesError>> + Send {
        let work = MachineOperation::CountPeers(pod.clone());
        async {
            let OperationResult::Counted(peers) = self.work(work).await? else {
                return Err(HelperError::Answer.into());
            };
            Ok(peers)
        }
    }
}

impl MachineIo for MachineAccess {
    async fn work(&self, work: MachineOperation) -> Result<OperationResult, FilesError> {
        if let MachineOperation::Look = work {
            let digests = self.digests();
            let seen = self.with_files(move |files| Ok((files.observe(&digests)?, files.inventory())));
            let ports = async { Ok::<_, FilesError>(self.ports().await?) };
            let ((observed, inventory), ports) = try_join!(seen, ports)?;
            return Ok(OperationResult::Found(Box::new(HostObservation { observed, inventory, ports })));
        }
        if let MachineOperation::Ask { pod, command } = work {
            return haproxy::run_command(self, pod, &command).await.map(OperationResult::Said);
        }
        if let MachineOperation::CountPeers(pod) = work {
            return figures::count_peers(self, pod).await.map(OperationResult::Counted);
        }
        if let MachineOperation::Get(question) = work {
            return Ok(OperationResult::Answered(http_query::ask(self, &question).await));
        }
        self.with_files(move |files| on_files(files, work)).await
    }
}

fn on_files(files: MachineFiles<'_>, work: MachineOperation) -> Result<OperationResult, MachineFileError> {
    match work {
        MachineOperation::WriteOwner(installation) => files.write_owner(&installation)?,
        MachineOperation::ForgetCluster(cluster) => files.forget_cluster(&cluster)?,
        MachineOperation::RecordApplied(applied) => files.record_applied(&applied)?,
        MachineOperation::RecordFetched(fetched) => files.write_fetched(&fetched)?,
        MachineOperation::Leave => files.leave()?,
        MachineOperation::LeaveRecords => files.leave_records()?,
        MachineOperation::MakeDirectories(directories) => {
            directories.iter().try_for_each(|directory| files.make_directory(directory))?;
        }
        MachineOperation::MarkData { pod, path } => files.mark_data(&pod, &path)?,
        MachineOperation::WriteFile { pod, user, file } => files.write_file(&pod, user, &file)?,
        MachineOperation::RemovePath(path) => files.remove(&path)?,
        MachineOperation::RemoveTree(pod) => files.remove_pod(&pod)?,
        MachineOperation::MakeRoomForLog { pod, useless } => {
            files.make_log_directory(&pod)?;
            useless.map_or(Ok(()), |log| files.remove_log(&pod, &log))?;
        }
        MachineOperation::ListLogs(pod) => return Ok(OperationResult::Logs(log_page::list(files, &pod)?)),
        MachineOperation::FindTail(tail) => return Ok(OperationResult::Tail(log_page::span(files, &tail)?)),
        MachineOperation::ReadLog(wanted) => return Ok(OperationResult::Page(log_page::read(files, &wanted)?)),
        // These need more than files.
        MachineOperation::Look
        | MachineOperation::Ask { .. }
        | MachineOperation::CountPeers(_)
        | MachineOperation::Get(_) => {}
    }
    Ok(OperationResult::Done)
}
