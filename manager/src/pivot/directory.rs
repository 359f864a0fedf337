//! Documents of a directory.

use async_trait::async_trait;
use keelway_api::Documents;
use keelway_reconciler::StoreError;
use tokio::task::block_in_place;

use super::End;
use crate::{directory::Directory, place::path_of};

#[async_trait]
impl End for Directory {
    fn title(&self) -> String {
        format!("dir:{}", self.root().display())
    }

    async fn left_for(&self) -> Result<Option<String>, StoreError> {
        block_in_place(|| self.read_left_for()).map_err(|cause| failed("load", cause))
    }

    async fn leave_for(&self, whither: Option<&str>) -> Result<(), StoreError> {
        block_in_place(|| self.write_left_for(whither)).map_err(|cause| failed("save", cause))
    }

    async fn prepare(&self, _: &Documents) -> Result<(), StoreError> {
        Ok(())
    }

    async fn forget(&self, documents: &Documents) -> Result<(), StoreError> {
        let paths = documents.all_names().map(|name| path_of(&name));
        block_in_place(|| self.take_away(paths)).map_err(|cause| failed("save", cause))
    }
}

fn failed(operation: &'static str, cause: std::io::Error) -> StoreError {
    StoreError { operation, cause: cause.into() }
}
