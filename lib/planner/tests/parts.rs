//! Plans of parts, made one after the other, decide what one plan of all documents decides.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Documents,
    documents::SecretName,
    jiff::Timestamp,
    machine::{MachineConfig, MachineState, ObservedValue},
    name::{ClusterId, HypervisorName, PodName},
};
use keelway_planner::{
    CertificateSeen, ComponentHealth, Configs, Connections, DesiredPods, FirstBindings, Neighbours, PassObservation,
    PlanScope, ValidatedDocuments, Waves, machine_config, machine_configs, plan, plan_part, term_alone,
};

use crate::model::{apply, hypervisors, identified, mint};

const CLUSTERS: [&str; 3] = ["c1", "c2", "c3"];

type Certificates = BTreeMap<(SecretName, String), CertificateSeen>;

/// Documents, machines and the contents of certificates.
#[derive(Clone)]
struct Model {
    documents: Documents,
    machines: BTreeMap<HypervisorName, MachineState>,
    certificates: Certificates,
}

impl Model {
    fn new() -> Self {
        let cluster = |name| {
            format!(
                "---\napiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}, namespace: default}}\n\
                 spec: {{version: 1.37.0, etcd: {{replicas: 3}}}}\n"
            )
        };
        let machines = ["Private", "Private", "Private", "Private", "Public", "Public"];
        let text: String = CLUSTERS.into_iter().map(cluster).chain(hypervisors(&machines)).collect();
        let (documents, machines) = identified(&text);
        Self { documents, machines, certificates: BTreeMap::new() }
    }

    /// The observation while some machines are silent: the whole state of each machine, or its part of one cluster.
    fn observe(&self, documents: &Documents, silent: &BTreeSet<usize>, of: Option<&ClusterId>) -> PassObservation {
        let machine = |(number, (name, state)): (usize, (&HypervisorName, &MachineState))| {
            let known = || ObservedValue::Known(of.map_or_else(|| state.clone(), |id| state.part_of(id)));
            (name.clone(), if silent.contains(&number) { ObservedValue::unreachable("it is silent") } else { known() })
        };
        let is_well = |pod: &&PodName| {
            self.machines.values().any(|state| state.sandboxes.iter().any(|sandbox| sandbox.pod == **pod))
        };
        let well = documents.components.keys().filter(is_well);
        let ids = documents.clusters.values().filter_map(|cluster| cluster.id());
        PassObservation {
            machines: self.machines.iter().enumerate().map(machine).collect(),
            health: well.map(|pod| (pod.clone(), ComponentHealth::Healthy)).collect(),
            bindings: ids.map(|id| (id.clone(), ObservedValue::Known(FirstBindings::Cluster.digest()))).collect(),
            certificates: self.certificates.clone(),
            ..PassObservation::default()
        }
    }

    /// One plan of all documents.
    fn pass(&mut self, silent: &BTreeSet<usize>) -> BTreeMap<HypervisorName, MachineConfig> {
        let seen = self.observe(&self.documents, silent, None);
        let mut plan = plan(self.documents.clone(), &seen, Timestamp::UNIX_EPOCH).unwrap();
        mint(&mut plan, &mut self.certificates);
        self.documents = plan.documents;
        machine_configs(&self.documents, &seen).unwrap()
    }

    /// A plan of each part.
    fn pass_parts(&mut self, silent: &BTreeSet<usize>) -> BTreeMap<HypervisorName, MachineConfig> {
        let mut told = Vec::new();
        let names: Vec<_> = self.documents.clusters.keys().cloned().collect();
        for name in names {
            let own = self.documents.of_cluster(&name);
            let id = own.clusters[&name].id().unwrap().clone();
            let seen = self.observe(&own, silent, Some(&id));
            let users = self.machines.values().flat_map(|state| state.files.values()).map(|file| file.user).collect();
            let waves = Waves::default();
            let part = PlanScope::Cluster(Neighbours { documents: &self.documents, users: &users, waves: &waves });
            let mut plan = plan_part(own.clone(), part, &seen, Timestamp::UNIX_EPOCH).unwrap();
            mint(&mut plan, &mut self.certificates);
            self.take(&own, &plan.documents);
            let world = ValidatedDocuments::of_pass(&plan.documents, &seen).unwrap();
            let (wants, _) = Configs::of(&plan.documents, &world, &seen).desired_pods();
            told.push((plan.documents, wants));
        }
        let own = self.documents.of_machines();
        let seen = self.observe(&own, silent, None);
        let mut plan = plan_part(
            own.clone(),
            PlanScope::Machines(Connections { documents: &self.documents, last_contact: &BTreeMap::new() }),
            &seen,
            Timestamp::UNIX_EPOCH,
        )
        .unwrap();
        mint(&mut plan, &mut self.certificates);
        self.take(&own, &plan.documents);
        self.configs(&seen, &told)
    }

    fn take(&mut self, before: &Documents, after: &Documents) {
        for change in after.changes_since(before) {
            self.documents.make(&change, after);
        }
    }

