//! Failures of each part of a fleet, while a client writes on. What is acknowledged arrives once in each cluster, and nothing of the application
//! restarts.

use std::{collections::BTreeSet, fs, net::SocketAddr, time::Duration};

use keelway_api::{
    Component,
    role::{Role, SECURE},
};
use keelway_e2e::{
    Kubectl, TestMachine, deadline, process,
    worker_fleet::{TestCluster, WorkerFleet},
};

use crate::{
    Member,
    applied_once::AppliedOnce,
    applies::ApplyLoop,
    guestbook,
    members::ready,
    network_cut::{self, NetworkCut},
    stage, workloads,
};

/// How long each network is cut.
const MINUTE: Duration = Duration::from_secs(60);

const AGENT: &str = "keelway-fleet-agent";

/// The networks of one worker, of the controller that holds the Lease and of a hypervisor are cut for a minute. Meanwhile each component is killed.
pub(crate) fn nothing_is_lost(worker_fleet: &WorkerFleet, fleet: &TestCluster, west: &Member, east: &Member) {
    let kubectl = &fleet.kubectl;
    stage("guestbook", || guestbook::place(kubectl));
    let before = [west, east].map(guestbook::running);
    before.iter().for_each(guestbook::Running::is_whole);
    let observers = [west, east].map(AppliedOnce::start);
    let applies = ApplyLoop::start(kubectl);
    applies.arrives("before all failures", &[west, east]);

    let machines = worker_fleet.fleet.machines();
    let leader = FleetLeader::find(worker_fleet, fleet, &machines);
    let hypervisor = without_controller(worker_fleet, fleet, &machines);
    let worker = west.cluster.workers[0];
    let apart = network_cut::of_worker(worker_fleet, worker, &addresses(kubectl));
    let cut = [leader.cut(worker_fleet, fleet), network_cut::of_machine(hypervisor)];
    for role in [Role::Etcd, Role::KubeApiserver, Role::KubeControllerManager, Role::Ingress] {
        each_is_killed(worker_fleet, fleet, role);
    }
    stage("agents are killed", agents_are_killed);
    for cut in cut {
        cut.end_after(MINUTE);
    }

    // West does not reach the fleet. The other cluster follows its writes, and West goes on with what it has.
    applies.arrives("without one cluster", &[east]);
    workloads::drift_is_corrected(west);
    let silent = deadline::until("READY is Unknown", deadline::KUBERNETES, || ready(kubectl, west) == "Unknown");
    println!("{:>7} ms  more until READY of {} was Unknown", silent.as_millis(), west.name);
    assert_eq!(ready(kubectl, east), "True");
    for member in [west, east] {
        let _ = member.cluster.kubectl.run(&["delete", "pods", "--all", "-n", "keelway-fleet"]).succeeded();
    }
    apart.end_after(MINUTE);
    applies.arrives("every network is restored", &[west, east]);
    deadline::until("READY is True", deadline::KUBERNETES, || ready(kubectl, west) == "True");
    each_is_killed(worker_fleet, fleet, Role::FleetController);
    applies.arrives("each fleet-controller was killed", &[west, east]);

    applies.settles(kubectl, &[west, east]);
    observers.into_iter().for_each(AppliedOnce::end);
    assert_eq!([west, east].map(guestbook::running), before, "nothing of the application changed");
}

/// Kills each component of a role, one after the other. Each runs again before the next one is killed.
fn each_is_killed(worker_fleet: &WorkerFleet, fleet: &TestCluster, role: Role) {
    let killed = worker_fleet.each(fleet, role, |component, machine| {
        let before = machine.of(component).unwrap();
        process::kill(machine.container_pid(&before.container));
        deadline::until(&format!("{} runs again", name(component)), deadline::KUBERNETES, || {
            machine.of(component).is_some_and(|now| now.container != before.container)
        })
    });
    println!("{killed:?}  until each {role} ran again after it was killed");
    assert!(killed.len() > 1, "{role}");
}

/// Kills the processes of all agents. They continue with what they have on disk.
fn agents_are_killed() {
    let before = agents();
    assert_eq!(before.len(), 2, "{before:?}");
    process::kill_all(before.iter().copied());
    deadline::until("the agents run again", deadline::KUBERNETES, || agents().difference(&before).count() == 2);
}

fn agents() -> BTreeSet<u32> {
    let is_agent = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program.ends_with(AGENT));
    process::all().into_iter().filter(is_agent).collect()
}

/// The replica of the fleet-controller that holds the Lease.
struct FleetLeader<'a> {
    machine: &'a TestMachine,
    pid: u32,
}

impl<'a> FleetLeader<'a> {
    fn find(worker_fleet: &WorkerFleet, fleet: &TestCluster, machines: &'a [TestMachine]) -> Self {
        let holder = fleet.kubectl.get(&["lease", "keelway-fleet-controller", "-n", "kube-system"]);
        let holder = holder["spec"]["holderIdentity"].as_str().unwrap();
        let (holder, _) = holder.rsplit_once('_').unwrap();
        let found = worker_fleet.each(fleet, Role::FleetController, |component, machine| {
            let running = machine.of(component).unwrap();
            holder
                .ends_with(&name(component))
                .then(|| (machine.name().to_owned(), machine.container_pid(&running.container)))
        });
        let (machine, pid) = found.into_iter().flatten().next().unwrap();
        Self { machine: machines.iter().find(|known| known.name() == machine).unwrap(), pid }
    }

    fn cut(&self, worker_fleet: &WorkerFleet, fleet: &TestCluster) -> NetworkCut<'a> {
        let ports: BTreeSet<u16> = worker_fleet
            .each(fleet, Role::KubeApiserver, |component, _| component.spec.port(SECURE))
            .into_iter()
            .collect();
        network_cut::of_process(self.machine, self.pid, &ports.into_iter().collect::<Vec<_>>())
    }
}

/// Returns the machine of an etcd member without a fleet-controller, so that one of them can take over.
fn without_controller<'a>(
    worker_fleet: &WorkerFleet,
    fleet: &TestCluster,
    machines: &'a [TestMachine],
) -> &'a TestMachine {
    let of = |role| worker_fleet.each(fleet, role, |_, machine| machine.name().to_owned());
    let (controllers, members) = (of(Role::FleetController), of(Role::Etcd));
    let found = members.iter().find(|machine| !controllers.contains(machine)).unwrap();
    machines.iter().find(|machine| machine.name() == found).unwrap()
}

/// Returns the addresses at which agents reach the fleet.
fn addresses(kubectl: &Kubectl) -> Vec<SocketAddr> {
    let config = kubectl.kubeconfig();
    let servers = config["clusters"].as_array().unwrap().iter();
    let servers =
        servers.map(|cluster| cluster["cluster"]["server"].as_str().unwrap().strip_prefix("https://").unwrap());
    servers.map(|server| server.parse().unwrap()).collect()
}

fn name(component: &Component) -> String {
    component.spec.name().unwrap().to_string()
}
