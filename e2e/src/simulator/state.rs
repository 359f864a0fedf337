//! Everything outside the driver: machines, components, the clock, and the store of documents.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use keelway_api::{
    Documents, Secret, Shared,
    documents::SecretName,
    jiff::{SignedDuration, Timestamp},
    machine::{MachineConfig, ServerAdmin},
    name::{ClusterId, HypervisorName, PodName},
    role::Role,
};
use keelway_planner::{PassObservation, store_model::StoreModel};
use tokio::time::Instant;

use super::{
    bug::Bug,
    fault::{Cell, FaultTable},
    fault_schedule::Weather,
    losses::SimulatedLosses,
    machine::SimulatedHypervisor,
    person::{ManualEdit, PersonActionCounts},
    program::{SimulatedMember, SimulatedProgram},
    random::Random,
    restores::SimulatedRestores,
    rollouts::SimulatedRollouts,
    runtime::{SimulatedContainer, SimulatedProcess},
    sleeps::SimulatedSleeps,
    space::SimulatedClients,
};

/// The start of simulated time: 2026-01-01T00:00:00Z.
const BEGINNING: i64 = 1_767_225_600;

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRule {
    /// The text of the rule.
    pub rule: &'static str,
    /// The object that breaks it.
    pub what: String,
}

/// The state of the simulation.
pub(super) struct SimulationState {
    pub(super) random: Random,
    pub(super) machines: BTreeMap<HypervisorName, SimulatedHypervisor>,
    /// The documents in the store.
    pub(super) saved: Documents,
    /// The digest of the bindings in each cluster's etcd.
    pub(super) bindings: BTreeMap<ClusterId, String>,
    /// What the members of each store agreed on.
    pub(super) stores: BTreeMap<ClusterId, StoreModel>,
    /// What clients write to stores.
    pub(super) clients: SimulatedClients,
    /// What people roll out.
    pub(super) rollouts: SimulatedRollouts,
    /// Machines that are lost for good.
    pub(super) losses: SimulatedLosses,
    /// Snapshots that people restore.
    pub(super) restores: SimulatedRestores,
    /// Clusters that people put to sleep.
    pub(super) sleeps: SimulatedSleeps,
    /// etcd members that started at least once.
    pub(super) started: BTreeSet<PodName>,
    pub(super) weather: Weather,
    pub(super) bug: Option<Bug>,
    pub(super) pass: Pass,
    pub(super) counts: SimulationCounts,
    pub(super) table: FaultTable,
    pub(super) broken_rule: Option<BrokenRule>,
    /// Whether the process of the driver has ended.
    pub(super) dead: bool,
    /// What the driver last reported that it waits for.
    pub(super) waiting: Vec<String>,
    /// Documents that a planted bug did not save.
    pub(super) unsaved: Option<Documents>,
    /// Whether the current save is cut off.
    pub(super) cuts_save: bool,
    /// Earlier documents of the store, the newest last.
    pub(super) history: Vec<Documents>,
    /// Whether the next load returns old documents.
    pub(super) uses_old_documents: bool,
    /// Documents that a person wrote in place of the saved ones.
    pub(super) manual_edit: Option<ManualEdit>,
    /// Hypervisors whose documents a person removed or replaced by older copies.
    pub(super) replaced: BTreeSet<HypervisorName>,
    /// Authorities and keys of clusters that a person removed.
    pub(super) missed: BTreeMap<SecretName, Shared<Secret>>,
    pub(super) actions: PersonActionCounts,
    trace: Vec<String>,
    began: Instant,
    skew: SignedDuration,
}

/// The state of the current pass.
#[derive(Default)]
pub(super) struct Pass {
    /// The documents that the pass loaded.
    pub(super) loaded: Documents,
    /// When it loaded them.
    pub(super) loaded_at: Timestamp,
    /// The documents that the pass loaded or saved last, without later changes by people.
    pub(super) kept: Documents,
    /// Whether its documents are old ones, which are saved to a separate file.
    pub(super) stale: bool,
    /// The unaltered observation of the pass.
    pub(super) seen: PassObservation,
    /// The config of each machine that the saved documents determine.
    pub(super) configs: Option<BTreeMap<HypervisorName, MachineConfig>>,
    /// The first replica of each role that the pass ended.
    pub(super) ended: BTreeMap<(ClusterId, Role), PodName>,
    /// The first replica of each role that the pass replaced while all of them were well.
    pub(super) replaced: BTreeMap<(ClusterId, Role), PodName>,
}

