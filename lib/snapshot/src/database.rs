//! The database of a snapshot: a file of bbolt, read only.
//!
//! Checks what `etcdutl snapshot status` checks, and computes the same hash, revision, size and version. It leaves out two things: the list of free
//! pages, which etcd does not write (`NoFreelistSync`), and the number of distinct keys, for which all of them would be in memory.

mod blocks;
mod meta;
mod page;
mod walk;

use std::io::{self, Read, Seek};

use serde::{Deserialize, Serialize};

use self::{blocks::Blocks, meta::Meta, walk::DatabaseWalk};

/// What is known of a database. Hash, revision, size and version are those of `etcdutl snapshot status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseSummary {
    /// The CRC-32C of all keys and values.
    pub hash: u32,
    /// The last revision.
    pub revision: u64,
    /// The number of keys and values in all buckets, with every revision of a key that is not compacted.
    pub entries: u64,
    /// The size in bytes.
    pub total_size: u64,
    /// The version of the storage format. An etcd older than 3.6 records none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// A database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// The file could not be read.
    #[error("cannot read the database")]
    Read(#[source] io::Error),
    /// It has no valid meta page.
    #[error("it is not an etcd database: it has no valid meta page")]
    NoMeta,
    /// Its length differs from what its meta page records.
    #[error("it has {found} bytes, and its meta page records {expected}")]
    Length {
        /// The length that the meta page records.
        expected: u64,
        /// The length of the file.
        found: u64,
    },
    /// A page is damaged.
    #[error("page {page} is damaged: {problem}")]
    Page {
        /// The number of the page.
        page: u64,
        /// What is wrong with it.
        problem: PageProblem,
    },
    /// It has no bucket of keys.
    #[error("it is not an etcd database: it has no bucket \"key\"")]
    NoKeys,
}

/// What is wrong with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageProblem {
    /// Its number differs from its place.
    #[error("it has another number")]
    Number,
    /// It is neither a branch nor a leaf.
    #[error("it is neither a branch nor a leaf")]
    Kind,
    /// It lies outside of the database.
    #[error("it is outside of the database")]
    Outside,
    /// Two pages refer to it.
    #[error("two pages refer to it")]
    Shared,
    /// An element lies outside of it.
    #[error("an element exceeds it")]
    Element,
    /// Its keys are not in order.
    #[error("its keys are not in order")]
    Order,
    /// The tree has more levels than any database has.
    #[error("the tree is too deep")]
    Depth,
    /// A key of the bucket "key" is not a revision.
    #[error("a key is not a revision")]
    Revision,
    /// An entry of the root is not a bucket, or one of a bucket is.
    #[error("a bucket is at the wrong level")]
    Bucket,
}

/// Checks a database of this length, and returns its summary.
pub fn check<R: Read + Seek>(reader: R, length: u64) -> Result<DatabaseSummary, DatabaseError> {
    let mut blocks = Blocks::new(reader, length);
    let meta = Meta::read(&mut blocks)?;
    let total_size = meta.pages.saturating_mul(meta.page_size);
    if total_size != length {
        return Err(DatabaseError::Length { expected: total_size, found: length });
    }
    DatabaseWalk::over(&mut blocks, &meta)?.summary(total_size)
}
