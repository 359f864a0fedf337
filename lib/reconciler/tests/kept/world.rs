//! A store in memory, and simulated machines that apply configs at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Cluster, ComponentHealth, Documents, Hypervisor, Secret, Shared, Time,
    cluster::{ClusterStatus, KeelwayStatus},
    condition::is_true,
    documents::SecretName,
    hypervisor::LOST_ANNOTATION,
    jiff::{SignedDuration, Timestamp},
    machine::{MachineConfig, MachineState, ObservedValue, Pod, SandboxState, ServerAdmin, ServerState},
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    release,
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::{
    action::Action,
    converge::{converge, model::MachineModel},
};
use keelway_planner::{FirstBindings, Probe, Waves};
use keelway_reconciler::{
    ApplyOutcome, ChangingDocuments, Components, Driver, Machines, NoProgress, PassContext, PkiMinter, RunControl,
    StopReason, Store, StoreError, Watcher, reconcile_continuously,
};
use rand::{SeedableRng, rngs::StdRng};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// At a higher verbosity, programs log keys, so Keelway does not allow it.
const MOST_VERBOSE: usize = 7;

/// Returns the wall clock, which follows the simulated time of the test.
fn now(started: Instant) -> Timestamp {
    let elapsed = SignedDuration::try_from(started.elapsed()).unwrap();
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + elapsed
}

pub(crate) struct World {
    started: Instant,
    pub(crate) store: Arc<Memory>,
    pub(crate) fleet: Arc<Fleet>,
}

/// The number of saves, and of calls to machines and components.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) saves: usize,
    pub(crate) calls: usize,
}

impl World {
    pub(crate) fn new(machines: usize, clusters: usize) -> Self {
        let documents = Documents::read(documents(machines, clusters).as_bytes()).unwrap();
        let machines = documents.hypervisors.keys().map(|name| (name.clone(), Machine::default())).collect();
        let store = Memory {
            documents: Mutex::new(Arc::new(documents)),
            known: Mutex::default(),
            changed: Notify::new(),
            saves: Arc::default(),
            refused: Mutex::default(),
            takes: Mutex::default(),
        };
        let fleet = Fleet {
            machines,
            silent: Mutex::default(),
            applied: Notify::new(),
            saves: store.saves.clone(),
            saves_at_apply: Mutex::default(),
            calls: 0.into(),
            dies: AtomicBool::default(),
            asked: Mutex::default(),
        };
        Self { started: Instant::now(), store: Arc::new(store), fleet: Arc::new(fleet) }
    }

    /// Reconciles the documents while a script runs.
    pub(crate) async fn kept(&self, watcher: &mut dyn Watcher, script: impl Future<Output = ()>) {
        let stop = CancellationToken::new();
        let started = self.started;
        let context = PassContext {
            store: self.store.clone(),
            machines: self.fleet.clone(),
            components: self.fleet.clone(),
            clock: Arc::new(move || now(started)),
            run: RunControl { stop: stop.clone(), progress: Arc::new(NoProgress) },
        };
        let mut minter = PkiMinter::new(StdRng::seed_from_u64(1));
        let script = async {
            script.await;
            stop.cancel();
        };
        let (kept, ()) = tokio::join!(
            reconcile_continuously(&context, Driver::Alone, Waves::default(), &mut minter, &*self.store, watcher),
            script
        );
        assert_eq!(kept, StopReason::Stopped);
    }

    pub(crate) fn now(&self) -> Timestamp {
        now(self.started)
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { saves: self.store.saves.load(Ordering::Relaxed), calls: self.fleet.calls.load(Ordering::Relaxed) }
    }

    /// Returns once all clusters are available and nothing has happened for a while.
    pub(crate) async fn settles(&self) {
        for _ in 0..60 {
            let before = self.counts();
            sleep(Duration::from_secs(60)).await;
            let documents = self.store.documents();
            if self.counts() == before && documents.clusters.values().all(|cluster| is_available(cluster)) {
                return;
            }
        }
        let documents = self.store.documents();
        let statuses = documents.components.values().filter_map(|component| component.status.as_ref());
        let unwell = statuses.map(|status| &status.conditions).find(|found| !is_true(found, "Ready"));
        panic!("it does not settle: {:?} {unwell:?}", self.counts());
    }
}

fn reference(name: &str) -> ClusterRef {
    ClusterRef { namespace: "default".to_owned(), name: name.to_owned() }
}

fn is_available(cluster: &Cluster) -> bool {
    cluster.status.as_ref().is_some_and(|status| is_true(&status.conditions, "Available"))
}

