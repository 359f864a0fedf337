//! The state of the path to one peer. Pure: time is an argument.
//!
//! Both ends probe each other every second, and each probe contains whether its sender hears the other end. A path is direct while both ends hear
//! each other.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// How long one candidate is tried.
const CANDIDATE_FOR: Duration = Duration::from_millis(1500);
/// How often each candidate is tried, and the fewest attempts. A NAT lets a datagram in once its own peer has sent one.
const ROUNDS: u32 = 3;
const FEWEST_ATTEMPTS: u32 = 4;
/// A peer is heard for this long after its last probe. Packets use a gateway again within five seconds: after this time and the next turn.
const HEARD_FOR: Duration = Duration::from_millis(3500);
/// The first pause after a failure. Each further failure doubles it.
const FIRST_BACKOFF: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(300);
/// A message of the peer ends a pause that is at least this old.
const SHORTEST_BACKOFF: Duration = Duration::from_secs(5);
/// A path that was direct for this long has no failures any more.
const PROVEN_AFTER: Duration = Duration::from_secs(60);

/// The state of a path in `node status` and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DirectPathKind {
    /// The worker tries the peer's candidates. A gateway carries all packets.
    Probing,
    /// Packets go directly to the peer.
    Direct,
    /// The candidates failed. The worker tries them again later.
    Backoff,
}

impl DirectPathKind {
    /// All kinds.
    pub(crate) const ALL: [Self; 3] = [Self::Probing, Self::Direct, Self::Backoff];
}

impl fmt::Display for DirectPathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Probing => "probing",
            Self::Direct => "direct",
            Self::Backoff => "backoff",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathPhase {
    Probing { since: Instant },
    Direct { since: Instant },
    Backoff { since: Instant, until: Instant },
}

/// The last probe of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReceivedProbe {
    at: Instant,
    /// Whether the peer hears this end.
    is_mutual: bool,
}

/// The state of the path to one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathState {
    phase: PathPhase,
    probe: Option<ReceivedProbe>,
    failures: u32,
    received_bytes: u64,
}

/// What a worker observes of a peer, besides its probes.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathObservation {
    pub(super) candidates: usize,
    /// The bytes that the direct device has received from the peer.
    pub(super) received_bytes: u64,
}

impl PathState {
    pub(super) fn new(now: Instant) -> Self {
        Self { phase: PathPhase::Probing { since: now }, probe: None, failures: 0, received_bytes: 0 }
    }

    /// Records a probe of the peer. `is_mutual`: the peer hears this end.
    pub(super) fn note_probe(&mut self, is_mutual: bool, now: Instant) {
        if self.sends_probes() {
            self.probe = Some(ReceivedProbe { at: now, is_mutual });
        }
    }

    /// Returns the state at this time.
    pub(super) fn after(self, seen: PathObservation, now: Instant) -> Self {
        let (is_mutual, has_message) = (self.is_mutual(now), seen.received_bytes > self.received_bytes);
        let state = Self { received_bytes: seen.received_bytes, ..self };
        match state.phase {
            PathPhase::Probing { .. } if is_mutual => Self { phase: PathPhase::Direct { since: now }, ..state },
            PathPhase::Probing { since } if now >= since + patience(seen.candidates) => state.failed(now),
            PathPhase::Direct { since } if !is_mutual && now >= since + PROVEN_AFTER => {
                Self { failures: 0, ..state }.failed(now)
            }
            PathPhase::Direct { .. } if !is_mutual => state.failed(now),
            PathPhase::Backoff { since, until } if now >= until || has_message && now >= since + SHORTEST_BACKOFF => {
                Self { phase: PathPhase::Probing { since: now }, ..state }
            }
            PathPhase::Probing { .. } | PathPhase::Direct { .. } | PathPhase::Backoff { .. } => state,
        }
    }

    fn failed(self, now: Instant) -> Self {
        let pause = FIRST_BACKOFF * 2_u32.pow(self.failures.min(5));
        let phase = PathPhase::Backoff { since: now, until: now + pause.min(LONGEST_BACKOFF) };
        Self { phase, probe: None, failures: self.failures.saturating_add(1), ..self }
    }

    /// Returns the number of the current attempt to find the peer at one of its candidates. `None`: it is heard, or not looked for.
    pub(super) fn attempt(&self, now: Instant) -> Option<usize> {
        let PathPhase::Probing { since } = self.phase else { return None };
        let attempts = now.saturating_duration_since(since).as_millis() / CANDIDATE_FOR.as_millis();
        (!self.hears(now)).then_some(attempts.try_into().unwrap_or(usize::MAX))
    }

    /// Whether the peer's probes arrive.
    pub(super) fn hears(&self, now: Instant) -> bool {
        self.probe.is_some_and(|probe| now.saturating_duration_since(probe.at) < HEARD_FOR)
    }

    fn is_mutual(&self, now: Instant) -> bool {
        self.hears(now) && self.probe.is_some_and(|probe| probe.is_mutual)
    }

    pub(super) fn sends_probes(&self) -> bool {
        match self.phase {
            PathPhase::Probing { .. } | PathPhase::Direct { .. } => true,
            PathPhase::Backoff { .. } => false,
        }
    }

    pub(super) fn kind(&self) -> DirectPathKind {
        match self.phase {
            PathPhase::Probing { .. } => DirectPathKind::Probing,
            PathPhase::Direct { .. } => DirectPathKind::Direct,
            PathPhase::Backoff { .. } => DirectPathKind::Backoff,
        }
    }
}

