//! The scenario: people add machines, create clusters, change them, and delete them.

use std::{collections::BTreeMap, net::IpAddr};

use keelway_api::{
    Cluster, Hypervisor, ObjectMeta, Secret, Shared, Time,
    cluster::{CertificatesSpec, ClusterSpec, FleetSpec, MemberPhase},
    duration::Span,
    hypervisor::{Addresses, HypervisorEndpoint, HypervisorRole, HypervisorSpec, PortRange},
    name::{ClusterId, ClusterRef, HypervisorName},
    role::Role,
    validated::ZONE_LABEL,
};
use keelway_pki::CertificateFacts;
use serde_json::json;

use super::{
    fault::FaultPoint, machine::SimulatedHypervisor, person::PersonAction, restores::restored_member,
    state::SimulationState,
};

/// A run has no time for more machines or clusters than these.
const MOST_MACHINES: usize = 7;
const MOST_CLUSTERS: usize = 3;

impl SimulationState {
    /// Adds the first machines and the first cluster.
    pub(super) fn begin(&mut self) {
        for _ in 0..self.random.count(1, 2) {
            self.add_machine(HypervisorRole::Public);
        }
        let least = if self.losses.ends_a_quorum { 3 } else { 1 };
        for _ in 0..self.random.count(least, 4) {
            self.add_machine(HypervisorRole::Private);
        }
        self.add_cluster();
    }

    /// Makes one change to the documents, as a person.
    pub(super) fn edit(&mut self) {
        if self.manual_edit.is_some() {
            // A pending manual edit is read first.
            return;
        }
        match self.random.between(0, 11) {
            0 if self.saved.clusters.len() < MOST_CLUSTERS => self.add_cluster(),
            1 if self.machines.len() < MOST_MACHINES => {
                let role = if self.random.one_in(3) { HypervisorRole::Public } else { HypervisorRole::Private };
                self.add_machine(role);
            }
            2 => self.delete_one(),
            3..=8 => self.scale(),
            9 => self.cordon(),
            10 => self.drain(),
            _ => self.pause(),
        }
    }

    /// Returns the clusters in which a member that may have started has lost its data.
    pub(super) fn clusters_that_lost_data(&self) -> Vec<ClusterRef> {
        let lost = |cluster: &Cluster| {
            if cluster.pending_restore().is_some() {
                return false;
            }
            let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
            let restored = restored_member(cluster).map(|(pod, _)| pod.component);
            self.saved.components.iter().any(|(pod, component)| {
                // A restore replaces what the earlier members lost.
                if restored.as_ref().is_some_and(|restored| *restored != pod.component) {
                    return false;
                }
                let member = store.and_then(|store| store.members.get(&pod.component));
                if self.losses.lost.contains(&component.spec.hypervisor) && self.has_data_left(&pod.cluster) {
                    return false;
                }
                let machine = self.machines.get(&component.spec.hypervisor);
                let data = machine.map(|machine| machine.state().data_of(pod, "data")).unwrap_or_default();
                Some(&pod.cluster) == cluster.id()
                    && match member.filter(|member| !member.is_removed()).map(|member| member.phase) {
                        None | Some(MemberPhase::Pending) => false,
                        Some(MemberPhase::Marked) => !data.marked,
                        Some(MemberPhase::Started) => !(data.marked && data.used),
                    }
            })
        };
        let clusters = self.saved.clusters.iter().filter(|(_, cluster)| !cluster.deleted() && lost(cluster));
        clusters.map(|(name, _)| name.clone()).collect()
    }

    /// Returns whether a machine that is not lost has data of a member of the cluster.
    fn has_data_left(&self, id: &ClusterId) -> bool {
        let mut machines = self.machines.iter().filter(|(name, _)| !self.losses.lost.contains(*name));
        machines.any(|(_, machine)| machine.disk.members.keys().any(|pod| pod.cluster == *id))
    }