fn documents(machines: usize, clusters: usize) -> String {
    let mut text = String::new();
    for machine in 0..machines {
        let (role, public) = if machine % 10 == 0 {
            ("Public", format!("203.0.{}.{}", machine / 250, machine % 250 + 1))
        } else {
            ("Private", String::new())
        };
        let address = format!("10.0.{}.{}", machine / 250, machine % 250 + 1);
        write!(
            text,
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {{name: hv-{machine}}}\nspec:\n  role: {role}\n  \
             endpoint: {{agent: {{address: '{address}:7443'}}}}\n  addresses: {{private: [{address}], public: [{public}]}}\n"
        )
        .unwrap();
    }
    for cluster in 0..clusters {
        let version = release::newest_version();
        write!(
            text,
            "---\napiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: c{cluster}, namespace: default}}\nspec: {{version: \
             {version}, certificates: {{componentTTL: 48h}}}}\n"
        )
        .unwrap();
    }
    text
}

/// The condition of a cluster that runs components of an earlier release of Keelway.
pub(crate) const UP_TO_DATE: &str = "KeelwayUpToDate";

/// Documents in memory.
pub(crate) struct Memory {
    documents: Mutex<Arc<Documents>>,
    /// The documents that the last load returned.
    known: Mutex<Documents>,
    changed: Notify,
    saves: Arc<AtomicUsize>,
    /// The cluster whose changes are refused.
    refused: Mutex<Option<ClusterRef>>,
    /// How long a save takes.
    takes: Mutex<Duration>,
}

impl Memory {
    /// Refuses saves that change this cluster's document or Secrets.
    pub(crate) fn refuse(&self, name: Option<&str>) {
        *self.refused.lock().unwrap() = name.map(reference);
    }

    /// Makes each save take this long from now on.
    pub(crate) fn take(&self, time: Duration) {
        *self.takes.lock().unwrap() = time;
    }

    /// Returns the names of clusters that are available.
    pub(crate) fn available(&self) -> Vec<String> {
        let documents = self.documents();
        let available = documents.clusters.iter().filter(|(_, cluster)| is_available(cluster));
        available.map(|(name, _)| name.name.clone()).collect()
    }

    fn documents(&self) -> Arc<Documents> {
        self.documents.lock().unwrap().clone()
    }

    pub(crate) fn machine(&self, name: &str) -> Hypervisor {
        self.documents().hypervisors[&name.parse().unwrap()].clone().into_inner()
    }

    /// Changes the pod of a cluster's scheduler.
    pub(crate) fn change(&self, name: &str) {
        self.edit(name, |cluster| {
            let arguments = &mut cluster.spec.control_plane.kube_scheduler.extra_args;
            let verbosity = arguments.get("v").map_or(0, |v| v.parse::<usize>().unwrap());
            arguments.insert("v".to_owned(), (verbosity % MOST_VERBOSE + 1).to_string());
        });
    }

    /// Changes a cluster so that it has a pass, without a change of its pods.
    pub(crate) fn touch(&self, name: &str) {
        self.edit(name, |cluster| cluster.metadata.labels = Some([("touched".to_owned(), "again".to_owned())].into()));
    }

    /// Marks a cluster as deleted.
    pub(crate) fn delete(&self, name: &str, now: Timestamp) {
        self.edit(name, |cluster| cluster.metadata.deletion_timestamp = Some(Time(now)));
    }

