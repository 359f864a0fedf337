//! The end of a gateway that was told to stop: workers that are told of it go over to others, and until they have it serves on.

use std::time::Duration;

use keelway_vpn::SystemClock;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::vpn::Vpn;

/// Who says nothing for so long is not there: workers ask each gateway every two seconds whether it answers, and a question may be lost.
const SILENCE: Duration = Duration::from_millis(4500);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(100);
/// By then those have gone over that are told so, as the cluster-controller reads within two seconds what changed. Who is still there waits
/// for this gateway to come back.
const MOST: Duration = Duration::from_secs(5);

/// Returns once nobody needs the gateway any more that was told to stop.
pub(super) async fn drain_workers(vpn: &Vpn, stop: &CancellationToken) {
    stop.cancelled().await;
    tracing::info!("serves on until its workers have gone over to other gateways");
    let end = Instant::now() + MOST;
    while Instant::now() < end && vpn.last_heard().is_some_and(|heard| is_recent(heard, SystemClock.now().elapsed)) {
        sleep(LOOK).await;
    }
}

fn is_recent(heard: Duration, now: Duration) -> bool {
    now.saturating_sub(heard) < SILENCE
}
