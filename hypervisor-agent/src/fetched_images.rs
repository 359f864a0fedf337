//! Which images this agent fetched: its own record, in memory as on disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::{
    access::MachineAccess,
    machine_io::{MachineIo, MachineOperation},
    report::chain_text,
};

/// What the record says of one image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedImage {
    /// The runtime's id of it. `None`: the fetch was begun, and its end was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// The images that this agent fetched, by the names that configs gave them. Fields that a newer release adds are passed over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchRecord {
    /// By name.
    pub images: BTreeMap<String, FetchedImage>,
}

/// Keeps the record. Nothing is in memory that is not on disk, so that an image which could not be recorded is never taken for one that
/// the agent fetched.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    /// One at a time writes the disk and then the memory.
    writing: tokio::sync::Mutex<()>,
    /// `None`: this process keeps no record.
    held: Mutex<Option<FetchRecord>>,
}

impl Fetches {
    /// Goes on with the record on disk. Without one that can be read, nothing counts as fetched.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is not general over its lifetime")]
    pub(crate) async fn open(&self, access: &MachineAccess) {
        let record = match access.with_files(|files| files.read_fetched()).await {
            Ok(None) => FetchRecord::default(),
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot read which images were fetched; those are never removed");
                FetchRecord::default()
            }),
            Err(error) => {
                let why = chain_text(&error);
                tracing::warn!(why, "cannot read which images were fetched; those are never removed");
                FetchRecord::default()
            }
        };
        self.set_record(Some(record));
    }

    /// Whether this process keeps a record.
    pub(crate) fn is_recording(&self) -> bool {
        self.held().is_some()
    }

    pub(crate) fn record(&self) -> FetchRecord {
        self.held().unwrap_or_default()
    }

    /// Records that an image is about to be fetched. It was not on the machine.
    pub(crate) async fn begin(&self, site: &impl MachineIo, image: &str) {
        self.change(site, |images| drop(images.insert(image.to_owned(), FetchedImage::default()))).await;
    }

    /// Records what came of it.
    pub(crate) async fn end(&self, site: &impl MachineIo, image: &str, id: String) {
        let end = |images: &mut BTreeMap<String, FetchedImage>| {
            if let Some(begun) = images.get_mut(image) {
                begun.id = Some(id);
            }
        };
        self.change(site, end).await;
    }

    /// Whatever has these names from now on, this agent did not fetch it.
    pub(crate) async fn forget(&self, site: &impl MachineIo, names: &BTreeSet<String>) {
        self.change(site, |images| images.retain(|name, _| !names.contains(name))).await;
    }

    /// The record is not on the disk any more.
    pub(crate) fn clear(&self) {
        if self.held().is_some() {
            self.set_record(Some(FetchRecord::default()));
        }
    }

    async fn change(&self, site: &impl MachineIo, change: impl FnOnce(&mut BTreeMap<String, FetchedImage>)) {
        let _writing = self.writing.lock().await;
        let Some(before) = self.held() else { return };
        let mut record = before.clone();
        change(&mut record.images);
        if record == before {
            return;
        }
        match site.done(MachineOperation::RecordFetched(record.clone())).await {
            Ok(()) => self.set_record(Some(record)),
            Err(error) => tracing::warn!(why = chain_text(&error), "cannot record which images were fetched"),
        }
    }

    fn held(&self) -> Option<FetchRecord> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_record(&self, record: Option<FetchRecord>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = record;
    }
}
