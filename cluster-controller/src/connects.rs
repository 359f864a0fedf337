//! How requests for tunnels ended: counted all, and told of as far as a log may grow.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::connect::Reason;

/// Refusals in one second that are logged: tenants decide how many there are.
const MOST_TOLD: u32 = 5;

/// Requests by how they ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connects {
    by_outcome: Family<Label, Counter>,
    told: Arc<Mutex<Told>>,
}

type Label = [(&'static str, &'static str); 1];

fn label(outcome: Result<(), Reason>) -> Label {
    [("outcome", outcome.map_or_else(Reason::word, |()| "opened"))]
}

/// What was logged in the present second.
#[derive(Debug, Default)]
struct Told {
    since: Option<Instant>,
    count: u32,
}

impl Told {
    fn has_room(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1)) {
            *self = Self { since: Some(now), count: 0 };
        }
        self.count += 1;
        self.count <= MOST_TOLD
    }
}

impl Connects {
    /// Counts one.
    pub(crate) fn count(&self, outcome: Result<(), Reason>) {
        self.by_outcome.get_or_create(&label(outcome)).inc();
    }

    /// Whether one more refusal may be logged.
    pub(crate) fn may_tell(&self) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).has_room(Instant::now())
    }

    /// Makes the metric known, with all its outcomes.
    pub(crate) fn register(&self, registry: &mut Registry) {
        for outcome in Reason::ALL.map(Err).into_iter().chain([Ok(())]) {
            drop(self.by_outcome.get_or_create(&label(outcome)));
        }
        registry.register("connects", "Requests for tunnels, by how they ended", self.by_outcome.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_room_for_so_many_lines() {
        let (mut told, now) = (Told::default(), Instant::now());
        let lines = |told: &mut Told, now| (0..100).filter(|_| told.has_room(now)).count();
        assert_eq!(lines(&mut told, now), 5);
        assert_eq!(lines(&mut told, now + Duration::from_millis(999)), 0);
        assert_eq!(lines(&mut told, now + Duration::from_secs(1)), 5);
    }
}
