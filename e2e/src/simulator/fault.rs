//! Faults, and the steps that they can hit.

use std::{collections::BTreeMap, fmt};

use keelway_machine::action::{Action, PodAction};

/// A fault during a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InjectedFault {
    /// The request is lost. The caller gets an error.
    RequestLost,
    /// The request is executed. The caller gets an error.
    ReplyLost,
    /// The request is executed twice.
    Repeated,
    /// The request is executed after the caller has given up.
    Late,
    /// The machine is off the network for a while and continues to run.
    Unreachable,
    /// The runtime of the machine hangs for a while. Containers continue to run.
    Hung,
    /// The disk of the machine is full for a while.
    DiskFull,
    /// The machine reboots: all processes end, and all files stay.
    Rebooted,
    /// The machine loses its disk.
    Emptied,
    /// A process on the machine ends.
    Crashed,
    /// Files of Keelway on the machine are changed by hand.
    Tampered,
    /// The clock jumps by an hour.
    ClockJumped,
    /// A person changes the documents.
    Edited,
    /// A person uses old documents again.
    Stale,
    /// A person removes a document.
    Removed,
    /// A person replaces a document by an older copy.
    Restored,
    /// A document occurs twice.
    Doubled,
    /// Only the first changes of a save are made.
    CutOff,
    /// The driver is killed before the step starts.
    DiesBefore,
    /// The driver is killed before it learns the result of the step.
    DiesAfter,
}

impl InjectedFault {
    /// All faults.
    pub const ALL: [Self; 20] = [
        Self::RequestLost,
        Self::ReplyLost,
        Self::Repeated,
        Self::Late,
        Self::Unreachable,
        Self::Hung,
        Self::DiskFull,
        Self::Rebooted,
        Self::Emptied,
        Self::Crashed,
        Self::Tampered,
        Self::ClockJumped,
        Self::Edited,
        Self::Stale,
        Self::Removed,
        Self::Restored,
        Self::Doubled,
        Self::CutOff,
        Self::DiesBefore,
        Self::DiesAfter,
    ];
}

/// A step of a pass that a fault can hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "they are the methods of traits and the kinds of actions, under their names")]
pub enum FaultPoint {
    Load,
    Save,
    Observe,
    AskHealth,
    AskBindings,
    Bind,
    Order,
    WriteOwner,
    EnsureImage,
    MakeDirectories,
    MarkData,
    CopyData,
    WriteFile,
    RemovePath,
    StopContainer,
    RemoveContainer,
    StopSandbox,
    RemoveSandbox,
    CreateSandbox,
    CreateContainer,
    StartContainer,
    ChangeServer,
    RemoveTree,
    ForgetCluster,
    RecordApplied,
    Leave,
    Adopt,
}

impl FaultPoint {
    /// All steps.
    pub const ALL: [Self; 27] = [
        Self::Load,
        Self::Save,
        Self::Observe,
        Self::AskHealth,
        Self::AskBindings,
        Self::Bind,
        Self::Order,
        Self::WriteOwner,
        Self::EnsureImage,
        Self::MakeDirectories,
        Self::MarkData,
        Self::CopyData,
        Self::WriteFile,
        Self::RemovePath,
        Self::StopContainer,
        Self::RemoveContainer,
        Self::StopSandbox,
        Self::RemoveSandbox,
        Self::CreateSandbox,
        Self::CreateContainer,
        Self::StartContainer,
        Self::ChangeServer,
        Self::RemoveTree,
        Self::ForgetCluster,
        Self::RecordApplied,
        Self::Leave,
        Self::Adopt,
    ];

    /// Returns the step of an action.
    pub(super) fn of(action: &Action) -> Self {
        match action {
            Action::WriteOwner(_) => Self::WriteOwner,
            Action::Pod(_, action) => Self::of_pod(action),
            Action::ForgetCluster(_) => Self::ForgetCluster,
            Action::RecordApplied(_) => Self::RecordApplied,
            Action::Leave => Self::Leave,
        }
    }

