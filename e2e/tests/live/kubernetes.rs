//! A manager of a management cluster that Keelway itself created. The manager has only the rights of its manifest, and users work with kubectl.

use std::{collections::BTreeMap, fs, time::Instant};

use keelway_api::{Documents, hypervisor::HypervisorRole, release};
use keelway_e2e::{
    Kubectl, MachineFacts, Management, RunningComponent, TestControlPlane, TestFleet, TestMachine, deadline,
    host::on_own_host,
    machine::millis,
    manager::Manager,
    patch_release::{PATCHED_ROLES, patch_releases, tag_patched_images},
};
use serde_json::Value;

use crate::workload;

/// The query with which a user of the management cluster reads documents for `keelway`.
const DOCUMENTS: [&str; 5] =
    ["get", "hypervisors,clusters.keelway.dev,components,secrets", "--all-namespaces", "-o", "yaml"];

#[test]
fn clusters_follow_a_management_cluster() {
    on_own_host("kubernetes::clusters_follow_a_management_cluster", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2ekube");
    let made = world.create(|keelway, fleet| {
        let create = ["hypervisor", "local", "create", "--fleet", fleet, "--public", "2", "--private", "2"];
        keelway.run(&create, &[])
    });
    let (own, given) = halves(&Documents::read(&made).unwrap());
    let management = stage("management", || Management::start(&world.keelway, &own));
    management.install();
    let account = management.of_manager();
    others_are_not_its(&management.kubectl, &Kubectl::new(&account));
    let mut manager = Manager::with(&account);
    let user = &management.kubectl;
    let machines = TestMachine::all(&given);
    let found: Vec<MachineFacts> = machines.iter().map(|machine| MachineFacts::on(machine, &world.fleet)).collect();

    stage("applies", || applies(user, &given));
    let plane = plane(&world, user);
    stage("workload", || workload::write(&plane));
    let before = stage("settles", || settled(&manager, &plane));
    stage("shown", || is_shown(user, &plane));
    stage("refused", || is_refused(user, &plane, &before));
    stage("written again", || is_written_again(user, &plane, &before));
    let scaled = stage("scales", || scales(user, &plane, &before));
    let upgraded = stage("upgrades", || upgrades(user, &plane, &scaled));
    stage("killed", || is_killed_and_begins_anew(&mut manager, &plane, &upgraded));
    stage("machine stays", || a_machine_that_is_used_stays(user, &plane));
    stage("deletes", || deletes(user, &plane));
    for (before, machine) in found.iter().zip(&machines) {
        is_as_found(before, machine, &world.fleet);
    }
    stage("gone", || machines_go(user, &plane));
    manager.stop();
    // This text does not match the response of a cluster's API server to health checks before it is ready.
    assert!(!manager.log().contains("is forbidden"), "it has each right that it needs");
}

fn stage<T>(name: &str, body: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let value = body();
    println!("{:>7} ms  {name}: done", started.elapsed().as_millis());
    value
}

/// Returns a public and a private machine for the management cluster, and the same for its user.
fn halves(made: &Documents) -> (Documents, Documents) {
    let (mut own, mut given) = (Documents::default(), Documents::default());
    for role in [HypervisorRole::Public, HypervisorRole::Private] {
        let mut of_role = made.hypervisors.iter().filter(|(_, machine)| machine.spec.role == role);
        for documents in [&mut own, &mut given] {
            let (name, machine) = of_role.next().unwrap();
            documents.hypervisors.insert(name.clone(), machine.clone());
        }
    }
    (own, given)
}

/// The manager's account has no rights that it does not need.
fn others_are_not_its(administrator: &Kubectl, account: &Kubectl) {
    let others: [&[&str]; 6] = [
        &["get", "pods", "--all-namespaces"],
        &["get", "nodes"],
        &["get", "clusterroles"],
        &["create", "serviceaccount", "another", "--dry-run=server"],
        &["create", "clusterrolebinding", "another", "--clusterrole=view", "--user=me", "--dry-run=server"],
        &["delete", "hypervisor", "nobody", "--ignore-not-found"],
    ];
    for words in others {
        let refused = account.run(words);
        assert!(refused.code() != 0 && refused.stderr.to_lowercase().contains("forbidden"), "{words:?}: {refused:?}");
        let _ = administrator.run(words).succeeded();
    }
}

/// Applies everything that a user writes: two machines and a cluster.
fn applies(user: &Kubectl, machines: &Documents) {
    user.apply(&machines.write());
    user.apply(&format!(
        "{{apiVersion: keelway.dev/v1alpha1, kind: Cluster, metadata: {{name: c1}}, spec: {{version: {}}}}}",
        release::newest_version()
    ));
    user.wait("condition=Available", &["kwc/c1"]);
}

/// Returns the cluster, as `keelway` reads it from the management cluster for its user.
fn plane<'a>(world: &'a TestFleet, user: &Kubectl) -> TestControlPlane<'a> {
    let text = user.run(&DOCUMENTS).succeeded().stdout;
    let kubeconfig = world.keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(world.keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    TestControlPlane::new(&world.keelway, text, "c1.kubeconfig")
}

