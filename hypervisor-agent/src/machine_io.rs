//! What is asked of a machine beside its runtime: its files, its facts, and the sockets among its files.
//!
//! All of it is data, so that it is done the same by this process and by a helper that was handed it.

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

use crate::{
    access::MachineAccess,
    fetched_images::FetchRecord,
    figures,
    files::{Inventory, Log, MachineFileError, MachineFiles, ObservedFiles},
    haproxy,
    helper::HelperError,
    layout::MachineDirectory,
    local::FilesError,
    logs::LogRange,
};

pub use bounds::OutOfBounds;
pub use http_query::{HttpQuery, HttpQueryTls};
pub use log_page::{LogPage, LogTail, ReadLog};

/// Something to do on a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum MachineOperation {
    /// Look at files, records, room, capacity and ports.
    Look,
    /// Record who the machine obeys.
    WriteOwner(InstallationId),
    /// Remove what a cluster left.
    ForgetCluster(ClusterId),
    /// Record the config that was applied.
    RecordApplied(Applied),
    /// Record which images were fetched.
    RecordFetched(FetchRecord),
    /// Remove the machine's records, and the directories of Keelway's that nothing else is in.
    Leave,
    /// Remove the machine's records alone.
    LeaveRecords,
    /// Make directories, each after the one that it is in.
    MakeDirectories(Vec<MachineDirectory>),
    /// Put a pod's mark into one of its data directories.
    MarkData {
        /// The pod.
        pod: PodName,
        /// The directory, relative to [`keelway_api::machine::STATE_DIRECTORY`].
        path: String,
    },
    /// Put a file of a pod in its place in one step.
    WriteFile {
        /// The pod.
        pod: PodName,
        /// Its owner and group.
        user: u32,
        /// The file.
        file: PodFile,
    },
    /// Remove a file or directory, relative to [`keelway_api::machine::STATE_DIRECTORY`].
    RemovePath(String),
    /// Remove a pod's logs, files and data.
    RemoveTree(PodName),
    /// Make a pod's log directory, and remove a log of it that is of no more use.
    MakeRoomForLog {
        /// The pod.
        pod: PodName,
        /// The log's name.
        useless: Option<String>,
    },
    /// Ask or tell a pod's haproxy something.
    Ask {
        /// The pod.
        pod: PodName,
        /// One line.
        command: String,
    },
    /// Ask a gateway how many peers it has.
    CountPeers(PodName),
    /// Ask a component on the machine's loopback how it is.
    Get(HttpQuery),
    /// List the logs of a pod.
    ListLogs(PodName),
    /// Find where the wanted lines of a log are.
    FindTail(LogTail),
    /// Read some of a log.
    ReadLog(ReadLog),
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub enum OperationResult {
    /// It is done.
    Done,
    /// What was seen.
    Found(Box<HostObservation>),
    /// What a haproxy said.
    Said(String),
    /// How many there are.
    Counted(u64),
    /// The status of an answer, or why there is none.
    Answered(Result<u16, String>),
    /// The logs that are there; `None` where the pod has no directory for them.
    Logs(Option<Vec<Log>>),
    /// Where lines are.
    Tail(LogRange),
    /// Some of a log.
    Page(LogPage),
}

/// What is seen of a machine beside its runtime.
#[derive(Debug, Serialize, Deserialize)]
pub struct HostObservation {
    /// Records and files.
    pub observed: ObservedFiles,
    /// What it is, and how much it has.
    pub inventory: Inventory,
    /// Its ports.
    pub ports: PortFacts,
}

/// Where work is done.
pub trait MachineIo: Sync {
    /// Does it.
    fn work(&self, work: MachineOperation) -> impl Future<Output = Result<OperationResult, FilesError>> + Send;

    /// Does what there is nothing to tell of.
    fn done(&self, work: MachineOperation) -> impl Future<Output = Result<(), FilesError>> + Send {
        async { self.work(work).await.map(|_| ()) }
    }

    /// Looks at the machine.
    fn observe(&self) -> impl Future<Output = Result<HostObservation, FilesError>> + Send {
        async {
            let OperationResult::Found(found) = self.work(MachineOperation::Look).await? else {
                return Err(HelperError::Answer.into());
            };
            Ok(*found)
        }
    }

    /// Asks or tells a pod's haproxy something.
    fn ask(&self, pod: &PodName, command: &str) -> impl Future<Output = Result<String, FilesError>> + Send {
        let work = MachineOperation::Ask { pod: pod.clone(), command: command.to_owned() };
        async {
            let OperationResult::Said(said) = self.work(work).await? else { return Err(HelperError::Answer.into()) };
            Ok(said)
        }
    }

    /// Asks a gateway how many peers it has.
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
        // They are no work on files alone.
        MachineOperation::Look
        | MachineOperation::Ask { .. }
        | MachineOperation::CountPeers(_)
        | MachineOperation::Get(_) => {}
    }
    Ok(OperationResult::Done)
}
