//! Reads the logs of a component through its machine's helper, in pages. To follow a log, the client sends requests repeatedly, and each waits a
//! while for new text.

use std::io::Write;

use keelway_api::name::PodName;
use keelway_machine::log::{Log, LogOptions};

use super::{Helper, HelperError};
use crate::{
    logs::{LogLines, LogRange},
    operation::{LogPage, LogTail, MachineOperation, OperationResult, ReadLog},
};

impl Helper {
    /// Returns the logs of a component, grouped by container, the newest last. `None` if it has no logs on the machine.
    pub async fn logs(&self, pod: &PodName) -> Result<Option<Vec<Log>>, HelperError> {
        let OperationResult::Logs(logs) = self.call(&MachineOperation::ListLogs(pod.clone())).await? else {
            return Err(HelperError::Answer);
        };
        Ok(logs)
    }

    /// Writes the selected lines of a log.
    pub async fn read_log(
        &self,
        pod: &PodName,
        mut log: Log,
        wanted: &LogOptions,
        to: &mut dyn Write,
    ) -> Result<(), HelperError> {
        let mut lines = LogLines::new(wanted);
        let found = self.span(pod, &log, wanted).await?;
        let mut at = found.begins;
        // Without `follow`, text that is written during the read is not included.
        let mut end = (!wanted.follow).then_some(found.ends);
        let mut inode = None;
        loop {
            let read = ReadLog { pod: pod.clone(), log: log.clone(), at, wait: wanted.follow };
            let page = self.page(read).await?;
            if inode.is_some() && page.inode.is_some() && page.inode != inode {
                // Rotated: the name leads to another file, which is read from its beginning.
                (at, inode, end) = (0, page.inode, None);
                lines.start_new_file();
                continue;
            }
            inode = page.inode.or(inode);
            let left = end.and_then(|end| usize::try_from(end.saturating_sub(at)).ok());
            let bytes = page.bytes.get(..left.unwrap_or(usize::MAX)).unwrap_or(&page.bytes);
            at += bytes.len() as u64;
            lines.take(bytes, to).and_then(|()| to.flush()).map_err(HelperError::Write)?;
            if !bytes.is_empty() {
                continue;
            }
            let newest = page.logs.into_iter().rfind(|other| other.container == log.container);
            match newest.filter(|_| wanted.follow) {
                None => return Ok(()),
                Some(newest) if newest.attempt > log.attempt => {
                    (log, at, inode) = (newest, 0, None);
                    lines.start_new_file();
                }
                Some(_) => {}
            }
        }
    }

    async fn span(&self, pod: &PodName, log: &Log, wanted: &LogOptions) -> Result<LogRange, HelperError> {
        if wanted.tail.is_none() && wanted.follow {
            return Ok(LogRange { begins: 0, ends: 0 });
        }
        let tail = LogTail { pod: pod.clone(), log: log.clone(), tail: wanted.tail, since: wanted.since };
        let OperationResult::Tail(found) = self.call(&MachineOperation::FindTail(tail)).await? else {
            return Err(HelperError::Answer);
        };
        Ok(found)
    }

    async fn page(&self, wanted: ReadLog) -> Result<LogPage, HelperError> {
        let OperationResult::Page(page) = self.call(&MachineOperation::ReadLog(wanted)).await? else {
            return Err(HelperError::Answer);
        };
        Ok(page)
    }
}
