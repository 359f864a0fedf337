//! An observer of a workload cluster: each write of the fleet arrives at most once, and never after a later one.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    pin::pin,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::DynamicObject,
    config::Kubeconfig,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use tokio_util::sync::CancellationToken;

use crate::{
    Member,
    applies::{WrittenKind, client},
    guestbook::{ENTRY, NAMESPACE},
};

/// What was seen of one kind of objects.
#[derive(Debug, Default)]
struct SeenWrites {
    /// The number and the version of each object.
    last: BTreeMap<String, (u64, String)>,
    writes: usize,
    violations: Vec<String>,
}

impl SeenWrites {
    fn see(&mut self, name: &str, number: u64, version: &str) {
        if let Some((before, of)) = self.last.get(name) {
            if version == of {
                return;
            }
            if number <= *before {
                self.violations.push(format!("{name}: write {number} in version {version}, after {before} in {of}"));
            }
        }
        self.writes += 1;
        self.last.insert(name.to_owned(), (number, version.to_owned()));
    }
}

#[test]
fn a_repeated_write_and_an_older_one_are_seen() {
    let mut seen = SeenWrites::default();
    for (number, version) in [(1, "10"), (1, "10"), (3, "12")] {
        seen.see("a", number, version);
    }
    assert!(seen.violations.is_empty(), "{seen:?}");
    seen.see("a", 3, "13");
    seen.see("a", 2, "14");
    assert_eq!((seen.violations.len(), seen.writes), (2, 4), "{seen:?}");
}

/// An observer that runs until it is ended.
pub(crate) struct AppliedOnce {
    name: &'static str,
    seen: Arc<Mutex<SeenWrites>>,
    stop: CancellationToken,
    worker: JoinHandle<()>,
}

impl AppliedOnce {
    /// Starts to observe a cluster.
    pub(crate) fn start(member: &Member) -> Self {
        let (seen, stop) = (Arc::new(Mutex::new(SeenWrites::default())), CancellationToken::new());
        let file = member.cluster.kubectl.file().to_owned();
        let worker = thread::spawn({
            let (seen, stop) = (Arc::clone(&seen), stop.clone());
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(stop.run_until_cancelled(observe(file, seen)));
            }
        });
        Self { name: member.name, seen, stop, worker }
    }

    /// Fails the test if a write arrived twice, or after a later one.
    pub(crate) fn end(self) {
        self.stop.cancel();
        self.worker.join().unwrap();
        let seen = self.seen.lock().unwrap();
        println!("{} writes arrived in {}", seen.writes, self.name);
        assert_eq!(seen.violations, Vec::<String>::new(), "{}", self.name);
        assert!(seen.writes > 10, "{}: {} writes", self.name, seen.writes);
    }
}

async fn observe(file: PathBuf, seen: Arc<Mutex<SeenWrites>>) {
    let client = client(&Kubeconfig::read_from(file).unwrap(), None).await;
    tokio::join!(
        observe_kind(&client, WrittenKind::ConfigMap, &seen),
        observe_kind(&client, WrittenKind::Visit, &seen),
    );
}

async fn observe_kind(client: &Client, kind: WrittenKind, seen: &Mutex<SeenWrites>) {
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), NAMESPACE, &kind.resource());
    let mut changes = pin!(watcher(api, watcher::Config::default().labels(ENTRY)).default_backoff());
    while let Some(change) = changes.next().await {
        let Ok(Event::Apply(object) | Event::InitApply(object)) = change else { continue };
        let (name, version) = (format!("{kind:?} {}", object.name_any()), object.resource_version().unwrap());
        match kind.number(&object) {
            Some(number) => seen.lock().unwrap().see(&name, number, &version),
            None => seen.lock().unwrap().violations.push(format!("{name} has no number: {object:?}")),
        }
    }
}
