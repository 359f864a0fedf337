//! A manager without Kubernetes: documents are files that users write by hand.

use std::{collections::BTreeMap, fs, time::Instant};

use keelway_api::{Documents, release};
use keelway_e2e::{
    RunningComponent, TestControlPlane, TestFleet, deadline,
    host::{self, on_own_host},
    machine::millis,
    manager::Manager,
};

use crate::{look, lost, scheduled, workload};

const CLUSTER: &str = "clusters/default/c1.yaml";

#[test]
fn clusters_follow_files() {
    on_own_host("managed::clusters_follow_files", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2emgr");
    let made = Documents::read(&world.create_two()).unwrap();
    let mut manager = Manager::start(&host::directory("manager").join("store"));
    let applied = world.keelway.run(&["apply"], made.write().as_bytes()).succeeded();
    assert_eq!(applied.text().matches(" created\n").count(), 2, "{}", applied.text());
    let written = cluster("  etcd: {quota: 256Mi}\n");
    manager.write(CLUSTER, &written);
    let took = deadline::until("the cluster is available", deadline::SETTLE, || is_available(&manager));
    println!("{}  until the cluster was available", millis(took));

    let plane = plane(&world, &manager);
    workload::write(&plane);
    is_shown(&plane);
    is_told(&manager);
    others_see_no_key(&plane);
    let before = settled(&manager, &plane);
    refuses(&manager, &plane, &before);
    is_killed_and_begins_anew(&mut manager, &plane, &before);
    scheduled::snapshots_are_taken(&manager, &plane);
    lost::documents_are_recovered(&mut manager, &plane, &before);
    scales(&manager, &plane, &before);
    fills_its_store(&manager, &plane);
    deletes(&mut manager, &plane);
}

/// `get` prints tables for users and documents for programs. All other commands read these documents.
fn is_shown(plane: &TestControlPlane<'_>) {
    let keelway = plane.keelway;
    let shown = keelway.run(&["get", "clusters"], b"").succeeded();
    let row = shown.text().lines().nth(1).unwrap();
    assert!(row.starts_with("c1 ") && row.contains(" True "), "{row}");
    let documents = keelway.run(&["get", "-o", "yaml"], b"").succeeded().stdout;
    assert!(String::from_utf8_lossy(&documents).contains("kind: Secret"));
    let log = ["logs", "c1/etcd-0", "--tail", "1"];
    let _ = look::last_lines(1, || keelway.run(&log, &documents).succeeded().text().to_owned());
}

/// Metrics report how much components hold, as observed on their machines.
fn is_told(manager: &Manager) {
    let of = |metric: &str, component: &str| {
        manager.figure(&format!(
            "keelway_cluster_{metric}{{namespace=\"default\",cluster=\"c1\",component=\"{component}\"}}"
        ))
    };
    deadline::until("the metrics have the size of etcd", deadline::SETTLE, || {
        of("etcd_database_bytes", "etcd-0").is_some()
    });
    let (size, quota) = (of("etcd_database_bytes", "etcd-0").unwrap(), of("etcd_quota_bytes", "etcd-0").unwrap());
    assert!(size >= 16384.0 && size < quota, "{size} of {quota}");
    deadline::until("the metrics have the tunnels", deadline::SETTLE, || of("tunnel_peers", "gateway-0") == Some(0.0));
}

/// Members of the socket's group see clusters without Secrets. Other users see nothing.
fn others_see_no_key(plane: &TestControlPlane<'_>) {
    let as_group = |group: u32, words: &str| {
        plane
            .keelway
            .shell(&format!("setpriv --reuid=65534 --regid={group} --clear-groups keelway {words} 2>&1 || true"))
    };
    let seen = as_group(0, "get -o yaml").succeeded();
    assert!(seen.text().contains("kind: Component") && !seen.text().contains("kind: Secret"));
    let denied = as_group(0, "delete secret kubernetes-ca --namespace keelway-").succeeded();
    assert!(denied.text().starts_with("error: "), "{}", denied.text());
    let out = as_group(65534, "get").succeeded();
    assert!(out.text().contains("/run/keelway-manager/manager.sock"), "{}", out.text());
}

/// Returns a cluster as a user writes it.
fn cluster(more: &str) -> String {
    let version = release::newest_version();
    format!(
        "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: c1}}\nspec:\n  version: {version}\n{more}"
    )
}

fn is_available(manager: &Manager) -> bool {
    let Some(documents) = manager.documents() else { return false };
    let conditions = documents.clusters.values().filter_map(|cluster| cluster.status.as_ref());
    let mut conditions = conditions.flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == "Available" && condition.status == "True")
}

fn plane<'a>(world: &'a TestFleet, manager: &Manager) -> TestControlPlane<'a> {
    let text = manager.documents().unwrap().write().into_bytes();
    let kubeconfig = world.keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(world.keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    TestControlPlane::new(&world.keelway, text, "c1.kubeconfig")
}

/// Waits until the manager has settled. A plan then has nothing to do.
fn settled(manager: &Manager, plane: &TestControlPlane<'_>) -> BTreeMap<String, RunningComponent> {
    deadline::until("it says so", deadline::KUBERNETES, || manager.log().contains("\"settled\""));
    let text = manager.documents().unwrap().write();
    assert_eq!(plane.keelway.run(&["plan", "--exit-code"], text.as_bytes()).code(), 0);
    plane.running()
}

