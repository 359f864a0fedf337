//! Reads a log in pages, for callers that receive whole responses instead of streams.

use std::{
    io::{self, Read, Seek, SeekFrom},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{jiff::Timestamp, name::PodName};
use keelway_machine::{
    layout::log_directory,
    log::{Log, LogOptions},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    files::{MachineFileError, MachineFiles, PodLogs},
    logs::{LogRange, span as span_of},
};

/// The largest page, in bytes.
const LONGEST: u64 = 1 << 20;
/// The longest wait for a change.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Which lines of a log to find.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogTail {
    /// The component that owns the log.
    pub pod: PodName,
    /// The log to search.
    pub log: Log,
    /// Only the last this many lines. `None` for all.
    pub tail: Option<u64>,
    /// Only lines that were written at this time or later.
    pub since: Option<Timestamp>,
}

/// Which part of a log to read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadLog {
    /// The component that owns the log.
    pub pod: PodName,
    /// The log to read.
    pub log: Log,
    /// The offset of the first byte.
    pub at: u64,
    /// Whether to wait for a change if there is nothing to read.
    pub wait: bool,
}

/// A part of a log.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPage {
    /// The inode of the file. `None` if there is no file.
    pub inode: Option<u64>,
    /// The content from the requested offset.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub bytes: Vec<u8>,
    /// All logs of the component, listed before the file was read.
    pub logs: Vec<Log>,
}

fn as_text<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

pub(super) fn list(files: MachineFiles<'_>, pod: &PodName) -> Result<Option<Vec<Log>>, MachineFileError> {
    let list = |logs: PodLogs| logs.list().map_err(MachineFileError::read(&log_directory(pod)));
    files.logs(pod)?.map(list).transpose()
}

pub(super) fn span(files: MachineFiles<'_>, tail: &LogTail) -> Result<LogRange, MachineFileError> {
    let nothing = LogRange { begins: 0, ends: 0 };
    let wanted = LogOptions { tail: tail.tail, since: tail.since, ..LogOptions::default() };
    let Some(logs) = files.logs(&tail.pod)? else { return Ok(nothing) };
    let found = || logs.open(&tail.log)?.map_or(Ok(nothing), |file| span_of(file, &wanted));
    found().map_err(MachineFileError::read(&log_directory(&tail.pod)))
}

pub(super) fn read(files: MachineFiles<'_>, wanted: &ReadLog) -> Result<LogPage, MachineFileError> {
    let Some(logs) = files.logs(&wanted.pod)? else { return Ok(LogPage::default()) };
    read_of(&logs, wanted).map_err(MachineFileError::read(&log_directory(&wanted.pod)))
}

fn read_of(logs: &PodLogs, wanted: &ReadLog) -> io::Result<LogPage> {
    // Changes after this are reported.
    let watch = if wanted.wait { Some(logs.watch()?) } else { None };
    let page = page(logs, wanted)?;
    let has_next =
        page.logs.iter().any(|log| log.container == wanted.log.container && log.attempt > wanted.log.attempt);
    let Some(watch) = watch.filter(|_| page.bytes.is_empty() && !has_next && !page.logs.is_empty()) else {
        return Ok(page);
    };
    let within = Timespec { tv_sec: LONGEST_WAIT.as_secs().try_into().unwrap_or(1), tv_nsec: 0 };
    // An interrupted wait is only a shorter wait.
    let _ = poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&within));
    self::page(logs, wanted)
}

fn page(logs: &PodLogs, wanted: &ReadLog) -> io::Result<LogPage> {
    let all = logs.list()?;
    let Some(mut file) = logs.open(&wanted.log)? else {
        return Ok(LogPage { logs: all, ..LogPage::default() });
    };
    let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata()?);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(wanted.at))?;
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(LogPage { inode: Some(inode), bytes, logs: all })
}
