//! Stores of documents beside the pipe of a command: a directory, and the API of a management cluster; and [`pivot`], which moves documents from one
//! store to another.

mod accept;
pub mod directory;
mod document_paths;
pub mod kubernetes;
pub mod pivot;

use std::sync::Arc;

use keelway_api::Documents;

/// A store whose documents are measured.
pub trait DocumentSource: Send + Sync + 'static {
    /// Returns the documents in effect.
    fn documents(&self) -> Arc<Documents>;
    /// Returns the number of refused documents.
    fn refused(&self) -> usize;
}