/// How long all candidates are tried.
fn patience(candidates: usize) -> Duration {
    let attempts = ROUNDS.saturating_mul(u32::try_from(candidates).unwrap_or(u32::MAX)).max(FEWEST_ATTEMPTS);
    CANDIDATE_FOR.saturating_mul(attempts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_millis(500);
    const SECOND: Duration = Duration::from_secs(1);
    const ONE: PathObservation = PathObservation { candidates: 1, received_bytes: 0 };

    /// Two ends and the two directions between them.
    struct TwoEnds {
        now: Instant,
        ends: [PathState; 2],
        /// Whether probes of each end arrive.
        arrives: [bool; 2],
        received: [u64; 2],
    }

    impl TwoEnds {
        fn new(arrives: [bool; 2]) -> Self {
            let now = Instant::now();
            Self { now, ends: [PathState::new(now), PathState::new(now)], arrives, received: [0; 2] }
        }

        /// Lets each end take a turn, and probe every second turn and when it loses the path.
        fn run(&mut self, time: Duration) {
            for turn in 0..time.as_millis() / TURN.as_millis() {
                self.now += TURN;
                for (from, to) in [(0, 1), (1, 0)] {
                    let seen = PathObservation { candidates: 1, received_bytes: self.received[from] };
                    let before = self.ends[from].kind();
                    self.ends[from] = self.ends[from].clone().after(seen, self.now);
                    let is_lost = before == DirectPathKind::Direct && self.ends[from].kind() == DirectPathKind::Backoff;
                    let is_due = turn % 2 == 0 && self.ends[from].sends_probes();
                    if self.arrives[from] && (is_due || is_lost) {
                        self.received[to] += 100;
                        let is_mutual = self.ends[from].hears(self.now);
                        self.ends[to].note_probe(is_mutual, self.now);
                    }
                }
            }
        }

        fn kinds(&self) -> [DirectPathKind; 2] {
            [self.ends[0].kind(), self.ends[1].kind()]
        }
    }

    #[test]
    fn a_path_is_direct_once_both_ends_hear_each_other() {
        let mut both = TwoEnds::new([true, true]);
        both.run(SECOND * 3);
        assert_eq!(both.kinds(), [DirectPathKind::Direct; 2]);
        both.run(SECOND * 600);
        assert_eq!(both.kinds(), [DirectPathKind::Direct; 2]);
    }

    #[test]
    fn a_path_is_never_direct_if_one_end_hears_nothing() {
        for arrives in [[true, false], [false, true], [false, false]] {
            let mut both = TwoEnds::new(arrives);
            for _ in 0..600 {
                both.run(SECOND);
                assert!(!both.kinds().contains(&DirectPathKind::Direct), "{arrives:?}");
            }
        }
    }

    #[test]
    fn after_a_cut_both_ends_use_a_gateway_within_five_seconds_and_the_path_again_later() {
        for arrives in [[true, false], [false, true], [false, false]] {
            for moment in 0..4 {
                let mut both = TwoEnds::new([true, true]);
                both.run(SECOND * 10 + TURN * moment);
                both.arrives = arrives;
                both.run(Duration::from_millis(4500));
                assert!(!both.kinds().contains(&DirectPathKind::Direct), "{arrives:?} {moment}");
                both.arrives = [true, true];
                both.run(SECOND * 25);
                assert_eq!(both.kinds(), [DirectPathKind::Direct; 2], "{arrives:?} {moment}");
            }
        }
    }

    #[test]
    fn two_lost_probes_lose_no_path() {
        let mut both = TwoEnds::new([true, true]);
        both.run(SECOND * 10);
        both.arrives = [false, false];
        both.run(SECOND * 2);
        both.arrives = [true, true];
        both.run(SECOND);
        assert_eq!(both.kinds(), [DirectPathKind::Direct; 2]);
    }

    #[test]
    fn failures_lengthen_the_pause_until_a_path_has_proven_itself() {
        let start = Instant::now();
        let mut state = PathState::new(start);
        let (mut now, mut pauses) = (start, vec![]);
        for _ in 0..8 {
            while state.sends_probes() {
                now += TURN;
                state = state.after(ONE, now);
            }
            let began = now;
            while !state.sends_probes() {
                now += TURN;
                state = state.after(ONE, now);
            }
            pauses.push((now - began).as_secs());
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300, 300]);

        let proven = |for_: Duration| {
            let mut state = state.clone();
            state.note_probe(true, now);
            let mut state = state.after(ONE, now);
            assert_eq!(state.kind(), DirectPathKind::Direct);
            state.note_probe(false, now + for_);
            let lost = state.after(ONE, now + for_);
            assert_eq!(lost.kind(), DirectPathKind::Backoff);
            lost.failures
        };
        assert_eq!((proven(SECOND * 59), proven(SECOND * 60)), (9, 1));
    }

    #[test]
    fn a_message_ends_a_pause_that_is_not_new() {
        let now = Instant::now();
        let paused = PathState::new(now).failed(now);
        let message = PathObservation { received_bytes: 148, ..ONE };
        assert_eq!(paused.clone().after(message, now + SECOND).kind(), DirectPathKind::Backoff);
        assert_eq!(paused.clone().after(message, now + SHORTEST_BACKOFF).kind(), DirectPathKind::Probing);
        assert_eq!(paused.after(ONE, now + SHORTEST_BACKOFF).kind(), DirectPathKind::Backoff);
    }

    #[test]
    fn each_candidate_is_tried_in_turn_until_the_peer_is_heard() {
        let now = Instant::now();
        let mut state = PathState::new(now);
        let attempts = |state: &PathState| [0, 1, 2, 3, 4].map(|second| state.attempt(now + SECOND * second));
        assert_eq!(attempts(&state), [Some(0), Some(0), Some(1), Some(2), Some(2)]);
        state.note_probe(false, now);
        assert_eq!(attempts(&state), [None, None, None, None, Some(2)]);
        assert_eq!(state.failed(now).attempt(now), None);
    }
}