    /// Returns the clusters with an expired authority.
    pub(super) fn clusters_whose_authority_ended(&self) -> Vec<ClusterRef> {
        let now = self.now();
        let has_ended = |secret: &Secret| {
            let pem = secret.data.as_ref().and_then(|data| std::str::from_utf8(&data.get("active.crt")?.0).ok());
            let facts = pem.and_then(|pem| CertificateFacts::from_pem(pem).ok());
            facts.is_some_and(|facts| facts.validity.not_after() <= now)
        };
        let ended = |cluster: &Cluster| {
            let mut secrets = cluster.id().into_iter().flat_map(|id| self.saved.secrets_of(id));
            !cluster.deleted() && secrets.any(|(_, secret)| has_ended(secret))
        };
        self.saved.clusters.iter().filter(|(_, cluster)| ended(cluster)).map(|(name, _)| name.clone()).collect()
    }

    /// Deletes all clusters.
    pub(super) fn delete_all(&mut self) {
        self.manual_edit = None;
        let names: Vec<ClusterRef> = self.saved.clusters.keys().cloned().collect();
        for name in names {
            self.delete(&name);
        }
    }

    /// Ends all faults, and restores everything that would keep the fleet from settling.
    pub(super) fn stop_faults(&mut self) {
        self.weather.calm = true;
        self.uses_old_documents = false;
        self.manual_edit = None;
        self.restore_missing_secrets();
        self.restore_stale_documents();
        self.reopen_machines();
        for machine in self.machines.values_mut() {
            machine.restore_reach();
            machine.full_until = None;
            machine.strangers.ports.clear();
            if machine.strangers.owner.take().is_some() {
                machine.disk = super::disk::SimulatedDisk::default();
            }
        }
        let is_public = |(name, machine): &(&HypervisorName, &Shared<Hypervisor>)| {
            machine.spec.role == HypervisorRole::Public && !self.losses.lost.contains(*name)
        };
        let public = u32::try_from(self.saved.hypervisors.iter().filter(is_public).count()).unwrap();
        for cluster in self.saved.clusters.values_mut() {
            cluster.spec.paused = false;
            cluster.spec.ingress.replicas = cluster.spec.ingress.replicas.min(public);
        }
        self.restore_refused_documents();
        self.annotate_lost_machines();
        self.request_lost_restores();
        self.end_sleeps();
        self.end_rollouts();
        self.trace_line("from here on nothing goes wrong");
    }

    fn add_machine(&mut self, role: HypervisorRole) {
        let number = self.machines.len() + 1;
        let name = format!("hv-{number}");
        let private = IpAddr::from([10, 0, 0, u8::try_from(number).unwrap()]);
        let public = match role {
            HypervisorRole::Public => vec![format!("198.51.100.{number}")],
            HypervisorRole::Private => vec![],
        };
        let to = if self.random.one_in(4) { 20_063 } else { 22_767 };
        let spec = HypervisorSpec {
            role,
            endpoint: HypervisorEndpoint::Unix { path: format!("/run/{name}.sock") },
            addresses: Addresses { private: vec![private.to_string()], public, bind: Vec::new() },
            port_range: PortRange { from: 20_000, to },
            unschedulable: false,
            drain: false,
            newer: keelway_api::Newer::default(),
        };
        let mut document = Hypervisor::new(&name, spec);
        let zone = format!("zone-{}", self.random.between(1, 3));
        document.metadata = ObjectMeta {
            name: Some(name.clone()),
            labels: Some([(ZONE_LABEL.to_owned(), zone)].into()),
            ..ObjectMeta::default()
        };
        let name: keelway_api::name::HypervisorName = name.parse().unwrap();
        let machine = self.machine(SimulatedHypervisor::new(private));
        self.record_action(PersonAction::BringsAMachine);
        self.trace_line(format!("a person brings {name}, {role:?}, owner {:?}", machine.strangers.owner));
        self.machines.insert(name.clone(), machine);
        self.saved.hypervisors.insert(name, document);
    }

