//! Bounds of operations: whatever the request, they reach only the directories of components.

use keelway_api::name::{ClusterId, PodName};
use keelway_machine::layout::{FILES, file_path, is_plain_name, is_plain_relative_path, log_name, pod_directory};

use super::MachineOperation;

/// An operation would reach beyond the directories of components. Contains the path or address.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither below the directory of a component nor on the machine's loopback")]
pub struct OutOfBounds(pub String);

impl MachineOperation {
    /// Checks that the operation stays within the directories of components. An agent checks a config as a whole; a helper receives single operations
    /// and checks each.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        match self {
            Self::MakeDirectories(directories) => directories.iter().try_for_each(|directory| {
                let has_plain_mode = directory.mode & !0o777 == 0;
                of_cluster(&directory.path).and_then(|()| check(has_plain_mode, &directory.path))
            }),
            Self::MarkData { pod, path } => {
                let name = path.strip_prefix(&format!("{}/", pod_directory(pod)));
                check(name.is_some_and(|name| is_plain_name(name) && name != FILES), path)
            }
            Self::WriteFile { pod, file, .. } => check(is_plain_relative_path(&file_path(pod, &file.path)), &file.path),
            Self::RemovePath(path) => of_cluster(path),
            Self::MakeRoomForLog { useless: Some(name), .. } => check(is_plain_name(name), name),
            Self::Ask { command, .. } => check(!command.contains(char::is_control), command),
            Self::Get(question) => {
                let is_local = question.address.ip().is_loopback() && question.path.starts_with('/');
                check(is_local, &format!("{}{}", question.address, question.path))
            }
            Self::FindTail(super::LogTail { log, .. }) | Self::ReadLog(super::ReadLog { log, .. }) => {
                check(is_plain_name(&log_name(&log.container, log.attempt)), &log.container)
            }
            Self::Look
            | Self::WriteOwner(_)
            | Self::ForgetCluster(_)
            | Self::RecordApplied(_)
            | Self::RecordFetched(_)
            | Self::Leave
            | Self::LeaveRecords
            | Self::RemoveTree(_)
            | Self::MakeRoomForLog { useless: None, .. }
            | Self::CountPeers(_)
            | Self::ListLogs(_) => Ok(()),
        }
    }

    /// Returns whether the operation changes anything.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Self::Look
            | Self::CountPeers(_)
            | Self::Get(_)
            | Self::ListLogs(_)
            | Self::FindTail(_)
            | Self::ReadLog(_) => false,
            // All queries of haproxy begin with `show`.
            Self::Ask { command, .. } => !command.starts_with("show "),
            Self::WriteOwner(_)
            | Self::ForgetCluster(_)
            | Self::RecordApplied(_)
            | Self::RecordFetched(_)
            | Self::Leave
            | Self::LeaveRecords
            | Self::MakeDirectories(_)
            | Self::MarkData { .. }
            | Self::WriteFile { .. }
            | Self::RemovePath(_)
            | Self::RemoveTree(_)
            | Self::MakeRoomForLog { .. } => true,
        }
    }

    /// Returns a description of the operation without secrets.
    #[must_use]
    pub fn subject(&self) -> String {
        let of = |what: &str, pod: &PodName| format!("{what} {pod}");
        match self {
            Self::Look => "look".to_owned(),
            Self::WriteOwner(installation) => format!("owner {installation}"),
            Self::ForgetCluster(cluster) => format!("forget {cluster}"),
            Self::RecordApplied(applied) => format!("applied {}.{}", applied.term, applied.generation),
            Self::RecordFetched(_) => "fetched images".to_owned(),
            Self::Leave | Self::LeaveRecords => "leave".to_owned(),
            Self::MakeDirectories(directories) => {
                format!("directories {}", directories.first().map_or("", |first| &first.path))
            }
            Self::MarkData { path, .. } => format!("mark {path}"),
            Self::WriteFile { pod, file, .. } => format!("file {}", file_path(pod, &file.path)),
            Self::RemovePath(path) => format!("remove {path}"),
            Self::RemoveTree(pod) => of("tree", pod),
            Self::MakeRoomForLog { pod, .. } => of("log", pod),
            Self::Ask { pod, .. } => of("haproxy", pod),
            Self::CountPeers(pod) => of("peers", pod),
            Self::Get(question) => format!("get {}{}", question.address, question.path),
            Self::ListLogs(pod) => of("logs", pod),
            Self::FindTail(tail) => of("tail", &tail.pod),
            Self::ReadLog(read) => of("read", &read.pod),
        }
    }
}

/// Checks that a path is the directory of a cluster, or below it.
fn of_cluster(path: &str) -> Result<(), OutOfBounds> {
    let of_cluster = path.split('/').next().is_some_and(|name| name.parse::<ClusterId>().is_ok());
    check(of_cluster && is_plain_relative_path(path), path)
}

fn check(holds: bool, path: &str) -> Result<(), OutOfBounds> {
    if holds { Ok(()) } else { Err(OutOfBounds(path.to_owned())) }
}
