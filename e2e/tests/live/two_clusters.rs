//! Two clusters on the same machines, with pods of other programs and a second installation: what is separate, and what is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::Instant,
};

use keelway_api::{Component, Documents, name::ClusterId, reserved, role::Role, validated::ValidatedCluster};
use keelway_e2e::{Keelway, Kubectl, TestFleet, TestMachine, host::on_own_host, process};

#[test]
fn two_clusters() {
    on_own_host("two_clusters::two_clusters", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2etwo");
    let made = world.create(|keelway, fleet| {
        let create = &["hypervisor", "local", "create", "--fleet", fleet];
        // The first private machine has no agent, so only passes maintain it.
        let bare = [&create[..], &["--public", "0", "--private", "1", "--agent=false"]].concat();
        let _ = keelway.run(&bare, &[]).succeeded();
        keelway.run(&[&create[..], &["--public", "1", "--private", "2"]].concat(), &[])
    });
    let keelway = &world.keelway;
    let machines = world.machines();
    let input = with_arguments(&injected(keelway, &injected(keelway, &made, "c1"), "c2"), "c2");
    let settled = keelway.run(&["reconcile"], &input).succeeded().stdout;
    let strangers: Vec<String> = machines.iter().map(|machine| machine.run_sandbox("stranger", &[])).collect();

    stage("apart", || {
        documents_share_nothing(&read(&settled));
        nobody_reads_what_is_anothers(&machines, &read(&settled));
        each_serves_its_own(keelway, &settled);
        each_has_its_arguments(&machines, &read(&settled));
    });
    stage("kubelet", || a_kubelets_runtime_is_refused(keelway, &machines[1], &settled));
    stage("data", || a_member_without_its_data_stays_away(keelway, &machines, &settled));
    let back = stage("installation", || another_installation_is_refused(keelway, &machines, (&made, &settled)));
    let drained = stage("drain", || a_machine_is_drained(keelway, &machines, &back));
    stage("stale", || stale_documents_are_refused(keelway, &machines, &settled));

    let deleted = ["c1", "c2"].iter().fold(drained, |documents, name| {
        keelway.run(&["cluster", "delete", "--name", name], &documents).succeeded().stdout
    });
    let _ = keelway.run(&["reconcile"], &deleted).succeeded();
    for (machine, stranger) in machines.iter().zip(&strangers) {
        assert_eq!(machine.sandboxes(), (1, 0), "only the pod of somebody else is left on {}", machine.name());
        machine.remove_sandbox(stranger);
    }
}

fn stage<T>(name: &str, body: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let value = body();
    println!("{:>7} ms  {name}: done", started.elapsed().as_millis());
    value
}

fn injected(keelway: &Keelway, documents: &[u8], name: &str) -> Vec<u8> {
    keelway.run(&["cluster", "inject", "--name", name], documents).succeeded().stdout
}

/// Arguments that one of the clusters sets for its components.
const ARGUMENTS: [(Role, &str, &str); 3] = [
    (Role::KubeApiserver, "max-requests-inflight", "801"),
    (Role::KubeControllerManager, "horizontal-pod-autoscaler-tolerance", "0.25"),
    (Role::KubeScheduler, "logging-format", "json"),
];

fn with_arguments(text: &[u8], name: &str) -> Vec<u8> {
    let mut documents = read(text);
    let cluster = documents.clusters.values_mut().find(|cluster| cluster.reference().name == name).unwrap();
    let plane = &mut cluster.spec.control_plane;
    for (role, argument, value) in ARGUMENTS {
        let arguments = match role {
            Role::KubeApiserver => &mut plane.kube_api_server.extra_args,
            Role::KubeControllerManager => &mut plane.kube_controller_manager.extra_args,
            Role::KubeScheduler => &mut plane.kube_scheduler.extra_args,
            Role::Etcd | Role::ClusterController | Role::FleetController | Role::Ingress | Role::Gateway => continue,
        };
        arguments.insert(argument.to_owned(), value.to_owned());
    }
    documents.write().into_bytes()
}

/// Components run with the arguments of their own cluster, and with none of another cluster.
fn each_has_its_arguments(machines: &[TestMachine], documents: &Documents) {
    let mut found = BTreeSet::new();
    for (pod, component) in &documents.components {
        let machine = machine(machines, component);
        let running = &machine.running_of(&pod.cluster)[pod.component.as_str()];
        let command = process::file(machine.container_pid(&running.container), "cmdline").unwrap();
        let words: BTreeSet<String> =
            command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into()).collect();
        let given = ARGUMENTS.iter().filter(|(_, name, value)| words.contains(&format!("--{name}={value}")));
        found.extend(given.map(|(role, ..)| (&pod.cluster, component.spec.role, *role)));
    }
    let id = id_of(documents, "c2");
    assert_eq!(found, ARGUMENTS.iter().map(|(role, ..)| (id, *role, *role)).collect());
}

