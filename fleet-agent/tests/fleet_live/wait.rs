//! Polling, with a deadline, for what has no event.

use std::time::{Duration, Instant};

/// Many times longer than any step takes, also if other programs keep both cores busy.
const DEADLINE: Duration = Duration::from_secs(300);
/// The interval between two checks.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until `holds` returns true.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    some(what, async || holds().await.then_some(())).await;
}

/// Waits until `look` returns a value, and prints how long that took.
pub(crate) async fn some<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            println!("{:>7} ms  {what}", began.elapsed().as_millis());
            return found;
        }
        assert!(began.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        tokio::time::sleep(LOOK).await;
    }
}
