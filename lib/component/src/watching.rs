//! Watches of controllers.

use std::time::Duration;

use backon::ExponentialBuilder;
use kube::runtime::watcher::ExponentialBackoff;

/// The first pause after a watch has failed. Jitter at most doubles each pause.
const SHORTEST: Duration = Duration::from_millis(250);
/// The last of the growing pauses.
const LONGEST: Duration = Duration::from_secs(1);

/// Returns the pauses after failures of a watch, or of the watches of a controller.
///
/// A `kube::runtime::Controller` pauses all its watches after an error of any of them. In a pause, nothing reads their responses, so requests that
/// are under way time out and become the next errors. With its own pauses of up to 30 seconds, a controller of several watches works again only
/// minutes after a restart of the API server.
#[must_use]
pub fn watch_backoff() -> ExponentialBackoff {
    let builder = ExponentialBuilder::default().with_min_delay(SHORTEST).with_max_delay(LONGEST);
    builder.with_jitter().without_max_times().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_never_end_and_stay_short() {
        assert!(watch_backoff().take(100).all(|pause| pause >= SHORTEST && pause <= 2 * LONGEST));
        assert_eq!(watch_backoff().take(100).count(), 100);
    }
}