fn settled(manager: &Manager, plane: &TestControlPlane<'_>) -> BTreeMap<String, RunningComponent> {
    deadline::until("it says so", deadline::KUBERNETES, || manager.log().contains("\"settled\""));
    plane.running()
}

/// Every column has a value.
fn is_shown(user: &Kubectl, plane: &TestControlPlane<'_>) {
    let table = |kind: &str| {
        let shown = user.run(&["get", kind, "--all-namespaces"]).succeeded();
        let rows: Vec<Vec<String>> =
            shown.text().lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{kind}: {}", shown.text());
        rows
    };
    let clusters = table("kwc");
    assert_eq!(clusters[0], ["NAMESPACE", "NAME", "READY", "VERSION", "ENDPOINT", "ETCD", "AGE"]);
    let endpoint = format!("https://{}", plane.ingress());
    assert_eq!(clusters[1][..6], ["default", "c1", "True", release::newest_version(), &endpoint, "1"]);
    let components = table("components");
    assert_eq!(components.len(), 1 + plane.components().len());
    let ready = components[0].iter().position(|column| column == "READY").unwrap();
    assert!(components[1..].iter().all(|row| row[ready] == "True"), "{components:?}");
    let wide = user.run(&["get", "kwc,components,hypervisors", "--all-namespaces", "-o", "wide"]).succeeded();
    for word in [plane.id().as_str(), "API SERVERS", "PLACEMENT", "RUNTIME", "containerd"] {
        assert!(wide.text().contains(word), "{word}: {}", wide.text());
    }
    let described = user.run(&["describe", "kwc", "c1"]).succeeded();
    for word in ["Type:                  Available", "Reason:                Serving", &endpoint] {
        assert!(described.text().contains(word), "{word}: {}", described.text());
    }
}

