//! Four fake machines with agents, and an API server with their documents.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use keelway_agent_api::client::HypervisorAgentClient;
use keelway_api::{machine::MachineConfig, release};
use keelway_base::error_chain::chain_text;
use keelway_cri::{CriContainerState, CriRuntime, CriSandboxState, Deadlines};

use crate::{
    kubectl::Kubectl,
    machine::Machine,
    managers::Manager,
    plane::{Plane, path},
    wait,
};

const PRIVATE: u8 = 3;
/// The time limit of `kubectl` for a cluster.
const TIMEOUT: &str = "--timeout=300s";

pub(crate) struct World {
    /// The private machines, then the public machine.
    machines: Vec<Machine>,
    kubectl: Kubectl,
    kubeconfig: String,
}

impl World {
    pub(crate) async fn start(plane: &Plane) -> Self {
        let kubeconfig = plane.kubeconfig("admin", &["system:masters"]);
        let kubectl = Kubectl::new(kubeconfig.clone());
        let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/crds");
        kubectl.says(&["apply", "--server-side", "-f", definitions.to_str().unwrap()]);
        let kinds =
            ["clusterclasses", "clusters", "components", "hypervisors"].map(|kind| format!("crd/{kind}.keelway.dev"));
        kubectl.says(&["wait", "--for=condition=Established", TIMEOUT, &kinds[0], &kinds[1], &kinds[2], &kinds[3]]);
        fs::create_dir(path("images")).unwrap();
        let mut world = Self { machines: Vec::new(), kubectl, kubeconfig };
        for number in 0..=PRIVATE {
            world.add(number).await;
        }
        world
    }

    /// Starts a machine in the common network, and applies its document.
    async fn add(&mut self, number: u8) {
        let folder = path(&format!("machine-{number}"));
        fs::create_dir(&folder).unwrap();
        let network = match self.machines.first() {
            Some(first) => vec![format!("--beside={}", first.pid())],
            None => (0..=PRIVATE).map(inner).chain([outer()]).map(|address| format!("--address={address}")).collect(),
        };
        let arguments: Vec<String> = network.into_iter().chain(["--agent".to_owned()]).collect();
        let machine = Machine::start(&folder, &arguments).await;
        let (role, public) = if number == PRIVATE { ("Public", outer()) } else { ("Private", String::new()) };
        // The machines share a loopback interface, so each gets a port range of its own.
        let from = 20_000 + 1_000 * u16::from(number);
        let document = format!(
            "apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-{number}}}\nspec:\n  role: {role}\n  \
             endpoint: {{agent: {{unix: {{path: {}}}}}}}\n  addresses: {{private: [{}], public: [{public}]}}\n  \
             portRange: {{from: {from}, to: {}}}\n",
            machine.root.join("agent.sock").display(),
            inner(number),
            from + 999,
        );
        self.kubectl.does(&["apply", "-f", "-"], &document);
        self.machines.push(machine);
    }

    pub(crate) fn manager(&self, name: &str) -> Manager {
        Manager::start(name, &self.kubeconfig)
    }

    /// Returns the store of the documents, as an argument of the command line.
    pub(crate) fn as_store(&self) -> String {
        format!("kubernetes:{}", self.kubeconfig)
    }

    /// Returns the names of all documents.
    pub(crate) fn documents(&self) -> String {
        let ours = ["get", "clusterclasses,hypervisors,clusters,components", "-A", "-o", "name"];
        let secrets = ["get", "secrets", "-A", "-o", "name", "-l"];
        let labels = ["keelway.dev/cluster-id", "keelway.dev/installation-id"];
        let secrets = labels.map(|label| self.kubectl.says(&[&secrets[..], &[label]].concat()));
        [vec![self.kubectl.says(&ours)], secrets.to_vec()].concat().concat()
    }

    pub(crate) fn ask_for(&self, name: &str) {
        let version = release::newest_version();
        let text = format!(
            "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\nspec: {{version: {version}}}\n"
        );
        self.kubectl.does(&["apply", "-f", "-"], &text);
    }

    /// Creates a default class without limits.
    pub(crate) fn allow(&self, class: &str) {
        let text = format!(
            "apiVersion: keelway.dev/v1alpha1\nkind: ClusterClass\nmetadata:\n  name: {class}\n  \
             annotations: {{keelway.dev/is-default-class: 'true'}}\nspec: {{}}\n"
        );
        self.kubectl.does(&["apply", "-f", "-"], &text);
    }

    pub(crate) fn is_available(&self, name: &str) {
        self.kubectl.says(&["wait", "--for=condition=Available", TIMEOUT, &format!("kwc/{name}")]);
    }

    pub(crate) fn scale(&self, name: &str, replicas: u8) {
        let patch = format!("{{\"spec\":{{\"controlPlane\":{{\"replicas\":{replicas}}}}}}}");
        self.kubectl.says(&["patch", &format!("kwc/{name}"), "--type=merge", "-p", &patch]);
    }

