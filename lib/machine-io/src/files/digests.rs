//! Cached digests of files. A file is read again only if it may have changed.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use keelway_api::machine::hex;
use rustix::fs::Stat;
use sha2::{Digest, Sha256};

use super::folder::Folder;

/// How long a file must be unchanged before its digest is cached. The kernel's timestamps have a resolution of up to 10 ms, so a file that changes
/// while it is read may have the same timestamp.
const AT_REST: Duration = Duration::from_millis(100);

/// The digests of a machine's files, from the last look.
#[derive(Debug, Default)]
pub struct Digests(Mutex<BTreeMap<String, DigestEntry>>);

/// A file that was read.
#[derive(Debug, Clone)]
struct DigestEntry {
    stamp: InodeStamp,
    sha256: String,
}

/// Attributes that change with any change of a file. Only the kernel can set the time of the last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InodeStamp {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, i64),
}

/// One look at all files.
pub(super) struct DigestReader {
    before: BTreeMap<String, DigestEntry>,
    now: BTreeMap<String, DigestEntry>,
}

impl Digests {
    pub(super) fn reader(&self) -> DigestReader {
        // A look that starts meanwhile reads all files itself.
        let before = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        DigestReader { before, now: BTreeMap::new() }
    }

    /// Returns how many files have a cached digest.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Stores the digests of a look. Files that are gone are dropped.
    pub(super) fn store(&self, reader: DigestReader) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reader.now;
    }
}

impl DigestReader {
    /// Returns the SHA-256 of a regular file, in hexadecimal. Empty if it is no regular file any more.
    pub(super) fn digest(&mut self, path: &str, (folder, name): (&Folder, &str), stat: &Stat) -> io::Result<String> {
        let stamp = InodeStamp::of(stat);
        if let Some(known) = self.before.remove(path).filter(|known| known.stamp == stamp) {
            let sha256 = known.sha256.clone();
            self.now.insert(path.to_owned(), known);
            return Ok(sha256);
        }
        let is_at_rest = stamp.is_at_rest();
        let Some(file) = folder.open_regular(name)? else { return Ok(String::new()) };
        let sha256 = read(file)?;
        if is_at_rest {
            self.now.insert(path.to_owned(), DigestEntry { stamp, sha256: sha256.clone() });
        }
        Ok(sha256)
    }
}

impl InodeStamp {
    fn of(stat: &Stat) -> Self {
        let changed = (stat.st_ctime, stat.st_ctime_nsec.cast_signed());
        Self { device: stat.st_dev, inode: stat.st_ino, size: stat.st_size, changed }
    }

    fn is_at_rest(&self) -> bool {
        let (seconds, nanos) = self.changed;
        let changed = u64::try_from(seconds).ok().zip(u32::try_from(nanos).ok());
        let changed = changed.map(|(seconds, nanos)| UNIX_EPOCH + Duration::new(seconds, nanos));
        changed.is_some_and(|changed| SystemTime::now().duration_since(changed).is_ok_and(|since| since >= AT_REST))
    }
}

fn read(mut file: File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = [0; 1 << 14];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    Ok(hex(&hash.finalize()))
}
