//! The runtime's events: that there were some is all that the agent wants to know, and whoever subscribed here is told them.

use std::{pin::pin, sync::Arc, time::Duration};

use keelway_cri::CriRuntime;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    fanout::{self, Fanout},
    report::chain_text,
};

/// How soon a broken subscription is made anew, doubling up to [`LONGEST`]: a runtime that restarts is away for a second.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// A runtime gives no sign that a subscription is in effect: what happened while it was being made is looked for once more.
const IN_EFFECT: Duration = Duration::from_secs(1);

/// Tells of every change for as long as it is polled. However many events there are, and however long nobody looks, one
/// notice waits and no more, so that this reader never stalls: containerd blocks its own calls when one does.
pub(crate) async fn follow(runtime: CriRuntime, told: Arc<Fanout>, changed: Arc<Notify>) {
    let mut pause = FIRST;
    loop {
        let since = Instant::now();
        let mut reading = pin!(read(&runtime, &told, &changed));
        changed.notify_one();
        let ended = if let Ok(ended) = timeout(IN_EFFECT, &mut reading).await {
            ended
        } else {
            changed.notify_one();
            reading.await
        };
        changed.notify_one();
        tracing::info!(why = ended, "the runtime's events broke off");
        pause = if since.elapsed() > LONGEST { FIRST } else { (pause * 2).min(LONGEST) };
        sleep(pause).await;
    }
}

/// Reads until the stream ends, and says why it did.
async fn read(runtime: &CriRuntime, told: &Fanout, changed: &Notify) -> String {
    let telling = told.begin();
    let mut events = match fanout::subscribe(runtime.channel()).await {
        Ok(events) => events,
        Err(status) => return chain_text(&status),
    };
    loop {
        match events.message().await {
            Ok(Some(event)) => {
                telling.publish(event);
                changed.notify_one();
            }
            Ok(None) => return "the runtime ended the stream".to_owned(),
            Err(status) => return chain_text(&status),
        }
    }
}
