//! Limits how much other parties can make a log grow.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The highest number of lines in one second.
const MOST: u32 = 5;

/// Counts the lines of the present second, for events that other parties cause.
#[derive(Debug, Default)]
pub struct LogRateLimiter(Mutex<LogSecond>);

#[derive(Debug, Default)]
struct LogSecond {
    since: Option<Instant>,
    count: u32,
}

impl LogRateLimiter {
    /// Counts one line, and returns whether it may be logged.
    pub fn has_room(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).has_room(Instant::now())
    }
}

impl LogSecond {
    fn has_room(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1)) {
            *self = Self { since: Some(now), count: 0 };
        }
        self.count += 1;
        self.count <= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_room_for_so_many_lines() {
        let (mut second, now) = (LogSecond::default(), Instant::now());
        let lines = |second: &mut LogSecond, now| (0..100).filter(|_| second.has_room(now)).count();
        assert_eq!(lines(&mut second, now), 5);
        assert_eq!(lines(&mut second, now + Duration::from_millis(999)), 0);
        assert_eq!(lines(&mut second, now + Duration::from_secs(1)), 5);
    }
}
