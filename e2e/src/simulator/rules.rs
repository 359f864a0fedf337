//! The rules that hold at every moment. They are derived from the specification, not from the code that they check.

use std::collections::BTreeSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{
    Cluster, Component, Documents,
    machine::{ContainerPhase, MachineConfig, MachineState, ObservedValue, Start},
    name::{ClusterId, HypervisorName, PodName},
    role::Role,
};
use keelway_machine::action::{Action, PodAction};
use keelway_planner::{ComponentHealth, PassObservation, invariants, machine_configs, refuse};

use super::{
    machine::SimulatedHypervisor, program::SimulatedMember, runtime::SimulatedContainer, state::SimulationState,
};

/// Whether an etcd member that lost its data is recognised and does not start as a new member.
const LOST_DATA_IS_RECOGNISED: bool = true;

/// The roles that requests depend on.
pub(super) const RELIED_ON: [Role; 4] = [Role::Etcd, Role::KubeApiserver, Role::Ingress, Role::Gateway];

/// The prefix of every simulated key.
pub(super) const KEY: &str = "SIMKEY";

/// Returns whether a text contains a key: unchanged, as numbers, or in base64 at any offset.
pub(super) fn shows_a_key(text: &str) -> bool {
    // The marker is repeated in each key, so that it occurs at each offset.
    let coded = ["SIMKEY", "IMKEYS", "MKEYSI"].map(|rotated| STANDARD.encode(rotated));
    text.contains(KEY) || text.contains("83, 73, 77, 75, 69, 89") || coded.iter().any(|coded| text.contains(coded))
}

impl SimulationState {
    /// Checks the rules of documents, at each save and at the end of each pass.
    pub(super) fn check_documents(&mut self, after: &Documents) {
        let found = invariants::check(&self.pass.loaded, after, &self.usable(after));
        for violation in found {
            self.report_violation(violation.invariant, violation.what);
        }
    }

    /// Returns the observation without the machines that refuse configs of these documents. The planner ignores those machines, so nothing on them is
    /// in its way.
    pub(super) fn usable(&self, identified: &Documents) -> PassObservation {
        let mut machines = self.pass.loaded.hypervisors.clone();
        for (name, document) in machines.iter_mut() {
            // A document without an installation gets one before machines are observed.
            let given = identified.hypervisors.get(name).and_then(|given| given.status.as_ref()?.installation.clone());
            let status = document.status.get_or_insert_default();
            status.installation = status.installation.take().or(given);
        }
        let mut seen = self.pass.seen.clone();
        let mut documents = Documents::default();
        documents.hypervisors = machines;
        refuse(&documents, &mut seen);
        seen
    }

    /// Checks the rules of a config and its actions before the first action starts.
    pub(super) fn check_actions(&mut self, machine: &HypervisorName, config: &MachineConfig, actions: &[Action]) {
        let seen = match self.pass.seen.machines.get(machine).map(|seen| &**seen) {
            Some(ObservedValue::Known(state)) => state.clone(),
            Some(ObservedValue::Unreachable { .. }) | None => {
                return self.report_violation("nothing is planned on what was not seen", machine.to_string());
            }
        };
        if self.pass.configs.is_none() {
            self.pass.configs = machine_configs(&self.pass.kept, &self.usable(&self.pass.kept)).ok();
        }
        let saved = self.pass.configs.as_ref().and_then(|configs| configs.get(machine));
        if saved != Some(config) {
            self.report_violation("documents are saved before any effect that relies on them", machine.to_string());
        }
        let for_pods = actions.iter().any(|action| action.pod().is_some()) && !config.pods.is_empty();
        if seen.owner.is_none() && for_pods && !matches!(actions.first(), Some(Action::WriteOwner(_))) {
            self.report_violation("a machine's owner is recorded before anything else", machine.to_string());
        }
        if self.pass.stale && !actions.is_empty() {
            self.report_violation("nothing is done from stale documents", machine.to_string());
        }
        self.check_ends(&seen, config, actions);
        self.check_starts_in_sleep(config, actions);
        for action in actions {
            if shows_a_key(&format!("{action} {action:?}")) {
                self.report_violation("no key is in the words of an action", format!("{machine} {action}"));
            }
        }
    }

