//! A log, some of it at a time: for whoever is told it in whole answers.

use std::{
    io::{self, Read, Seek, SeekFrom},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{jiff::Timestamp, name::PodName};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    files::{FileError, Files, Log, Logs},
    layout::log_directory,
    logs::{Span, Wanted, span as span_of},
};

/// The most of a log that is told at once, in bytes.
const LONGEST: u64 = 1 << 20;
/// The longest that a change is waited for.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Which lines of a log are wanted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tail {
    /// The component.
    pub pod: PodName,
    /// The log.
    pub log: Log,
    /// The last so many; all where there is none.
    pub tail: Option<u64>,
    /// Of those that were written at this moment or later.
    pub since: Option<Timestamp>,
}

/// Which part of a log is wanted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReadLog {
    /// The component.
    pub pod: PodName,
    /// The log.
    pub log: Log,
    /// From which byte on.
    pub at: u64,
    /// Whether a change is waited for where there is nothing there.
    pub wait: bool,
}

/// Some of a log.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Which file it is; `None` where there is none.
    pub inode: Option<u64>,
    /// What is in it from there on.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub bytes: Vec<u8>,
    /// All logs of the component, as they were before it was read.
    pub logs: Vec<Log>,
}

fn as_text<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

pub(super) fn list(files: Files<'_>, pod: &PodName) -> Result<Option<Vec<Log>>, FileError> {
    let list = |logs: Logs| logs.list().map_err(FileError::read(&log_directory(pod)));
    files.logs(pod)?.map(list).transpose()
}

pub(super) fn span(files: Files<'_>, tail: &Tail) -> Result<Span, FileError> {
    let nothing = Span { begins: 0, ends: 0 };
    let wanted = Wanted { tail: tail.tail, since: tail.since, ..Wanted::default() };
    let Some(logs) = files.logs(&tail.pod)? else { return Ok(nothing) };
    let found = || logs.open(&tail.log)?.map_or(Ok(nothing), |file| span_of(file, &wanted));
    found().map_err(FileError::read(&log_directory(&tail.pod)))
}

pub(super) fn read(files: Files<'_>, wanted: &ReadLog) -> Result<Page, FileError> {
    let Some(logs) = files.logs(&wanted.pod)? else { return Ok(Page::default()) };
    read_of(&logs, wanted).map_err(FileError::read(&log_directory(&wanted.pod)))
}

fn read_of(logs: &Logs, wanted: &ReadLog) -> io::Result<Page> {
    // What changes after this is told of.
    let watch = if wanted.wait { Some(logs.watch()?) } else { None };
    let page = page(logs, wanted)?;
    let has_next =
        page.logs.iter().any(|log| log.container == wanted.log.container && log.attempt > wanted.log.attempt);
    let Some(watch) = watch.filter(|_| page.bytes.is_empty() && !has_next && !page.logs.is_empty()) else {
        return Ok(page);
    };
    let within = Timespec { tv_sec: LONGEST_WAIT.as_secs().try_into().unwrap_or(1), tv_nsec: 0 };
    // A wait that is cut short is a short wait.
    let _ = poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&within));
    self::page(logs, wanted)
}

fn page(logs: &Logs, wanted: &ReadLog) -> io::Result<Page> {
    let all = logs.list()?;
    let Some(mut file) = logs.open(&wanted.log)? else {
        return Ok(Page { logs: all, ..Page::default() });
    };
    let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata()?);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(wanted.at))?;
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(Page { inode: Some(inode), bytes, logs: all })
}
