//! How bad it is: which faults come, and how often.

use std::{collections::BTreeSet, time::Duration};

use keelway_api::{jiff::SignedDuration, name::HypervisorName};
use keelway_hypervisor_agent::layout::FILES;
use tokio::time::Instant;

use super::{
    fault::{Cell, Fault, Step, aim_of, impossible},
    machine::Reach,
    random::Random,
    world::World,
};

/// The faults of one run.
pub(super) struct Weather {
    /// Nothing goes wrong.
    pub(super) calm: bool,
    enabled: Vec<Fault>,
    /// One effect in so many goes wrong.
    rate: u32,
    /// A cell that this run is for, and how often its step goes well before.
    target: Option<(Cell, u64)>,
    pub(super) aim: Cell,
}

impl Weather {
    /// Some of the faults, so that runs differ; one of them is aimed at one step, so that each cell of the table gets its turn.
    pub(super) fn new(random: &mut Random, seed: u64) -> Self {
        let aim = aim_of(seed);
        let enabled: BTreeSet<Fault> = (0..random.count(0, 6)).filter_map(|_| random.pick(Fault::ALL)).collect();
        let before = if random.once_in(2) { 0 } else { random.between(0, 4) };
        Self {
            calm: false,
            enabled: enabled.into_iter().collect(),
            rate: random.count(15, 120),
            target: Some((aim, before)),
            aim,
        }
    }
}

impl World {
    /// What goes wrong with this step.
    pub(super) fn fault_at(&mut self, step: Step) -> Option<Fault> {
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
        let fault = self.random.once_in(rate).then(|| self.random.pick(enabled)).flatten()?;
        impossible((fault, step)).is_none().then_some(fault)
    }

    /// The fault took place.
    pub(super) fn took_place(&mut self, cell: Cell, at: &str) {
        if self.weather.target.is_some_and(|(aim, _)| aim == cell) {
            self.weather.target = None;
        }
        self.hit(cell, at);
    }

    /// Something happens to this machine, or where it cannot, to another one; says to which.
    pub(super) fn strike(&mut self, fault: Fault, at: &HypervisorName) -> Option<HypervisorName> {
        if self.strike_at(fault, at) {
            return Some(at.clone());
        }
        let others: Vec<HypervisorName> = self.machines.keys().filter(|other| *other != at).cloned().collect();
        let from = self.random.pick(0..others.len())?;
        (0..others.len())
            .map(|step| others[(from + step) % others.len()].clone())
            .find(|other| self.strike_at(fault, other))
    }

    fn strike_at(&mut self, fault: Fault, machine: &HypervisorName) -> bool {
        let until = Instant::now() + self.random.millis(500, 9_000);
        let loses_track = self.random.once_in(3);
        let Some(found) = self.machines.get_mut(machine) else { return false };
        match fault {
            Fault::Unreachable => found.reach = Reach::Off { until },
            Fault::Hung => found.reach = Reach::Hangs { until },
            Fault::DiskFull => found.full_until = Some(until),
            Fault::Rebooted => found.reboot(until, loses_track),
            Fault::Emptied => {
                // A member of a store that lost its data is not replaced: its cluster is given up in the end.
                if found.strangers.owner.is_some() || (found.disk.has_members() && !loses_track) {
                    return false;
                }
                found.empty(until);
            }
            Fault::Crashed => return self.crash(machine),
            Fault::Tampered => return self.tamper(machine),
            Fault::ClockJumped => {
                let hour = SignedDuration::from_hours(1);
                let by = if self.random.once_in(2) { hour } else { -hour };
                self.jump(by);
            }
            Fault::Edited => self.edit(),
            Fault::Removed => return self.remove_document(),
            Fault::Restored => return self.restore_document(),
            Fault::Doubled => return self.double_document(),
            Fault::Stale => {
                self.uses_old_documents = self.old_documents().is_some();
                return self.uses_old_documents;
            }
            Fault::RequestLost
            | Fault::ReplyLost
            | Fault::Repeated
            | Fault::Late
            | Fault::CutOff
            | Fault::DiesBefore
            | Fault::DiesAfter => return false,
        }
        true
    }

    fn crash(&mut self, machine: &HypervisorName) -> bool {
        let Some(found) = self.machines.get(machine) else { return false };
        let ids: Vec<String> = found.runtime.processes().map(|(kept, _)| kept.state.id.clone()).collect();
        let Some(id) = self.random.pick(ids) else { return false };
        self.tell(format!("{machine} container {id} crashes"));
        let code = if self.random.once_in(2) { 2 } else { super::runtime::KILLED };
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
        self.tell(format!("{machine} somebody changes {path} ({how})"));
        let Some(found) = self.machines.get_mut(machine) else { return false };
        let directory = path.split_once(&format!("/{FILES}/")).map(|(pod, _)| format!("{pod}/{FILES}"));
        match (how, directory) {
            (0, _) => found.disk.overwrite(&path),
            (1, _) => found.disk.stray_beside(&path),
            (2, _) => found.disk.replace_by_directory(&path),
            (3, Some(directory)) => found.disk.remove(&directory),
            (_, _) => found.disk.remove(&path),
        }
        true
    }

    /// Things that happen by themselves, between steps.
    pub(super) fn pass_a_moment(&mut self) {
        self.end_the_impatient(Duration::from_secs(20));
        if self.weather.calm || self.pass.stale {
            return;
        }
        let enabled = self.weather.enabled.clone();
        if let Some(machine) = self.random.pick(self.machines.keys().cloned().collect::<Vec<_>>()) {
            if self.random.once_in(6)
                && let Some(fault) = self.random.pick(enabled)
                && let Some(struck) = self.strike(fault, &machine)
            {
                self.counts.faults += 1;
                self.tell(format!("FAULT {fault:?} of {struck}"));
            }
            if self.random.once_in(20) {
                self.take_a_port(&machine);
            }
            if self.random.once_in(4) {
                self.crash_for(&machine);
            }
        }
    }

    /// Where the run is for a step that only follows a crash or a tampering, there is one.
    fn crash_for(&mut self, machine: &HypervisorName) {
        let Some(((_, step), _)) = self.weather.target else { return };
        if step == Step::RemoveContainer {
            self.crash(machine);
        }
        let Some(found) = self.machines.get(machine).filter(|_| step == Step::RemovePath) else { return };
        if let Some(path) = self.random.pick(found.disk.read_by_pods()) {
            self.tell(format!("{machine} somebody puts a stray beside {path}"));
            if let Some(found) = self.machines.get_mut(machine) {
                found.disk.stray_beside(&path);
            }
        }
    }

    /// Somebody else's process comes or goes.
    fn take_a_port(&mut self, machine: &HypervisorName) {
        let port = u16::try_from(self.random.between(20_000, 20_020)).unwrap_or_default();
        let Some(found) = self.machines.get_mut(machine) else { return };
        let held = found
            .runtime
            .processes()
            .any(|(_, process)| process.program.listens().iter().any(|address| address.port() == port));
        if !found.strangers.ports.remove(&port) && !held {
            found.strangers.ports.insert(port);
            self.tell(format!("{machine} somebody listens on {port}"));
        }
    }
}
