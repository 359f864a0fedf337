//! Machines to which the driver has no route. The driver connects to their agents through the agent of a public machine, which dials them, or to
//! which agents behind a NAT keep a connection open.

use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    path::Path,
};

use keelway_api::Documents;
use keelway_e2e::{TestControlPlane, TestFleet, TestMachine, deadline, host::on_own_host, machine::find, process};

use crate::{crictl, life, look, nat, settled, workload};

/// The port of agents of local hypervisors.
pub(crate) const PORT: u16 = 7443;
/// The network of clients is the only one that the driver can reach.
const OF_THE_HOST: &str = "/proc/self/ns/net";

#[test]
#[ignore = "long: the other test has a public machine in between, too"]
fn through_a_public_machine() {
    on_own_host("behind::through_a_public_machine", || scenario("e2evia", "public", |_| {}, |_| {}));
}

#[test]
fn waiting_behind_a_nat() {
    on_own_host("behind::waiting_behind_a_nat", || scenario("e2enat", "dial-out", nat::between, renumbered));
}

fn scenario(tag: &str, from: &str, prepare: impl FnOnce(&TestFleet), disturb: impl FnOnce(&TestControlPlane<'_>)) {
    let mut world = TestFleet::new(tag);
    let made = world.create_two();
    prepare(&world);
    let enroll = ["hypervisor", "local", "enroll", "--from", from];
    let enrolled = world.keelway.run(&enroll, &made).succeeded().stdout;
    assert_eq!(world.keelway.run(&enroll, &enrolled).succeeded().stdout, enrolled, "once more changes nothing");
    let machines = world.machines();
    nobody_reaches_a_private_one(&machines);

    let driver = world.keelway.unprivileged_in(Path::new(OF_THE_HOST));
    let plane = life::born(&driver, &enrolled, &[]);

    settled::a_second_pass_does_nothing(&plane);
    workload::write(&plane);
    workload::secret_is_there(&plane);
    look::logs(&plane);
    look::commands(&plane);
    events_are_told(&plane);
    comes_back(&plane, "kube-scheduler-0");
    crictl::works(&plane, &world.keelway);
    disturb(&plane);
    let log = look::follow(&plane);
    let empty = life::ends(&plane);
    look::ended(&driver, log);
    let left = world.keelway.run(&["hypervisor", "local", "destroy"], &empty).succeeded().stdout;
    assert!(Documents::read(&left).unwrap().is_empty());
}

pub(crate) fn private_of(machine: &TestMachine) -> IpAddr {
    machine.document.spec.addresses.private[0].parse().unwrap()
}

fn nobody_reaches_a_private_one(machines: &[TestMachine]) {
    for machine in machines {
        let reached = TcpStream::connect_timeout(&SocketAddr::new(private_of(machine), PORT), deadline::ANSWER);
        assert!(reached.is_err(), "{} is reached in the private network", machine.name());
    }
}

/// The agent reports what happened on its machine.
fn events_are_told(plane: &TestControlPlane<'_>) {
    let name = plane.private().name();
    let events = plane.keelway.run(&["events", name, "-o", "json"], &plane.text).succeeded().json();
    let all = events["items"].as_array().unwrap();
    assert!(all.iter().any(|event| event["reason"] == "Started"), "{events}");
}

/// The agent restarts the component without a pass.
fn comes_back(plane: &TestControlPlane<'_>, component: &str) {
    let (machine, before) = find(&plane.machines, component);
    process::kill(machine.container_pid(&before.container));
    let is_new = || plane.running().get(component).is_some_and(|now| now.container != before.container);
    deadline::until("a new container", deadline::KUBERNETES, is_new);
}

/// If the NAT gets another address and loses all connections, the agent notices and connects to the public machine again.
fn renumbered(plane: &TestControlPlane<'_>) {
    nat::renumber(private_of(plane.private()));
    let look = ["exec", "c1/etcd-0", "--", "etcdctl", "version"];
    let took = deadline::until("the agent waits again", deadline::KUBERNETES, || {
        plane.keelway.run(&look, &plane.text).code() == 0
    });
    println!("{:>7} ms  until the agent behind the NAT was reached again", took.as_millis());
}
