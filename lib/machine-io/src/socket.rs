//! Requests over a socket among a pod's files.

use std::{os::fd::AsRawFd, time::Duration};

use keelway_api::name::PodName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use crate::{access::MachineAccess, local::FilesError};

/// How long a response may take. Components respond between two events, within microseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// The longest response that is read, in bytes: a thousand times what a few servers need.
const LONGEST: u64 = 1 << 20;

/// Sends one request over a connection of its own, and returns the response. The path is relative to `STATE_DIRECTORY/CLUSTER/COMPONENT`.
pub(crate) async fn request(
    access: &MachineAccess,
    (pod, path): (PodName, &'static str),
    question: &str,
) -> Result<String, FilesError> {
    let socket = access.with_files(move |files| files.open_socket(&pod, path)).await?;
    let talk = async {
        let mut stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await?;
        stream.write_all(question.as_bytes()).await?;
        let mut said = Vec::new();
        stream.take(LONGEST).read_to_end(&mut said).await?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    };
    timeout(PATIENCE, talk).await.map_err(|_| FilesError::Silent)?.map_err(FilesError::Talk)
}
