//! Files that change while a program runs.

use std::{error::Error, path::PathBuf};

use keelway_base::error_chain::ErrorChain;
use keelway_tls::FilesVersion;

/// Waits until the files change, and returns what `read` makes of them. Changes that `read` refuses are logged and ignored.
pub async fn replaced<T, E: Error + 'static>(
    version: &FilesVersion,
    files: &[PathBuf],
    read: impl AsyncFn() -> Result<T, E>,
) -> T {
    let mut version = version.clone();
    loop {
        version = version.next(files).await;
        match read().await {
            Ok(next) => return next,
            Err(error) => {
                tracing::warn!("ignoring changed files, because they are not valid: {}", ErrorChain(&error));
            }
        }
    }
}
