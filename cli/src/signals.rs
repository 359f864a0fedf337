//! SIGINT and SIGTERM: the program begins no further effect, and writes the documents.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The number of the received signal, or 0.
#[derive(Clone, Default)]
pub(crate) struct ReceivedSignal(Arc<AtomicU8>);

impl ReceivedSignal {
    pub(crate) fn number(&self) -> Option<u8> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            number => Some(number),
        }
    }
}

/// Cancels the token at the first signal. A second signal ends the process immediately, as it does without a handler.
pub(crate) fn cancel_on_signal(stop: CancellationToken) -> anyhow::Result<ReceivedSignal> {
    let received = ReceivedSignal::default();
    let mut interrupt = signal(SignalKind::interrupt()).context("could not listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("could not listen for SIGTERM")?;
    let told = received.clone();
    tokio::spawn(async move {
        let number = next(&mut interrupt, &mut terminate).await;
        told.0.store(number, Ordering::Relaxed);
        stop.cancel();
        let number = next(&mut interrupt, &mut terminate).await;
        std::process::exit(128 + i32::from(number));
    });
    Ok(received)
}

async fn next(interrupt: &mut tokio::signal::unix::Signal, terminate: &mut tokio::signal::unix::Signal) -> u8 {
    const SIGINT: u8 = 2;
    const SIGTERM: u8 = 15;
    tokio::select! {
        _ = interrupt.recv() => SIGINT,
        _ = terminate.recv() => SIGTERM,
    }
}