    /// Checks the rules of one action at the moment of its execution.
    pub(super) fn check_action(&mut self, machine: &HypervisorName, action: &Action) {
        self.check_data_in_sleep(machine, action);
        let Some(found) = self.machines.get(machine) else { return };
        if found.strangers.owner.is_some() && found.disk.owner == found.strangers.owner {
            self.report_violation("a machine of another installation is never changed", format!("{machine}: {action}"));
            return;
        }
        match action {
            Action::Pod(pod, action) => self.check_pod_action(machine, pod, action),
            Action::ForgetCluster(cluster) => {
                // A new member is placed before its machine has anything of it.
                let state = found.state();
                let wanted = self.saved.components_of(cluster).any(|(pod, component)| {
                    let is_wanted = keeps_files_on(machine, component) && !self.is_deleted(&component.spec.cluster_id);
                    is_wanted && state.holds(pod)
                });
                if wanted {
                    self.report_violation("files of wanted components stay", format!("{machine}: forgets {cluster}"));
                }
            }
            Action::WriteOwner(_) | Action::RecordApplied(_) | Action::Leave => {}
        }
    }

    fn check_pod_action(&mut self, machine: &HypervisorName, pod: &PodName, action: &PodAction) {
        let Some(found) = self.machines.get(machine) else { return };
        if let Some(id) = runtime_id(action).filter(|id| found.strangers.sandboxes.contains(*id)) {
            let what = format!("{machine}: {action} of {id}");
            return self.report_violation("pods of others are never touched", what);
        }
        let has_data = *action == PodAction::RemoveTree && found.state().has_marked_data(pod);
        let outside = match action {
            PodAction::RemovePath { path } | PodAction::MarkData { path } => !path.starts_with(&format!("{pod}/")),
            PodAction::CopyData { from, to } => [from, to].iter().any(|path| !path.starts_with(&format!("{pod}/"))),
            PodAction::MakeDirectories(directories) => {
                let own = |path: &str| path == pod.cluster.as_str() || path.starts_with(&pod.to_string());
                !directories.iter().all(|directory| own(&directory.path))
            }
            PodAction::WriteFile { file, .. } => {
                file.path.starts_with('/') || file.path.split('/').any(|name| name == "..")
            }
            PodAction::StopContainer { .. }
            | PodAction::RemoveContainer { .. }
            | PodAction::StopSandbox { .. }
            | PodAction::RemoveSandbox { .. }
            | PodAction::CreateContainer(_)
            | PodAction::StartContainer { .. } => runtime_id(action).is_some_and(|id| belongs_to_other(found, pod, id)),
            PodAction::EnsureImage(_)
            | PodAction::CreateSandbox(_)
            | PodAction::ChangeServer { .. }
            | PodAction::RemoveTree => false,
        };
        if outside {
            self.report_violation("what is done for a pod is done to that pod", format!("{machine} {pod}: {action}"));
        }
        if has_data && ![&self.saved, &self.pass.kept, &self.pass.loaded].iter().any(|known| orders_removal(known, pod))
        {
            let what = format!("{machine} {pod}");
            self.report_violation("the data of a member is removed by an order in the documents", what);
        }
        let wanted = self.saved.components.get(pod).is_some_and(|component| keeps_files_on(machine, component));
        if *action == PodAction::RemoveTree && wanted && !self.is_deleted(&pod.cluster) {
            let late = !self.weather.calm && !self.started.contains(pod);
            if !late {
                self.report_violation("files of wanted components stay", format!("{machine} {pod}: {action}"));
            }
        }
    }

