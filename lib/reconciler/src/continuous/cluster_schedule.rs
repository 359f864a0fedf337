//! When the next pass of a cluster begins. Every time is an argument.

use std::time::Duration;

use keelway_api::Documents;
use tokio::time::Instant;

use super::{LONGEST_LOOK, LONGEST_RECHECK, LOOK, RECHECK};
use crate::retry_pace::RetryPace;

/// How long changes of condition texts wait after a save. While a cluster is created, texts change with each step, and each save is a request to
/// the store. Texts also wait while other tasks have something to save.
const TEXTS: Duration = Duration::from_secs(5);
/// The longest that condition texts wait.
const LONGEST_TEXTS: Duration = Duration::from_secs(30);

/// The schedule of a cluster's passes. Call [`Self::texts`] before a pass, [`Self::handle`] after it, and [`Self::recheck`] if the cluster is idle.
#[derive(Debug)]
pub(super) struct ClusterSchedule {
    pace: RetryPace,
    /// The pause before the machines of a cluster that waits for something are observed again.
    look: Duration,
    /// When they are observed again while a replica waits for its turn. Events do not postpone that.
    turn_look: Option<Instant>,
    last: Instant,
    saved: Option<Instant>,
    /// Since when condition texts wait to be saved.
    texts_wait: Option<Instant>,
    /// The documents of the last idle pass if the cluster was not settled or not healthy.
    open: Documents,
    open_changed: Instant,
}

/// Whether condition texts may be saved later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TextDelay {
    /// Texts may wait: they have not waited for [`LONGEST_TEXTS`] yet.
    pub(super) may_wait: bool,
    /// The task saved a moment ago. If so, texts wait even if no other task has something to save.
    pub(super) saved_recently: bool,
}

/// The result of a pass, as far as it decides about the next one.
#[derive(Debug, Clone, Copy)]
pub(super) enum PassResult {
    /// The pass was carried out.
    Passed {
        effects: usize,
        failures: usize,
        /// Whether documents were saved.
        saved: bool,
        /// Whether condition texts remain to be saved.
        texts_wait: bool,
        /// Whether a replica waits for its turn to be replaced. What haproxy reports decides about that, and causes no event.
        turns_wait: bool,
    },
    /// The documents changed during the pass, so it did nothing. The change wakes the task.
    Skipped,
    /// The pass failed.
    Failed,
}

/// When the next pass begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextTurn {
    /// Nothing was done, so the next pass waits for an event or one of the following times.
    pub(super) is_idle: bool,
    /// When the machines are observed again if the cluster waits for something.
    pub(super) look_at: Instant,
    /// When condition texts are saved, if any wait.
    pub(super) texts_at: Option<Instant>,
    /// The earliest time of the next pass.
    pub(super) earliest: Instant,
}

