//! Which object is planned next: decisions in the order of arrival, and reports with a pause, so that several reports about an object are written once.
//! No IO.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use keelway_fleet::PlacementLink;

/// How long the report about an object waits for others. Agents report once in such a period, too.
pub const ROUND: Duration = Duration::from_millis(250);
/// One of so many objects is one with a report if both kinds wait.
const SHARE: u64 = 4;

/// Why an object is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlanCause {
    /// Its Placement may change: the object, a policy or a cluster changed.
    Decision,
    /// A cluster reported, or a document of the controller changed.
    Report,
}

/// The objects that wait to be planned. Each waits once.
#[derive(Debug, Default)]
pub struct PlanQueue {
    waiting: BTreeMap<PlacementLink, PlanCause>,
    decisions: VecDeque<PlacementLink>,
    /// With the time at which each is due.
    reports: VecDeque<(Instant, PlacementLink)>,
    planned: u64,
}

impl PlanQueue {
    /// Adds an object, unless it waits for the same cause or for a decision already.
    pub fn add(&mut self, link: PlacementLink, cause: PlanCause, now: Instant) {
        if self.waiting.get(&link).is_some_and(|waits| *waits <= cause) {
            return;
        }
        self.waiting.insert(link.clone(), cause);
        match cause {
            PlanCause::Decision => self.decisions.push_back(link),
            PlanCause::Report => self.reports.push_back((now + ROUND, link)),
        }
    }

    /// Removes and returns the next object that is due.
    pub fn next(&mut self, now: Instant) -> Option<PlacementLink> {
        let is_turn_of_reports = (self.planned + 1).is_multiple_of(SHARE);
        let next = if is_turn_of_reports {
            self.next_report(now).or_else(|| self.next_decision())
        } else {
            self.next_decision().or_else(|| self.next_report(now))
        }?;
        self.planned += 1;
        self.waiting.remove(&next);
        Some(next)
    }

    fn next_decision(&mut self) -> Option<PlacementLink> {
        self.forget_planned();
        self.decisions.pop_front()
    }

    fn next_report(&mut self, now: Instant) -> Option<PlacementLink> {
        self.forget_planned();
        let is_due = self.reports.front().is_some_and(|(due, _)| *due <= now);
        if is_due { self.reports.pop_front().map(|(_, link)| link) } else { None }
    }

    /// Drops entries at the front whose object was planned meanwhile, or waits for a decision instead.
    fn forget_planned(&mut self) {
        let waits = |link: &PlacementLink, cause| self.waiting.get(link) == Some(&cause);
        while self.decisions.front().is_some_and(|link| !waits(link, PlanCause::Decision)) {
            self.decisions.pop_front();
        }
        while self.reports.front().is_some_and(|(_, link)| !waits(link, PlanCause::Report)) {
            self.reports.pop_front();
        }
    }

    /// Returns when the next object is due.
    pub fn next_due(&mut self, now: Instant) -> Option<Instant> {
        self.forget_planned();
        if self.decisions.is_empty() { self.reports.front().map(|(due, _)| *due) } else { Some(now) }
    }

    /// Returns the number of objects that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no object waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
