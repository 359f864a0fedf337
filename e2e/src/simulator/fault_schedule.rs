//! The schedule of faults: which ones occur, and how often.

use std::{collections::BTreeSet, time::Duration};

use keelway_api::{jiff::SignedDuration, name::HypervisorName};
use keelway_machine::layout::FILES;
use tokio::time::Instant;

use super::{
    fault::{Cell, FaultPoint, InjectedFault, impossible, target_cell},
    machine::Reachability,
    random::Random,
    state::SimulationState,
};

/// The faults of one run.
pub(super) struct Weather {
    /// No faults occur.
    pub(super) calm: bool,
    enabled: Vec<InjectedFault>,
    /// One in this many effects has a fault.
    rate: u32,
    /// The combination that this run aims at, and how often its step succeeds before that.
    target: Option<(Cell, u64)>,
    pub(super) aim: Cell,
}

impl Weather {
    /// Enables some of the faults, so that runs differ, and aims one fault at one step, so that every combination occurs.
    pub(super) fn new(random: &mut Random, seed: u64) -> Self {
        let aim = target_cell(seed);
        let enabled: BTreeSet<InjectedFault> =
            (0..random.count(0, 6)).filter_map(|_| random.pick(InjectedFault::ALL)).collect();
        let before = if random.one_in(2) { 0 } else { random.between(0, 4) };
        Self {
            calm: false,
            enabled: enabled.into_iter().collect(),
            rate: random.count(15, 120),
            target: Some((aim, before)),
            aim,
        }
    }
}

impl SimulationState {
    /// Returns the fault of this step, if there is one.
    pub(super) fn fault_at(&mut self, step: FaultPoint) -> Option<InjectedFault> {
        if self.weather.calm || self.pass.stale {
            return None;
        }
        if let Some(((fault, at), before)) = self.weather.target.as_mut().filter(|((_, at), _)| *at == step) {
            debug_assert_eq!(*at, step);
            if *before > 0 {
                *before -= 1;
            } else {
                return Some(*fault);
            }
        }
        let rate = if step.looks() { self.weather.rate * 5 } else { self.weather.rate };
        let enabled = self.weather.enabled.clone();
        let fault = self.random.one_in(rate).then(|| self.random.pick(enabled)).flatten()?;
        impossible((fault, step)).is_none().then_some(fault)
    }

    /// Records that the fault occurred.
    pub(super) fn record_fault(&mut self, cell: Cell, at: &str) {
        if self.weather.target.is_some_and(|(aim, _)| aim == cell) {
            self.weather.target = None;
        }
        self.count_fault(cell, at);
    }

    /// Injects a fault into this machine or, if that is impossible, into another one. Returns the affected machine.
    pub(super) fn inject(&mut self, fault: InjectedFault, at: &HypervisorName) -> Option<HypervisorName> {
        if self.inject_at(fault, at) {
            return Some(at.clone());
        }
        let others: Vec<HypervisorName> = self.machines.keys().filter(|other| *other != at).cloned().collect();
        let from = self.random.pick(0..others.len())?;
        (0..others.len())
            .map(|step| others[(from + step) % others.len()].clone())
            .find(|other| self.inject_at(fault, other))
    }

    fn inject_at(&mut self, fault: InjectedFault, machine: &HypervisorName) -> bool {
        let until = Instant::now() + self.random.millis(500, 9_000);
        let loses_track = self.random.one_in(3);
        let is_of_machine = matches!(
            fault,
            InjectedFault::Unreachable
                | InjectedFault::Hung
                | InjectedFault::DiskFull
                | InjectedFault::Rebooted
                | InjectedFault::Emptied
        );
        if is_of_machine && self.losses.lost.contains(machine) {
            return false;
        }
        let Some(found) = self.machines.get_mut(machine) else { return false };
        match fault {
            InjectedFault::Unreachable => found.reach = Reachability::Off { until },
            InjectedFault::Hung => found.reach = Reachability::Hangs { until },
            InjectedFault::DiskFull => found.full_until = Some(until),
            InjectedFault::Rebooted => found.reboot(until, loses_track),
            InjectedFault::Emptied => {
                // An etcd member that lost its data is not replaced. Its cluster is deleted at the end of the run.
                if found.strangers.owner.is_some() || (found.disk.has_members() && !loses_track) {
                    return false;
                }
                found.empty(until);
            }
            InjectedFault::Crashed => return self.crash(machine),
            InjectedFault::Tampered => return self.tamper(machine),
            InjectedFault::ClockJumped => {
                let hour = SignedDuration::from_hours(1);
                let by = if self.random.one_in(2) { hour } else { -hour };
                self.jump(by);
            }
            InjectedFault::Edited => self.edit(),
            InjectedFault::Removed => return self.remove_document(),
            InjectedFault::Restored => return self.restore_document(),
            InjectedFault::Doubled => return self.double_document(),
            InjectedFault::Stale => {
                self.uses_old_documents = self.old_documents().is_some();
                return self.uses_old_documents;
            }
            InjectedFault::RequestLost
            | InjectedFault::ReplyLost
            | InjectedFault::Repeated
            | InjectedFault::Late
            | InjectedFault::CutOff
            | InjectedFault::DiesBefore
            | InjectedFault::DiesAfter => return false,
        }
        true
    }

