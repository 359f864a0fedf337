//! The runtime's events, of which only counts that there were some.

use std::{sync::Arc, time::Duration};

use keelway_cri::{Events, Runtime};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::report::chain_text;

/// How soon a broken subscription is made anew, doubling up to [`LONGEST`]: a runtime that restarts is away for a second.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// A runtime gives no sign that a subscription is in effect: what happened while it was being made is looked for once more.
const IN_EFFECT: Duration = Duration::from_secs(1);

/// Tells of every change for as long as it is polled. However many events there are, and however long nobody looks, one
/// notice waits and no more, so that this reader never stalls: containerd blocks its own calls when one does.
pub(super) async fn follow(runtime: Runtime, changed: Arc<Notify>) {
    let mut pause = FIRST;
    loop {
        let since = Instant::now();
        let mut events = runtime.events();
        changed.notify_one();
        let ended = if let Ok(ended) = timeout(IN_EFFECT, read(&mut events, &changed)).await {
            ended
        } else {
            changed.notify_one();
            read(&mut events, &changed).await
        };
        changed.notify_one();
        tracing::info!(why = ended, "the runtime's events broke off");
        pause = if since.elapsed() > LONGEST { FIRST } else { (pause * 2).min(LONGEST) };
        sleep(pause).await;
    }
}

/// Reads until the stream ends, and says why it did.
async fn read(events: &mut Events, changed: &Notify) -> String {
    loop {
        match events.next().await {
            Some(Ok(_)) => changed.notify_one(),
            Some(Err(error)) => return chain_text(&error),
            None => return "the runtime ended the stream".to_owned(),
        }
    }
}