/// A validation rule rejects a change immediately. What rules cannot check is reported in a condition. Components continue to run.
fn is_refused(user: &Kubectl, plane: &TestControlPlane<'_>, before: &BTreeMap<String, RunningComponent>) {
    let members = ["patch", "kwc", "c1", "--type=merge", "--patch", r#"{"spec":{"etcd":{"replicas":2}}}"#];
    let finished = user.run(&members);
    assert_ne!(finished.code(), 0);
    assert!(finished.stderr.contains("write 1, 3, 5 or 7"), "{}", finished.stderr);

    // A status as in an older copy of the object.
    let port = plane.ingress().port();
    let with_port = |port: u16| {
        let patch = format!("{{\"status\":{{\"ingressPort\":{port}}}}}");
        let words = ["patch", "kwc", "c1", "--subresource=status", "--type=merge", "--patch", &patch];
        let _ = user.run(&words).succeeded();
    };
    with_port(port + 1);
    user.wait("condition=Accepted=false", &["kwc/c1"]);
    let accepted = "jsonpath={.status.conditions[?(@.type==\"Accepted\")].message}";
    let finished = user.run(&["get", "kwc", "c1", "--output", accepted]).succeeded();
    assert!(finished.text().contains("restore the newest one"), "{}", finished.text());
    assert_eq!(plane.running(), *before);
    with_port(port);
    let is_accepted = || user.run(&["get", "kwc", "c1", "--output", accepted]).text().is_empty();
    deadline::until("it is accepted again", deadline::READ, is_accepted);
    assert_eq!(plane.running(), *before);
}

/// If a user deletes an object that Keelway owns, the manager writes it again with the same content.
fn is_written_again(user: &Kubectl, plane: &TestControlPlane<'_>, before: &BTreeMap<String, RunningComponent>) {
    let namespace = plane.id().namespace();
    let object = |name: &str| user.run(&["get", name, "--namespace", &namespace, "--output", "json"]);
    for (name, content) in [("component/kube-scheduler-0", "spec"), ("secret/kubernetes-ca", "data")] {
        let first: Value = object(name).succeeded().json();
        let _ = user.run(&["delete", name, "--namespace", &namespace]).succeeded();
        deadline::until(&format!("{name} is back"), deadline::READ, || object(name).code() == 0);
        let second: Value = object(name).succeeded().json();
        assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
        // Not compared with `assert_eq`, because a failure would print keys.
        assert!(first[content] == second[content], "{name} is another one than before");
    }
    assert_eq!(plane.running(), *before);
}

fn scales(
    user: &Kubectl,
    plane: &TestControlPlane<'_>,
    before: &BTreeMap<String, RunningComponent>,
) -> BTreeMap<String, RunningComponent> {
    let _ = user.run(&["scale", "kwc", "c1", "--replicas", "2"]).succeeded();
    let scaled = deadline::until("a second API server runs", deadline::KUBERNETES, || {
        plane.running().contains_key("kube-apiserver-1")
    });
    println!("{}  until the requested replica ran", millis(scaled));
    user.wait("jsonpath={.status.replicas}=2", &["kwc/c1"]);
    user.wait("condition=Degraded=false", &["kwc/c1"]);
    let after = plane.running();
    let kept: BTreeMap<String, RunningComponent> =
        after.clone().into_iter().filter(|(name, _)| before.contains_key(name)).collect();
    assert_eq!(kept, *before, "nothing else was touched");
    after
}

/// An upgrade waits for a machine that cannot fetch an image, says so, and begins by itself once the image is there.
fn upgrades(
    user: &Kubectl,
    plane: &TestControlPlane<'_>,
    before: &BTreeMap<String, RunningComponent>,
) -> BTreeMap<String, RunningComponent> {
    let (from, to) = patch_releases();
    let patch = format!("{{\"spec\":{{\"version\":\"{to}\"}}}}");
    let _ = user.run(&["patch", "kwc", "c1", "--type=merge", "--patch", &patch]).succeeded();
    let condition = |field: &str| format!("jsonpath={{.status.conditions[?(@.type==\"KubernetesUpToDate\")].{field}}}");
    user.wait(&format!("{}=PreflightFailed", condition("reason")), &["kwc/c1"]);
    let message = user.run(&["get", "kwc", "c1", "--output", &condition("message")]).succeeded();
    let expected = format!("{} has to fetch registry.k8s.io/kube-", plane.private().name());
    assert!(message.text().contains(&expected), "{}", message.text());
    assert_eq!(plane.running(), *before);

    let tagged = Instant::now();
    tag_patched_images(plane.private(), from, to);
    user.wait(&format!("jsonpath={{.status.version}}={to}"), &["kwc/c1"]);
    println!("{}  until the release of the images ran", millis(tagged.elapsed()));
    let after = plane.running();
    let of_patched = |name: &str| PATCHED_ROLES.iter().any(|role| name.starts_with(role.row().name));
    for (name, component) in &after {
        if of_patched(name) {
            assert!(component.image.ends_with(&format!(":v{to}")), "{name}: {component:?}");
        } else {
            assert_eq!(Some(component), before.get(name), "{name} was restarted");
        }
    }
    assert_eq!(after.len(), before.len());
    after
}

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

/// A machine that is deleted remains as long as components are on it.
fn a_machine_that_is_used_stays(user: &Kubectl, plane: &TestControlPlane<'_>) {
    let name = format!("hypervisor/{}", plane.public().name());
    let _ = user.run(&["delete", &name, "--wait=false"]).succeeded();
    user.wait("condition=Deleting", &[&name]);
    let message = "jsonpath={.status.conditions[?(@.type==\"Deleting\")].message}";
    let finished = user.run(&["get", &name, "--output", message]).succeeded();
    assert!(finished.text().contains("c1/ingress-0") && finished.text().contains("spec.drain"), "{}", finished.text());
}

/// The object of a cluster remains until its machines hold nothing of it.
fn deletes(user: &Kubectl, plane: &TestControlPlane<'_>) {
    let _ = user.run(&["delete", "kwc", "c1"]).succeeded();
    assert_eq!(plane.running(), BTreeMap::new());
    let namespace = format!("namespace/{}", plane.id().namespace());
    let machine = format!("hypervisor/{}", plane.public().name());
    user.wait("delete", &[&namespace, &machine]);
}

fn is_as_found(before: &MachineFacts, machine: &TestMachine, fleet: &str) {
    let difference = || before.difference(&MachineFacts::on(machine, fleet));
    deadline::until(&format!("{} is as it was found", machine.name()), deadline::READ, || {
        let difference = difference();
        if !difference.is_empty() {
            println!("{difference}");
        }
        difference.is_empty()
    });
}

fn machines_go(user: &Kubectl, plane: &TestControlPlane<'_>) {
    let _ = user.run(&["delete", "hypervisor", plane.private().name()]).succeeded();
    let left = ["get", "kwc,components,hypervisors", "--all-namespaces", "--output", "name"];
    assert_eq!(user.run(&left).succeeded().text(), "");
}
