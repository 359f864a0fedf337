//! The rules of rollouts: which releases run beside each other, and what running components verify and decrypt.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Cluster,
    name::{ClusterId, HypervisorName, PodName},
    release::{MINORS, find},
    role::Role,
    rotation::{RotatedKey, RotationPhase},
};
use keelway_machine::action::PodAction;
use keelway_planner::{
    ComponentHealth,
    trust::{ComponentFiles, encryption_keys, unverified},
};

use super::{
    machine::SimulatedHypervisor,
    minter::public_half,
    rules::{KEY, RELIED_ON, role_of},
    runtime::{SimulatedContainer, SimulatedProcess},
    state::SimulationState,
};

pub(super) const CONTROLLERS: &str =
    "no controller manager or scheduler is newer than an API server, or more than one minor version older";
pub(super) const SERVERS: &str = "API servers are at most one minor version apart";
pub(super) const MEMBERS: &str =
    "etcd members are at most one minor version of Kubernetes apart, and no API server is newer";
pub(super) const DATA: &str = "no etcd member runs an older minor version on data of a newer one";
pub(super) const TURNS: &str = "replicas are replaced one at a time while all of them are well";
pub(super) const TRUST: &str = "whatever a running component presents is verified by its peers";
pub(super) const DECRYPTED: &str = "every API server has the keys of all stored Secrets";
pub(super) const UPGRADED: &str = "a release that a person requests runs everywhere in the end";
pub(super) const ROTATED: &str = "a rotation ends once a person has completed it";
pub(super) const RETIRED: &str = "no component trusts a key or an authority that a rotation has removed";

/// The file with the keys with which an API server encrypts Secrets.
pub(super) const ENCRYPTION: &str = "encryption.json";

/// Returns the main programs of a cluster that run and are selected, each with the files that it uses.
pub(super) fn running_components<'a>(
    machines: &'a BTreeMap<HypervisorName, SimulatedHypervisor>,
    id: &ClusterId,
    is_selected: impl Fn(&SimulatedHypervisor, &SimulatedProcess) -> bool,
) -> Vec<ComponentFiles<'a>> {
    let processes =
        machines.values().flat_map(|machine| machine.runtime.processes().map(move |found| (machine, found)));
    let of_cluster = processes.filter(|(_, (kept, process))| kept.pod.cluster == *id && process.program.is_main());
    let selected = of_cluster.filter(|(machine, (_, process))| is_selected(machine, process));
    selected
        .filter_map(|(machine, (kept, process))| {
            let role = role_of(&kept.pod)?;
            let files = process.files.iter().filter_map(|(path, at_start)| {
                let now = || machine.disk.content(&kept.pod, path);
                let content = if is_read_once(role, path) { Some(at_start.as_slice()) } else { now() };
                Some((path.as_str(), content?))
            });
            Some(ComponentFiles { name: &kept.pod, role, files: files.collect() })
        })
        .collect()
}

/// Returns whether a program reads a file only when it starts (docs/rotation.md).
fn is_read_once(role: Role, path: &str) -> bool {
    match role {
        Role::Etcd | Role::Ingress => path == "ca.crt",
        Role::KubeApiserver => {
            matches!(path, "etcd-ca.crt" | "service-account.pub" | "service-account.key" | ENCRYPTION)
        }
        Role::KubeControllerManager | Role::KubeScheduler => matches!(path, "ca.crt" | "service-account.key"),
        Role::ClusterController | Role::FleetController | Role::Gateway => false,
    }
}

/// Returns whether a bundle contains an authority.
pub(super) fn has_authority(bundle: &[u8], authority: &[u8]) -> bool {
    bundle.windows(authority.len()).any(|found| found == authority)
}

/// The minor version of Kubernetes that a component runs. None: it is no component of Kubernetes.
fn minor_of(role: Role, image: &str) -> Option<u32> {
    let (_, tag) = image.rsplit_once(':')?;
    match role {
        Role::Etcd => MINORS.iter().find(|row| row.etcd == tag).map(|row| row.minor),
        Role::KubeApiserver | Role::KubeControllerManager | Role::KubeScheduler => {
            find(tag.strip_prefix('v')?).map(|release| release.minor())
        }
        Role::ClusterController | Role::FleetController | Role::Ingress | Role::Gateway => None,
    }
}

impl SimulationState {
    /// Checks the rules of everything that runs. A machine that is off the network may return with what runs on it.
    pub(super) fn check_rollouts(&mut self) {
        if !self.rollouts.happen || self.broken_rule.is_some() {
            return;
        }
        self.note_rotations();
        let living = self.saved.clusters.values().filter(|cluster| !cluster.deleted());
        for id in living.filter_map(|cluster| cluster.id()).cloned().collect::<Vec<_>>() {
            let broken = self.broken_by_releases(&id).or_else(|| self.broken_by_keys(&id));
            if let Some((rule, what)) = broken {
                self.report_violation(rule, what);
            }
        }
    }

