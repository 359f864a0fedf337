//! Detects files that are replaced while they are in use.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

/// How often files are checked if no event causes a check.
const LOOK: Duration = Duration::from_secs(2);

/// The version of files: device, inode, length and time of the last change of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesVersion(Vec<Option<FileVersion>>);

type FileVersion = (u64, u64, u64, i64, i64);

impl FilesVersion {
    /// Returns the present version of files.
    pub fn of(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        let stamp = |path: &Path| {
            let file = std::fs::metadata(path).ok()?;
            Some((file.dev(), file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
        };
        Self(paths.into_iter().map(|path| stamp(path.as_ref())).collect())
    }

    /// Returns the version of these files and of further ones.
    #[must_use]
    pub fn with(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Waits until the files have another version than this one, and returns it.
    pub async fn next(&self, paths: &[impl AsRef<Path>]) -> Self {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let now = Self::of(paths);
            if now != *self {
                return now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_replaced_file_of_the_same_length_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("a"), folder.path().join("b")];
        std::fs::write(&paths[0], "1").unwrap();
        let first = FilesVersion::of(&paths);
        assert_eq!(first, FilesVersion::of(&paths[..1]).with(FilesVersion::of(&paths[1..])));
        let replaced = folder.path().join("next");
        std::fs::write(&replaced, "2").unwrap();
        std::fs::rename(&replaced, &paths[0]).unwrap();
        let second = first.next(&paths).await;
        assert_eq!(second, FilesVersion::of(&paths));
        std::fs::write(&paths[1], "").unwrap();
        assert_ne!(second.next(&paths).await, second);
    }
}