fn read(text: &[u8]) -> Documents {
    Documents::read(text).unwrap()
}

fn id_of<'a>(documents: &'a Documents, name: &str) -> &'a ClusterId {
    documents.clusters.values().find(|cluster| cluster.reference().name == name).unwrap().id().unwrap()
}

fn machine<'a>(machines: &'a [TestMachine], component: &Component) -> &'a TestMachine {
    machines.iter().find(|machine| machine.name() == component.spec.hypervisor.as_str()).unwrap()
}

/// Two clusters share no port of a machine, no user and no key.
fn documents_share_nothing(documents: &Documents) {
    let mut ports = BTreeMap::new();
    let mut users: BTreeMap<u32, &ClusterId> = BTreeMap::new();
    for (pod, component) in &documents.components {
        for port in component.spec.ports.values() {
            let before = ports.insert((&component.spec.hypervisor, port), pod);
            assert_eq!(before, None, "{port} is also {pod}'s");
        }
        assert_eq!(*users.entry(component.spec.user).or_insert(&pod.cluster), &pod.cluster, "{pod}");
    }
    let mut keys = BTreeMap::new();
    for (name, secret) in &documents.secrets {
        for (key, value) in
            secret.data.iter().flatten().filter(|(key, _)| key.rsplit_once('.').is_some_and(|(_, kind)| kind == "key"))
        {
            // A failure must not print the key.
            let before = keys.insert(&value.0, &name.namespace);
            assert!(before.is_none_or(|before| *before == name.namespace), "{name:?} {key} is another cluster's");
        }
    }
    assert!(keys.len() > 20, "{}", keys.len());
}

/// Tries to read all files and to open all sockets of all components as the user of each component. Only its own are accessible.
fn nobody_reads_what_is_anothers(machines: &[TestMachine], documents: &Documents) {
    let script = "find /var/lib/keelway /var/log/keelway \\( -type f -o -type s \\) -print0 |
        setpriv --reuid \"$1\" --regid \"$1\" --clear-groups xargs -0 sh -c 'for path; do
            if [ -S \"$path\" ]; then test -w \"$path\" && echo \"$path\"
            elif cat \"$path\" > /dev/null 2>&1; then echo \"$path\"; fi
        done' sh || true";
    for (pod, component) in &documents.components {
        let machine = machine(machines, component);
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &machine.pid().to_string(), "sh", "-c", script, "sh"]);
        let finished = machine.run(command.arg(component.spec.user.to_string())).succeeded();
        let own = format!("/var/lib/keelway/{pod}/");
        let (mine, others): (Vec<&str>, Vec<&str>) = finished.text().lines().partition(|path| path.starts_with(&own));
        assert!(mine.len() > 1, "{pod} reads its own files: {}", finished.stderr);
        assert_eq!(others, [""; 0], "{pod} reads what is another's");
    }
}

