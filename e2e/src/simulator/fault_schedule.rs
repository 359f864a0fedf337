//! How bad it is: which faults come, and how often.

use std::{collections::BTreeSet, time::Duration};

use keelway_api::{jiff::SignedDuration, name::HypervisorName};
use keelway_hypervisor_agent::layout::FILES;
use tokio::time::Instant;

use super::{
    fault::{Cell, FaultPoint, InjectedFault, impossible, target_cell},
    machine::Reachability,
    random::Random,
    state::SimulationState,
};

/// The faults of one run.
pub(super) struct Weather {
    /// Nothing goes wrong.
    pub(super) calm: bool,
    enabled: Vec<InjectedFault>,
    /// One effect in so many goes wrong.
    rate: u32,
    /// A cell that this run is for, and how often its step goes well before.
    target: Option<(Cell, u64)>,
    pub(super) aim: Cell,
}

impl Weather {
    /// Some of the faults, so that runs differ; one of them is aimed at one step, so that each cell of the table gets its turn.
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
    /// What goes wrong with this step.
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

    /// The fault took place.
    pub(super) fn record_fault(&mut self, cell: Cell, at: &str) {
        if self.weather.target.is_some_and(|(aim, _)| aim == cell) {
            self.weather.target = None;
        }
        self.count_fault(cell, at);
    }

    /// Something happens to this machine, or where it cannot, to another one; says to which.
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
        let Some(found) = self.machines.get_mut(machine) else { return false };
        match fault {
            InjectedFault::Unreachable => found.reach = Reachability::Off { until },
            InjectedFault::Hung => found.reach = Reachability::Hangs { until },
            InjectedFault::DiskFull => found.full_until = Some(until),
            InjectedFault::Rebooted => found.reboot(until, loses_track),
            InjectedFault::Emptied => {
                // A member of a store that lost its data is not replaced: its cluster is given up in the end.
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

    /// Somebody edits, adds, replaces or removes files that pods read.
    fn tamper(&mut self, machine: &HypervisorName) -> bool {
        let Some(found) = self.machines.get(machine) else { return false };
        let Some(path) = self.random.pick(found.disk.read_by_pods()) else { return false };
        // Where what was changed is taken away before anybody looks, nothing tells what a program was started with.
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

    /// Things that happen by themselves, between steps.
    pub(super) fn advance(&mut self) {
        self.end_timed_out_programs(Duration::from_secs(20));
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

    /// Where the run is for a step that only follows a crash or a tampering, there is one.
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

    /// Somebody else's process comes or goes.
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
