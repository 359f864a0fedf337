//! Reading logs as a runtime writes them: a line of `TIME STREAM TAG TEXT` each, where the tag `P` says that the line goes on
//! with the next one (`k8s.io/cri-api/pkg/apis/runtime/v1`, `ContainerConfig.log_path`).

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufRead, BufReader, Seek, SeekFrom, Write},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    sync::Arc,
};

use keelway_api::jiff::Timestamp;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify::Reader,
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::files::{Log, PodLogs};

/// Which lines are wanted, and how.
#[derive(Debug, Clone, Default)]
pub struct LogOptions {
    /// The last so many; all where there is none.
    pub tail: Option<u64>,
    /// Those that were written at this moment or later.
    pub since: Option<Timestamp>,
    /// Each with the time at which it was written.
    pub timestamps: bool,
    /// Those that are written from now on, too, until the container's logs are gone; also when it was restarted.
    pub follow: bool,
    /// Nobody takes what is written any more once this has something to read, or has ended.
    pub reader_closed: Option<Arc<OwnedFd>>,
}

/// Writes the lines of a log that are wanted.
pub fn read(logs: &PodLogs, log: Log, wanted: &LogOptions, to: &mut dyn Write) -> io::Result<()> {
    // What changes after this is told of.
    let watch = if wanted.follow { Some(logs.watch()?) } else { None };
    let mut printer = Printer { wanted, open: false };
    let mut log = log;
    let mut all = open_all(logs, &log, &mut printer)?;
    // The newest is the one that is written to.
    while let Some(mut opened) = all.pop_front() {
        while let Some(mut rotated) = all.pop_back() {
            while rotated.one(&mut printer, to)?.is_some() {}
        }
        let Some(begun) = opened.follow(logs, &log, watch.as_ref(), (&mut printer, to))? else { break };
        log = begun;
        let file = logs.open(&log)?;
        all = file.map(|file| OpenLog::new(file, wanted)).transpose()?.into_iter().collect();
    }
    to.flush()
}

/// A log with what was rotated of it, the newest first, as far as lines of them are wanted, each at the first of these.
fn open_all(logs: &PodLogs, log: &Log, printer: &mut Printer<'_>) -> io::Result<VecDeque<OpenLog>> {
    let mut left = printer.wanted.tail;
    let mut all = VecDeque::new();
    for file in logs.open_all(log)? {
        if left == Some(0) && !all.is_empty() {
            break;
        }
        let mut opened = OpenLog::new(file, printer.wanted)?;
        if let Some(left) = &mut left {
            *left -= opened.skip_to_last(*left, printer)?;
        }
        all.push_back(opened);
    }
    Ok(all)
}

/// Where in a log the wanted lines are, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRange {
    /// Where the first one begins.
    pub begins: u64,
    /// Where the log ended when they were looked for.
    pub ends: u64,
}

/// Looks for the lines that are wanted of what is in a log now.
pub(crate) fn span(file: File, wanted: &LogOptions) -> io::Result<LogRange> {
    let ends = file.metadata()?.len();
    let mut opened = OpenLog::new(file, wanted)?;
    if let Some(tail) = wanted.tail {
        opened.skip_to_last(tail, &mut Printer { wanted, open: false })?;
    }
    let passed = opened.reader.stream_position()?;
    Ok(LogRange { begins: passed.saturating_sub(opened.line.len() as u64).min(ends), ends })
}

/// Lines that come in pieces, written as they are wanted.
pub(crate) struct LogLines<'a> {
    printer: Printer<'a>,
    line: Vec<u8>,
}

impl<'a> LogLines<'a> {
    pub(crate) fn new(wanted: &'a LogOptions) -> Self {
        Self { printer: Printer { wanted, open: false }, line: Vec::new() }
    }

    /// Writes all lines that are whole by now.
    pub(crate) fn take(&mut self, bytes: &[u8], to: &mut dyn Write) -> io::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.last() == Some(&b'\n') {
                self.printer.print(&self.line, to)?;
                self.line.clear();
            }
        }
        Ok(())
    }

    /// Another file follows.
    pub(crate) fn start_new_file(&mut self) {
        self.line.clear();
    }
}

/// A log that is being read.
struct OpenLog {
    reader: BufReader<File>,
    inode: u64,
    /// Where the log ended when it was opened, where it is not followed: what is written while it is read was not asked for, and the last
    /// lines that were counted stay the last.
    end: Option<u64>,
    /// Bytes that were read.
    at: u64,
    /// The beginning of a line whose end was not written yet.
    line: Vec<u8>,
}

impl OpenLog {
    fn new(file: File, wanted: &LogOptions) -> io::Result<Self> {
        let found = file.metadata()?;
        let end = (!wanted.follow).then_some(found.len());
        Ok(Self { inode: found.ino(), end, at: 0, reader: BufReader::new(file), line: Vec::new() })
    }

