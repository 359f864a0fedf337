//! How long a test waits for an event. Each is at least three times what was seen on two busy cores; what it took is printed,
//! and never failed on.

use std::{
    thread,
    time::{Duration, Instant},
};

/// A command that settles a world: a first start with all images to import takes 15 s.
pub const SETTLE: Duration = Duration::from_secs(300);

/// A command that only reads.
pub const READ: Duration = Duration::from_secs(60);

/// Something that Kubernetes does by itself.
pub const KUBERNETES: Duration = Duration::from_secs(180);

/// An answer from the same machine comes within microseconds; what does not answer is a packet that was dropped.
pub const ANSWER: Duration = Duration::from_millis(500);

/// A TLS handshake and a small answer.
pub const REQUEST: Duration = Duration::from_secs(30);

/// How often something is looked at again that tells nobody when it changes.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until something holds that has no event to wait for. Returns how long that took.
pub fn until(what: &str, limit: Duration, holds: impl Fn() -> bool) -> Duration {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        thread::park_timeout(LOOK);
    }
    started.elapsed()
}
