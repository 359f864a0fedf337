//! A client that creates, changes and deletes objects in a loop, and remembers what the fleet has acknowledged.
//!
//! Each write has a number that is larger than all before it. A write that got no answer is repeated at another ingress until it is acknowledged. It
//! names the version that it replaces, so that an attempt which arrives late changes nothing.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use keelway_e2e::{Kubectl, deadline};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams, Preconditions},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use serde_json::json;

use crate::{
    Member,
    guestbook::{ENTRY, NAMESPACE, PART},
};

/// The time limit of one attempt.
const TRY: Duration = Duration::from_secs(5);
/// The pause after each write, and after an attempt that failed.
const PAUSE: Duration = Duration::from_millis(250);
/// The number of ConfigMaps that are created, changed and deleted.
const ENTRIES: u64 = 6;
/// The object that is changed, and never deleted.
const COUNTER: &str = "counter";
/// The Deployment whose annotation is changed. Its pods are not affected.
pub(crate) const ANNOTATED: &str = "leader";

/// The kinds that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WrittenKind {
    ConfigMap,
    Visit,
    Deployment,
}

impl WrittenKind {
    pub(crate) fn resource(self) -> ApiResource {
        ApiResource::from_gvk(&match self {
            Self::ConfigMap => GroupVersionKind::gvk("", "v1", "ConfigMap"),
            Self::Visit => GroupVersionKind::gvk("guestbook.example.com", "v1", "Visit"),
            Self::Deployment => GroupVersionKind::gvk("apps", "v1", "Deployment"),
        })
    }

    /// Returns the number in an object.
    pub(crate) fn number(self, object: &DynamicObject) -> Option<u64> {
        match self {
            Self::ConfigMap => object.data["data"]["number"].as_str()?.parse().ok(),
            Self::Visit => object.data["spec"]["number"].as_u64(),
            Self::Deployment => object.annotations().get(ENTRY)?.parse().ok(),
        }
    }

    fn set(self, object: &mut DynamicObject, number: u64) {
        match self {
            Self::ConfigMap => object.data["data"] = json!({ "number": number.to_string() }),
            Self::Visit => object.data["spec"] = json!({ "number": number }),
            Self::Deployment => drop(object.annotations_mut().insert(ENTRY.to_owned(), number.to_string())),
        }
    }

    fn new_object(self, name: &str) -> DynamicObject {
        let mut object = DynamicObject::new(name, &self.resource()).within(NAMESPACE).data(json!({}));
        for (label, value) in [PART, (ENTRY, "true")] {
            object.labels_mut().insert(label.to_owned(), value.to_owned());
        }
        object
    }
}

type WrittenObject = (WrittenKind, String);
/// The last acknowledged write of each object: its number, or `None` for a deletion.
type Acknowledged = BTreeMap<WrittenObject, Option<u64>>;

#[derive(Default)]
struct LoopState {
    stop: AtomicBool,
    acknowledged: Mutex<Acknowledged>,
    /// The number of acknowledged writes, of attempts that failed, and the longest time until a write was acknowledged.
    figures: Mutex<(u64, u64, Duration)>,
    /// Acknowledged writes that the fleet does not have.
    lost: Mutex<Vec<String>>,
}

impl LoopState {
    /// Counts an acknowledged write that took this long.
    fn count(&self, took: Duration) {
        let mut figures = self.figures.lock().unwrap();
        *figures = (figures.0 + 1, figures.1, figures.2.max(took));
    }
}

/// A loop that runs until it is ended.
pub(crate) struct ApplyLoop {
    state: Arc<LoopState>,
    worker: JoinHandle<()>,
}