    /// Passes over all lines but the last ones, and returns how many these are. Read twice rather than held in memory.
    fn skip_to_last(&mut self, tail: u64, printer: &mut Printer<'_>) -> io::Result<u64> {
        let mut nowhere = io::sink();
        let mut all = 0;
        while let Some(shown) = self.one(printer, &mut nowhere)? {
            all += u64::from(shown);
        }
        self.reader.seek(SeekFrom::Start(0))?;
        self.at = 0;
        self.line.clear();
        printer.open = false;
        let mut left = all.saturating_sub(tail);
        while left > 0 {
            match self.one(printer, &mut nowhere)? {
                Some(shown) => left -= u64::from(shown),
                None => break,
            }
        }
        Ok(all.min(tail))
    }

    /// The next whole line of the file: whether it ended one that is shown. `None` at the end of what is there.
    fn one(&mut self, printer: &mut Printer<'_>, to: &mut dyn Write) -> io::Result<Option<bool>> {
        self.at += self.reader.read_until(b'\n', &mut self.line)? as u64;
        if self.line.last() != Some(&b'\n') || self.end.is_some_and(|end| self.at > end) {
            return Ok(None);
        }
        let shown = printer.print(&self.line, to)?;
        self.line.clear();
        Ok(Some(shown))
    }

    /// Reads to the end, and on while it is followed. Returns the log to go on with.
    fn follow(
        &mut self,
        logs: &PodLogs,
        log: &Log,
        watch: Option<&OwnedFd>,
        (printer, to): (&mut Printer<'_>, &mut dyn Write),
    ) -> io::Result<Option<Log>> {
        loop {
            // Looked for before what is left of this file is read: nothing is written to it once another one is there.
            let others = if watch.is_some() { logs.list()? } else { Vec::new() };
            let replaced = watch.is_some() && logs.open(log)?.is_some_and(|now| self.is_other(&now));
            while self.one(printer, to)?.is_some() {}
            let Some(watch) = watch else { return Ok(None) };
            to.flush()?;
            if replaced {
                // Rotated: the same name, another file, read from its beginning.
                return Ok(Some(log.clone()));
            }
            let mut of_container = others.into_iter().filter(|other| other.container == log.container);
            match of_container.next_back() {
                None if self.reader.get_ref().metadata()?.nlink() == 0 => return Ok(None),
                Some(newest) if newest.attempt > log.attempt => return Ok(Some(newest)),
                // Where there is none, it was renamed, and the next one is about to be made.
                None | Some(_) => wait(watch, printer.wanted.reader_closed.as_deref())?,
            }
        }
    }

    fn is_other(&self, now: &File) -> bool {
        now.metadata().is_ok_and(|now| now.ino() != self.inode)
    }
}

/// Waits until something was written, made, renamed or removed.
fn wait(watch: &OwnedFd, left: Option<&OwnedFd>) -> io::Result<()> {
    if let Some(left) = left {
        wait_for_either(watch, left)?;
    }
    let mut buffer = [MaybeUninit::uninit(); 4096];
    loop {
        // One notice is as good as all that came with it.
        match Reader::new(watch, &mut buffer).next() {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(|_| ())?),
        }
    }
}

/// Waits until the first has something to read. Fails once the other has, or has ended.
fn wait_for_either(watch: &OwnedFd, left: &OwnedFd) -> io::Result<()> {
    loop {
        let mut both = [PollFd::new(watch, PollFlags::IN), PollFd::new(left, PollFlags::IN)];
        let polled = poll(&mut both, None);
        if polled == Err(Errno::INTR) {
            continue;
        }
        polled?;
        let [watch, left] = both.map(|of| !of.revents().is_empty());
        if left {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if watch {
            return Ok(());
        }
    }
}

/// Writes lines as they are asked for.
struct Printer<'a> {
    wanted: &'a LogOptions,
    /// Whether the last line goes on.
    open: bool,
}

impl Printer<'_> {
    /// Writes one line of a log; returns whether it ended a line that is shown. What is no line of a log is passed over.
    fn print(&mut self, line: &[u8], to: &mut dyn Write) -> io::Result<bool> {
        let Some(line) = LogLine::parse(line) else { return Ok(false) };
        if let Some(since) = self.wanted.since
            && line.time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return Ok(false);
        }
        if self.wanted.timestamps && !self.open {
            write!(to, "{} ", line.time)?;
        }
        to.write_all(line.text)?;
        self.open = line.goes_on;
        if !line.goes_on {
            to.write_all(b"\n")?;
        }
        Ok(!line.goes_on)
    }
}

/// A line of a log.
#[derive(Debug, PartialEq, Eq)]
struct LogLine<'a> {
    /// RFC 3339.
    time: &'a str,
    goes_on: bool,
    text: &'a [u8],
}

impl<'a> LogLine<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut parts = line.strip_suffix(b"\n")?.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(parts.next()?).ok()?;
        let stream = parts.next()?;
        let tags = parts.next()?;
        let text = parts.next().unwrap_or_default();
        // Tags are separated by colons; this is the only one so far.
        let goes_on = tags.split(|byte| *byte == b':').any(|tag| tag == b"P");
        matches!(stream, b"stdout" | b"stderr").then_some(Self { time, goes_on, text })
    }
}

#[cfg(test)]
mod tests;
