//! Fleets: what runs, what does not, and with which arguments.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Documents, argument,
    documents::SecretName,
    jiff::Timestamp,
    machine::{MachineState, ObservedValue, Pod},
    name::{HypervisorName, PodName},
    release::MINORS,
    role::Role,
};
use keelway_planner::{
    CertificateSeen, ComponentHealth, FirstBindings, PassObservation, Plan, invariants, machine_configs, plan,
};

use crate::model::{apply, hypervisors, identified, mint};

fn fleet(replicas: u32, more: &str) -> String {
    format!(
        "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: f1, namespace: default}}\nspec: {{version: 1.37.0, fleet: {{}}, \
         etcd: {{replicas: {replicas}}}, controlPlane: {{replicas: {replicas}}}, ingress: {{replicas: 2}}{more}}}\n"
    )
}

struct World {
    documents: Documents,
    machines: BTreeMap<HypervisorName, MachineState>,
    certificates: BTreeMap<(SecretName, String), CertificateSeen>,
}

impl World {
    /// A settled fleet.
    fn settled(cluster: &str) -> Self {
        let machines = ["Private", "Private", "Private", "Public", "Public"];
        let text: String = std::iter::once(cluster.to_owned()).chain(hypervisors(&machines)).collect();
        let (documents, machines) = identified(&text);
        let mut world = Self { documents, machines, certificates: BTreeMap::new() };
        for _ in 0..10 {
            let plan = world.pass();
            if plan.decisions.is_empty() && plan.waiting.is_empty() && plan.mint.is_empty() {
                return world;
            }
        }
        let plan = world.pass();
        assert_eq!((plan.decisions, plan.waiting), (vec![], vec![]));
        world
    }

    fn observe(&self) -> PassObservation {
        let runs = |pod: &PodName| {
            self.machines.values().any(|state| state.sandboxes.iter().any(|sandbox| sandbox.pod == *pod))
        };
        let health = |pod: &PodName| {
            if runs(pod) { ComponentHealth::Healthy } else { ComponentHealth::Unhealthy("it does not run".to_owned()) }
        };
        let id = self.documents.clusters.values().next().unwrap().id().unwrap();
        PassObservation {
            machines: self
                .machines
                .iter()
                .map(|(name, state)| (name.clone(), ObservedValue::Known(state.clone())))
                .collect(),
            refused: BTreeMap::new(),
            health: self.documents.components.keys().map(|pod| (pod.clone(), health(pod))).collect(),
            bindings: [(id.clone(), ObservedValue::Known(FirstBindings::Fleet.digest()))].into(),
            certificates: self.certificates.clone(),
            restores: BTreeMap::new(),
            rewrites: BTreeMap::new(),
            trust: BTreeMap::new(),
            preflights: BTreeMap::new(),
            stores: BTreeMap::new(),
        }
    }

    fn pass(&mut self) -> Plan {
        let seen = self.observe();
        let mut plan = plan(self.documents.clone(), &seen, Timestamp::UNIX_EPOCH).unwrap();
        mint(&mut plan, &mut self.certificates);
        assert_eq!(invariants::check(&self.documents, &plan.documents, &seen), []);
        assert_eq!(invariants::check_replicas(&plan), []);
        self.documents = plan.documents.clone();
        for (name, config) in machine_configs(&self.documents, &seen).unwrap() {
            apply(self.machines.get_mut(&name).unwrap(), &config);
        }
        plan
    }

    fn roles(&self) -> BTreeMap<Role, usize> {
        let mut roles = BTreeMap::new();
        self.documents.components.values().for_each(|one| *roles.entry(one.spec.role).or_default() += 1);
        roles
    }

    fn made(&self, component: &str) -> Pod {
        let configs = machine_configs(&self.documents, &self.observe()).unwrap();
        let mut pods = configs.into_values().flat_map(|config| config.pods);
        pods.find(|(name, _)| name.component.as_str() == component).unwrap().1
    }

    fn document(&self, component: &str, path: &str) -> serde_json::Value {
        let file = self.made(component).files.into_iter().find(|file| file.path == path).unwrap();
        serde_json::from_slice(&file.content).unwrap()
    }
}

fn command(pod: &Pod) -> Vec<String> {
    pod.containers.last().unwrap().command.clone()
}

/// The value of a flag.
fn flag<'a>(command: &'a [String], name: &str) -> Option<&'a str> {
    command.iter().find_map(|word| word.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('='))
}