fn each_serves_its_own(keelway: &Keelway, documents: &[u8]) {
    for (name, other) in [("c1", "c2"), ("c2", "c1")] {
        let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", name], documents).succeeded().stdout;
        let path = keelway.directory().join(format!("{name}.kubeconfig"));
        std::fs::write(&path, &kubeconfig).unwrap();
        let kubectl = Kubectl::new(&path);
        assert_eq!(kubectl.run(&["get", "--raw", "/readyz"]).succeeded().text(), "ok");
        for address in on_workers(&read(documents), name) {
            let verified = kubectl.run(&["--tls-server-name", &address, "get", "--raw", "/readyz"]);
            assert_eq!(verified.succeeded().text(), "ok", "{name} as {address}");
        }
        let read = read(documents);
        let server = read.clusters.values().find(|cluster| cluster.reference().name == other).unwrap();
        let server = server.status.as_ref().unwrap().endpoints[0].clone();
        let refused = kubectl.run(&["--server", &server, "--insecure-skip-tls-verify=true", "get", "--raw", "/api"]);
        assert_ne!(refused.code(), 0, "{name}'s administrator opens {other}");
        assert!(refused.stderr.contains("Unauthorized"), "{name}'s administrator at {other}: {}", refused.stderr);
    }
}

/// Returns the addresses at which the workers of a cluster reach its API.
fn on_workers(documents: &Documents, name: &str) -> Vec<String> {
    let cluster = documents.clusters.values().find(|cluster| cluster.reference().name == name).unwrap();
    let ranges = ValidatedCluster::parse(cluster).unwrap().vpn;
    assert!(!ranges.is_empty());
    ranges.iter().map(|range| reserved::of_api_on_workers(range).to_string()).collect()
}

fn a_kubelets_runtime_is_refused(keelway: &Keelway, machine: &TestMachine, documents: &[u8]) {
    let before = machine.ids();
    let pod = machine.run_sandbox("of-a-kubelet", &[("io.kubernetes.pod.uid", "0f0e0d0c")]);
    let with = machine.ids();
    let refused = keelway.run(&["reconcile"], documents);
    assert_eq!(refused.code(), 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("a kubelet uses"), "{}", refused.stderr);
    assert_eq!(machine.ids(), with);
    machine.remove_sandbox(&pod);
    assert_eq!(machine.ids(), before);
    assert_eq!(keelway.run(&["reconcile"], documents).succeeded().stdout, documents);
}

/// If the data of an etcd member is gone, the driver reports it and does not start the member empty. With its data back, the member starts.
fn a_member_without_its_data_stays_away(keelway: &Keelway, machines: &[TestMachine], documents: &[u8]) {
    let read = read(documents);
    let (pod, component) = read.components_of(id_of(&read, "c2")).find(|(_, c)| c.spec.role == Role::Etcd).unwrap();
    let machine = machine(machines, component);
    let data = machine.path(&format!("/var/lib/keelway/{pod}/data"));
    let aside = machine.path(&format!("/var/lib/keelway/{pod}/aside"));
    let running = machine.running_of(&pod.cluster).remove("etcd-0").unwrap();
    std::fs::rename(&data, &aside).unwrap();
    process::kill(machine.container_pid(&running.container));

    let finished = keelway.run(&["reconcile", "--timeout", "5s"], documents);
    assert_eq!(finished.code(), 3, "{}", finished.stderr);
    assert!(finished.stderr.contains("no member starts empty"), "{}", finished.stderr);
    assert!(!machine.running_of(&pod.cluster).contains_key("etcd-0"));
    let status = keelway.run(&["status"], &finished.stdout).succeeded();
    assert!(status.text().contains("is empty or missing"), "{}", status.text());

    std::fs::rename(&aside, &data).unwrap();
    let _ = keelway.run(&["reconcile"], &finished.stdout).succeeded();
    assert!(machine.running_of(&pod.cluster).contains_key("etcd-0"));
}

