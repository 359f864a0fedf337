//! The history of a load, by object.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::linearizability::{ListAction, ObjectAction, RegisterAction, TimedAction, check};

/// All attempts of a load.
#[derive(Default)]
pub(super) struct RecordedHistory {
    pub(super) registers: BTreeMap<u64, Vec<TimedAction<RegisterAction>>>,
    pub(super) list: Vec<TimedAction<ListAction>>,
}

impl RecordedHistory {
    pub(super) fn add_to_list(&mut self, action: TimedAction<ListAction>) {
        self.list.push(action);
    }

    /// Returns the number of acknowledged writes, creations and deletions.
    pub(super) fn count_writes(&self) -> usize {
        let written = acknowledged(self.registers.values().flatten());
        let written = written.filter(|action| matches!(action, RegisterAction::Write(_))).count();
        let is_change = |action: &&ListAction| matches!(action, ListAction::Create(_) | ListAction::Delete(_));
        written + acknowledged(&self.list).filter(is_change).count()
    }

    /// Returns the longest time between two responses, to whichever request.
    pub(super) fn longest_outage(&self) -> Duration {
        let of_registers = self.registers.values().flatten().filter_map(|one| one.returned);
        let mut returned: Vec<Duration> = of_registers.chain(self.list.iter().filter_map(|one| one.returned)).collect();
        returned.sort_unstable();
        let next = returned.iter().skip(1);
        returned.iter().zip(next).map(|(before, after)| after.saturating_sub(*before)).max().unwrap_or_default()
    }

    /// Fails the test unless the history of each object is linearizable.
    pub(super) fn assert_linearizable(&self) {
        assert_eq!(self.lost(), [0; 0], "these were created, and nobody deleted them");
        for (register, history) in &self.registers {
            is_linearizable(&format!("register {register}"), history);
        }
        is_linearizable("the list", &self.list);
    }

    /// Returns the objects that were created and that the last list lacks, although no request deleted them.
    fn lost(&self) -> Vec<u64> {
        let deleted = self.list.iter().filter_map(|one| match one.action {
            ListAction::Delete(number) | ListAction::NotFound(number) => Some(number),
            ListAction::Create(_) | ListAction::List(_) => None,
        });
        let deleted: BTreeSet<u64> = deleted.collect();
        let created = acknowledged(&self.list).filter_map(|action| match action {
            ListAction::Create(number) => Some(*number),
            ListAction::Delete(_) | ListAction::NotFound(_) | ListAction::List(_) => None,
        });
        let last = acknowledged(&self.list).filter_map(|action| match action {
            ListAction::List(found) => Some(found),
            ListAction::Create(_) | ListAction::Delete(_) | ListAction::NotFound(_) => None,
        });
        let last = last.last().unwrap();
        created.filter(|number| !deleted.contains(number) && !last.contains(number)).collect()
    }
}

fn acknowledged<'a, A: 'a>(history: impl IntoIterator<Item = &'a TimedAction<A>>) -> impl Iterator<Item = &'a A> {
    history.into_iter().filter(|one| one.returned.is_some()).map(|one| &one.action)
}

fn is_linearizable<A: ObjectAction>(object: &str, history: &[TimedAction<A>]) {
    if let Err(error) = check(history) {
        panic!("{object}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<A>(returned: Option<u64>, action: A) -> TimedAction<A> {
        TimedAction { invoked: Duration::ZERO, returned: returned.map(Duration::from_secs), action }
    }

    #[test]
    fn an_outage_ends_with_the_next_response_to_any_request() {
        let mut history = RecordedHistory::default();
        assert_eq!(history.longest_outage(), Duration::ZERO);
        history.add_to_list(at(Some(12), ListAction::Create(1)));
        history.add_to_list(at(None, ListAction::Create(2)));
        history.registers.insert(0, vec![at(Some(1), RegisterAction::Write(3)), at(Some(5), RegisterAction::Write(4))]);
        assert_eq!(history.longest_outage(), Duration::from_secs(7));
    }
}
