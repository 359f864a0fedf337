//! SIGINT and SIGTERM: the program begins no further effect, and writes the documents.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use anyhow::Context;
use keelway_base::signals::TerminationSignals;
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
    let mut signals = TerminationSignals::new().context("cannot handle signals")?;
    let of_task = received.clone();
    tokio::spawn(async move {
        let number = signals.next().await;
        of_task.0.store(number, Ordering::Relaxed);
        stop.cancel();
        let number = signals.next().await;
        std::process::exit(128 + i32::from(number));
    });
    Ok(received)
}