/// The numbers of events of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimulationCounts {
    /// The number of passes that started.
    pub passes: u64,
    /// The number of requested effects on machines and in clusters.
    pub effects: u64,
    /// The number of faults.
    pub faults: u64,
}

impl SimulationState {
    pub(super) fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = Random::new(seed);
        let weather = Weather::new(&mut random, seed);
        let losses = SimulatedLosses::new(seed);
        Self {
            random,
            machines: BTreeMap::new(),
            saved: Documents::default(),
            bindings: BTreeMap::new(),
            stores: BTreeMap::new(),
            clients: SimulatedClients::new(seed),
            rollouts: SimulatedRollouts::new(seed),
            losses,
            restores: SimulatedRestores::new(seed),
            sleeps: SimulatedSleeps::new(seed),
            started: BTreeSet::new(),
            weather,
            bug,
            pass: Pass::default(),
            counts: SimulationCounts::default(),
            table: FaultTable::default(),
            broken_rule: None,
            dead: false,
            waiting: Vec::new(),
            unsaved: None,
            cuts_save: false,
            history: Vec::new(),
            uses_old_documents: false,
            manual_edit: None,
            replaced: BTreeSet::new(),
            missed: BTreeMap::new(),
            actions: PersonActionCounts::default(),
            trace: Vec::new(),
            began: Instant::now(),
            skew: SignedDuration::ZERO,
        }
    }

    /// Returns the simulated wall-clock time.
    pub(super) fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.began.elapsed()).unwrap();
        Timestamp::from_second(BEGINNING).unwrap() + passed + self.skew
    }

    pub(super) fn jump(&mut self, by: SignedDuration) {
        self.skew += by;
    }

    /// Adds a line to the trace.
    pub(super) fn trace_line(&mut self, line: impl AsRef<str>) {
        let at = self.began.elapsed();
        self.trace.push(format!("{:>8.3} {}", at.as_secs_f64(), line.as_ref()));
    }

    pub(super) fn trace(&self) -> &[String] {
        &self.trace
    }

    /// Records a broken rule. Only the first one counts.
    pub(super) fn report_violation(&mut self, rule: &'static str, what: impl Into<String>) {
        let what = what.into();
        self.trace_line(format!("BROKEN {rule}: {what}"));
        self.broken_rule.get_or_insert(BrokenRule { rule, what });
    }

    pub(super) fn count_fault(&mut self, cell: Cell, at: &str) {
        self.table.count(cell);
        self.counts.faults += 1;
        self.trace_line(format!("FAULT {:?} during {:?} on {at}", cell.0, cell.1));
    }

    /// Starts the program of a container. A program that cannot run exits immediately.
    pub(super) fn start(&mut self, machine: &HypervisorName, id: &str) {
        let Some(found) = self.machines.get(machine) else { return };
        let Some(kept) = found.runtime.containers.iter().find(|kept| kept.state.id == id).cloned() else { return };
        let files = found.disk.contents(&kept.pod);
        let program = SimulatedProgram::of(&kept.made_from, |name| found.disk.read(&kept.pod, name));
        let program = program.and_then(|program| {
            self.check_ports(machine, &kept, &program)?;
            match &program {
                SimulatedProgram::Etcd(member) => self.start_member(machine, &kept, member)?,
                SimulatedProgram::ApiServer { .. }
                | SimulatedProgram::Controller { .. }
                | SimulatedProgram::Proxy { .. }
                | SimulatedProgram::Responder { .. }
                | SimulatedProgram::ClusterController { .. }
                | SimulatedProgram::Gateway { .. }
                | SimulatedProgram::Egress { .. } => {}
            }
            Ok(self.as_its_data_says(machine, &kept, program))
        });
        let up_at = Instant::now() + self.random.millis(50, 1500);
        let outcome = match program {
            Ok(program) => Some(SimulatedProcess { program, files: files.into(), since: Instant::now(), up_at }),
            Err(why) => {
                self.trace_line(format!("{machine} {} ends at once: {why}", kept.pod));
                None
            }
        };
        let Some(found) = self.machines.get_mut(machine) else { return };
        if let Some(kept) = found.runtime.containers.iter_mut().find(|kept| kept.state.id == id) {
            kept.state.phase = match outcome {
                Some(_) => keelway_api::machine::ContainerPhase::Running,
                None => keelway_api::machine::ContainerPhase::Exited { code: 1 },
            };
            kept.process = outcome;
        }
    }

    /// Returns the program with the cluster of its data: the data of a member overrides its flags.
    fn as_its_data_says(
        &self,
        machine: &HypervisorName,
        kept: &SimulatedContainer,
        program: SimulatedProgram,
    ) -> SimulatedProgram {
        let found = self.machines.get(machine).and_then(|found| found.disk.members.get(&kept.pod));
        match (program, found) {
            (SimulatedProgram::Etcd(member), Some(before)) => SimulatedProgram::Etcd(SimulatedMember {
                cluster: before.cluster.clone(),
                initial: before.initial.clone(),
                id: before.id,
                ..member
            }),
            (program, _) => program,
        }
    }

    fn check_ports(
        &mut self,
        machine: &HypervisorName,
        kept: &SimulatedContainer,
        program: &SimulatedProgram,
    ) -> Result<(), String> {
        let Some(found) = self.machines.get(machine) else { return Ok(()) };
        let ports: BTreeSet<u16> = program.listens().iter().map(SocketAddr::port).collect();
        if let Some(port) = found.strangers.ports.intersection(&ports).next() {
            return Err(format!("somebody else listens on {port}"));
        }
        let holds = |process: &SimulatedProcess| process.program.listens().iter().any(|at| ports.contains(&at.port()));
        let holder =
            found.runtime.processes().find(|(_, process)| holds(process)).map(|(holder, _)| holder.pod.clone());
        let Some(holder) = holder else { return Ok(()) };
        let what = format!("{holder} and {} on {machine}", kept.pod);
        self.report_violation("no two processes hold the same port of a machine", what);
        Err("address in use".to_owned())
    }

    /// Returns the process that listens on this address, if other machines can reach it.
    fn listener(&self, at: SocketAddr) -> Option<&SimulatedProcess> {
        let now = Instant::now();
        let machines = self.machines.values().filter(|machine| machine.private == at.ip() && machine.on_network(now));
        machines
            .flat_map(|machine| machine.runtime.processes())
            .map(|(_, process)| process)
            .find(|process| process.program.listens().contains(&at))
    }

    /// Returns whether a process passes its health check.
    pub(super) fn is_well(&self, process: &SimulatedProcess) -> bool {
        let reached = |at: &SocketAddr| self.listener(*at).is_some_and(|other| self.is_well(other));
        // No pass waits for an auxiliary program, and the main program does not need it.
        let is_up = !process.program.is_main() || process.up_at <= Instant::now();
        is_up
            && match &process.program {
                SimulatedProgram::Etcd(member) => self.is_member_well(member),
                SimulatedProgram::ApiServer { stores, .. } => {
                    let found: Vec<_> = stores.iter().filter_map(|at| self.listener(*at)).collect();
                    found.iter().any(|member| self.is_well(member) && self.serves_requests(member))
                }
                SimulatedProgram::Controller { server, .. } => reached(server),
                SimulatedProgram::Proxy { servers, .. } => {
                    let mut serving = servers.values().filter(|server| server.admin == ServerAdmin::Serves);
                    serving.any(|server| reached(&server.address))
                }
                // These programs have everything that they need on disk.
                SimulatedProgram::Responder { .. }
                | SimulatedProgram::ClusterController { .. }
                | SimulatedProgram::Gateway { .. }
                | SimulatedProgram::Egress { .. } => true,
            }
    }

    /// Returns the process that listens on this address of one machine.
    pub(super) fn process_at(&self, machine: &HypervisorName, at: SocketAddr) -> Option<&SimulatedProcess> {
        let found = self.machines.get(machine).filter(|found| found.on_network(Instant::now()))?;
        found.runtime.processes().map(|(_, process)| process).find(|process| process.program.listens().contains(&at))
    }

    /// Ends programs that have waited too long for their dependencies, as those of Kubernetes exit.
    pub(super) fn end_timed_out_programs(&mut self, patience: Duration) {
        let now = Instant::now();
        let mut ending = Vec::new();
        for (name, machine) in &self.machines {
            for (kept, process) in machine.runtime.processes() {
                let waits =
                    matches!(process.program, SimulatedProgram::ApiServer { .. } | SimulatedProgram::Controller { .. });
                if waits && now.duration_since(process.since) > patience && !self.is_well(process) {
                    ending.push((name.clone(), kept.state.id.clone(), kept.pod.clone()));
                }
            }
        }
        for (machine, id, pod) in ending {
            self.trace_line(format!("{machine} {pod} gives up"));
            if let Some(found) = self.machines.get_mut(&machine) {
                found.runtime.end(|kept| kept.state.id == id, 1);
            }
        }
    }
}