impl ClusterSchedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            pace: RetryPace::new(),
            look: LOOK,
            turn_look: None,
            last: now,
            saved: None,
            texts_wait: None,
            open: Documents::default(),
            open_changed: now,
        }
    }

    pub(super) fn texts(&self, now: Instant) -> TextDelay {
        let within = |since: Instant, limit| now.duration_since(since) < limit;
        TextDelay {
            may_wait: self.texts_wait.is_none_or(|since| within(since, LONGEST_TEXTS)),
            saved_recently: self.saved.is_some_and(|saved| within(saved, TEXTS)),
        }
    }

    /// Records the result of a pass that ended now.
    pub(super) fn handle(&mut self, result: PassResult, now: Instant) -> NextTurn {
        let elapsed = now.duration_since(std::mem::replace(&mut self.last, now));
        let (is_idle, pause) = match result {
            PassResult::Passed { effects, failures, .. } => {
                (effects == 0 && failures == 0, self.pace.after(effects, failures, elapsed))
            }
            PassResult::Skipped => (true, Duration::ZERO),
            PassResult::Failed => (false, self.pace.after(0, 1, elapsed)),
        };
        let (saved, texts_wait, turns_wait) = match result {
            PassResult::Passed { saved, texts_wait, turns_wait, .. } => (saved, texts_wait, turns_wait),
            PassResult::Skipped => (false, false, self.turn_look.is_some()),
            PassResult::Failed => (false, false, false),
        };
        if saved {
            self.saved = Some(now);
        }
        self.texts_wait = self.texts_wait.or(Some(now)).filter(|_| texts_wait);
        self.look = if is_idle { (self.look * 2).min(LONGEST_LOOK) } else { LOOK };
        let turn_look = self.turn_look.filter(|at| *at > now).unwrap_or(now + LOOK);
        self.turn_look = turns_wait.then_some(turn_look);
        NextTurn {
            is_idle,
            look_at: self.turn_look.unwrap_or(now + self.look),
            texts_at: texts_wait.then_some(now + TEXTS),
            earliest: now + pause,
        }
    }

    /// Records the documents of an idle pass whose cluster is not settled or not healthy; empty documents otherwise. Returns the pause before the next
    /// probe of unhealthy components: a quarter of the time since these documents last changed.
    pub(super) fn recheck(&mut self, open: Documents, now: Instant) -> Duration {
        if !open.names_changed_since(&self.open).is_empty() {
            self.open_changed = self.last;
        }
        self.open = open;
        (now.duration_since(self.open_changed) / 4).clamp(RECHECK, LONGEST_RECHECK)
    }

    /// Returns the documents of the last call of [`Self::recheck`].
    pub(super) fn open(&self) -> &Documents {
        &self.open
    }

    /// Returns the earliest time of the next pass after a component recovered.
    pub(super) fn after_recovery(&self, next: NextTurn) -> Instant {
        next.earliest.max(self.last + RECHECK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: PassResult =
        PassResult::Passed { effects: 0, failures: 0, saved: false, texts_wait: false, turns_wait: false };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_waiting_cluster_is_observed_less_and_less_often_until_something_happens() {
        let now = Instant::now();
        let mut schedule = ClusterSchedule::new(now);
        let looks: Vec<Duration> = (0..12).map(|_| schedule.handle(IDLE, now).look_at - now).collect();
        assert!(looks.windows(2).all(|pair| pair[1] == (pair[0] * 2).min(LONGEST_LOOK)), "{looks:?}");
        assert_eq!(looks.last(), Some(&LONGEST_LOOK));
        let effect = PassResult::Passed { effects: 1, failures: 0, saved: true, texts_wait: false, turns_wait: false };
        let next = schedule.handle(effect, now);
        assert!(!next.is_idle);
        assert_eq!((next.look_at - now, next.earliest), (LOOK, now));
    }

    #[test]
    fn a_cluster_whose_replicas_wait_for_their_turns_is_observed_at_short_intervals() {
        let start = Instant::now();
        let mut schedule = ClusterSchedule::new(start);
        let waits = PassResult::Passed { effects: 0, failures: 0, saved: false, texts_wait: false, turns_wait: true };
        for _ in 0..5 {
            schedule.handle(IDLE, start);
        }
        assert_eq!(schedule.handle(waits, start).look_at, start + LOOK);
        assert_eq!(schedule.handle(waits, start + seconds(1)).look_at, start + LOOK, "an event postpones nothing");
        assert_eq!(schedule.handle(PassResult::Skipped, start + seconds(1)).look_at, start + LOOK);
        assert_eq!(schedule.handle(waits, start + LOOK).look_at, start + LOOK * 2);
        assert_eq!(schedule.handle(IDLE, start + LOOK).look_at, start + LOOK + LONGEST_LOOK);
    }

    #[test]
    fn a_failed_pass_is_retried_after_a_pause_and_a_skipped_one_at_its_event() {
        let now = Instant::now();
        let mut schedule = ClusterSchedule::new(now);
        let failed = schedule.handle(PassResult::Failed, now);
        assert!(!failed.is_idle && failed.earliest > now);
        let skipped = schedule.handle(PassResult::Skipped, now);
        assert!(skipped.is_idle && skipped.earliest == now);
    }

    #[test]
    fn texts_wait_after_a_save_but_not_for_ever() {
        let start = Instant::now();
        let mut schedule = ClusterSchedule::new(start);
        assert_eq!(schedule.texts(start), TextDelay { may_wait: true, saved_recently: false });
        let saved = PassResult::Passed { effects: 0, failures: 0, saved: true, texts_wait: true, turns_wait: false };
        assert_eq!(schedule.handle(saved, start).texts_at, Some(start + TEXTS));
        assert!(schedule.texts(start + seconds(4)).saved_recently);
        assert!(!schedule.texts(start + seconds(5)).saved_recently);
        let waits = PassResult::Passed { effects: 0, failures: 0, saved: false, texts_wait: true, turns_wait: false };
        schedule.handle(waits, start + seconds(20));
        assert!(schedule.texts(start + seconds(29)).may_wait, "since the first of them");
        assert!(!schedule.texts(start + seconds(30)).may_wait);
        schedule.handle(IDLE, start + seconds(31));
        assert!(schedule.texts(start + seconds(90)).may_wait, "none wait any more");
    }

    #[test]
    fn unhealthy_components_are_probed_less_often_the_longer_nothing_changes() {
        let start = Instant::now();
        let mut schedule = ClusterSchedule::new(start);
        schedule.handle(IDLE, start);
        assert_eq!(schedule.recheck(Documents::default(), start), RECHECK);
        assert_eq!(schedule.recheck(Documents::default(), start + seconds(8)), seconds(2));
        assert_eq!(schedule.recheck(Documents::default(), start + seconds(600)), LONGEST_RECHECK);
        let next = schedule.handle(IDLE, start + seconds(600));
        assert_eq!(schedule.after_recovery(next), start + seconds(600) + RECHECK);
    }
}
