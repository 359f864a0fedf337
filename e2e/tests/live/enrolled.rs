//! Machines with agents on their network. The driver is on that network, and has no privileges on any machine.

use keelway_api::Documents;
use keelway_e2e::{TestControlPlane, TestFleet, deadline, host::on_own_host, machine::find, process};

use crate::{files, keys, life, look, settled, strangers, workload};

#[test]
fn agents_on_a_network() {
    on_own_host("enrolled::agents_on_a_network", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2enet");
    let made = world.create_two();
    let enrolled = world.keelway.run(&["hypervisor", "local", "enroll"], &made).succeeded().stdout;
    let documents = Documents::read(&enrolled).unwrap();
    assert!(documents.hypervisors.values().all(|machine| machine.spec.endpoint.address().is_some()));
    // Enrolling again changes nothing.
    assert_eq!(world.keelway.run(&["hypervisor", "local", "enroll"], &enrolled).succeeded().stdout, enrolled);

    let machines = world.machines();
    let public = machines.iter().find(|machine| machine.is_public()).unwrap();
    let driver = world.keelway.unprivileged_in(&public.network());
    let plane = life::born(&driver, &enrolled, &[]);

    settled::a_second_pass_does_nothing(&plane);
    workload::write(&plane);
    workload::secret_is_there(&plane);
    look::logs(&plane);
    look::commands(&plane);
    files::files_are_private(&plane);
    files::processes_have_no_privilege(&plane);
    files::agents_are_users_of_their_own(&plane);
    keys::are_nowhere_else(&plane);
    strangers::take_nothing(&plane);
    comes_back(&plane, "kube-scheduler-0");
    let log = look::follow(&plane);

    let empty = life::ends(&plane);
    look::ended(&driver, log);
    let left = world.keelway.run(&["hypervisor", "local", "destroy"], &empty).succeeded().stdout;
    assert!(Documents::read(&left).unwrap().is_empty());
}

/// The agent restarts the component without a pass.
fn comes_back(plane: &TestControlPlane<'_>, component: &str) {
    let (machine, before) = find(&plane.machines, component);
    process::kill(machine.container_pid(&before.container));
    let is_new = || plane.running().get(component).is_some_and(|now| now.container != before.container);
    deadline::until("a new container", deadline::KUBERNETES, is_new);
}
