//! A cluster whose data is replaced by a snapshot, and a new cluster that begins with the same one.
//!
//! It needs what the tests of `live` need.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking")]

use std::fs;

use keelway_api::{Documents, snapshots::SnapshotsSpec};
use keelway_e2e::{
    Keelway, Kubectl, ReachMode, TestControlPlane, TestFleet, deadline, host::on_own_host, transcript::shell_commands,
};
use serde_json::json;

const PAGE: &str = "docs/operations.md";
const SECTION: &str = ".. objects were deleted by mistake, or the data of etcd is lost";
/// The snapshot in the documentation.
const EXAMPLE: &str = "20261127T115200Z-48213";

/// How far the revision of a restored store is ahead of its snapshot.
const BUMP: u64 = 1_000_000_000;

#[test]
fn snapshots_are_restored() {
    on_own_host("snapshots_are_restored", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2eres");
    let made = world.create_reached(ReachMode::AgentSocket, "1", "3");
    let keelway = &world.keelway;
    let plane = born(keelway, &made);
    // A token of before continues only if its service account is in the snapshot.
    deadline::until("the service account exists", deadline::KUBERNETES, || {
        plane.kubectl.run(&["get", "serviceaccount", "default"]).code() == 0
    });
    let _ = plane.kubectl.run(&["create", "configmap", "kept", "--from-literal=from=before"]).succeeded();
    let _ = plane.kubectl.run(&["create", "secret", "generic", "kept", "--from-literal=from=before"]).succeeded();
    let created = keelway.run(&["snapshot", "create", "c1"], &plane.text).succeeded();
    let snapshot = created.text().trim();

    what_cannot_be_used_stops_nothing(&plane, snapshot);
    let plane = it_is_restored(&plane, snapshot);
    it_is_cloned(&plane, snapshot);
}

/// A settled cluster whose snapshots are in a directory.
fn born<'a>(keelway: &'a Keelway, machines: &[u8]) -> TestControlPlane<'a> {
    let inject = ["cluster", "inject", "--name", "c1", "--etcd-replicas", "3"];
    let injected = keelway.run(&inject, machines).succeeded().stdout;
    let mut documents = Documents::read(&injected).unwrap();
    let spec = json!({"sink": {"directory": {"path": keelway.directory().join("snapshots")}}, "schedule": ""});
    let spec: SnapshotsSpec = serde_json::from_value(spec).unwrap();
    documents.clusters.values_mut().next().unwrap().spec.etcd.snapshots = Some(spec);
    let text = keelway.run(&["reconcile"], documents.write().as_bytes()).succeeded().stdout;
    let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    TestControlPlane::new(keelway, text, "c1.kubeconfig")
}

/// The error names the problem, and the cluster serves as before.
fn what_cannot_be_used_stops_nothing(plane: &TestControlPlane<'_>, snapshot: &str) {
    let running = plane.running();
    let refused = |name: &str, problem: &str| {
        let requested = request(plane, name);
        let planned = plane.keelway.run(&["plan"], &requested);
        assert!(planned.text().contains(problem), "{}", planned.text());
        let reconciled = plane.keelway.run(&["reconcile", "--once"], &requested);
        assert!(reconciled.stderr.contains(problem), "{}", reconciled.stderr);
        assert_eq!(plane.running(), running, "{problem}: a component was restarted");
    };
    refused("20200101T000000Z-1", "it does not exist");
    let sealed = plane.keelway.directory().join(format!("snapshots/default/c1/{}/{snapshot}.db.age", plane.id()));
    let whole = fs::read(&sealed).unwrap();
    fs::write(&sealed, &whole[..whole.len() / 2]).unwrap();
    refused(snapshot, "and its manifest records");
    fs::write(&sealed, whole).unwrap();
}

fn request(plane: &TestControlPlane<'_>, snapshot: &str) -> Vec<u8> {
    let restore = ["cluster", "restore", "--name", "c1", "--snapshot", snapshot];
    plane.keelway.run(&restore, &plane.text).succeeded().stdout
}

/// Objects of the snapshot are back, later ones are gone, and clients go on with newer revisions.
fn it_is_restored<'a>(plane: &TestControlPlane<'a>, snapshot: &str) -> TestControlPlane<'a> {
    let _ = plane.kubectl.run(&["delete", "configmap", "kept"]).succeeded();
    let _ = plane.kubectl.run(&["create", "configmap", "later", "--from-literal=from=after"]).succeeded();
    let token = plane.kubectl.run(&["create", "token", "default"]).succeeded();
    let token = token.text().trim();
    let before = revision(&plane.kubectl);
    let text = run_the_page(plane, snapshot);
    // The kubeconfig and the token are those of before.
    let after = TestControlPlane::new(plane.keelway, text, "c1.kubeconfig");
    has_the_objects(&after.kubectl);
    let later = after.kubectl.run(&["get", "configmap", "later"]);
    assert!(later.stderr.contains("NotFound"), "{}", later.stderr);
    let who = with_token(&after, token).run(&["auth", "whoami"]).succeeded();
    assert!(who.text().contains("system:serviceaccount:default:default"), "{}", who.text());
    assert!(revision(&after.kubectl) > before + BUMP / 2, "the revision went back");
    a_watch_of_before_begins_again(&after.kubectl, before);

    let members = after.documents.clusters.values().next().unwrap().status.as_ref().unwrap().etcd.clone().unwrap();
    let names: Vec<String> = members.members.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["etcd-3", "etcd-4", "etcd-5"], "all members are new");
    assert_eq!((members.rebuild, members.rebuilt.unwrap().number), (None, 1));
    nothing_of_it_is_left(&after);
    assert_eq!(after.keelway.run(&["plan", "--exit-code"], &after.text).code(), 0, "a request is executed once");
    after
}