impl ApplyLoop {
    /// Starts to write, at all ingresses that the kubeconfig names.
    pub(crate) fn start(fleet: &Kubectl) -> Self {
        let state = Arc::new(LoopState::default());
        let worker = thread::spawn({
            let (state, file) = (Arc::clone(&state), fleet.file().to_owned());
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let kubeconfig = Kubeconfig::read_from(file).unwrap();
                    let mut clients = Vec::new();
                    for context in &kubeconfig.contexts {
                        clients.push(client(&kubeconfig, Some(&context.name)).await);
                    }
                    FleetWriter { state, clients, turn: 0, known: BTreeMap::new() }.run().await;
                });
            }
        });
        Self { state, worker }
    }

    fn counted(&self) -> u64 {
        let acknowledged = self.state.acknowledged.lock().unwrap();
        acknowledged.get(&(WrittenKind::Visit, COUNTER.to_owned())).copied().flatten().unwrap_or_default()
    }

    /// Waits until something that is acknowledged from now on is in these clusters.
    pub(crate) fn arrives(&self, what: &str, members: &[&Member]) {
        let before = self.counted();
        deadline::until("writes are acknowledged", deadline::KUBERNETES, || self.counted() > before);
        let wanted = self.counted();
        for member in members {
            let kubectl = &member.cluster.kubectl;
            let arguments =
                ["get", "visits", COUNTER, "-n", NAMESPACE, "-o", "jsonpath={.spec.number}", "--request-timeout=5s"];
            let took =
                deadline::until(&format!("{what}: write {wanted} is in {}", member.name), deadline::KUBERNETES, || {
                    kubectl.run(&arguments).text().parse().is_ok_and(|found: u64| found >= wanted)
                });
            println!("{:>7} ms  until a new write was in {}: {what}", took.as_millis(), member.name);
        }
    }

    /// Ends the loop, and waits until the fleet and these clusters have exactly what was acknowledged.
    pub(crate) fn settles(self, fleet: &Kubectl, members: &[&Member]) {
        self.state.stop.store(true, Ordering::Relaxed);
        self.worker.join().unwrap();
        let acknowledged = self.state.acknowledged.lock().unwrap().clone();
        let (writes, failed, longest) = *self.state.figures.lock().unwrap();
        println!("{writes} writes, {failed} attempts failed, longest {} ms", longest.as_millis());
        assert!(writes > 100, "{writes} writes");
        assert!(acknowledged.values().any(Option::is_none), "nothing is deleted: {acknowledged:?}");
        assert_eq!(*self.state.lost.lock().unwrap(), Vec::<String>::new());
        let places = members.iter().map(|member| (member.name, &member.cluster.kubectl));
        for (name, kubectl) in [("the fleet", fleet)].into_iter().chain(places) {
            let last = Mutex::new(Acknowledged::new());
            let what = format!("{name} has what was acknowledged");
            let started = Instant::now();
            while stored(kubectl, &acknowledged).is_none_or(|found| {
                let is_it = found == acknowledged;
                *last.lock().unwrap() = found;
                !is_it
            }) {
                let is_late = started.elapsed() > deadline::KUBERNETES;
                assert!(!is_late, "{what}: {acknowledged:?}, and not {:?}", last.lock().unwrap());
                thread::park_timeout(PAUSE);
            }
            println!("{:>7} ms  until {what}", started.elapsed().as_millis());
        }
    }
}

/// Returns what is stored of all that was written, or `None` if there is no answer.
fn stored(kubectl: &Kubectl, acknowledged: &Acknowledged) -> Option<Acknowledged> {
    let listed =
        kubectl.run(&["get", "configmaps,visits,deployments", "-n", NAMESPACE, "-o", "json", "--request-timeout=5s"]);
    if listed.code() != 0 {
        return None;
    }
    let items: Vec<DynamicObject> = serde_json::from_value(listed.json()["items"].clone()).unwrap();
    let number = |(kind, name): &WrittenObject| {
        let is_it = |object: &&DynamicObject| {
            object.name_any() == *name && object.types.as_ref().is_some_and(|types| types.kind == kind.resource().kind)
        };
        items.iter().find(is_it).and_then(|object| kind.number(object))
    };
    Some(acknowledged.keys().map(|object| (object.clone(), number(object))).collect())
}

/// Returns a client with this context of a kubeconfig, or with its current one.
pub(crate) async fn client(kubeconfig: &Kubeconfig, context: Option<&str>) -> Client {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await.unwrap();
    config.connect_timeout = Some(TRY);
    Client::try_from(config).unwrap()
}