    fn configs(
        &self,
        seen: &PassObservation,
        told: &[(Documents, BTreeMap<HypervisorName, DesiredPods>)],
    ) -> BTreeMap<HypervisorName, MachineConfig> {
        let known: BTreeSet<_> = self.documents.clusters.values().filter_map(|cluster| cluster.id().cloned()).collect();
        let config = |(name, document): (&HypervisorName, &keelway_api::Shared<keelway_api::Hypervisor>)| {
            let state = seen.machines[name].known()?;
            let here = told.iter().filter_map(|(documents, wants)| Some((documents, wants.get(name)?)));
            let pods = here.clone().filter_map(|(documents, wants)| {
                wants.pods(documents, &ValidatedDocuments::of(documents).ok()?, |_| true).ok()
            });
            let digests = here.clone().flat_map(|(_, wants)| wants.digests());
            let digests = digests.map(|(pod, digest)| (pod.clone(), digest)).collect();
            let removals = here.clone().flat_map(|(_, wants)| wants.removals().clone()).collect();
            let left: BTreeSet<_> = here.flat_map(|(_, wants)| wants.left()).collect();
            let is_looked_after = |id: &ClusterId| known.contains(id) && !left.contains(id);
            let term = term_alone(&self.documents);
            let is_known = |id: &ClusterId| known.contains(id);
            let (config, fence) =
                machine_config(document, state, is_looked_after, is_known, (&digests, &removals), term)?;
            let config = MachineConfig { pods: pods.flatten().collect(), ..config };
            assert_eq!(fence.digest, config.digest());
            Some((name.clone(), config))
        };
        self.documents.hypervisors.iter().filter_map(config).collect()
    }

    /// The machines apply their configs.
    fn obey(&mut self, configs: &BTreeMap<HypervisorName, MachineConfig>) {
        keelway_planner::note_issued(&mut self.documents, configs);
        for (name, config) in configs {
            apply(self.machines.get_mut(name).unwrap(), config);
        }
    }

    fn ask(&mut self, servers: u32) {
        for cluster in self.documents.clusters.values_mut() {
            cluster.spec.control_plane.replicas = servers;
        }
    }
}

#[test]
fn plans_of_parts_are_one_plan() {
    let (mut whole, mut parts) = (Model::new(), Model::new());
    let calm = BTreeSet::new();
    // Creation, growth while a machine is silent, and reduction.
    let rounds = [(1, calm.clone(), 8), (3, [1].into(), 4), (3, calm.clone(), 8), (2, [4].into(), 4), (2, calm, 12)];
    let mut pods = 0;
    for (servers, silent, times) in rounds {
        for _ in 0..times {
            for model in [&mut whole, &mut parts] {
                model.ask(servers);
            }
            let (one, other) = (whole.pass(&silent), parts.pass_parts(&silent));
            // Compared by `==`, because a failure of `assert_eq!` would print keys.
            assert!(whole.documents == parts.documents, "documents differ");
            assert!(one == other, "configs differ");
            pods = one.values().map(|config| config.pods.len()).sum();
            whole.obey(&one);
            parts.obey(&other);
        }
    }
    let each = |role| whole.documents.components.values().filter(|one| one.spec.role == role).count();
    assert_eq!(each(keelway_api::role::Role::KubeApiserver), 2 * CLUSTERS.len());
    assert_eq!(pods, whole.documents.components.len(), "each component is on its machine");
}

#[test]
fn a_paused_cluster_is_left_alone_by_plans_of_parts_too() {
    let (mut whole, mut parts) = (Model::new(), Model::new());
    let calm = BTreeSet::new();
    let pass = |whole: &mut Model, parts: &mut Model| {
        let (one, other) = (whole.pass(&calm), parts.pass_parts(&calm));
        assert!(whole.documents == parts.documents, "documents differ");
        assert!(one == other, "configs differ");
        whole.obey(&one);
        parts.obey(&other);
    };
    (0..12).for_each(|_| pass(&mut whole, &mut parts));
    let runs = |model: &Model| model.machines.values().map(|state| state.sandboxes.clone()).collect::<Vec<_>>();
    let before = runs(&whole);
    let is_key = |name: &SecretName, id: &ClusterId| *name == SecretName::of(id, "service-account");
    let mut key = None;
    for model in [&mut whole, &mut parts] {
        model.documents.clusters.values_mut().next().unwrap().spec.paused = true;
        let id = model.documents.clusters.values().next().unwrap().id().unwrap().clone();
        let is_lost = |pod: &PodName| pod.cluster == id && pod.component.as_str() == "kube-scheduler-0";
        model.documents.components.retain(|pod, _| !is_lost(pod));
        key = model.documents.secrets.iter().find(|(name, _)| is_key(name, &id)).map(|(a, b)| (a.clone(), b.clone()));
        model.documents.secrets.retain(|name, _| !is_key(name, &id));
    }
    (0..4).for_each(|_| pass(&mut whole, &mut parts));
    assert_eq!((&runs(&whole), &runs(&parts)), (&before, &before));
    for model in [&mut whole, &mut parts] {
        model.documents.clusters.values_mut().next().unwrap().spec.paused = false;
    }
    // No pass creates the key again.
    (0..4).for_each(|_| pass(&mut whole, &mut parts));
    assert_eq!((&runs(&whole), &runs(&parts)), (&before, &before));
    for model in [&mut whole, &mut parts] {
        model.documents.secrets.extend(key.clone());
    }
    (0..12).for_each(|_| pass(&mut whole, &mut parts));
    let running: BTreeSet<_> = runs(&parts).into_iter().flatten().map(|sandbox| sandbox.pod).collect();
    assert!(running.iter().eq(parts.documents.components.keys()));
}
