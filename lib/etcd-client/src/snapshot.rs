//! A member's database as a stream.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Streaming;

use crate::{EtcdError, SnapshotResponse};

/// The longest wait for the next part.
const PART: Duration = Duration::from_secs(30);

/// The database of a member, in parts. After the database follow the 32 bytes of its SHA-256 digest, which `etcdutl snapshot` expects at the end of a
/// file. Read it until it ends: a stream that breaks off ends with an error.
#[derive(Debug)]
pub struct SnapshotStream(Streaming<SnapshotResponse>);

impl SnapshotStream {
    pub(crate) fn new(stream: Streaming<SnapshotResponse>) -> Self {
        Self(stream)
    }

    /// Returns the next part; none at the end.
    pub async fn next_part(&mut self) -> Result<Option<SnapshotResponse>, EtcdError> {
        let call = "Snapshot";
        let part = timeout(PART, self.0.message()).await.map_err(|_| EtcdError::TimedOut { call, within: PART })?;
        part.map_err(|status| EtcdError::status(call, status))
    }
}
