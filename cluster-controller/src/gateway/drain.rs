//! The drain of a gateway that stops: workers that observe the stop switch to other gateways, and the gateway serves until they have. It accepts no connection
//! any more, and ends idle ones, so that API servers use other gateways.

use std::time::Duration;

use keelway_vpn::SystemClock;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::vpn::Vpn;

/// How long a worker must be silent to count as gone: workers check each gateway every two seconds, and one check may be lost.
const SILENCE: Duration = Duration::from_millis(4500);
/// The interval of checks.
const LOOK: Duration = Duration::from_millis(100);
/// The longest drain. By then, workers that can observe the change have switched, because the cluster-controller reads changes within two
/// seconds. The others wait until this gateway is back.
const MOST: Duration = Duration::from_secs(5);

/// Waits for `stop`, and then until no worker uses the gateway any more.
pub(super) async fn drain_workers(vpn: &Vpn, stop: &CancellationToken) {
    stop.cancelled().await;
    vpn.tunnels.end_idle();
    tracing::info!("draining: waiting until workers have switched to other gateways");
    let end = Instant::now() + MOST;
    while Instant::now() < end && vpn.last_heard().is_some_and(|heard| is_recent(heard, SystemClock.now().elapsed)) {
        sleep(LOOK).await;
    }
}

fn is_recent(heard: Duration, now: Duration) -> bool {
    now.saturating_sub(heard) < SILENCE
}