    pub(super) fn is_deleted(&self, id: &ClusterId) -> bool {
        let cluster = self.saved.clusters.values().find(|cluster| cluster.id() == Some(id));
        cluster.is_none_or(|cluster| cluster.deleted())
    }

    /// Whether the documents of the current pass rebuild the store of a cluster.
    pub(super) fn rebuilds(&self, id: &ClusterId) -> bool {
        let mut clusters = self.pass.kept.clusters.values();
        clusters.any(|cluster| cluster.id() == Some(id) && is_rebuilt(cluster))
    }

    /// Returns the roles of clusters that work and have more than one replica.
    pub(super) fn working(&self) -> BTreeSet<(ClusterId, Role)> {
        let mut working = BTreeSet::new();
        let clusters = self.saved.clusters.values().filter(|cluster| cluster.is_awake() && !is_rebuilt(cluster));
        for id in clusters.filter_map(|cluster| cluster.id()) {
            for role in RELIED_ON {
                if self.replicas(id, role).count() > 1 && self.works(id, role) {
                    working.insert((id.clone(), role));
                }
            }
        }
        working
    }

    pub(super) fn replicas<'a>(&'a self, id: &'a ClusterId, role: Role) -> impl Iterator<Item = &'a PodName> {
        let of_role = self.saved.components_of(id).filter(move |(_, component)| component.spec.role == role);
        of_role.filter(|(_, component)| !component.is_leaving()).map(|(pod, _)| pod)
    }

    fn works(&self, id: &ClusterId, role: Role) -> bool {
        if role == Role::Etcd {
            return self.has_quorum(id);
        }
        let of_role = |pod: &PodName| pod.cluster == *id && role_of(pod) == Some(role);
        let processes = self.machines.values().flat_map(|machine| machine.runtime.processes());
        let mut main = processes.filter(|(kept, process)| of_role(&kept.pod) && process.program.is_main());
        main.any(|(_, process)| self.is_well(process))
    }

    /// Returns whether the pod may be replaced: the current pass has observed that its other replicas work, or that none does, and it has ended none
    /// of them. Faults that hit the others after that observation are not violations.
    pub(super) fn may_be_replaced(&mut self, pod: &PodName) -> bool {
        let Some(role) = role_of(pod) else { return true };
        // No replica of a cluster that sleeps is relied on.
        if self.sleeps_in_pass(&pod.cluster) {
            return true;
        }
        let mut processes = self.machines.values().flat_map(|machine| machine.runtime.processes());
        if !processes.any(|(kept, process)| kept.pod == *pod && process.program.is_main()) {
            return true;
        }
        let ended = self.pass.ended.entry((pod.cluster.clone(), role)).or_insert_with(|| pod.clone()).clone();
        let seen_well = |pod: &PodName| matches!(self.pass.seen.health.get(pod), Some(ComponentHealth::Healthy));
        let mut others = self.replicas(&pod.cluster, role).filter(|other| *other != pod);
        let others_work = if role == Role::Etcd { others.all(seen_well) } else { others.any(seen_well) };
        ended == *pod && (others_work || !self.replicas(&pod.cluster, role).any(seen_well))
    }

    pub(super) fn check_work_goes_on(&mut self, before: &BTreeSet<(ClusterId, Role)>, action: &Action, spared: bool) {
        let Some(pod) = action.pod().filter(|_| !spared) else { return };
        let Some(role) = role_of(pod).filter(|role| before.contains(&(pod.cluster.clone(), *role))) else { return };
        let stays = self.saved.components.get(pod).is_some_and(|component| !component.is_leaving());
        if stays && !self.works(&pod.cluster, role) {
            self.report_violation("what several do goes on while one is replaced", format!("{pod}: {action}"));
        }
    }

