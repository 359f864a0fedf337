//! What goes wrong, and during which step.

use std::{collections::BTreeMap, fmt};

use keelway_hypervisor_agent::action::{Action, PodAction};

/// Something that goes wrong while a step is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InjectedFault {
    /// It is never asked for, and who asked is told that it failed.
    RequestLost,
    /// It is done, and who asked is told that it failed.
    ReplyLost,
    /// It is done twice.
    Repeated,
    /// It is done after who asked gave up.
    Late,
    /// The machine is off the network for a while, and runs on.
    Unreachable,
    /// The machine's runtime hangs for a while; what it runs runs on.
    Hung,
    /// The machine's disk is full for a while.
    DiskFull,
    /// The machine reboots: no process is left, all files are.
    Rebooted,
    /// The machine loses its disk.
    Emptied,
    /// A process on the machine ends.
    Crashed,
    /// Somebody changes our files on the machine.
    Tampered,
    /// The clock jumps by an hour.
    ClockJumped,
    /// A person changes the documents.
    Edited,
    /// A person uses old documents again.
    Stale,
    /// A person takes a document away.
    Removed,
    /// A person puts an older copy of a document in its place.
    Restored,
    /// A document is there twice.
    Doubled,
    /// Only the first of its changes are made.
    CutOff,
    /// The driver dies before the step is begun.
    DiesBefore,
    /// The driver dies before it hears of the step's end.
    DiesAfter,
}

impl InjectedFault {
    /// Every fault.
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

/// A step of a pass that can be hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "they are the methods of traits and the kinds of actions, under their names")]
pub enum FaultPoint {
    Load,
    Save,
    Observe,
    AskHealth,
    AskBindings,
    Bind,
    WriteOwner,
    EnsureImage,
    MakeDirectories,
    MarkData,
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
    /// Every step.
    pub const ALL: [Self; 25] = [
        Self::Load,
        Self::Save,
        Self::Observe,
        Self::AskHealth,
        Self::AskBindings,
        Self::Bind,
        Self::WriteOwner,
        Self::EnsureImage,
        Self::MakeDirectories,
        Self::MarkData,
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

    /// The step that an action is.
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

    /// Whether it only looks. There are many more of these than of effects.
    pub(super) fn looks(self) -> bool {
        matches!(self, Self::Load | Self::Observe | Self::AskHealth | Self::AskBindings)
    }

    /// Whether it happens only where something is taken away.
    pub(super) fn needs_removal(self) -> bool {
        matches!(self, Self::RemoveTree | Self::ForgetCluster | Self::Leave)
    }
}

/// A fault and the step that it hits.
pub type Cell = (InjectedFault, FaultPoint);

/// Why a fault cannot hit a step, where it cannot.
#[must_use]
pub fn impossible((fault, step): Cell) -> Option<&'static str> {
    let of_store = matches!(step, FaultPoint::Load | FaultPoint::Save);
    if fault == InjectedFault::Late && of_store {
        Some("a store is waited for as long as it takes")
    } else if fault == InjectedFault::Stale && step != FaultPoint::Load {
        Some("documents are read by the load alone")
    } else if fault == InjectedFault::CutOff && step != FaultPoint::Save {
        Some("it is one change")
    } else {
        None
    }
}

/// Every cell that can be hit.
#[must_use]
pub fn cells() -> Vec<Cell> {
    let all = InjectedFault::ALL.into_iter().flat_map(|fault| FaultPoint::ALL.map(|step| (fault, step)));
    all.filter(|cell| impossible(*cell).is_none()).collect()
}

/// The cell that a run is for. Each gets its turn as seeds count up.
pub(super) fn target_cell(seed: u64) -> Cell {
    let all = cells();
    all[usize::try_from(seed % all.len() as u64).unwrap_or_default()]
}

/// The seeds of runs that are for one cell.
pub fn seeds_for(cell: Cell) -> impl Iterator<Item = u64> {
    (0..).filter(move |seed| target_cell(*seed) == cell)
}

/// How often each fault hit each step.
#[derive(Debug, Clone, Default)]
pub struct FaultTable(BTreeMap<Cell, u64>);

impl FaultTable {
    pub(super) fn count(&mut self, cell: Cell) {
        *self.0.entry(cell).or_default() += 1;
    }

    /// Adds what another run counted.
    pub fn add(&mut self, other: &Self) {
        for (cell, times) in &other.0 {
            *self.0.entry(*cell).or_default() += times;
        }
    }

    /// Cells that can be hit and were not.
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