/// Runs the commands of the documentation up to the restored documents, and returns these.
fn run_the_page(plane: &TestControlPlane<'_>, snapshot: &str) -> Vec<u8> {
    let directory = plane.keelway.directory();
    fs::write(directory.join("c1.yaml"), &plane.text).unwrap();
    let commands = shell_commands(PAGE, SECTION);
    let last = commands.iter().position(|command| command.ends_with("> restored.yaml")).unwrap();
    assert_eq!(last, 3, "{commands:?}");
    let outputs: Vec<String> = commands[..=last]
        .iter()
        .map(|command| plane.keelway.shell(&command.replace(EXAMPLE, snapshot)).succeeded().text().to_owned())
        .collect();
    assert!(outputs[0].contains(snapshot), "{outputs:?}");
    assert!(outputs[2].contains(&format!("restore c1 from the snapshot {snapshot}")), "{outputs:?}");
    fs::read(directory.join("restored.yaml")).unwrap()
}

/// A client that shows the token, and not the certificate of the kubeconfig.
fn with_token(plane: &TestControlPlane<'_>, token: &str) -> Kubectl {
    let mut kubeconfig = plane.kubectl.kubeconfig();
    for user in kubeconfig["users"].as_array_mut().unwrap() {
        user["user"] = json!({ "token": token });
    }
    let file = plane.keelway.directory().join("token.kubeconfig");
    fs::write(&file, kubeconfig.to_string()).unwrap();
    Kubectl::new(&file)
}

fn has_the_objects(kubectl: &Kubectl) {
    let map = kubectl.get(&["configmap", "kept"]);
    assert_eq!(map["data"]["from"], "before");
    let secret = kubectl.get(&["secret", "kept"]);
    assert_eq!(secret["data"]["from"], "YmVmb3Jl", "Secrets in the snapshot are encrypted");
}

fn revision(kubectl: &Kubectl) -> u64 {
    let list = kubectl.run(&["get", "--raw", "/api/v1/namespaces/default/configmaps"]).succeeded().json();
    list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// A watch that continues from a revision of before is refused with `Expired`, so that its client lists again.
fn a_watch_of_before_begins_again(kubectl: &Kubectl, before: u64) {
    let path = format!("/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=5&resourceVersion={before}");
    let watched = kubectl.run(&["get", "--raw", &path]);
    let found = format!("{}{}", String::from_utf8_lossy(&watched.stdout), watched.stderr);
    assert!(found.contains("Expired") || found.contains("too old resource version"), "{found}");
}

/// No plain snapshot and no member of before stays on a machine.
fn nothing_of_it_is_left(plane: &TestControlPlane<'_>) {
    for machine in &plane.machines {
        let own = machine.path(&format!("/var/lib/keelway/{}", plane.id()));
        for member in ["etcd-0", "etcd-1", "etcd-2", "etcd-3/restore"] {
            assert!(!own.join(member).exists(), "{member} on {}", machine.name());
        }
    }
}

/// The last command of the documentation. The new cluster has the objects of the snapshot, authorities of its own, and members of its own.
fn it_is_cloned(plane: &TestControlPlane<'_>, snapshot: &str) {
    let keelway = plane.keelway;
    fs::write(keelway.directory().join("c1.yaml"), &plane.text).unwrap();
    let commands = shell_commands(PAGE, SECTION);
    let clones = commands.last().unwrap();
    assert!(clones.starts_with("keelway cluster inject --name c2 --from-snapshot "), "{clones}");
    let _ = keelway.shell(&clones.replace(EXAMPLE, snapshot)).succeeded();
    let text = fs::read(keelway.directory().join("c2.yaml")).unwrap();
    let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c2"], &text).succeeded().stdout;
    fs::write(keelway.directory().join("c2.kubeconfig"), kubeconfig).unwrap();
    let clone = Kubectl::new(&keelway.directory().join("c2.kubeconfig"));
    has_the_objects(&clone);
    let _ = clone.run(&["create", "configmap", "own", "--from-literal=of=c2"]).succeeded();
    assert_ne!(plane.kubectl.run(&["get", "configmap", "own"]).code(), 0, "the source has no objects of the clone");
    deadline::until("the source serves", deadline::KUBERNETES, || plane.kubectl.run(&["get", "nodes"]).code() == 0);
    let documents = Documents::read(&text).unwrap();
    assert_eq!(keelway.run(&["plan", "--exit-code"], documents.write().as_bytes()).code(), 0);
}