    fn broken_by_releases(&mut self, id: &ClusterId) -> Option<(&'static str, String)> {
        let processes = self.machines.values().flat_map(|machine| machine.runtime.processes());
        let of_cluster = processes.filter(|(kept, process)| kept.pod.cluster == *id && process.program.is_main());
        let minors = of_cluster.filter_map(|(kept, _)| {
            let role = role_of(&kept.pod)?;
            Some((&kept.pod, role, minor_of(role, &kept.made_from.image)?))
        });
        let minors: Vec<(&PodName, Role, u32)> = minors.collect();
        for (pod, _, minor) in minors.iter().filter(|(_, role, _)| *role == Role::Etcd) {
            let data = self.rollouts.data_minors.entry((*pod).clone()).or_insert(*minor);
            if *minor < *data {
                return Some((DATA, format!("{pod} runs 1.{minor} on data of 1.{data}")));
            }
            *data = *minor;
        }
        let of = |which: Role| minors.iter().filter(move |(_, role, _)| *role == which).map(|(.., minor)| *minor);
        let range = |role: Role| of(role).min().zip(of(role).max());
        let (servers, members) = (range(Role::KubeApiserver), range(Role::Etcd));
        let is_apart = |range: Option<(u32, u32)>| range.is_some_and(|(oldest, newest)| newest > oldest + 1);
        let (oldest, newest) = servers.unwrap_or((u32::MAX, 0));
        let controllers = [Role::KubeControllerManager, Role::KubeScheduler].into_iter().flat_map(of);
        let rule = if is_apart(servers) {
            SERVERS
        } else if is_apart(members) || members.is_some_and(|(oldest, _)| oldest < newest) {
            MEMBERS
        } else if controllers.into_iter().any(|minor| minor > oldest || minor + 1 < newest) {
            CONTROLLERS
        } else {
            return None;
        };
        let texts: Vec<String> = minors.iter().map(|(pod, _, minor)| format!("{pod} 1.{minor}")).collect();
        Some((rule, texts.join(", ")))
    }

    fn broken_by_keys(&mut self, id: &ClusterId) -> Option<(&'static str, String)> {
        let running = running_components(&self.machines, id, |_, _| true);
        let left = self.left_behind(id);
        let issued = &self.rollouts.issued;
        for key in RotatedKey::ALL {
            let follows = |one: &&ComponentFiles| !left.contains(&(one.name.clone(), key));
            let following: Vec<ComponentFiles> = running.iter().filter(follows).cloned().collect();
            let is_verified = |of, shown: &[u8], trusted: &[u8]| of != key || verifies(issued, key, shown, trusted);
            if let Some(what) = unverified(&following, is_verified).into_iter().next() {
                return Some((TRUST, what));
            }
        }
        if let Some(what) = self.unverified_by_workers(id, &running, &left) {
            return Some((TRUST, what));
        }
        // An API server may read a changed file again.
        let servers = contents_of(&self.machines, id, Role::KubeApiserver, ENCRYPTION);
        let servers = servers.into_iter().filter_map(|(name, content)| Some((name, encryption_keys(content)?)));
        let servers: Vec<(&PodName, Vec<String>)> = servers.collect();
        let stored = self.rollouts.secrets.entry(id.clone()).or_default();
        stored.serve(&servers).map(|what| (DECRYPTED, what))
    }

    /// An API server verifies the serving certificates of kubelets with what it read when it started.
    fn unverified_by_workers(
        &self,
        id: &ClusterId,
        running: &[ComponentFiles],
        left: &BTreeSet<(PodName, RotatedKey)>,
    ) -> Option<String> {
        let issued = &self.rollouts.issued;
        let workers = self.rollouts.workers.get(id).into_iter().flatten().filter(|worker| !worker.is_left);
        let follows = |name: &PodName| !left.contains(&(name.clone(), RotatedKey::KubernetesAuthority));
        let servers = || running.iter().filter(|one| one.role == Role::KubeApiserver && follows(one.name));
        for worker in workers {
            for server in servers() {
                let mut presented =
                    ["server.crt", "kubelet-client.crt"].into_iter().filter_map(|path| server.files.get(path));
                if presented.any(|shown| !verifies(issued, RotatedKey::KubernetesAuthority, shown, &worker.trusted)) {
                    return Some(format!("worker {} does not verify {}", worker.name, server.name));
                }
            }
            let trusted = contents_of(&self.machines, id, Role::KubeApiserver, "ca.crt");
            let mut trusted = trusted.into_iter().filter(|(name, bundle)| is_bundle(bundle) && follows(name));
            if let Some((name, _)) = trusted.find(|(_, bundle)| !has_authority(bundle, &worker.issuer)) {
                return Some(format!("{name} does not verify worker {}", worker.name));
            }
        }
        None
    }