/// An invalid file changes nothing. The manager reports the place of the error.
fn refuses(manager: &Manager, plane: &TestControlPlane<'_>, before: &BTreeMap<String, RunningComponent>) {
    let sound = manager.read(CLUSTER).unwrap();
    manager.write(CLUSTER, &sound.replace("spec:\n", "spec:\n  etcd: {replica: 3}\n"));
    let refusal = "clusters/default/c1.yaml, line ";
    deadline::until("the file is refused", deadline::READ, || manager.log().contains(refusal));
    manager.write(CLUSTER, &sound);
    deadline::until("the file is accepted", deadline::READ, || manager.log().contains("the file is accepted"));
    assert_eq!(plane.running(), *before);
}

/// Components continue to run without the manager. After its restart, it finds nothing to do.
fn is_killed_and_begins_anew(
    manager: &mut Manager,
    plane: &TestControlPlane<'_>,
    before: &BTreeMap<String, RunningComponent>,
) {
    manager.kill();
    let settled = manager.log().matches("\"settled\"").count();
    manager.start_again();
    deadline::until("it is settled again", deadline::READ, || manager.log().matches("\"settled\"").count() > settled);
    assert_eq!(plane.running(), *before);
}

/// A user increases the number of schedulers.
fn scales(manager: &Manager, plane: &TestControlPlane<'_>, before: &BTreeMap<String, RunningComponent>) {
    let editor = "sed -i 's/^  controlPlane:$/  controlPlane:\\n    kubeScheduler: {replicas: 2}/'";
    let edited = plane.keelway.shell(&format!("EDITOR=\"{editor}\" keelway edit cluster c1")).succeeded();
    assert_eq!(edited.text(), "cluster.keelway.dev/c1 configured\n");
    let scaled = deadline::until("a second scheduler runs", deadline::KUBERNETES, || {
        plane.running().contains_key("kube-scheduler-1")
    });
    println!("{}  until the requested replica ran", millis(scaled));
    let mut after = plane.running();
    after.remove("kube-scheduler-1");
    assert_eq!(after, *before, "nothing else was touched");
    assert!(manager.read(CLUSTER).unwrap().contains("kubeScheduler"));
}

/// Enough writes of one object of 1 MB to fill the smallest quota. etcd keeps each version of the object until a compaction.
const WRITES: usize = 320;

/// Fills the store with history until etcd refuses writes. The manager compacts and defragments it, and disarms the alarm.
fn fills_its_store(manager: &Manager, plane: &TestControlPlane<'_>) {
    let begun = Instant::now();
    let object = |number: usize| {
        let text = format!("{}{number}", "0".repeat(1_000_000));
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"fill"}},"data":{{"text":"{text}"}}}}"#)
    };
    let _ = plane.kubectl.run_with(&["create", "-f", "-"], object(0).as_bytes()).succeeded();
    let writes: String = (1..WRITES).map(object).collect();
    let filled = plane.kubectl.run_with(&["replace", "--validate=false", "-f", "-"], writes.as_bytes());
    assert!(filled.stderr.contains("database space exceeded"), "{}", filled.stderr);
    println!("{}  until the store was full", millis(begun.elapsed()));
    let full = Instant::now();
    deadline::until("the store accepts writes again", deadline::SETTLE, || {
        plane.kubectl.run(&["create", "configmap", "one-more"]).code() == 0
    });
    println!("{}  until the store accepted writes again", millis(full.elapsed()));
    deadline::until("the cluster is well again", deadline::READ, || room(manager).as_deref() == Some(""));
}

/// Returns the reason why the store of the cluster has no room, or an empty text if it has room.
fn room(manager: &Manager) -> Option<String> {
    let documents = manager.documents()?;
    let mut conditions = documents.clusters.values().filter_map(|cluster| cluster.status.as_ref());
    let found = conditions.find_map(|status| status.conditions.iter().find(|one| one.type_ == "EtcdHasRoom"));
    Some(found.map(|condition| condition.reason.clone()).unwrap_or_default())
}

/// The manager deletes everything on the machines first, and then the document.
fn deletes(manager: &mut Manager, plane: &TestControlPlane<'_>) {
    let watching = plane.keelway.start(&["watch", "clusters"], b"");
    let deleted = plane.keelway.run(&["delete", "cluster", "c1"], b"").succeeded();
    assert_eq!(deleted.text(), "cluster.keelway.dev/c1 deleted\n");
    assert_eq!((manager.read(CLUSTER), plane.running()), (None, BTreeMap::new()));
    let left = manager.documents().unwrap();
    assert!(left.components.is_empty() && left.secrets.is_empty(), "{left:?}");
    manager.stop();
    let watched = plane.keelway.end(watching);
    let seen = watched.text();
    assert!(seen.starts_with("ADDED     cluster.keelway.dev/c1\n"), "{seen}");
    assert!(seen.ends_with("DELETED   cluster.keelway.dev/c1\n"), "{seen}");
}