    fn crash(&mut self, machine: &HypervisorName) -> bool {
        let Some(found) = self.machines.get(machine) else { return false };
        let ids: Vec<String> = found.runtime.processes().map(|(kept, _)| kept.state.id.clone()).collect();
        let Some(id) = self.random.pick(ids) else { return false };
        self.trace_line(format!("{machine} container {id} crashes"));
        let code = if self.random.one_in(2) { 2 } else { super::runtime::KILLED };
        if let Some(found) = self.machines.get_mut(machine) {
            found.runtime.end(|kept| kept.state.id == id, code);
        }
        true
    }

    /// Edits, adds, replaces or removes files that pods read.
    fn tamper(&mut self, machine: &HypervisorName) -> bool {
        let Some(found) = self.machines.get(machine) else { return false };
        let Some(path) = self.random.pick(found.disk.read_by_pods()) else { return false };
        // If the changed file were removed before the next observation, nothing would show that the program had started with it.
        if found.disk.is_overwritten(&path) {
            return false;
        }
        let how = self.random.between(0, 4);
        self.trace_line(format!("{machine} somebody changes {path} ({how})"));
        let Some(found) = self.machines.get_mut(machine) else { return false };
        let directory = path.split_once(&format!("/{FILES}/")).map(|(pod, _)| format!("{pod}/{FILES}"));
        match (how, directory) {
            (0, _) => found.disk.overwrite(&path),
            (1, _) => found.disk.add_stray_file(&path),
            (2, _) => found.disk.replace_by_directory(&path),
            (3, Some(directory)) => found.disk.remove(&directory),
            (_, _) => found.disk.remove(&path),
        }
        true
    }

    /// Injects faults that occur between steps.
    pub(super) fn advance(&mut self) {
        self.end_timed_out_programs(Duration::from_secs(20));
        self.advance_stores();
        self.advance_workers();
        self.maybe_roll_out();
        self.advance_losses();
        self.advance_restores();
        self.advance_sleeps();
        self.check_rollouts();
        if self.weather.calm || self.pass.stale {
            return;
        }
        let enabled = self.weather.enabled.clone();
        if let Some(machine) = self.random.pick(self.machines.keys().cloned().collect::<Vec<_>>()) {
            if self.random.one_in(6)
                && let Some(fault) = self.random.pick(enabled)
                && let Some(struck) = self.inject(fault, &machine)
            {
                self.counts.faults += 1;
                self.trace_line(format!("FAULT {fault:?} of {struck}"));
            }
            if self.random.one_in(20) {
                self.toggle_foreign_port(&machine);
            }
            if self.random.one_in(4) {
                self.crash_for(&machine);
            }
        }
    }

    /// If the run aims at a step that only follows a crash or a changed file, causes one.
    fn crash_for(&mut self, machine: &HypervisorName) {
        let Some(((_, step), _)) = self.weather.target else { return };
        if step == FaultPoint::RemoveContainer {
            self.crash(machine);
        }
        let Some(found) = self.machines.get(machine).filter(|_| step == FaultPoint::RemovePath) else { return };
        if let Some(path) = self.random.pick(found.disk.read_by_pods()) {
            self.trace_line(format!("{machine} somebody puts a stray beside {path}"));
            if let Some(found) = self.machines.get_mut(machine) {
                found.disk.add_stray_file(&path);
            }
        }
    }

    /// Starts or ends a process that does not belong to Keelway.
    fn toggle_foreign_port(&mut self, machine: &HypervisorName) {
        let port = u16::try_from(self.random.between(20_000, 20_020)).unwrap_or_default();
        let Some(found) = self.machines.get_mut(machine) else { return };
        let held = found
            .runtime
            .processes()
            .any(|(_, process)| process.program.listens().iter().any(|address| address.port() == port));
        if !found.strangers.ports.remove(&port) && !held {
            found.strangers.ports.insert(port);
            self.trace_line(format!("{machine} somebody listens on {port}"));
        }
    }
}
