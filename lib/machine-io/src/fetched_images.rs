//! The record of images that this agent fetched, in memory and on disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use keelway_base::error_chain::chain_text;
use serde::{Deserialize, Serialize};

use crate::access::MachineAccess;

/// The record of one image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedImage {
    /// The runtime's id of the image. `None` if a fetch was started and its end was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// The images that this agent fetched, by the names in configs. Fields that a newer release adds are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchRecord {
    /// The images, by name.
    pub images: BTreeMap<String, FetchedImage>,
}

/// Keeps the record. Memory contains nothing that is not on disk. An image that could not be recorded therefore never counts as fetched by the agent.
#[derive(Debug, Default)]
pub struct Fetches {
    /// Serializes changes, which write the disk first and then the memory.
    writing: tokio::sync::Mutex<()>,
    /// `None` if this process keeps no record.
    held: Mutex<Option<FetchRecord>>,
}

impl Fetches {
    /// Loads the record from disk. If it cannot be read, no image counts as fetched.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is not general over its lifetime")]
    pub async fn open(&self, access: &MachineAccess) {
        let record = match access.with_files(|files| files.read_fetched()).await {
            Ok(None) => FetchRecord::default(),
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot read the record of fetched images; these images are never removed");
                FetchRecord::default()
            }),
            Err(error) => {
                let why = chain_text(&error);
                tracing::warn!(why, "cannot read the record of fetched images; these images are never removed");
                FetchRecord::default()
            }
        };
        self.set_record(Some(record));
    }

    /// Returns whether this process keeps a record.
    pub(crate) fn is_recording(&self) -> bool {
        self.held().is_some()
    }

    /// Returns the record.
    pub fn record(&self) -> FetchRecord {
        self.held().unwrap_or_default()
    }

    /// Records the start of a fetch of an image that is not on the machine.
    pub(crate) async fn begin(&self, access: &MachineAccess, image: &str) {
        self.change(access, |images| drop(images.insert(image.to_owned(), FetchedImage::default()))).await;
    }

    /// Records the end of a fetch, with the id of the image.
    pub(crate) async fn end(&self, access: &MachineAccess, image: &str, id: String) {
        let end = |images: &mut BTreeMap<String, FetchedImage>| {
            if let Some(begun) = images.get_mut(image) {
                begun.id = Some(id);
            }
        };
        self.change(access, end).await;
    }

    /// Removes these names from the record: whatever image has them from now on was not fetched by this agent.
    pub async fn forget(&self, access: &MachineAccess, names: &BTreeSet<String>) {
        self.change(access, |images| images.retain(|name, _| !names.contains(name))).await;
    }

    /// Clears the record in memory after it was removed from disk.
    pub fn clear(&self) {
        if self.held().is_some() {
            self.set_record(Some(FetchRecord::default()));
        }
    }

    async fn change(&self, access: &MachineAccess, change: impl FnOnce(&mut BTreeMap<String, FetchedImage>)) {
        let _writing = self.writing.lock().await;
        let Some(before) = self.held() else { return };
        let mut record = before.clone();
        change(&mut record.images);
        if record == before {
            return;
        }
        let written = record.clone();
        match access.with_files(move |files| files.write_fetched(&written)).await {
            Ok(()) => self.set_record(Some(record)),
            Err(error) => tracing::warn!(why = chain_text(&error), "cannot record the fetched images"),
        }
    }

    fn held(&self) -> Option<FetchRecord> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_record(&self, record: Option<FetchRecord>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = record;
    }
}
