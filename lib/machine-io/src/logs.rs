//! Reads logs as a runtime writes them: lines of `TIME STREAM TAG TEXT`. The tag `P` means that the line continues in the next one
//! (`k8s.io/cri-api/pkg/apis/runtime/v1`, `ContainerConfig.log_path`).

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufRead, BufReader, Seek, SeekFrom, Write},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
};

use keelway_api::jiff::Timestamp;
use keelway_machine::log::{Log, LogOptions};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify::Reader,
    io::Errno,
};

use crate::files::PodLogs;

/// Writes the selected lines of a log.
pub fn read(logs: &PodLogs, log: Log, wanted: &LogOptions, to: &mut dyn Write) -> io::Result<()> {
    // Changes after this are reported.
    let watch = if wanted.follow { Some(logs.watch()?) } else { None };
    let mut printer = Printer { wanted, open: false };
    let mut log = log;
    let mut all = open_all(logs, &log, &mut printer)?;
    // The newest file is the one that the runtime writes to.
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

/// Opens a log with its rotated files, the newest first, as far as they contain selected lines. Each is positioned at the first of these lines.
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

/// A log that is being read.
struct OpenLog {
    reader: BufReader<File>,
    inode: u64,
    /// The length of the log when it was opened. `None` if it is followed. Lines that are written during the read are not included, so the last lines
    /// stay the last.
    end: Option<u64>,
    /// How many bytes were read.
    at: u64,
    /// The beginning of a line whose end is not written yet.
    line: Vec<u8>,
}

impl OpenLog {
    fn new(file: File, wanted: &LogOptions) -> io::Result<Self> {
        let found = file.metadata()?;
        let end = (!wanted.follow).then_some(found.len());
        Ok(Self { inode: found.ino(), end, at: 0, reader: BufReader::new(file), line: Vec::new() })
    }

    /// Skips all lines but the last `tail`, and returns how many these are. The file is read twice, so that the lines need no memory.
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

    /// Prints the next complete line of the file. Returns whether it ended a selected line, or `None` at the end of the file.
    fn one(&mut self, printer: &mut Printer<'_>, to: &mut dyn Write) -> io::Result<Option<bool>> {
        self.at += self.reader.read_until(b'\n', &mut self.line)? as u64;
        if self.line.last() != Some(&b'\n') || self.end.is_some_and(|end| self.at > end) {
            return Ok(None);
        }
        let shown = printer.print(&self.line, to)?;
        self.line.clear();
        Ok(Some(shown))
    }

    /// Reads to the end, and continues if the log is followed. Returns the log to continue with.
    fn follow(
        &mut self,
        logs: &PodLogs,
        log: &Log,
        watch: Option<&OwnedFd>,
        (printer, to): (&mut Printer<'_>, &mut dyn Write),
    ) -> io::Result<Option<Log>> {
        loop {
            // Listed before the rest of this file is read: once another file exists, nothing is written to this one.
            let others = if watch.is_some() { logs.list()? } else { Vec::new() };
            let replaced = watch.is_some() && logs.open(log)?.is_some_and(|now| self.is_other(&now));
            while self.one(printer, to)?.is_some() {}
            let Some(watch) = watch else { return Ok(None) };
            to.flush()?;
            if replaced {
                // Rotated: the name leads to another file, which is read from its beginning.
                return Ok(Some(log.clone()));
            }
            let mut of_container = others.into_iter().filter(|other| other.container == log.container);
            match of_container.next_back() {
                None if self.reader.get_ref().metadata()?.nlink() == 0 => return Ok(None),
                Some(newest) if newest.attempt > log.attempt => return Ok(Some(newest)),
                // If there is no file, it was renamed, and the next one is about to be created.
                None | Some(_) => wait(watch, printer.wanted.reader_closed.as_deref())?,
            }
        }
    }

    fn is_other(&self, now: &File) -> bool {
        now.metadata().is_ok_and(|now| now.ino() != self.inode)
    }
}

/// Waits until a log is written, created, renamed or removed.
fn wait(watch: &OwnedFd, left: Option<&OwnedFd>) -> io::Result<()> {
    if let Some(left) = left {
        wait_for_either(watch, left)?;
    }
    let mut buffer = [MaybeUninit::uninit(); 4096];
    loop {
        // One notification stands for all that came with it.
        match Reader::new(watch, &mut buffer).next() {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(|_| ())?),
        }
    }
}

/// Waits until the first descriptor is readable. Fails once the second one is readable or closed.
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

/// Prints lines in the requested form.
struct Printer<'a> {
    wanted: &'a LogOptions,
    /// Whether the last line continues.
    open: bool,
}

impl Printer<'_> {
    /// Prints one line of a log. Returns whether it ended a selected line. Ignores text that is no line of a log.
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
    /// In the format of RFC 3339.
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
        // Tags are separated by colons. `P` is the only one so far.
        let goes_on = tags.split(|byte| *byte == b':').any(|tag| tag == b"P");
        matches!(stream, b"stdout" | b"stderr").then_some(Self { time, goes_on, text })
    }
}

#[cfg(test)]
mod tests;