    /// Returns whether a cluster exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.documents().clusters.contains_key(&reference(name))
    }

    /// Marks a machine as lost for good.
    pub(crate) fn lose(&self, machine: &HypervisorName) {
        let lost = (LOST_ANNOTATION.to_owned(), "true".to_owned());
        self.edit_all(|documents| {
            let metadata = &mut documents.hypervisors.get_mut(machine).unwrap().metadata;
            metadata.annotations.get_or_insert_default().extend([lost]);
        });
    }

    /// Pauses or resumes a cluster.
    pub(crate) fn pause(&self, name: &str, paused: bool) {
        self.edit(name, |cluster| cluster.spec.paused = paused);
    }

    /// Records an earlier release of Keelway in all clusters.
    pub(crate) fn downgrade(&self, release: &str) {
        self.edit_all(|documents| {
            for cluster in documents.clusters.values_mut() {
                let keelway = KeelwayStatus { version: release.to_owned(), previous_version: None };
                cluster.status.get_or_insert_default().keelway = Some(keelway);
            }
        });
    }

    /// Adds a cluster that was upgraded and is not available: it has more ingresses than there are public machines.
    pub(crate) fn add_upgraded_without_machines(&self, name: &str) {
        self.edit_all(|documents| {
            let mut cluster = Cluster::new(name, documents.clusters[&reference("c0")].spec.clone());
            cluster.metadata.namespace = Some("default".to_owned());
            cluster.spec.ingress.replicas = 2;
            let keelway =
                KeelwayStatus { version: release::KEELWAY.to_owned(), previous_version: Some("v0.0.8".to_owned()) };
            let id = "00000000000000a0".parse().unwrap();
            cluster.status = Some(ClusterStatus { id: Some(id), keelway: Some(keelway), ..ClusterStatus::default() });
            documents.clusters.insert(reference(name), cluster);
        });
    }

    /// Returns the previous and the current release of Keelway in a cluster, and the reason of its condition [`UP_TO_DATE`].
    pub(crate) fn release(&self, number: usize) -> (Option<String>, String, Option<String>) {
        let documents = self.documents();
        let cluster = &documents.clusters[&reference(&format!("c{number}"))];
        let status = cluster.status.as_ref().unwrap();
        let previous = status.keelway.as_ref().and_then(|keelway| keelway.previous_version.clone());
        let why = status.conditions.iter().find(|condition| condition.type_ == UP_TO_DATE);
        (previous, cluster.keelway_version().to_owned(), why.map(|condition| condition.reason.clone()))
    }

    /// Removes a Secret of a cluster, and returns it.
    pub(crate) fn take_secret(&self, cluster: &str, name: &str) -> (SecretName, Shared<Secret>) {
        let secret = SecretName::of(&self.id(cluster), name);
        let mut taken = None;
        self.edit_all(|documents| taken = documents.secrets.remove(&secret));
        (secret, taken.unwrap())
    }

    /// Adds a Secret again.
    pub(crate) fn put_secret(&self, (name, secret): (SecretName, Shared<Secret>)) {
        self.edit_all(|documents| drop(documents.secrets.insert(name, secret)));
    }

    /// Removes a Component of a cluster.
    pub(crate) fn take_component(&self, cluster: &str, name: &str) {
        let pod = PodName { cluster: self.id(cluster), component: name.parse().unwrap() };
        self.edit_all(|documents| drop(documents.components.remove(&pod).unwrap()));
    }

    pub(crate) fn id(&self, cluster: &str) -> ClusterId {
        self.documents().clusters[&reference(cluster)].id().unwrap().clone()
    }

    /// Returns the argument for the verbosity of a cluster's scheduler.
    pub(crate) fn verbosity(&self, cluster: &str) -> String {
        let spec = &self.documents().clusters[&reference(cluster)].spec;
        format!("--v={}", spec.control_plane.kube_scheduler.extra_args["v"])
    }

    /// Returns the components of a cluster.
    pub(crate) fn components(&self, cluster: &str) -> BTreeSet<PodName> {
        self.documents().components_of(&self.id(cluster)).map(|(pod, _)| pod.clone()).collect()
    }

    /// Returns whether a cluster has components on a machine.
    pub(crate) fn is_on(&self, cluster: &str, machine: &str) -> bool {
        let documents = self.documents();
        documents.components_of(&self.id(cluster)).any(|(_, component)| component.spec.hypervisor.as_str() == machine)
    }

    fn edit(&self, name: &str, edit: impl FnOnce(&mut Cluster)) {
        self.edit_all(|documents| edit(documents.clusters.get_mut(&reference(name)).unwrap()));
    }

    fn edit_all(&self, edit: impl FnOnce(&mut Documents)) {
        let mut documents = Documents::clone(&self.documents());
        edit(&mut documents);
        *self.documents.lock().unwrap() = Arc::new(documents);
        self.changed.notify_one();
    }
}

/// Returns whether a cluster's own document or one of its Secrets differs.
fn changes(before: &Documents, after: &Documents, name: &ClusterRef) -> bool {
    let id = before.clusters.get(name).and_then(|cluster| cluster.id());
    let secrets = |of: &Documents| id.map(|id| of.secrets_of(id).map(|(name, _)| name.to_owned()).collect::<Vec<_>>());
    before.clusters.get(name) != after.clusters.get(name) || secrets(before) != secrets(after)
}

#[async_trait]
impl Store for Memory {
    async fn load(&self) -> Result<Arc<Documents>, StoreError> {
        let documents = self.documents();
        self.known.lock().unwrap().clone_from(&documents);
        Ok(documents)
    }

