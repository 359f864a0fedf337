//! The manifests that the agent applied last, in files. With them, the agent continues after a restart while the fleet is unreachable.
//!
//! The directory is an `emptyDir`: it outlives the container, not the pod. After a replacement of the pod, the agent needs the fleet to learn what
//! it applied. Manifests of Secrets are in memory only, because the directory is on the disk of a node.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use keelway_base::durable_file;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::decision::{AppliedRecord, OrderedObject};

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct RecordStoreError {
    operation: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A Work that was applied.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredWork {
    /// What the Work orders.
    pub order: OrderedObject,
    /// What the API server recorded.
    pub record: AppliedRecord,
    /// The object as the Work has it.
    pub manifest: Value,
}

/// The applied Works.
pub struct RecordStore {
    directory: PathBuf,
    secrets: BTreeMap<String, StoredWork>,
}

impl RecordStore {
    /// Opens the directory. Creates it if it is missing.
    pub fn open(directory: &Path) -> Result<Self, RecordStoreError> {
        fs::create_dir_all(directory).map_err(failed("create", directory))?;
        Ok(Self { directory: directory.to_owned(), secrets: BTreeMap::new() })
    }

    /// Calls `found` with each stored Work. A file that cannot be read is skipped: the fleet sends its Work again.
    pub fn load(&self, mut found: impl FnMut(OrderedObject, AppliedRecord)) -> Result<(), RecordStoreError> {
        for entry in fs::read_dir(&self.directory).map_err(failed("read", &self.directory))? {
            let path = entry.map_err(failed("read", &self.directory))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match fs::read(&path).map_err(io::Error::other).and_then(|text| Ok(serde_json::from_slice(&text)?)) {
                Ok(StoredWork { order, record, .. }) => found(order, record),
                Err(error) => tracing::warn!(path = %path.display(), %error, "skips a file of an applied Work"),
            }
        }
        Ok(())
    }

    /// Returns a stored Work.
    #[must_use]
    pub fn get(&self, work: &str) -> Option<StoredWork> {
        if let Some(secret) = self.secrets.get(work) {
            return Some(secret.clone());
        }
        serde_json::from_slice(&fs::read(self.path(work)).ok()?).ok()
    }

    /// Stores a Work that was applied.
    pub fn put(&mut self, stored: StoredWork) -> Result<(), RecordStoreError> {
        if stored.order.object.is_secret() {
            self.secrets.insert(stored.order.work.clone(), stored);
            return Ok(());
        }
        let path = self.path(&stored.order.work);
        let text = serde_json::to_vec(&stored).map_err(io::Error::other).map_err(failed("write", &path))?;
        // After a crash of the node, the pod is another one, with an empty directory.
        durable_file::replace_volatile(&path, &text, 0o600).map_err(failed("write", &path))
    }

    /// Removes a Work.
    pub fn remove(&mut self, work: &str) {
        self.secrets.remove(work);
        let path = self.path(work);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove the file of a Work");
        }
    }

    /// The name of a Work may be longer than a file's.
    fn path(&self, work: &str) -> PathBuf {
        let digest = Sha256::digest(work.as_bytes());
        let name = digest.iter().take(16).fold(String::new(), |name, byte| format!("{name}{byte:02x}"));
        self.directory.join(format!("{name}.json"))
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordStoreError {
    let path = path.to_owned();
    move |source| RecordStoreError { operation, path, source }
}