/// Draining moves all components off a private machine, etcd members included.
fn a_machine_is_drained(keelway: &Keelway, machines: &[TestMachine], documents: &[u8]) -> Vec<u8> {
    let before = read(documents);
    let of_role = |documents: &Documents, name: &str, role: Role| {
        let component = documents.components_of(id_of(documents, name)).find(|(_, c)| c.spec.role == role);
        component.unwrap().1.clone()
    };
    let from = of_role(&before, "c1", Role::KubeApiserver).spec.hypervisor;
    let marked = keelway.run(&["hypervisor", "drain", from.as_str()], documents).succeeded();
    let settled = keelway.run(&["reconcile"], &marked.stdout).succeeded().stdout;
    let after = read(&settled);
    assert!(after.components.values().all(|component| component.spec.hypervisor != from));
    assert_eq!(after.components.len(), before.components.len());
    for component in after.components.values() {
        let running = machine(machines, component).running_of(&component.spec.cluster_id);
        assert!(running.contains_key(component.spec.name().unwrap().as_str()), "{:?}", component.spec.name());
    }
    each_serves_its_own(keelway, &settled);
    let open = keelway.run(&["hypervisor", "uncordon", from.as_str()], &settled).succeeded().stdout;
    let open = keelway.run(&["reconcile"], &open).succeeded().stdout;
    assert_eq!(read(&open).components.len(), before.components.len());
    open
}

/// Documents that are older than the last config of a machine change nothing on any machine.
fn stale_documents_are_refused(keelway: &Keelway, machines: &[TestMachine], documents: &[u8]) {
    let before: Vec<_> = machines.iter().map(TestMachine::ids).collect();
    let refused = keelway.run(&["reconcile"], documents);
    assert_eq!(refused.code(), 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("stale documents"), "{}", refused.stderr);
    assert_eq!(machines.iter().map(TestMachine::ids).collect::<Vec<_>>(), before);
}

/// A second installation is refused on all machines. A machine can be adopted by it and adopted back, and its components continue to run.
fn another_installation_is_refused(
    keelway: &Keelway,
    machines: &[TestMachine],
    (made, documents): (&[u8], &[u8]),
) -> Vec<u8> {
    let before: Vec<_> = machines.iter().map(TestMachine::ids).collect();
    let second = injected(keelway, made, "c3");
    let refused = keelway.run(&["reconcile"], &second);
    assert_eq!(refused.code(), 1, "{}", refused.stderr);
    let owner = read(documents).installation().unwrap().clone();
    let help = format!("keelway hypervisor adopt --from {owner}");
    assert!(refused.stderr.contains(&help), "{}", refused.stderr);

    let name = machines[1].name();
    let adopt =
        |from: &str, documents: &[u8]| keelway.run(&["hypervisor", "adopt", "--from", from, "--name", name], documents);
    let wrong = adopt("0123456789abcdef", &second);
    assert_eq!((wrong.code(), &wrong.stdout), (1, &second), "{}", wrong.stderr);
    let adopted = adopt(owner.as_str(), &second).succeeded().stdout;
    let other = read(&adopted).installation().unwrap().clone();
    // The new owner's pass does not touch components that it does not know. Its other machines still refuse it.
    let pass = keelway.run(&["reconcile", "--once"], &adopted);
    assert_eq!(pass.code(), 1, "{}", pass.stderr);
    assert!(before[1].is_subset(&machines[1].ids()), "what ran there goes on");
    let lost = keelway.run(&["reconcile"], documents);
    assert_eq!(lost.code(), 1);
    assert!(lost.stderr.contains(&format!("adopt --from {other}")), "{}", lost.stderr);
    give_back(keelway, machines, (&pass.stdout, documents, other.as_str()))
}

/// Deletes the cluster of the other installation first, and then adopts the machine.
fn give_back(keelway: &Keelway, machines: &[TestMachine], (theirs, documents, from): (&[u8], &[u8], &str)) -> Vec<u8> {
    let deleted = keelway.run(&["cluster", "delete", "--name", "c3"], theirs).succeeded().stdout;
    let _ = keelway.run(&["reconcile", "--once"], &deleted);
    let name = machines[1].name();
    let back = keelway.run(&["hypervisor", "adopt", "--from", from, "--name", name], documents).succeeded().stdout;
    let settled = keelway.run(&["reconcile"], &back).succeeded();
    println!("{:>7} ms  until the first owner had it back", settled.took.as_millis());
    settled.stdout
}