    async fn save(&self, documents: &Documents) -> Result<(), StoreError> {
        self.saves.fetch_add(1, Ordering::Relaxed);
        let takes = *self.takes.lock().unwrap();
        sleep(takes).await;
        let refused = self.refused.lock().unwrap().clone();
        if refused.is_some_and(|name| changes(&self.documents(), documents, &name)) {
            return Err(StoreError { operation: "save", cause: "it is refused".into() });
        }
        let known = std::mem::replace(&mut *self.known.lock().unwrap(), documents.clone());
        let mut now = self.documents.lock().unwrap();
        let specs: Vec<_> = now.clusters.iter().map(|(name, cluster)| (name.clone(), cluster.spec.clone())).collect();
        let next = Arc::make_mut(&mut now);
        documents.changes_since(&known).iter().for_each(|change| next.make(change, documents));
        // A save does not overwrite specs that users changed meanwhile.
        for (name, spec) in specs {
            if let Some(cluster) = next.clusters.get_mut(&name) {
                cluster.spec = spec;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl ChangingDocuments for Memory {
    async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Simulated machines that apply configs at once, and report their changes.
pub(crate) struct Fleet {
    machines: BTreeMap<HypervisorName, Machine>,
    silent: Mutex<Option<HypervisorName>>,
    applied: Notify,
    /// The number of saves of the store.
    saves: Arc<AtomicUsize>,
    /// The number of saves before each apply.
    saves_at_apply: Mutex<Vec<usize>>,
    calls: AtomicUsize,
    /// Whether the next machine that receives a config stops responding.
    dies: AtomicBool,
    /// Components that were probed, with the number of saves before.
    asked: Mutex<BTreeSet<ClusterId>>,
}

struct Machine {
    model: Mutex<MachineModel>,
    /// The pods that the agent received last.
    taken: Mutex<BTreeMap<PodName, Pod>>,
    changed: Notify,
}

impl Default for Machine {
    fn default() -> Self {
        Self { model: Mutex::new(MachineModel::empty()), taken: Mutex::default(), changed: Notify::new() }
    }
}

impl Machine {
    /// Returns the config completed with the pods that the agent already has.
    fn whole(&self, ConfigDelivery { mut config, unchanged: same, digest }: ConfigDelivery) -> MachineConfig {
        let mut taken = self.taken.lock().unwrap();
        for (name, digest) in same {
            let pod = taken.remove(&name).unwrap();
            assert_eq!(pod.content_digest(), digest, "{name} is the same as before");
            config.pods.insert(name, pod);
        }
        assert_eq!(digest.unwrap(), config.digest());
        taken.clone_from(&config.pods);
        config
    }
}

impl Fleet {
    fn machine(&self, document: &Hypervisor) -> &Machine {
        &self.machines[&document.metadata.name.as_ref().unwrap().parse().unwrap()]
    }

    /// Returns the pods of a cluster that run on any machine.
    pub(crate) fn runs(&self, id: &ClusterId) -> BTreeMap<PodName, SandboxState> {
        let states = self.machines.values().map(|machine| machine.model.lock().unwrap().state.sandboxes.clone());
        let of_it = states.flatten().filter(|sandbox| sandbox.pod.cluster == *id);
        of_it.map(|sandbox| (sandbox.pod.clone(), sandbox)).collect()
    }

    /// Removes the files of all pods from a machine. Its agent reports `failure` if it could not restore them.
    pub(crate) fn lose_files(&self, machine: &str, failure: Option<&str>) {
        let machine = &self.machines[&machine.parse().unwrap()];
        let state = &mut machine.model.lock().unwrap().state;
        state.files.retain(|path, file| !path.contains("/files/") || file.sha256.is_none());
        state.failures = failure.map(str::to_owned).into_iter().collect();
        machine.changed.notify_one();
    }

    /// Returns once a machine has a container with this argument.
    pub(crate) async fn has(&self, argument: &str) {
        let is_one = |given: &String| given == argument;
        loop {
            let applied = self.applied.notified();
            let pods = |machine: &Machine| machine.taken.lock().unwrap().values().cloned().collect::<Vec<_>>();
            let mut containers = self.machines.values().flat_map(pods).flat_map(|pod| pod.containers);
            if containers.any(|container| container.command.iter().any(is_one)) {
                return;
            }
            applied.await;
        }
    }

    /// Returns when a machine receives a config.
    pub(crate) fn next_apply(&self) -> impl Future<Output = ()> {
        self.applied.notified()
    }

    /// Returns the number of saves before each apply since the last call.
    pub(crate) fn saves_at_apply(&self) -> Vec<usize> {
        std::mem::take(&mut *self.saves_at_apply.lock().unwrap())
    }

    /// Lets the next machine that receives a config stop responding. Returns its name.
    pub(crate) async fn next_dies(&self, change: impl FnOnce()) -> HypervisorName {
        self.dies.store(true, Ordering::Relaxed);
        let applied = self.next_apply();
        change();
        applied.await;
        self.silent().clone().unwrap()
    }

    /// Returns the clusters of which a component was probed.
    pub(crate) fn asked_clusters(&self) -> BTreeSet<ClusterId> {
        self.asked.lock().unwrap().clone()
    }

    /// Clears the record of probed components.
    pub(crate) fn forget_who_was_asked(&self) {
        self.asked.lock().unwrap().clear();
    }

    fn called(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Interrupts the connection to this machine, and restores the one that was interrupted before.
    pub(crate) fn silence(&self, name: Option<&str>) {
        let name = name.map(|name| name.parse().unwrap());
        let before = std::mem::replace(&mut *self.silent(), name.clone());
        for name in before.iter().chain(&name) {
            self.machines[name].changed.notify_one();
        }
    }

    fn silent(&self) -> MutexGuard<'_, Option<HypervisorName>> {
        self.silent.lock().unwrap()
    }
}

#[async_trait]
impl Machines for Fleet {
    async fn observe(&self, document: &Hypervisor) -> ObservedValue<MachineState> {
        self.called();
        if self.silent().as_ref().map(HypervisorName::as_str) == document.metadata.name.as_deref() {
            return ObservedValue::unreachable("nobody answers");
        }
        ObservedValue::Known(self.machine(document).model.lock().unwrap().state.clone())
    }

    /// Behaves as an agent, which decides on its actions by itself.
    async fn apply(
        &self,
        document: &Hypervisor,
        given: ConfigDelivery,
        _: Vec<Action>,
        _: &RunControl,
    ) -> ApplyOutcome {
        self.called();
        if self.dies.swap(false, Ordering::Relaxed) {
            *self.silent() = document.metadata.name.as_ref().map(|name| name.parse().unwrap());
        }
        self.applied.notify_waiters();
        self.saves_at_apply.lock().unwrap().push(self.saves.load(Ordering::Relaxed));
        let machine = self.machine(document);
        let config = machine.whole(given);
        let mut model = machine.model.lock().unwrap();
        let actions = converge(&config, &model.state).unwrap();
        model.execute(&actions);
        model.state.failures.clear();
        work(&mut model.state, &config);
        machine.changed.notify_one();
        ApplyOutcome { effects: actions.len(), failures: Vec::new() }
    }

    async fn dial(&self, _: &Hypervisor, _: SocketAddr, _: Duration) -> std::io::Result<MachineConnection> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    async fn changed(&self, documents: &[&Hypervisor]) {
        let [document] = documents else { panic!("each machine is waited for by itself") };
        self.machine(document).changed.notified().await;
    }
}

#[async_trait]
impl Components for Fleet {
    async fn health(&self, _: &Documents, probe: &Probe) -> ComponentHealth {
        self.called();
        self.asked.lock().unwrap().insert(probe.component.cluster.clone());
        let runs = self.machines[&probe.machine].model.lock().unwrap().state.runs(&probe.component);
        if runs { ComponentHealth::Healthy } else { ComponentHealth::NoAnswer("connection refused".to_owned()) }
    }

    async fn bindings(&self, _: &Documents, _: &ClusterId) -> ObservedValue<String> {
        self.called();
        ObservedValue::Known(FirstBindings::Cluster.digest())
    }

    async fn bind(&self, _: &Documents, _: &ClusterId, _: Timestamp) -> Result<(), String> {
        self.called();
        Ok(())
    }
}

/// Simulates running programs: etcd writes data, and haproxy serves.
fn work(state: &mut MachineState, config: &MachineConfig) {
    for (pod, wanted) in config.pods.iter().filter(|(pod, _)| state.runs(pod)).collect::<Vec<_>>() {
        for data in &wanted.data {
            state.data.entry(format!("{pod}/{data}")).or_default().used = true;
        }
        if let Some(servers) = &wanted.servers {
            let serves = |address| ServerState { address, admin: ServerAdmin::Serves, sessions: 0, ready: true };
            let started = servers.addresses.iter().map(|(name, at)| (name.clone(), serves(*at))).collect();
            state.servers.entry(pod.clone()).or_insert(started);
        }
    }
    let running: BTreeSet<_> = state.sandboxes.iter().map(|sandbox| sandbox.pod.clone()).collect();
    state.servers.retain(|pod, _| running.contains(pod));
}