#[test]
fn a_fleet_has_fleet_controllers_and_nothing_for_workers() {
    use Role::{Etcd, FleetController, Ingress, KubeApiserver, KubeControllerManager};
    let world = World::settled(&fleet(3, ""));
    let wanted = [(Etcd, 3), (KubeApiserver, 3), (KubeControllerManager, 3), (FleetController, 2), (Ingress, 2)];
    assert_eq!(world.roles(), wanted.into());
    let of_role = |role: Role| -> BTreeSet<&HypervisorName> {
        let components = world.documents.components.values().filter(|one| one.spec.role == role);
        components.map(|one| &one.spec.hypervisor).collect()
    };
    assert!(of_role(FleetController).is_subset(&of_role(KubeApiserver)), "beside API servers");
    assert_eq!(of_role(FleetController).len(), 2, "on two machines");

    let world = World::settled(&fleet(1, ""));
    let wanted = [(Etcd, 1), (KubeApiserver, 1), (KubeControllerManager, 1), (FleetController, 1), (Ingress, 2)];
    assert_eq!(world.roles(), wanted.into());
}

#[test]
fn the_components_of_a_fleet_have_these_arguments() {
    let world = World::settled(&fleet(1, ""));
    for component in ["kube-apiserver-0", "kube-controller-manager-0", "fleet-controller-0"] {
        let pod = world.made(component);
        assert_eq!(pod.containers.len(), 1, "{component} has no container beside it");
        let files: Vec<&str> = pod.files.iter().map(|file| file.path.as_str()).collect();
        let text = format!("{}\n\n{}\n", command(&pod).join("\n"), files.join("\n"));
        insta::assert_snapshot!(format!("fleet_{component}"), text);
    }
}

#[test]
fn no_connection_of_an_api_server_leaves_a_fleet() {
    let world = World::settled(&fleet(1, ""));
    let selections = &world.document("kube-apiserver-0", "no-egress.json")["egressSelections"];
    let names: BTreeSet<&str> =
        selections.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cluster", "controlplane"].into(), "etcd is the only other one");
    let command = command(&world.made("kube-apiserver-0"));
    assert!(!command.iter().any(|word| word.contains("kubelet")), "{command:?}");
    assert_eq!(flag(&command, "egress-selector-config-file"), Some("/etc/keelway/no-egress.json"));
}

#[test]
fn the_fleet_controller_has_the_endpoints_for_agents() {
    let endpoints = |more: &str| {
        World::settled(&fleet(1, more)).document("fleet-controller-0", "fleet-controller.json")["endpoints"].clone()
    };
    assert_eq!(
        endpoints(", endpoint: {host: fleet.example.com}, vpn: {enabled: false}"),
        serde_json::json!(["fleet.example.com:20000"])
    );
    let addresses = endpoints("");
    assert_eq!(addresses.as_array().unwrap().len(), 2, "{addresses}");
}

/// The driver sees whether its bindings are there, what agents trust, and what an upgrade would meet. It changes nothing.
#[test]
fn a_driver_only_reads_in_a_fleet() {
    let [first, rights, last] = FirstBindings::Fleet.stages();
    assert!(first.iter().all(|object| object["kind"] == "Namespace"), "{first:?}");
    let all: Vec<_> = rights.iter().chain(&last).collect();
    let of_driver = |kind: &str| {
        all.iter().filter(|one| one["kind"] == kind && one["metadata"]["name"] == "keelway:driver").collect::<Vec<_>>()
    };
    let roles = of_driver("ClusterRole");
    assert_eq!((roles.len(), of_driver("Role").len(), last.len()), (1, 0, 1));
    let expected = serde_json::json!([
        {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["clusterrolebindings"],
            "verbs": ["get"],
            "resourceNames": ["keelway:driver"],
        },
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["list"],
            "resourceNames": ["agent"],
        },
        { "apiGroups": ["fleet.keelway.dev"], "resources": ["clusters"], "verbs": ["list"] },
        { "nonResourceURLs": ["/metrics"], "verbs": ["get"] },
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            "verbs": ["list"],
        },
        { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"] },
    ]);
    assert_eq!(roles.first().unwrap()["rules"], expected);
    assert_ne!(FirstBindings::Fleet.digest(), FirstBindings::Cluster.digest());
}

/// Arguments that a person may add are not those that make a fleet what it is.
#[test]
fn no_argument_of_a_person_undoes_a_fleet() {
    assert!(MINORS.len() > 1);
    for name in ["controllers", "disable-admission-plugins", "enable-admission-plugins", "egress-selector-config-file"]
    {
        assert!(argument::is_own(name), "{name}");
    }
}