    /// Checks that a pod that runs as planned is not ended.
    fn check_ends(&mut self, seen: &MachineState, config: &MachineConfig, actions: &[Action]) {
        let ended: BTreeSet<&PodName> = actions
            .iter()
            .filter(|action| {
                matches!(action, Action::Pod(_, PodAction::StopSandbox { .. } | PodAction::StopContainer { .. }))
            })
            .filter_map(Action::pod)
            .collect();
        for pod in ended {
            let Some(wanted) = config.pods.get(pod) else { continue };
            // A rebuild of its store, or the sleep of its cluster, stops it.
            if matches!(wanted.start, Start::Stopped | Start::Copied(_)) {
                continue;
            }
            let sandboxes = seen.sandboxes.iter().filter(|sandbox| sandbox.pod == *pod).count();
            let all_run = wanted.containers.iter().all(|container| {
                let of_name = seen.containers.iter().filter(|found| found.name == container.name);
                let mut of_pod = of_name.filter(|found| {
                    seen.sandboxes.iter().any(|sandbox| sandbox.id == found.sandbox && sandbox.pod == *pod)
                });
                of_pod.next().is_some_and(|found| found.phase == ContainerPhase::Running) && of_pod.next().is_none()
            });
            if sandboxes == 1 && all_run && !seen.is_interrupted(pod, (wanted, &wanted.digests())) {
                self.report_violation("what runs as it should is left alone", pod.to_string());
            }
        }
    }

    /// Checks that etcd starts only with the members that the documents record.
    pub(super) fn check_birth(&mut self, pod: &PodName, member: &SimulatedMember) {
        // A person may have changed the saved documents meanwhile.
        let of_pod = |documents: &Documents| {
            documents.clusters.values().find(|cluster| cluster.id() == Some(&pod.cluster)).cloned()
        };
        let cluster = of_pod(&self.saved);
        let kept = of_pod(&self.pass.kept).or_else(|| cluster.clone());
        let store = kept.as_ref().and_then(|cluster| cluster.status.as_ref()?.etcd.as_ref());
        let written = store.map(|store| {
            let start = store.members.get(&pod.component).and_then(|member| member.started_with.as_ref());
            start.map_or(&store.initial_cluster, |start| &start.initial_cluster)
        });
        let same = written.is_some_and(|written| written.keys().eq(member.initial.keys()));
        if !same && cluster.is_some() {
            self.report_violation("a store's first members are written down before the first start", pod.to_string());
        }
    }

    /// Records that a member that ran before starts without data.
    pub(super) fn starts_empty(&mut self, pod: &PodName) {
        self.trace_line(format!("{pod} starts with nothing, and ran before"));
        if LOST_DATA_IS_RECOGNISED && !self.is_deleted(&pod.cluster) {
            self.report_violation("a member that lost its data does not start as a new one", pod.to_string());
        }
    }

    /// Checks the rules of a settled fleet.
    pub(super) fn check_rest(&mut self) {
        self.check_sleeps_ended();
        for what in self.missing() {
            self.report_violation("a settled world is as its documents say", what);
        }
        self.check_alarms();
        self.check_rollouts_ended();
        let written = self.saved.write();
        match Documents::read(written.as_bytes()) {
            Ok(read) if read.write() == written => {}
            Ok(_) => self.report_violation("documents are read as they were written", "they differ"),
            Err(faults) => self.report_violation("documents are read as they were written", format!("{faults:?}")),
        }
    }

    /// Returns the differences between the machines and the documents.
    pub(super) fn missing(&self) -> Vec<String> {
        let all = self.machines.iter();
        all.flat_map(|(name, machine)| {
            self.at_rest(name, machine).into_iter().map(move |what| format!("{name}: {what}"))
        })
        .collect()
    }

