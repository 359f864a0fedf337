//! The runtime's events. The agent itself uses them only as a signal to look again, and forwards them to its subscribers.

use std::{pin::pin, sync::Arc, time::Duration};

use keelway_base::error_chain::chain_text;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::CriRuntime;
use crate::proxy::fanout::{self, Fanout};

/// The first delay before a broken subscription is renewed. It doubles up to [`LONGEST`]. A runtime that restarts is away for about a second.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// A runtime does not confirm that a subscription is in effect. After this time the agent looks once more, for changes before it was.
const IN_EFFECT: Duration = Duration::from_secs(1);

/// Notifies `changed` of every event for as long as it is polled. At most one notification is pending, so this reader never blocks. containerd blocks
/// its own calls if a subscriber stops reading.
pub async fn follow(runtime: CriRuntime, fanout: Arc<Fanout>, changed: Arc<Notify>) {
    let mut pause = FIRST;
    loop {
        let since = Instant::now();
        let mut reading = pin!(read(&runtime, &fanout, &changed));
        changed.notify_one();
        let ended = if let Ok(ended) = timeout(IN_EFFECT, &mut reading).await {
            ended
        } else {
            changed.notify_one();
            reading.await
        };
        changed.notify_one();
        tracing::info!(why = ended, "the runtime's event stream ended");
        pause = if since.elapsed() > LONGEST { FIRST } else { (pause * 2).min(LONGEST) };
        sleep(pause).await;
    }
}

/// Reads until the stream ends, and returns the reason.
async fn read(runtime: &CriRuntime, fanout: &Fanout, changed: &Notify) -> String {
    let telling = fanout.begin();
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
            Ok(None) => return "the runtime closed the stream".to_owned(),
            Err(status) => return chain_text(&status),
        }
    }
}
