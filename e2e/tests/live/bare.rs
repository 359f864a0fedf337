//! Machines without agents, whose runtimes are behind proxies of the user. The driver has no privileges on them.

use std::{collections::BTreeSet, fs};

use keelway_api::Documents;
use keelway_e2e::{ReachMode, TestControlPlane, TestFleet, TestMachine, host::on_own_host, machine::find, process};
use rustix::process::Signal;

use crate::{files, interrupted, keys, life, look, settled, workload};

#[test]
fn runtimes_behind_proxies() {
    on_own_host("bare::runtimes_behind_proxies", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2ebare");
    let text = world.create_reached(ReachMode::Proxy, "1", "1");
    let (machines, driver) = (world.machines(), &world.keelway);

    // A plan leaves nothing on the machines.
    let planned = driver.run(&["plan"], &text).succeeded();
    assert!(planned.stderr.is_empty(), "{}", planned.stderr);
    machines.iter().for_each(holds_nothing);

    let injected = driver.run(&["cluster", "inject", "--name", "c1"], &text).succeeded().stdout;
    let (text, handed) = keys::handed_while(|| {
        let cut = interrupted::cut_off(driver, CUT, injected);
        driver.run(&["reconcile"], &cut).succeeded().stdout
    });
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
    keys::are_nowhere_else(&plane, &handed);
    comes_back_with_the_next_pass(&plane, "kube-scheduler-0");
    let log = look::follow(&plane);
    life::ends(&plane);
    look::ended(driver, log);
    machines.iter().for_each(holds_nothing);
}

/// The failpoint at which the creation of the cluster is interrupted.
const CUT: (Signal, &str) = (Signal::KILL, "done create container etcd");

/// Asserts that a machine holds nothing of Keelway.
fn holds_nothing(machine: &TestMachine) {
    assert_eq!(machine.ids(), BTreeSet::new(), "{}", machine.name());
    for path in ["/var/lib/keelway", "/var/log/keelway"] {
        assert!(!machine.path(path).exists(), "{path} of {}", machine.name());
    }
}

/// A command in a component returns its own exit code. Without an agent, `exec -i` is refused.
fn commands(plane: &TestControlPlane<'_>) {
    let ran = plane.keelway.run(&["exec", "c1/etcd-0", "--", "etcdctl", "version"], &plane.text).succeeded();
    assert!(ran.text().starts_with("etcdctl version: "), "{}", ran.text());
    let ran = plane.keelway.run(&["exec", "c1/etcd-0", "--", "etcdutl", "no-such-command"], &plane.text);
    assert!(ran.code() == 1 && ran.stderr.contains("no-such-command"), "{}: {}", ran.code(), ran.stderr);
    let ran = plane.keelway.run(&["exec", "c1/etcd-0", "--", "no-such-program"], &plane.text);
    assert!(ran.code() == 1 && ran.stderr.contains("no-such-program"), "{}: {}", ran.code(), ran.stderr);
    fs::write(plane.keelway.directory().join("bare.yaml"), &plane.text).unwrap();
    let reads = ["exec", "c1/etcd-0", "-i", "-f", "bare.yaml", "--", "etcdctl", "version"];
    let ran = plane.keelway.run(&reads, b"nobody reads this");
    assert!(ran.code() == 1 && ran.stderr.contains("keelway-hypervisor-agent"), "{}", ran.stderr);
}

/// Without an agent, only the next pass restarts a component.
fn comes_back_with_the_next_pass(plane: &TestControlPlane<'_>, component: &str) {
    let (machine, before) = find(&plane.machines, component);
    process::kill(machine.container_pid(&before.container));
    let again = plane.keelway.run(&["reconcile"], &plane.text).succeeded();
    assert!(Documents::read(&again.stdout).is_ok());
    assert_ne!(plane.running()[component].container, before.container);
}
