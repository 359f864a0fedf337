//! Waiting for what has no event, with a deadline.

use std::time::{Duration, Instant};

/// Many times what anything takes, also where others keep both cores busy.
const DEADLINE: Duration = Duration::from_secs(300);
/// How often something is looked at again.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until something holds.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    some(what, async || holds().await.then_some(())).await;
}

/// Waits until there is something, and prints how long that took.
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
