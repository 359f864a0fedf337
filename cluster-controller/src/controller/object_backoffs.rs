//! Back-off for each object: an object that was stable for long is applied at once. If it is changed or fails repeatedly, the pauses grow.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The shortest and the longest pause between two attempts.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// How long an object must be stable after a pause until the next pause is the shortest again.
const CALM: Duration = Duration::from_secs(60);

/// The pauses of all objects with an earlier attempt.
#[derive(Debug)]
pub(super) struct ObjectBackoffs<K>(BTreeMap<K, Pause>);

#[derive(Debug)]
struct Pause {
    since: Instant,
    length: Duration,
}

impl<K> Default for ObjectBackoffs<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> ObjectBackoffs<K> {
    /// Returns when an attempt that is needed now may start.
    pub(super) fn next(&self, key: &K, now: Instant) -> Instant {
        self.0.get(key).map_or(now, |pause| now.max(pause.since + pause.length))
    }

    /// Records that an attempt starts now.
    pub(super) fn begin(&mut self, key: K, now: Instant) {
        let pause = self.0.entry(key).or_insert(Pause { since: now, length: Duration::ZERO });
        let is_calm = now.saturating_duration_since(pause.since) >= pause.length + CALM;
        let length = if is_calm { SHORTEST } else { (pause.length * 2).clamp(SHORTEST, LONGEST) };
        *pause = Pause { since: now, length };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of attempts within a time if the object is changed again at once after each.
    fn rounds(pauses: &mut ObjectBackoffs<&'static str>, from: Instant, within: Duration) -> usize {
        let mut now = from;
        let attempts = std::iter::from_fn(|| {
            now = pauses.next(&"a", now);
            pauses.begin("a", now);
            (now < from + within).then_some(())
        });
        attempts.count()
    }

    #[test]
    fn the_pause_grows_with_each_repeated_change() {
        let (start, mut pauses) = (Instant::now(), ObjectBackoffs::default());
        // After 0, 1, 3, 7, 15, 31, 63, 123, .. 543 s: once a minute from then on.
        assert_eq!(rounds(&mut pauses, start, Duration::from_secs(600)), 15);
        assert_eq!(pauses.next(&"b", start), start, "others are not concerned");
    }

    #[test]
    fn after_a_minute_without_changes_there_is_no_pause() {
        let (start, mut pauses) = (Instant::now(), ObjectBackoffs::default());
        let _ = rounds(&mut pauses, start, Duration::from_secs(60));
        let later = start + Duration::from_secs(600);
        assert_eq!(pauses.next(&"a", later), later);
        pauses.begin("a", later);
        assert_eq!(pauses.next(&"a", later), later + SHORTEST);
    }
}