    /// Adds objects that do not belong to Keelway to a machine, with some probability.
    fn machine(&mut self, mut machine: SimulatedHypervisor) -> SimulatedHypervisor {
        for number in 0..self.random.count(0, 2) {
            machine.strangers.sandboxes.insert(format!("stranger-{number}"));
        }
        for _ in 0..self.random.count(0, 2) {
            machine.strangers.ports.insert(u16::try_from(self.random.between(20_000, 20_010)).unwrap());
        }
        if self.random.one_in(5) {
            machine.ephemeral = Some((20_005, 20_015));
        }
        let first = self.machines.is_empty() && self.weather.aim.1 == FaultPoint::Adopt;
        if first || self.random.one_in(12) {
            let owner: keelway_api::name::InstallationId = self.random.id().parse().unwrap();
            machine.disk.write_owner(&owner);
            machine.strangers.owner = Some(owner);
        }
        machine
    }

    fn add_cluster(&mut self) {
        let number = (1..100).find(|number| !self.saved.clusters.contains_key(&reference(*number))).unwrap();
        let reference = reference(number);
        let version = self.rollouts.first_release();
        self.rollouts.releases.remove(&reference);
        let mut spec: ClusterSpec = serde_json::from_value(json!({ "version": version })).unwrap();
        spec.etcd.replicas = self.number_of_members();
        spec.control_plane.replicas = self.random.count(1, 3);
        spec.ingress.replicas = self.random.count(1, 2);
        // The first cluster is always one with workers. A draw would change what every earlier seed does.
        spec.fleet = number.is_multiple_of(2).then(FleetSpec::default);
        if self.random.one_in(3) {
            // This is short enough that a jump of the clock makes them due for renewal.
            spec.certificates = CertificatesSpec { component_ttl: Span::hours(2), ..spec.certificates };
        } else if self.random.one_in(4) {
            // Authorities expire after such a jump.
            let short = Span::minutes(45);
            spec.certificates = CertificatesSpec {
                component_ttl: short,
                worker_ttl: short,
                admin_ttl: short,
                authority_ttl: short,
                ..spec.certificates
            };
        }
        if let Some(deadline) = self.rollouts.deadline() {
            spec.certificates.rotation_deadline = deadline;
        }
        let mut cluster = Cluster::new(&reference.name, spec);
        cluster.metadata = ObjectMeta {
            name: Some(reference.name.clone()),
            namespace: Some(reference.namespace.clone()),
            ..ObjectMeta::default()
        };
        self.record_action(PersonAction::AsksForACluster);
        self.trace_line(format!("a person asks for {reference}: {}", sizes(&cluster)));
        self.saved.clusters.insert(reference, cluster);
    }

    fn number_of_members(&mut self) -> u32 {
        let members = self.random.pick([1, 1, 3, 3, 5]).unwrap();
        if self.losses.ends_a_quorum { members.max(3) } else { members }
    }

    fn scale(&mut self) {
        let Some(name) = self.random.pick(self.saved.clusters.keys().cloned().collect::<Vec<_>>()) else { return };
        let (what, members) = (self.random.between(0, 7), self.number_of_members());
        let (few, some, maybe) = (self.random.count(0, 2), self.random.count(1, 3), self.random.one_in(2));
        let Some(cluster) = self.saved.clusters.get_mut(&name) else { return };
        let plane = &mut cluster.spec.control_plane;
        match what {
            0 | 1 => plane.replicas = some,
            2 => plane.kube_api_server.replicas = maybe.then_some(some),
            3 => plane.kube_controller_manager.replicas = maybe.then_some(few),
            4 => cluster.spec.ingress.replicas = few,
            5 | 6 => cluster.spec.images.registry = maybe.then(|| "registry.example.com/mirror".to_owned()),
            _ => cluster.spec.etcd.replicas = members,
        }
        let (sizes, registry) = (sizes(cluster), cluster.spec.images.registry.clone());
        self.record_action(PersonAction::Changes);
        self.trace_line(format!("a person changes {name}: {sizes}, registry {registry:?}"));
    }

