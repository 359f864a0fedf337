//! The objects whose histories are checked.

use std::collections::BTreeSet;

use super::{EffectEvidence, ObjectAction};

/// An action on a register: one object that is written and read. No two writes have the same number: a repeat has another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegisterAction {
    /// The number was written.
    Write(u64),
    /// This number was read. None: the object did not exist.
    Read(Option<u64>),
}

/// An action on a list: objects that are created, deleted and listed. No two objects have the same number: a repeat creates another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListAction {
    /// The object was created.
    Create(u64),
    /// The object was deleted.
    Delete(u64),
    /// The object did not exist when it was to be deleted.
    NotFound(u64),
    /// These objects were listed.
    List(BTreeSet<u64>),
}

impl ObjectAction for RegisterAction {
    type State = Option<u64>;

    fn apply(&self, state: &Self::State) -> Option<Self::State> {
        match self {
            Self::Write(number) => Some(Some(*number)),
            Self::Read(number) => (number == state).then_some(*state),
        }
    }

    fn effect_in(&self, other: &Self) -> EffectEvidence {
        match (self, other) {
            (Self::Write(written), Self::Read(Some(read))) if written == read => EffectEvidence::Certain,
            _ => EffectEvidence::Nothing,
        }
    }
}

impl ObjectAction for ListAction {
    type State = BTreeSet<u64>;

    fn apply(&self, state: &Self::State) -> Option<Self::State> {
        let mut next = state.clone();
        match self {
            Self::Create(number) => {
                next.insert(*number);
                Some(next)
            }
            Self::Delete(number) => next.remove(number).then_some(next),
            Self::NotFound(number) => (!state.contains(number)).then_some(next),
            Self::List(found) => (found == state).then_some(next),
        }
    }

    fn effect_in(&self, other: &Self) -> EffectEvidence {
        match (self, other) {
            (Self::Create(created), Self::Delete(deleted)) if created == deleted => EffectEvidence::Certain,
            (Self::Create(created), Self::List(found)) if found.contains(created) => EffectEvidence::Certain,
            (Self::Delete(deleted), Self::NotFound(missing)) if deleted == missing => EffectEvidence::Possible,
            (Self::Delete(deleted), Self::List(found)) if !found.contains(deleted) => EffectEvidence::Possible,
            _ => EffectEvidence::Nothing,
        }
    }
}
