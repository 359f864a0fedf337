//! Two of three machines with etcd members are lost for good while a client writes. The member that remains continues, and has what was acknowledged.
//!
//! It needs what the tests of `live` need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and tell their timings"
)]

mod lost_store;

use std::{fs, process::Command, time::Instant};

use keelway_api::{
    Documents, hypervisor::LOST_ANNOTATION, machine::STATE_DIRECTORY, role::Role, store_rebuild::EtcdRecovery,
};
use keelway_e2e::{
    Keelway, Kubectl, ReachMode, TestFleet, deadline, host::on_own_host, load::RecordedLoad, transcript::shell_commands,
};
use lost_store::LostStore;

const PAGE: &str = "docs/operations.md";
const SECTION: &str = ".. etcd lost its quorum";

#[test]
#[ignore = "long: a rebuild of a whole cluster, for minutes"]
fn what_was_acknowledged_is_there_after_two_of_three_machines_are_lost() {
    let name = "what_was_acknowledged_is_there_after_two_of_three_machines_are_lost";
    on_own_host(name, || scenario("e2elq", EtcdRecovery::Manual));
}

#[test]
#[ignore = "long: a rebuild of a whole cluster, for minutes"]
fn a_store_with_automatic_recovery_needs_no_request() {
    on_own_host("a_store_with_automatic_recovery_needs_no_request", || scenario("e2elqa", EtcdRecovery::Automatic));
}

fn scenario(tag: &str, recovery: EtcdRecovery) {
    let mut world = TestFleet::new(tag);
    let machines = world.create_reached(ReachMode::AgentSocket, "1", "4");
    let keelway = &world.keelway;
    let size = ["--etcd-replicas", "3", "--control-plane-replicas", "2"];
    let inject = [&["cluster", "inject", "--name", "c1"][..], &size].concat();
    let mut injected = Documents::read(&keelway.run(&inject, &machines).succeeded().stdout).unwrap();
    injected.clusters.values_mut().next().unwrap().spec.etcd.recovery = recovery;
    let text = keelway.run(&["reconcile"], injected.write().as_bytes()).succeeded().stdout;
    let kubectl = kubectl(keelway, &text);
    // What a leader acknowledged, it knows to be committed. A follower may lack the writes of the last moment (docs/etcd-members.md).
    let store = LostStore::of(keelway, &text);

    // Requests fail while there is no quorum. What was acknowledged before is there afterwards.
    let load = RecordedLoad::start(&kubectl, "quorum-lost");
    load.wait_for_requests(300);
    for machine in &store.lost_machines {
        world.power("stop", machine);
    }
    let recovered = match recovery {
        EtcdRecovery::Manual => {
            reports_the_loss(keelway, &text, &store);
            recovers(keelway, &text, &store)
        }
        EtcdRecovery::Automatic => recovers_by_itself(keelway, &text, &store),
    };
    is_whole(&recovered, &store);
    load.wait_for_requests(100);
    let _ = load.end("two of three machines were lost, and the store was rebuilt");
    let load = RecordedLoad::start(&kubectl, "rebuilt");
    load.wait_for_requests(100);
    load.end("the store was rebuilt").assert_good();
    the_page_removes_the_copy(&store);
    an_old_member_is_removed(&world, &recovered, &store);
}

fn kubectl(keelway: &Keelway, text: &[u8]) -> Kubectl {
    let file = keelway.directory().join("c1.kubeconfig");
    let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], text).succeeded().stdout;
    fs::write(&file, kubeconfig).unwrap();
    Kubectl::new(&file)
}

/// `status` says which members respond, and nothing is done without a person.
fn reports_the_loss(keelway: &Keelway, text: &[u8], store: &LostStore) {
    let refused = keelway.run(&["cluster", "recover-quorum", "--name", "c1", "--lost", &store.lost.join(",")], text);
    assert_eq!((refused.code(), refused.stdout.as_slice()), (2, text), "no pass has recorded the loss");
    let expected = format!("1 of 3 responds ({};", store.survivor);
    deadline::until("the survivor knows no leader", deadline::KUBERNETES, || {
        keelway.run(&["status"], text).text().contains(&expected)
    });
}

/// Returns the documents with the lost machines marked as lost.
fn marked(text: &[u8], store: &LostStore) -> String {
    let mut documents = Documents::read(text).unwrap();
    for (name, machine) in documents.hypervisors.iter_mut() {
        if store.lost_machines.iter().any(|lost| name.as_str() == lost) {
            let annotations = machine.metadata.annotations.get_or_insert_default();
            annotations.insert(LOST_ANNOTATION.to_owned(), "true".to_owned());
        }
    }
    documents.write()
}