    /// Pauses a cluster. If it is paused already, resumes it.
    fn pause(&mut self) {
        let Some(name) = self.random.pick(self.saved.clusters.keys().cloned().collect::<Vec<_>>()) else { return };
        let Some(cluster) = self.saved.clusters.get_mut(&name) else { return };
        let paused = !cluster.spec.paused;
        cluster.spec.paused = paused;
        self.record_action(if paused { PersonAction::Pauses } else { PersonAction::Unpauses });
        self.trace_line(format!("a person {} {name}", if paused { "pauses" } else { "unpauses" }));
    }

    /// Changes the document as `keelway hypervisor cordon` and `uncordon` do.
    fn cordon(&mut self) {
        let Some(name) = self.random.pick(self.saved.hypervisors.keys().cloned().collect::<Vec<_>>()) else { return };
        let Some(document) = self.saved.hypervisors.get_mut(&name) else { return };
        let closed = !document.spec.unschedulable;
        document.spec.unschedulable = closed;
        document.spec.drain = false;
        self.record_action(if closed { PersonAction::Cordons } else { PersonAction::Uncordons });
        self.trace_line(format!("a person {} {name}", if closed { "cordons" } else { "uncordons" }));
    }

    /// Changes the document as `keelway hypervisor drain` does.
    fn drain(&mut self) {
        let Some(name) = self.random.pick(self.saved.hypervisors.keys().cloned().collect::<Vec<_>>()) else { return };
        let Some(document) = self.saved.hypervisors.get_mut(&name) else { return };
        document.spec.unschedulable = true;
        document.spec.drain = true;
        self.record_action(PersonAction::Drains);
        self.trace_line(format!("a person drains {name}"));
    }

    /// Uncordons machines, except one that is drained if another machine of the same role has enough room.
    fn reopen_machines(&mut self) {
        let roomy: BTreeMap<HypervisorName, HypervisorRole> = self
            .saved
            .hypervisors
            .iter()
            .filter(|(name, document)| self.is_roomy(name, document))
            .map(|(name, document)| (name.clone(), document.spec.role))
            .collect();
        let mut drained = 0;
        for (name, document) in self.saved.hypervisors.iter_mut().filter(|(name, _)| !self.losses.lost.contains(*name))
        {
            let others = roomy.values().filter(|role| **role == document.spec.role).count();
            let stays = document.spec.drain && document.spec.role == HypervisorRole::Private && drained == 0;
            if stays && others > usize::from(roomy.contains_key(name)) {
                drained += 1;
                continue;
            }
            document.spec.unschedulable = false;
            document.spec.drain = false;
        }
    }

    fn delete_one(&mut self) {
        if let Some(name) = self.random.pick(self.saved.clusters.keys().cloned().collect::<Vec<_>>()) {
            self.delete(&name);
        }
    }

    /// Changes the document as `keelway cluster delete` does.
    pub(super) fn delete(&mut self, name: &ClusterRef) {
        self.record_action(PersonAction::Deletes);
        self.trace_line(format!("a person deletes {name}"));
        let now = Time(self.now());
        let Some(cluster) = self.saved.clusters.get_mut(name) else { return };
        if cluster.id().is_none() {
            self.saved.clusters.remove(name);
        } else {
            cluster.metadata.deletion_timestamp.get_or_insert(now);
        }
    }
}

fn reference(number: u32) -> ClusterRef {
    ClusterRef { namespace: "default".to_owned(), name: format!("c{number}") }
}

fn sizes(cluster: &Cluster) -> String {
    Role::ALL.map(|role| format!("{role} {}", cluster.spec.replicas(role))).join(", ")
}