    pub(super) fn of_pod(action: &PodAction) -> Self {
        match action {
            PodAction::EnsureImage(_) => Self::EnsureImage,
            PodAction::MakeDirectories(_) => Self::MakeDirectories,
            PodAction::MarkData { .. } => Self::MarkData,
            PodAction::CopyData { .. } => Self::CopyData,
            PodAction::WriteFile { .. } => Self::WriteFile,
            PodAction::RemovePath { .. } => Self::RemovePath,
            PodAction::StopContainer { .. } => Self::StopContainer,
            PodAction::RemoveContainer { .. } => Self::RemoveContainer,
            PodAction::StopSandbox { .. } => Self::StopSandbox,
            PodAction::RemoveSandbox { .. } => Self::RemoveSandbox,
            PodAction::CreateSandbox(_) => Self::CreateSandbox,
            PodAction::CreateContainer(_) => Self::CreateContainer,
            PodAction::StartContainer { .. } => Self::StartContainer,
            PodAction::ChangeServer { .. } => Self::ChangeServer,
            PodAction::RemoveTree => Self::RemoveTree,
        }
    }

    /// Returns whether the step only reads. There are many more such steps than effects.
    pub(super) fn looks(self) -> bool {
        matches!(self, Self::Load | Self::Observe | Self::AskHealth | Self::AskBindings)
    }

    /// Returns whether the step occurs only if something is removed.
    pub(super) fn needs_removal(self) -> bool {
        matches!(self, Self::RemoveTree | Self::ForgetCluster | Self::Leave)
    }
}

/// A fault and the step that it hits.
pub type Cell = (InjectedFault, FaultPoint);

/// Returns the reason that a fault cannot hit a step, or `None` if it can.
#[must_use]
pub fn impossible((fault, step): Cell) -> Option<&'static str> {
    let of_store = matches!(step, FaultPoint::Load | FaultPoint::Save);
    if fault == InjectedFault::Late && of_store {
        Some("a store is waited for as long as it takes")
    } else if fault == InjectedFault::Stale && step != FaultPoint::Load {
        Some("documents are read by the load alone")
    } else if fault == InjectedFault::CutOff && step != FaultPoint::Save {
        Some("it is one change")
    } else if step == FaultPoint::CopyData {
        Some("few runs rebuild a store, so not every fault hits this step: lib/planner/tests/rebuild.rs does that")
    } else {
        None
    }
}

/// Returns all possible combinations of a fault and a step.
#[must_use]
pub fn cells() -> Vec<Cell> {
    let all = InjectedFault::ALL.into_iter().flat_map(|fault| FaultPoint::ALL.map(|step| (fault, step)));
    all.filter(|cell| impossible(*cell).is_none()).collect()
}

/// Returns the combination that a run aims at. Consecutive seeds cover all combinations.
pub(super) fn target_cell(seed: u64) -> Cell {
    let all = cells();
    all[usize::try_from(seed % all.len() as u64).unwrap_or_default()]
}

/// Returns the seeds of runs that aim at one combination.
pub fn seeds_for(cell: Cell) -> impl Iterator<Item = u64> {
    (0..).filter(move |seed| target_cell(*seed) == cell)
}

/// The number of times that each fault hit each step.
#[derive(Debug, Clone, Default)]
pub struct FaultTable(BTreeMap<Cell, u64>);

impl FaultTable {
    pub(super) fn count(&mut self, cell: Cell) {
        *self.0.entry(cell).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (cell, times) in &other.0 {
            *self.0.entry(*cell).or_default() += times;
        }
    }

    /// Returns the possible combinations that did not occur.
    #[must_use]
    pub fn empty(&self) -> Vec<Cell> {
        cells().into_iter().filter(|cell| !self.0.contains_key(cell)).collect()
    }
}

impl fmt::Display for FaultTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:16}", "")?;
        for fault in InjectedFault::ALL {
            write!(f, "{:>12}", format!("{fault:?}"))?;
        }
        for step in FaultPoint::ALL {
            write!(f, "\n{:16}", format!("{step:?}"))?;
            for fault in InjectedFault::ALL {
                let times = self.0.get(&(fault, step)).copied().unwrap_or_default();
                let shown = if impossible((fault, step)).is_some() { "-".to_owned() } else { times.to_string() };
                write!(f, "{shown:>12}")?;
            }
        }
        for cell in InjectedFault::ALL.into_iter().flat_map(|fault| FaultPoint::ALL.map(|step| (fault, step))) {
            if let Some(why) = impossible(cell) {
                write!(f, "\n- {:?} of {:?}: {why}", cell.0, cell.1)?;
            }
        }
        Ok(())
    }
}
