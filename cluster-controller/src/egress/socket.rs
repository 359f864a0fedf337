//! The sockets to which the API server connects.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use crate::connect::{TunnelOpener, serve};

/// The most connections that are not tunnels yet. Further ones are closed.
const MOST_CONVERSATIONS: usize = 256;

/// Serves all connections until it is dropped.
pub(super) async fn accept<O: TunnelOpener>(listener: UnixListener, opener: Arc<O>) {
    let room = Arc::new(Semaphore::new(MOST_CONVERSATIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // This error only means a shortage of file descriptors or memory. It takes a moment to end.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            tracing::warn!("closing a connection: too many connections are not tunnels yet");
            continue;
        };
        let opener = Arc::clone(&opener);
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = serve(stream, opener).await {
                tracing::debug!(%error, "a connection failed");
            }
        });
    }
}
