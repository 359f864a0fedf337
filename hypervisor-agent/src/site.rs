//! What is asked of a machine beside its runtime: its files, its facts, and the sockets among its files.
//!
//! All of it is data, so that it is done the same by this process and by a helper that was handed it.

mod bounds;
mod page;
mod question;
#[cfg(test)]
mod tests;

use futures::try_join;
use keelway_api::{
    hypervisor::Applied,
    machine::{File, PortFacts},
    name::{ClusterId, InstallationId, PodName},
};
use serde::{Deserialize, Serialize};

use crate::{
    access::Access,
    fetched::FetchRecord,
    figures,
    files::{FileError, Files, Inventory, Log, Observed},
    haproxy,
    helper::HelperError,
    layout::Directory,
    local::FilesError,
    logs::Span,
};

pub use bounds::OutOfBounds;
pub use page::{Page, ReadLog, Tail};
pub use question::{Question, QuestionTls};

/// Something to do on a machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Work {
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
    MakeDirectories(Vec<Directory>),
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
        file: File,
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
    Get(Question),
    /// List the logs of a pod.
    ListLogs(PodName),
    /// Find where the wanted lines of a log are.
    FindTail(Tail),
    /// Read some of a log.
    ReadLog(ReadLog),
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Done {
    /// It is done.
    Done,
    /// What was seen.
    Found(Box<Found>),
    /// What a haproxy said.
    Said(String),
    /// How many there are.
    Counted(u64),
    /// The status of an answer, or why there is none.
    Answered(Result<u16, String>),
    /// The logs that are there; `None` where the pod has no directory for them.
    Logs(Option<Vec<Log>>),
    /// Where lines are.
    Tail(Span),
    /// Some of a log.
    Page(Page),
}

/// What is seen of a machine beside its runtime.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    /// Records and files.
    pub observed: Observed,
    /// What it is, and how much it has.
    pub inventory: Inventory,
    /// Its ports.
    pub ports: PortFacts,
}

/// Where work is done.
pub trait Site: Sync {
    /// Does it.
    fn work(&self, work: Work) -> impl Future<Output = Result<Done, FilesError>> + Send;

    /// Does what there is nothing to tell of.
    fn done(&self, work: Work) -> impl Future<Output = Result<(), FilesError>> + Send {
        async { self.work(work).await.map(|_| ()) }
    }

    /// Looks at the machine.
    fn look(&self) -> impl Future<Output = Result<Found, FilesError>> + Send {
        async {
            let Done::Found(found) = self.work(Work::Look).await? else { return Err(HelperError::Answer.into()) };
            Ok(*found)
        }
    }

    /// Asks or tells a pod's haproxy something.
    fn ask(&self, pod: &PodName, command: &str) -> impl Future<Output = Result<String, FilesError>> + Send {
        let work = Work::Ask { pod: pod.clone(), command: command.to_owned() };
        async {
            let Done::Said(said) = self.work(work).await? else { return Err(HelperError::Answer.into()) };
            Ok(said)
        }
    }

    /// Asks a gateway how many peers it has.
    fn count_peers(&self, pod: &PodName) -> impl Future<Output = Result<u64, FilesError>> + Send {
        let work = Work::CountPeers(pod.clone());
        async {
            let Done::Counted(peers) = self.work(work).await? else { return Err(HelperError::Answer.into()) };
            Ok(peers)
        }
    }
}

impl Site for Access {
    async fn work(&self, work: Work) -> Result<Done, FilesError> {
        if let Work::Look = work {
            let digests = self.digests();
            let seen = self.with_files(move |files| Ok((files.observe(&digests)?, files.inventory())));
            let ports = async { Ok::<_, FilesError>(self.ports().await?) };
            let ((observed, inventory), ports) = try_join!(seen, ports)?;
            return Ok(Done::Found(Box::new(Found { observed, inventory, ports })));
        }
        if let Work::Ask { pod, command } = work {
            return haproxy::talk(self, pod, &command).await.map(Done::Said);
        }
        if let Work::CountPeers(pod) = work {
            return figures::count_peers(self, pod).await.map(Done::Counted);
        }
        if let Work::Get(question) = work {
            return Ok(Done::Answered(question::ask(self, &question).await));
        }
        self.with_files(move |files| on_files(files, work)).await
    }
}

fn on_files(files: Files<'_>, work: Work) -> Result<Done, FileError> {
    match work {
        Work::WriteOwner(installation) => files.write_owner(&installation)?,
        Work::ForgetCluster(cluster) => files.forget_cluster(&cluster)?,
        Work::RecordApplied(applied) => files.record_applied(&applied)?,
        Work::RecordFetched(fetched) => files.write_fetched(&fetched)?,
        Work::Leave => files.leave()?,
        Work::LeaveRecords => files.leave_records()?,
        Work::MakeDirectories(directories) => {
            directories.iter().try_for_each(|directory| files.make_directory(directory))?;
        }
        Work::MarkData { pod, path } => files.mark_data(&pod, &path)?,
        Work::WriteFile { pod, user, file } => files.write_file(&pod, user, &file)?,
        Work::RemovePath(path) => files.remove(&path)?,
        Work::RemoveTree(pod) => files.remove_pod(&pod)?,
        Work::MakeRoomForLog { pod, useless } => {
            files.make_log_directory(&pod)?;
            useless.map_or(Ok(()), |log| files.remove_log(&pod, &log))?;
        }
        Work::ListLogs(pod) => return Ok(Done::Logs(page::list(files, &pod)?)),
        Work::FindTail(tail) => return Ok(Done::Tail(page::span(files, &tail)?)),
        Work::ReadLog(wanted) => return Ok(Done::Page(page::read(files, &wanted)?)),
        // They are no work on files alone.
        Work::Look | Work::Ask { .. } | Work::CountPeers(_) | Work::Get(_) => {}
    }
    Ok(Done::Done)
}