    /// Waits until the second API server of a cluster exists and all components are ready.
    pub(crate) async fn has_another_api_server(&self) {
        let names = || self.kubectl.says(&["get", "components", "-A", "-o", "name"]);
        wait::until("a second API server is asked for", async || names().contains("/kube-apiserver-1")).await;
        self.kubectl.says(&["wait", "components", "-A", "--all", "--for=condition=Ready", TIMEOUT]);
    }

    pub(crate) fn delete_all(&self, names: &[&str]) {
        let names = names.iter().map(|name| format!("kwc/{name}"));
        let arguments: Vec<String> = ["delete".to_owned(), TIMEOUT.to_owned()].into_iter().chain(names).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.kubectl.says(&arguments);
    }

    /// Waits until any pod was created for this number of clusters.
    pub(crate) async fn until_something_of(&self, clusters: usize) {
        let begun = async || self.made().values().any(|count| *count == clusters);
        wait::until("something of a cluster runs", begun).await;
    }

    /// Returns the calls that changed something, by machine.
    pub(crate) fn calls(&self) -> Vec<Vec<String>> {
        self.machines.iter().map(Machine::calls).collect()
    }

    /// Returns how often each pod was created.
    fn made(&self) -> BTreeMap<String, usize> {
        let mut made = BTreeMap::new();
        for call in self.calls().into_iter().flatten().filter(|call| call.starts_with("RunPodSandbox ")) {
            *made.entry(call).or_default() += 1;
        }
        made
    }

    /// Sends a late config of an earlier leader to every machine, with a generation higher than any that this leader used. Returns how many machines
    /// refuse it only because of its term.
    pub(crate) async fn hear_of_leader(&self, term: u64) -> usize {
        let installation = self.kubectl.says(&["get", "hv", "hv-0", "-o", "jsonpath={.status.installation}"]);
        let late = MachineConfig {
            format: keelway_api::machine::ConfigFormat::NEWEST,
            installation: installation.parse().unwrap(),
            term,
            generation: 1000,
            pods: BTreeMap::new(),
            others: BTreeSet::new(),
            removals: std::collections::BTreeMap::new(),
        };
        let mut refused = 0;
        for machine in &self.machines {
            let agent = HypervisorAgentClient::on_socket(&machine.root.join("agent.sock"));
            let error = chain_text(&agent.apply(&late, &|_| {}).await.unwrap_err());
            refused += usize::from(error.contains("another manager drives this machine"));
        }
        refused
    }

    /// Asserts that no machine applied a config of an earlier leader after it knew a newer one.
    pub(crate) fn obey_the_newest(&self) {
        for machine in &self.machines {
            let log = fs::read_to_string(machine.root.join("agent.log")).unwrap();
            let (mut newest, mut heard) = (0, BTreeSet::new());
            for line in log.lines() {
                let term = line.split("term=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
                match term {
                    Some(term) if line.contains("obeys another leader") => {
                        newest = newest.max(term);
                        heard.insert(term);
                    }
                    Some(term) if line.contains("a config is in effect") => assert!(term >= newest, "{log}"),
                    Some(_) | None => {}
                }
            }
            assert_eq!(heard.len(), 3, "each leader contacted each machine: {log}");
        }
    }

    /// Asserts that the machines run what the documents say, and that each pod was created once per cluster.
    pub(crate) async fn is_as_asked_for(&self, clusters: &[&str]) {
        let components = self.kubectl.says(&["get", "components", "-A", "-o", "name"]);
        let all = BTreeMap::new();
        let mut sandboxes = 0;
        for machine in &self.machines {
            let runtime = CriRuntime::on_socket(&machine.socket, Deadlines::default()).unwrap();
            let (pods, containers) = (runtime.list_pod_sandboxes(&all).await, runtime.list_containers(&all).await);
            let (pods, containers) = (pods.unwrap(), containers.unwrap());
            sandboxes += pods.len();
            assert!(pods.iter().all(|pod| pod.state == CriSandboxState::Ready), "{pods:?}");
            assert!(containers.iter().all(|one| one.state == CriContainerState::Running), "{containers:?}");
        }
        assert_eq!(sandboxes, components.lines().count());
        let made = self.made();
        assert!(made.values().all(|count| *count == clusters.len()), "a pod was made twice, or never: {made:?}");
    }

    /// Waits until the machines hold nothing of the deleted clusters.
    pub(crate) async fn is_empty(&self) {
        let left = |path| self.machines.iter().any(|machine| machine.root.join(path).exists());
        wait::until("nothing is left on machines", async || !left("var/lib/keelway") && !left("var/log/keelway")).await;
        assert_eq!(self.kubectl.says(&["get", "components", "-A", "-o", "name"]), "");
    }
}

fn inner(number: u8) -> String {
    format!("198.19.0.{}", 11 + number)
}

fn outer() -> String {
    format!("198.18.0.{}", 11 + PRIVATE)
}
