//! Documents from stdin or for stdout, as a store of a pivot.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use keelway_api::Documents;
use keelway_reconciler::{Store, StoreError};

use super::PivotStore;

/// Documents in memory only. Removing documents here does not change the input they came from.
#[derive(Debug, Default)]
pub struct PipeStore(Mutex<Arc<Documents>>);

impl PipeStore {
    /// Creates a store with these documents.
    #[must_use]
    pub fn of(documents: Documents) -> Self {
        Self(Mutex::new(Arc::new(documents)))
    }

    /// Returns the current documents.
    #[must_use]
    pub fn documents(&self) -> Arc<Documents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Store for PipeStore {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        Ok(self.documents())
    }

    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(documents.clone());
        Ok(())
    }
}

#[async_trait]
impl PivotStore for PipeStore {
    fn title(&self) -> String {
        "-".to_owned()
    }
}