    /// Checks that an action ends no second replica of a role in a pass that has seen all of them well.
    pub(super) fn check_takes_turns(&mut self, pod: &PodName, action: &PodAction) {
        let Some(role) = role_of(pod).filter(|role| RELIED_ON.contains(role)) else { return };
        let is_ended = |kept: &SimulatedContainer| {
            matches!(action, PodAction::StopSandbox { id } if kept.state.sandbox == *id)
                || matches!(action, PodAction::StopContainer { id, .. } if kept.state.id == *id)
        };
        let ends_main = self
            .machines
            .values()
            .flat_map(|machine| machine.runtime.processes())
            .any(|(kept, process)| process.program.is_main() && kept.pod == *pod && is_ended(kept));
        let all: Vec<&PodName> = self.replicas(&pod.cluster, role).collect();
        let is_well = |pod: &&PodName| matches!(self.pass.seen.health.get(pod), Some(ComponentHealth::Healthy));
        // A rebuild stops all members and API servers.
        let is_rebuilt = matches!(role, Role::Etcd | Role::KubeApiserver) && self.rebuilds(&pod.cluster);
        let is_excepted = self.is_deleted(&pod.cluster) || is_rebuilt || self.sleeps_in_pass(&pod.cluster);
        if !ends_main || is_excepted || !all.contains(&pod) || !all.iter().all(is_well) {
            return;
        }
        let first = self.pass.replaced.entry((pod.cluster.clone(), role)).or_insert_with(|| pod.clone()).clone();
        if first != *pod {
            self.report_violation(TURNS, format!("{first} and {pod}"));
        }
    }

    /// Checks that a settled fleet has carried out what people requested.
    pub(super) fn check_rollouts_ended(&mut self) {
        let living: Vec<Cluster> = self
            .saved
            .clusters
            .values()
            .filter(|cluster| !cluster.deleted())
            .map(|cluster| (**cluster).clone())
            .collect();
        for cluster in living {
            if let Some((rule, what)) = self.unfinished(&cluster) {
                self.report_violation(rule, format!("{}: {what}", cluster.reference()));
            }
        }
    }

    fn unfinished(&self, cluster: &Cluster) -> Option<(&'static str, String)> {
        let id = cluster.id()?;
        let wanted = self.rollouts.releases.get(&cluster.reference()).unwrap_or(&cluster.spec.version);
        let mut components = self.saved.components_of(id);
        if let Some((pod, found)) = components.find(|(_, component)| component.spec.version != *wanted) {
            return Some((UPGRADED, format!("{} runs {} instead of {wanted}", pod.component, found.spec.version)));
        }
        let left = RotatedKey::ALL.into_iter().find(|key| {
            let phase = cluster.rotation(*key).map(|rotation| rotation.phase);
            let is_completed = self.rollouts.completed.contains(&(id.clone(), *key));
            let has_ended = if is_completed {
                phase == Some(RotationPhase::Completed)
            } else {
                phase.is_none_or(|phase| matches!(phase, RotationPhase::Prepared | RotationPhase::Completed))
            };
            !has_ended || cluster.pending_rotation(*key).is_some()
        });
        left.map(|key| (ROTATED, format!("{key} is {:?}", cluster.rotation(key))))
            .or_else(|| Some((RETIRED, self.trusted_afterwards(cluster, id)?)))
    }
}

/// Returns the contents of a file with which the programs of a role started, and those that they would find now.
fn contents_of<'a>(
    machines: &'a BTreeMap<HypervisorName, SimulatedHypervisor>,
    id: &ClusterId,
    role: Role,
    path: &str,
) -> Vec<(&'a PodName, &'a [u8])> {
    let processes =
        machines.values().flat_map(|machine| machine.runtime.processes().map(move |found| (machine, found)));
    let mut found = Vec::new();
    for (machine, (kept, process)) in processes {
        if kept.pod.cluster == *id && role_of(&kept.pod) == Some(role) && process.program.is_main() {
            let at_start = process.files.get(path).map(Vec::as_slice);
            let all = at_start.into_iter().chain(machine.disk.content(&kept.pod, path));
            found.extend(all.map(|content| (&kept.pod, content)));
        }
    }
    found
}

/// Returns whether a file verifies what a key or an authority signs. Files that a person changed verify and present nothing.
pub(super) fn verifies(issued: &BTreeMap<Vec<u8>, Vec<u8>>, key: RotatedKey, shown: &[u8], trusted: &[u8]) -> bool {
    if key == RotatedKey::ServiceAccount {
        let is_key = shown.starts_with(KEY.as_bytes()) && trusted.starts_with(b"public of ");
        return !is_key || has_authority(trusted, public_half(&String::from_utf8_lossy(shown)).as_bytes());
    }
    let signer = first_certificate(shown).and_then(|certificate| issued.get(certificate));
    signer.is_none_or(|signer| !is_bundle(trusted) || has_authority(trusted, signer))
}

fn is_bundle(content: &[u8]) -> bool {
    content.starts_with(b"-----BEGIN CERTIFICATE-----")
}

/// The first certificate of a file, as text.
pub(super) fn first_certificate(content: &[u8]) -> Option<&[u8]> {
    const END: &[u8] = b"-----END CERTIFICATE-----\n";
    let at = content.windows(END.len()).position(|found| found == END)?;
    content.get(..at + END.len())
}
