//! SIGINT and SIGTERM.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

const SIGINT: u8 = 2;
const SIGTERM: u8 = 15;

/// Receives SIGINT and SIGTERM from when it is created, which must be inside of a Tokio runtime.
#[derive(Debug)]
pub struct TerminationSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl TerminationSignals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next signal. Returns its number.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => SIGINT,
            _ = self.terminate.recv() => SIGTERM,
        }
    }

    /// Cancels a token at the first signal.
    pub fn cancel(mut self, stop: CancellationToken) {
        tokio::spawn(async move {
            self.next().await;
            stop.cancel();
        });
    }
}
