//! A directory as a store of a pivot.

use async_trait::async_trait;
use keelway_api::Documents;
use keelway_reconciler::StoreError;
use tokio::task::block_in_place;

use super::PivotStore;
use crate::{directory::DirectoryStore, document_paths::path_of};

#[async_trait]
impl PivotStore for DirectoryStore {
    fn title(&self) -> String {
        format!("dir:{}", self.root().display())
    }

    async fn pivot_target(&self) -> Result<Option<String>, StoreError> {
        block_in_place(|| self.read_left_for()).map_err(|cause| failed("load", cause))
    }

    async fn set_pivot_target(&self, target: Option<&str>) -> Result<(), StoreError> {
        block_in_place(|| self.write_left_for(target)).map_err(|cause| failed("save", cause))
    }

    async fn prepare(&self, _: &Documents) -> Result<(), StoreError> {
        Ok(())
    }

    async fn forget(&self, documents: &Documents) -> Result<(), StoreError> {
        let paths = documents.all_names().map(|name| path_of(&name));
        block_in_place(|| self.remove_files(paths)).map_err(|cause| failed("save", cause))
    }
}

fn failed(operation: &'static str, cause: std::io::Error) -> StoreError {
    StoreError { operation, cause: cause.into() }
}