/// A person only says that the machines are lost, and drains them.
fn recovers_by_itself(keelway: &Keelway, text: &[u8], store: &LostStore) -> Vec<u8> {
    let machines: Vec<&str> = store.lost_machines.iter().map(String::as_str).collect();
    let drain = [&["hypervisor", "drain"][..], &machines].concat();
    let drained = keelway.run(&drain, marked(text, store).as_bytes()).succeeded().stdout;
    let started = Instant::now();
    let recovered = keelway.run(&["reconcile"], &drained).succeeded().stdout;
    println!("{:>7} ms  until the cluster was whole again", started.elapsed().as_millis());
    recovered
}

/// Runs the commands of the documentation for installations without a manager. Returns the documents.
fn recovers(keelway: &Keelway, text: &[u8], store: &LostStore) -> Vec<u8> {
    fs::write(keelway.directory().join("c1.yaml"), marked(text, store)).unwrap();
    let read = |name: &str| Documents::read(&fs::read(keelway.directory().join(name)).unwrap()).unwrap();
    let lost = store.lost.join(",");
    let mut all = shell_commands(PAGE, SECTION).into_iter().filter(|command| command.starts_with("keelway "));
    let mut run = |begins: &str, code: u8| {
        let command = all.next().unwrap();
        assert!(command.starts_with(begins), "{command}");
        let command = command.replace("hv-2 hv-3", &store.lost_machines.join(" ")).replace("etcd-1,etcd-2", &lost);
        println!("$ {command}");
        let ran = keelway.shell(&command);
        assert_eq!(ran.code(), i32::from(code), "{}", ran.stderr);
        ran
    };
    let recorded = run("keelway reconcile", 3);
    let command = format!("keelway cluster recover-quorum --name c1 --lost {lost}");
    assert!(recorded.stderr.contains(&command), "{}", recorded.stderr);
    assert!(lost_store::status(&read("lost.yaml")).quorum_lost_since.is_some());
    let _ = run("keelway hypervisor drain", 0);
    let _ = run("keelway cluster recover-quorum", 0);
    let plan = run("keelway plan", 0);
    assert!(plan.text().contains(&format!("rebuild etcd from the data of c1/{}", store.survivor)), "{}", plan.text());
    let started = Instant::now();
    let _ = run("keelway reconcile", 0);
    println!("{:>7} ms  until the cluster was whole again", started.elapsed().as_millis());
    fs::read(keelway.directory().join("c1.yaml")).unwrap()
}

/// Three voters, one of them the survivor, without `--force-new-cluster`, and the copy of its data.
fn is_whole(text: &[u8], store: &LostStore) {
    let documents = Documents::read(text).unwrap();
    let status = lost_store::status(&documents);
    let rebuilt = status.rebuilt.as_ref().unwrap();
    assert_eq!((rebuilt.member.as_str(), &status.rebuild), (store.survivor.as_str(), &None));
    let members: Vec<&str> = status.staying_members().map(|(name, _)| name.as_str()).collect();
    assert_eq!(members.len(), 3);
    assert!(
        members.contains(&store.survivor.as_str())
            && !members.iter().any(|name| store.lost.contains(&(*name).to_owned()))
    );
    let servers = documents.components.values().filter(|component| component.spec.role == Role::KubeApiserver);
    assert!(servers.count() >= 2);
    assert!(store.directory("data.copy-1").join("member/wal").is_dir(), "the copy is kept");
    let commands = store.commands();
    assert!(
        !commands.is_empty() && !commands.iter().any(|command| command.contains("force-new-cluster")),
        "{commands:?}"
    );
}

/// Runs the command of the documentation for the machine of the survivor.
fn the_page_removes_the_copy(store: &LostStore) {
    let command = shell_commands(PAGE, SECTION).into_iter().find(|command| command.starts_with("rm ")).unwrap();
    let state = store.machine_path(STATE_DIRECTORY);
    let command = command.replace(STATE_DIRECTORY, state.to_str().unwrap()).replace("etcd-0", &store.survivor);
    assert!(Command::new("sh").args(["-ec", &command]).status().unwrap().success(), "{command}");
    assert!(!store.directory("data.copy-1").exists() && store.directory("data").exists(), "{command}");
}

/// A lost machine returns with its old member, which the new store refuses. The next pass stops it, and removes its data.
fn an_old_member_is_removed(world: &TestFleet, text: &[u8], store: &LostStore) {
    let (machine, member) = (&store.lost_machines[0], &store.lost[0]);
    let data = store.directory_of(machine, member);
    world.power("start", machine);
    let after = world.keelway.run(&["reconcile", "--once"], text).stdout;
    let after = world.keelway.run(&["reconcile"], &after).succeeded().stdout;
    assert!(!data(world).exists(), "its data is removed by an order");
    let documents = Documents::read(&after).unwrap();
    assert!(!lost_store::status(&documents).members.keys().any(|name| name.as_str() == member.as_str()));
}
