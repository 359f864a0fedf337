//! Time limits of tests. Each limit is at least three times the longest time observed on two busy cores. Tests print the time that a wait took,
//! and do not fail because of it.

use std::{
    thread,
    time::{Duration, Instant},
};

/// For a command that settles a fleet. The first start, which imports all images, takes 15 s. After five minutes the command itself ends, and its error
/// says what it waits for.
pub const SETTLE: Duration = Duration::from_secs(330);

/// For a command that only reads.
pub const READ: Duration = Duration::from_secs(60);

/// For something that Kubernetes does by itself.
pub const KUBERNETES: Duration = Duration::from_secs(180);

/// For a response from the same machine. Responses take microseconds; if there is none in this time, a packet was dropped.
pub const ANSWER: Duration = Duration::from_millis(500);

/// For a TLS handshake and a small response.
pub const REQUEST: Duration = Duration::from_secs(30);

/// The shortest pause between checks of something that sends no event when it changes.
const LOOK: Duration = Duration::from_millis(50);

/// Polls until a condition holds, and returns how long that took. Use it only if there is no event to wait for. Many checks run a program: each pause is
/// three times as long as the check before it, so that what is waited for has the processor.
pub fn until(what: &str, limit: Duration, holds: impl Fn() -> bool) -> Duration {
    let started = Instant::now();
    loop {
        let check = Instant::now();
        if holds() {
            return started.elapsed();
        }
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        thread::park_timeout(LOOK.max(check.elapsed() * 3));
    }
}