struct FleetWriter {
    state: Arc<LoopState>,
    /// One for each ingress.
    clients: Vec<Client>,
    turn: usize,
    /// The objects as the fleet answered last.
    known: BTreeMap<WrittenObject, DynamicObject>,
}

impl FleetWriter {
    async fn run(mut self) {
        self.known_after_conflict(&(WrittenKind::Deployment, ANNOTATED.to_owned())).await;
        for number in 1.. {
            if self.state.stop.load(Ordering::Relaxed) {
                return;
            }
            let (round, slot) = (number / (ENTRIES + 2), number % (ENTRIES + 2));
            let object = match slot {
                ENTRIES => (WrittenKind::Visit, COUNTER.to_owned()),
                slot if slot < ENTRIES => (WrittenKind::ConfigMap, format!("entry-{slot}")),
                _ => (WrittenKind::Deployment, ANNOTATED.to_owned()),
            };
            let is_deletion = object.0 == WrittenKind::ConfigMap && (round + slot) % 4 == 3;
            let started = Instant::now();
            let done = if is_deletion { None } else { Some(number) };
            match done {
                None => self.delete(&object).await,
                Some(number) => self.write(&object, number).await,
            }
            self.state.acknowledged.lock().unwrap().insert(object, done);
            self.state.count(started.elapsed());
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn api(&self, kind: WrittenKind) -> Api<DynamicObject> {
        Api::namespaced_with(self.clients[self.turn % self.clients.len()].clone(), NAMESPACE, &kind.resource())
    }

    /// Uses the next ingress from now on.
    async fn failed(&mut self) {
        self.state.figures.lock().unwrap().1 += 1;
        self.turn += 1;
        tokio::time::sleep(PAUSE).await;
    }

    async fn write(&mut self, object: &WrittenObject, number: u64) {
        let (kind, name) = object;
        loop {
            let api = self.api(*kind);
            let known = self.known.get(object).cloned();
            let mut wanted = known.clone().unwrap_or_else(|| kind.new_object(name));
            kind.set(&mut wanted, number);
            let parameters = PostParams { field_manager: Some("guests".to_owned()), ..PostParams::default() };
            let attempt = async {
                match known {
                    Some(_) => api.replace(name, &parameters, &wanted).await,
                    None => api.create(&parameters, &wanted).await,
                }
            };
            match tokio::time::timeout(TRY, attempt).await {
                Ok(Ok(stored)) => return drop(self.known.insert(object.clone(), stored)),
                Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                    if self.known_after_conflict(object).await == Some(number) {
                        return;
                    }
                }
                Ok(Err(_)) | Err(_) => self.failed().await,
            }
        }
    }

    /// Reads an object that was changed by an earlier attempt, or whose status was written. Returns its number.
    async fn known_after_conflict(&mut self, object: &WrittenObject) -> Option<u64> {
        let (kind, name) = object;
        loop {
            let Ok(Ok(found)) = tokio::time::timeout(TRY, self.api(*kind).get_opt(name)).await else {
                self.failed().await;
                continue;
            };
            let acknowledged = self.state.acknowledged.lock().unwrap().get(object).copied().flatten();
            let number = found.as_ref().and_then(|found| kind.number(found));
            if number < acknowledged {
                let lost = format!("{object:?}: {acknowledged:?} was acknowledged, and the fleet has {number:?}");
                self.state.lost.lock().unwrap().push(lost);
            }
            match found {
                Some(found) => drop(self.known.insert(object.clone(), found)),
                None => drop(self.known.remove(object)),
            }
            return number;
        }
    }

    async fn delete(&mut self, object: &WrittenObject) {
        let Some(known) = self.known.remove(object) else { return };
        let preconditions = Some(Preconditions { uid: known.uid(), resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        loop {
            match tokio::time::timeout(TRY, self.api(object.0).delete(&object.1, &parameters)).await {
                Ok(Ok(_)) => return,
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return,
                Ok(Err(_)) | Err(_) => self.failed().await,
            }
        }
    }
}
