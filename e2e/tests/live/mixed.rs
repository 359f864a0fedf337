//! A highly available cluster on machines of all three kinds: a runtime on this host, a runtime behind a proxy, and agents on the network.

use std::collections::BTreeSet;

use keelway_api::hypervisor::MachineTransport;
use keelway_e2e::{MachineFacts, TestControlPlane, TestFleet, TestMachine, host::on_own_host};

use crate::{files, keys, life, look, recovery, settled, snapshots, workload};

/// One etcd member and one control plane for each private machine.
const SIZE: [&str; 4] = ["--etcd-replicas", "3", "--control-plane-replicas", "3"];

#[test]
fn all_kinds_of_endpoint() {
    on_own_host("mixed::all_kinds_of_endpoint", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2emix");
    let host = MachineFacts::on_host(&world.fleet);
    let made = world.create_mixed();
    let machines = world.machines();
    assert_eq!(kinds(&machines), BTreeSet::from(["agent", "proxy", "socket"]));
    let found: Vec<MachineFacts> = machines.iter().map(|machine| MachineFacts::on(machine, &world.fleet)).collect();

    let plane = life::born(&world.keelway, &made, &SIZE);
    settled::a_second_pass_does_nothing(&plane);
    workload::write(&plane);
    workload::secret_is_there(&plane);
    is_seen_on_each(&plane);
    files::files_are_private(&plane);
    files::agents_are_users_of_their_own(&plane);
    keys::are_nowhere_else(&plane);
    for replica in 0..3 {
        recovery::container(&plane, &format!("kube-scheduler-{replica}"));
    }
    workload::secret_is_there(&plane);

    let plane = snapshots::are_taken(&plane);
    let plane = life::changed(&plane, |spec| spec.control_plane.replicas = 1);
    let components = plane.components();
    let servers = components.keys().filter(|name| name.starts_with("kube-apiserver-"));
    assert_eq!((servers.count(), plane.running().len()), (1, components.len()));
    settled::a_second_pass_does_nothing(&plane);
    workload::secret_is_there(&plane);

    let empty = life::ends(&plane);
    life::started_agents_end(&plane, &empty);
    for (before, machine) in found.iter().zip(&machines) {
        as_found(before, &MachineFacts::on(machine, &world.fleet));
    }
    let _ = world.keelway.run(&["hypervisor", "local", "destroy"], &empty).succeeded();
    as_found(&host, &MachineFacts::on_host(&world.fleet));
}

fn kinds(machines: &[TestMachine]) -> BTreeSet<&'static str> {
    let kind = |machine: &TestMachine| match machine.document.spec.endpoint.way() {
        MachineTransport::Runtime(_) => "socket",
        MachineTransport::Cri(_) => "proxy",
        MachineTransport::Network(_) => "agent",
        MachineTransport::Agent(_) => "agent's socket",
    };
    machines.iter().filter(|machine| !machine.is_public()).map(kind).collect()
}

/// Logs and commands work for each replica, and events for each machine. The replicas are on different machines.
fn is_seen_on_each(plane: &TestControlPlane<'_>) {
    for replica in 0..3 {
        let title = format!("c1/kube-apiserver-{replica}");
        let log = ["logs", &title, "--tail", "3"];
        let _ = look::last_lines(3, || plane.keelway.run(&log, &plane.text).succeeded().text().to_owned());
        let title = format!("c1/etcd-{replica}");
        let finished = plane.keelway.run(&["exec", &title, "--", "etcdctl", "version"], &plane.text).succeeded();
        assert!(finished.text().starts_with("etcdctl version: "), "{title}: {}", finished.text());
    }
    for machine in &plane.machines {
        let events = plane.keelway.run(&["events", machine.name(), "-o", "json"], &plane.text).succeeded().json();
        let events = events["items"].as_array().unwrap();
        assert!(events.iter().any(|event| event["reason"] == "Started"), "{}: {events:?}", machine.name());
    }
}

fn as_found(before: &MachineFacts, after: &MachineFacts) {
    let difference = before.difference(after);
    assert!(difference.is_empty(), "not as it was found:\n{difference}");
}