    fn at_rest(&self, name: &HypervisorName, machine: &SimulatedHypervisor) -> Vec<String> {
        let mut found = Vec::new();
        let here = self.saved.components.iter().filter(|(_, component)| component.spec.hypervisor == *name);
        let wanted: BTreeSet<PodName> = here.map(|(pod, _)| pod.clone()).collect();
        let running: BTreeSet<&PodName> = wanted.iter().filter(|pod| !self.rests(pod)).collect();
        let there: Vec<&PodName> = machine.runtime.sandboxes.iter().map(|sandbox| &sandbox.pod).collect();
        if there.len() != running.len() || !there.iter().all(|pod| running.contains(*pod)) {
            found.push(format!("pods {there:?} instead of {running:?}"));
        }
        let is_well = |kept: &SimulatedContainer| kept.process.as_ref().is_some_and(|process| self.is_well(process));
        let mut well: BTreeSet<&PodName> = machine.runtime.containers.iter().map(|kept| &kept.pod).collect();
        for kept in machine.runtime.containers.iter().filter(|kept| !is_well(kept)) {
            well.remove(&kept.pod);
        }
        found.extend(running.iter().filter(|pod| !well.contains(**pod)).map(|pod| format!("{pod} is not well")));
        let clusters: BTreeSet<&ClusterId> = wanted.iter().map(|pod| &pod.cluster).collect();
        let files = machine.disk.files();
        let strays = files.keys().filter(|path| {
            let cluster = path.split('/').next().and_then(|first| first.parse::<ClusterId>().ok());
            cluster.is_some_and(|cluster| !clusters.contains(&cluster))
        });
        found.extend(strays.map(|path| format!("{path} is left")));
        if wanted.is_empty() && (machine.disk.owner.is_some() || !files.is_empty()) {
            found.push("it holds nothing and is not as it was found".to_owned());
        }
        found
    }
}

/// Whether the store of a cluster is rebuilt. No API server runs then.
fn is_rebuilt(cluster: &Cluster) -> bool {
    let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
    store.is_some_and(|store| store.rebuild.is_some())
}

/// Returns whether the files of a component belong on the machine.
fn keeps_files_on(machine: &HypervisorName, component: &Component) -> bool {
    component.spec.hypervisor == *machine && !component.is_stopping()
}

/// Returns whether documents order the removal of a member's data. Documents without the cluster ordered it before they dropped the cluster.
fn orders_removal(documents: &Documents, pod: &PodName) -> bool {
    let cluster = documents.clusters.values().find(|cluster| cluster.id() == Some(&pod.cluster));
    let Some(cluster) = cluster else { return true };
    let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
    store.and_then(|store| store.members.get(&pod.component)).is_some_and(|member| member.removal.is_some())
}

pub(super) fn role_of(pod: &PodName) -> Option<Role> {
    let (role, _) = pod.component.as_str().rsplit_once('-')?;
    Role::ALL.into_iter().find(|known| known.to_string() == role)
}

/// Returns the id of the runtime object that an action affects.
fn runtime_id(action: &PodAction) -> Option<&String> {
    match action {
        PodAction::StopContainer { id, .. }
        | PodAction::RemoveContainer { id, .. }
        | PodAction::StopSandbox { id }
        | PodAction::RemoveSandbox { id } => Some(id),
        PodAction::StartContainer { id, .. } => id.as_ref(),
        PodAction::CreateContainer(new) => new.sandbox_id.as_ref(),
        PodAction::EnsureImage(_)
        | PodAction::MakeDirectories(_)
        | PodAction::MarkData { .. }
        | PodAction::CopyData { .. }
        | PodAction::ChangeServer { .. }
        | PodAction::WriteFile { .. }
        | PodAction::RemovePath { .. }
        | PodAction::CreateSandbox(_)
        | PodAction::RemoveTree => None,
    }
}

fn belongs_to_other(machine: &SimulatedHypervisor, pod: &PodName, id: &str) -> bool {
    let sandboxes = machine.runtime.sandboxes.iter().filter(|sandbox| sandbox.id == id).map(|sandbox| &sandbox.pod);
    let containers = machine.runtime.containers.iter().filter(|kept| kept.state.id == id).map(|kept| &kept.pod);
    sandboxes.chain(containers).any(|owner| owner != pod)
}
