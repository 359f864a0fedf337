//! The search for an order that explains a history.

use std::{collections::BTreeSet, time::Duration};

use super::{Contradiction, EffectEvidence, HistoryError, ObjectAction, TimedAction};

/// The most configurations that a search visits.
const MOST_CONFIGURATIONS: usize = 100_000;

/// The operations of a history.
pub(super) struct Search<'a, A: ObjectAction> {
    /// Operations that took effect, ordered by their requests.
    completed: Vec<CompletedAction<'a, A>>,
    /// Operations that may have taken effect, and on whose effect the result of another one may depend. Of equal actions, the one that was requested
    /// first: a client that repeats a failed deletion makes hundreds, and an object is deleted once.
    failed: Vec<&'a TimedAction<A>>,
}

/// An operation that took effect between its request and its response.
struct CompletedAction<'a, A> {
    invoked: Duration,
    returned: Duration,
    action: &'a A,
}

/// Which operations have taken effect, and the state after them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration<S> {
    /// All completed operations before this one have taken effect.
    first_open: usize,
    /// Completed operations after it that have taken effect.
    ahead: BTreeSet<usize>,
    /// Failed operations that have taken effect.
    failed: BTreeSet<usize>,
    state: S,
}

impl<'a, A: ObjectAction> Search<'a, A> {
    pub(super) fn new(history: &'a [TimedAction<A>]) -> Self {
        let complete = |TimedAction { invoked, returned, action }: &'a TimedAction<A>| {
            Some(CompletedAction { invoked: *invoked, returned: (*returned)?, action })
        };
        let answered: Vec<_> = history.iter().filter_map(complete).collect();
        let (mut completed, mut failed) = (Vec::new(), Vec::new());
        let mut unanswered: Vec<_> = history.iter().filter(|one| one.returned.is_none()).collect();
        unanswered.sort_by_key(|one| one.invoked);
        for one in unanswered {
            match evidence(one, &answered) {
                // Whatever depends on it is explained without it.
                None | Some((EffectEvidence::Nothing, _)) => {}
                Some((EffectEvidence::Possible, _)) => {
                    let is_known = failed.iter().any(|known: &&TimedAction<A>| known.action == one.action);
                    failed.extend((!is_known).then_some(one));
                }
                Some((EffectEvidence::Certain, returned)) => {
                    completed.push(CompletedAction { invoked: one.invoked, returned, action: &one.action });
                }
            }
        }
        completed.extend(answered);
        completed.sort_by_key(|done| (done.invoked, done.returned));
        Self { completed, failed }
    }

    pub(super) fn run(&self) -> Result<usize, HistoryError> {
        let mut farthest = Configuration::default();
        let mut stack = vec![farthest.clone()];
        let mut visited = BTreeSet::new();
        while let Some(at) = stack.pop() {
            if at.first_open == self.completed.len() {
                return Ok(visited.len());
            }
            if visited.contains(&at) {
                continue;
            }
            if visited.len() == MOST_CONFIGURATIONS {
                let configurations = visited.len();
                return Err(HistoryError::Undecided { configurations, farthest: self.contradiction(&farthest) });
            }
            if at.explained() > farthest.explained() {
                farthest = at.clone();
            }
            stack.extend(self.successors(&at));
            visited.insert(at);
        }
        Err(HistoryError::NotLinearizable(self.contradiction(&farthest)))
    }

    /// Returns what each operation that can be next leads to, the most likely last: the one whose response arrived first. A failed one is
    /// tried after all others, and first the one that this response may show.
    fn successors(&self, at: &Configuration<A::State>) -> Vec<Configuration<A::State>> {
        let (open, limit) = self.open(at);
        let failed =
            self.failed.iter().enumerate().filter(|(index, one)| one.invoked <= limit && !at.failed.contains(index));
        let failed = failed.filter_map(|(index, one)| Some((index, one.action.apply(&at.state)?)));
        // Without an effect, it may as well come later.
        let mut failed: Vec<_> = failed.filter(|(_, state)| *state != at.state).collect();
        let first = open.iter().map(|index| &self.completed[*index]).min_by_key(|done| done.returned);
        failed.sort_by_key(|(index, _)| first.map(|done| self.failed[*index].action.effect_in(done.action)));
        let mut next: Vec<_> = failed.into_iter().map(|(index, state)| at.with_failed(index, state)).collect();
        let mut completed: Vec<_> = open
            .into_iter()
            .filter_map(|index| {
                Some((self.completed[index].returned, index, self.completed[index].action.apply(&at.state)?))
            })
            .collect();
        completed.sort_by_key(|(returned, index, _)| std::cmp::Reverse((*returned, *index)));
        next.extend(completed.into_iter().map(|(_, index, state)| at.with_completed(index, state)));
        next
    }

    /// Returns the completed operations that can be next: no other one ended before their requests. Also returns until when the request of the
    /// next operation was sent.
    fn open(&self, at: &Configuration<A::State>) -> (Vec<usize>, Duration) {
        let (mut open, mut limit) = (Vec::new(), Duration::MAX);
        for (index, done) in self.completed.iter().enumerate().skip(at.first_open) {
            if done.invoked > limit {
                break;
            }
            if !at.ahead.contains(&index) {
                limit = limit.min(done.returned);
                open.push(index);
            }
        }
        (open, limit)
    }

    fn contradiction(&self, at: &Configuration<A::State>) -> Contradiction {
        let text = |index: usize| {
            let CompletedAction { invoked, returned, action } = &self.completed[index];
            format!("{:>8} to {:>8} ms: {action:?}", invoked.as_millis(), returned.as_millis())
        };
        Contradiction {
            explained: at.explained(),
            completed: self.completed.len(),
            state: format!("{:?}", at.state),
            open: self.open(at).0.into_iter().map(text).collect(),
        }
    }
}

/// Returns the strongest evidence for the effect of a failed operation, and the first response that shows it.
fn evidence<A: ObjectAction>(
    failed: &TimedAction<A>,
    answered: &[CompletedAction<'_, A>],
) -> Option<(EffectEvidence, Duration)> {
    let shown = answered.iter().map(|done| (failed.action.effect_in(done.action), done.returned));
    shown.max_by_key(|(evidence, returned)| (*evidence, std::cmp::Reverse(*returned)))
}

impl<S: Default> Default for Configuration<S> {
    fn default() -> Self {
        Self { first_open: 0, ahead: BTreeSet::new(), failed: BTreeSet::new(), state: S::default() }
    }
}

impl<S: Clone> Configuration<S> {
    fn explained(&self) -> usize {
        self.first_open + self.ahead.len()
    }

    fn with_completed(&self, index: usize, state: S) -> Self {
        let Self { mut first_open, mut ahead, failed, .. } = self.clone();
        ahead.insert(index);
        while ahead.remove(&first_open) {
            first_open += 1;
        }
        Self { first_open, ahead, failed, state }
    }

    fn with_failed(&self, index: usize, state: S) -> Self {
        let mut next = Self { state, ..self.clone() };
        next.failed.insert(index);
        next
    }
}
