//! Machines whose runtimes are behind proxies of the user. Keelway starts their agents. The driver has no privileges on them.

use std::{collections::BTreeSet, fs};

use keelway_e2e::{
    ReachMode, TestControlPlane, TestFleet, TestMachine, host::on_own_host, interruption::cut_off, machine::find,
    process,
};
use rustix::process::Signal;

use crate::{files, keys, life, look, recovery, settled, workload};

#[test]
fn runtimes_behind_proxies() {
    on_own_host("bare::runtimes_behind_proxies", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2ebare");
    let text = world.create_reached(ReachMode::Proxy, "1", "1");
    let (machines, driver) = (world.machines(), &world.keelway);

    // A plan starts nothing on the machines, and says what it waits for.
    let planned = driver.run(&["plan"], &text).succeeded();
    assert!(planned.text().contains("waits for its agent: no agent runs on the machine"), "{}", planned.text());
    machines.iter().for_each(holds_nothing);

    let injected = driver.run(&["cluster", "inject", "--name", "c1"], &text).succeeded().stdout;
    let cut = CUTS.into_iter().fold(injected, |text, point| cut_off(driver, point, text));
    let text = driver.run(&["reconcile"], &cut).succeeded().stdout;
    let plane = life::with_kubeconfig(driver, text);
    for machine in &machines {
        assert_eq!(machine.sandboxes(), (machine.sandboxes_wanted(), 0), "no pod was made twice");
    }

    settled::a_second_pass_does_nothing(&plane);
    workload::write(&plane);
    workload::secret_is_there(&plane);
    look::logs(&plane);
    commands(&plane);
    files::files_are_private(&plane);
    keys::are_nowhere_else(&plane);
    recovery::container(&plane, "kube-scheduler-0");
    an_agent_is_started_again(&plane, "kube-scheduler-0");
    let log = look::follow(&plane);
    let empty = life::ends(&plane);
    look::ended(driver, log);
    life::started_agents_end(&plane, &empty);
    machines.iter().for_each(holds_nothing);
}

/// The failpoints at which the creation of the cluster is interrupted.
const CUTS: [(Signal, &str); 2] = [(Signal::KILL, "begins start its agent"), (Signal::KILL, "binds")];

/// Asserts that a machine holds nothing of Keelway.
fn holds_nothing(machine: &TestMachine) {
    assert_eq!(machine.ids(), BTreeSet::new(), "{}", machine.name());
    for path in ["/var/lib/keelway", "/var/log/keelway"] {
        assert!(!machine.path(path).exists(), "{path} of {}", machine.name());
    }
}

/// A command in a component returns its own exit code, and reads stdin.
fn commands(plane: &TestControlPlane<'_>) {
    let finished = plane.keelway.run(&["exec", "c1/etcd-0", "--", "etcdctl", "version"], &plane.text).succeeded();
    assert!(finished.text().starts_with("etcdctl version: "), "{}", finished.text());
    let finished = plane.keelway.run(&["exec", "c1/etcd-0", "--", "no-such-program"], &plane.text);
    assert!(
        finished.code() == 1 && finished.stderr.contains("no-such-program"),
        "{}: {}",
        finished.code(),
        finished.stderr
    );
    fs::write(plane.keelway.directory().join("bare.yaml"), &plane.text).unwrap();
    let reads = ["exec", "c1/etcd-0", "-i", "-f", "bare.yaml", "--", "etcdctl", "version"];
    let finished = plane.keelway.run(&reads, b"nobody reads this").succeeded();
    assert!(finished.text().starts_with("etcdctl version: "), "{}", finished.text());
}

/// If the container of an agent is gone, the next pass starts it. Components continue meanwhile.
fn an_agent_is_started_again(plane: &TestControlPlane<'_>, component: &str) {
    let (machine, _) = find(&plane.machines, component);
    let (before, running) = (machine.agent_pid(), plane.running());
    process::kill(before);
    let _ = plane.keelway.run(&["reconcile"], &plane.text).succeeded();
    assert_ne!(machine.agent_pid(), before);
    assert_eq!(plane.running(), running);
}
