//! The cache: a directory outside the tree that outlives clones and builds.

use std::env;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The cache: `$KEELWAY_CACHE`, or `keelway` in the cache directory of the user.
///
/// `bin/` and `images/` contain the products. `stamps/` contains the recipe of each product. `containerd/` contains the images as local hypervisors
/// share them. `tmp/` contains files of an unfinished run.
#[derive(Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// An exclusive lock on the cache, which is released on drop.
#[derive(Debug)]
pub(crate) struct CacheLock {
    _file: File,
}

impl Cache {
    /// Returns the cache of this user.
    pub(crate) fn of_environment() -> Result<Self> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = set("KEELWAY_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("keelway")))
            .or_else(|| set("HOME").map(|home| home.join(".cache/keelway")))
            .context("find the cache: none of KEELWAY_CACHE, XDG_CACHE_HOME and HOME is set")?;
        Self::at(&root)
    }

    pub(crate) fn at(root: &Path) -> Result<Self> {
        let root = std::path::absolute(root).context("find the cache")?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a product's file.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Returns whether the product exists and was made from this recipe.
    pub(crate) fn has(&self, path: &str, recipe: &str) -> bool {
        self.recipe(path).is_some_and(|made_from| made_from == recipe)
    }

    /// Returns the recipe from which an existing product was made.
    pub(crate) fn recipe(&self, path: &str) -> Option<String> {
        self.file(path).is_file().then(|| fs::read_to_string(self.stamp(path)).ok()).flatten()
    }

    /// Locks the cache. If another run holds the lock, calls `on_wait` and waits for that run to end.
    pub(crate) fn lock(&self, on_wait: impl FnOnce()) -> Result<CacheLock> {
        fs::create_dir_all(&self.root).with_context(|| format!("create {}", self.root.display()))?;
        let path = self.root.join("lock");
        let file = File::create(&path).with_context(|| format!("open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                on_wait();
                file.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
        .with_context(|| format!("lock {}", path.display()))?;
        Ok(CacheLock { _file: file })
    }

    /// Returns an empty directory on the file system of the cache. Files that an interrupted run left in it are removed.
    pub(crate) fn scratch(&self, _lock: &CacheLock) -> Result<PathBuf> {
        let scratch = self.root.join("tmp");
        remove(&scratch)?;
        fs::create_dir(&scratch).with_context(|| format!("create {}", scratch.display()))?;
        Ok(scratch)
    }

    /// Moves a finished file to its path, then its stamp. Between the two moves, the product counts as missing.
    pub(crate) fn publish(&self, finished: &Path, path: &str, recipe: &str) -> Result<()> {
        let stamp = finished.with_extension("stamp");
        fs::write(&stamp, recipe).with_context(|| format!("write {}", stamp.display()))?;
        rename(finished, &self.file(path))?;
        rename(&stamp, &self.stamp(path))
    }

    fn stamp(&self, path: &str) -> PathBuf {
        self.root.join("stamps").join(path)
    }
}

/// Removes a directory if it exists.
pub(crate) fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    }
    fs::rename(from, to).with_context(|| format!("move {} to {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;
    use std::thread;

    use super::Cache;

    #[test]
    fn a_product_is_current_only_with_the_same_recipe() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let scratch = cache.scratch(&cache.lock(|| ()).unwrap()).unwrap();
        assert!(!cache.has("bin/a", "one"));
        fs::write(scratch.join("a"), "program").unwrap();
        cache.publish(&scratch.join("a"), "bin/a", "one").unwrap();
        assert!(cache.has("bin/a", "one"));
        assert!(!cache.has("bin/a", "two"));
        fs::remove_file(cache.file("bin/a")).unwrap();
        assert!(!cache.has("bin/a", "one"));
    }

    #[test]
    fn leftovers_of_an_interrupted_run_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let lock = cache.lock(|| ()).unwrap();
        let scratch = cache.scratch(&lock).unwrap();
        fs::write(scratch.join("half"), "ha").unwrap();
        let scratch = cache.scratch(&lock).unwrap();
        assert_eq!(fs::read_dir(scratch).unwrap().count(), 0);
    }

    #[test]
    fn a_second_run_waits_for_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let first = cache.lock(|| panic!("there is no other run")).unwrap();
        let (waiting, waits) = mpsc::channel();
        let (locked, locks) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let second = cache.lock(|| waiting.send(()).unwrap()).unwrap();
                locked.send(()).unwrap();
                drop(second);
            });
            waits.recv().unwrap();
            assert!(locks.try_recv().is_err());
            drop(first);
            locks.recv().unwrap();
        });
    }
}
