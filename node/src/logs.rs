//! Log files, used if there is no journal. They never grow without bound.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
};

use crate::files::{self, NodeFileError};

/// The size above which a log is rotated, in bytes. One earlier log is kept.
const LARGE: u64 = 64 << 20;

/// Whether the stderr of this process goes to the journal (`JOURNAL_STREAM`, systemd.exec(5)).
pub(crate) fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let own = io::stderr().as_fd().try_clone_to_owned().and_then(|stderr| File::from(stderr).metadata());
    own.is_ok_and(|own| names(&named, own.dev(), own.ino()))
}

/// Whether `stream`, in the form `DEVICE:INODE`, names this file.
fn names(stream: &str, device: u64, inode: u64) -> bool {
    stream == format!("{device}:{inode}")
}

/// Opens a log in append mode, because another process may truncate it meanwhile.
pub(crate) fn open(path: &Path) -> Result<File, NodeFileError> {
    if let Some(directory) = path.parent() {
        files::make_dir(directory, 0o700)?;
    }
    File::options().create(true).append(true).open(path).map_err(NodeFileError::new("open", path))
}

/// Copies a large log to another file and truncates it. Processes that have it open continue to write to it.
pub(crate) fn truncate(path: &Path) -> Result<(), NodeFileError> {
    trim_to(path, LARGE)
}

fn trim_to(path: &Path, large: u64) -> Result<(), NodeFileError> {
    if fs::metadata(path).is_ok_and(|found| found.len() > large) {
        fs::copy(path, path.with_extension("log.1")).map_err(NodeFileError::new("copy", path))?;
        // What is written between these two lines is lost, and nothing else.
        File::options().write(true).truncate(true).open(path).map_err(NodeFileError::new("empty", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_log_is_rotated_while_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log/kubelet.log");
        let mut log = open(&path).unwrap();
        for round in 0..3 {
            log.write_all(b"0123456789").unwrap();
            trim_to(&path, 9).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), 0, "{round}");
        }
        log.write_all(b"end").unwrap();
        trim_to(&path, 9).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"end");
        assert_eq!(fs::read(path.with_extension("log.1")).unwrap(), b"0123456789");
    }

    #[test]
    fn the_journal_is_detected_by_its_stream() {
        assert!(names("8:1234", 8, 1234));
        assert!(!names("", 8, 1234) && !names("8:12345", 8, 1234));
    }
}
