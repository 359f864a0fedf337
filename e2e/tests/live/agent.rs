//! Agents restart components: no pass runs between the first and the last one.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use keelway_e2e::{
    Keelway, RunningComponent, TestControlPlane, TestFleet, TestMachine, deadline,
    host::on_own_host,
    machine::{find, millis},
    process,
};
use rustix::process::Signal;

#[test]
fn machines_keep_themselves_alive() {
    on_own_host("agent::machines_keep_themselves_alive", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2eagt");
    let made = world.create_two();
    let plane = create_cluster(&world.keelway, &made);
    let _ = plane.kubectl.run(&["create", "configmap", "kept", "--from-literal=from=before"]).succeeded();

    // Until a component counts as hung, some time passes. The other cases run meanwhile.
    let silent = Silent::of(&plane, "kube-scheduler-0");
    what_is_killed_comes_back(&plane, "kube-apiserver-0");
    what_is_killed_comes_back(&plane, "ingress-0");
    silent.comes_back(&plane);

    nothing_restarts(&plane, || {
        for machine in &plane.machines {
            process::kill(machine.agent_pid());
        }
        assert_eq!(world.restart_missing(), made);
    });
    nothing_restarts(&plane, || {
        for machine in &plane.machines {
            process::kill(machine.pid());
        }
        assert_eq!(world.restart_missing(), made);
    });
    // The agent has connected to the new runtime.
    what_is_killed_comes_back(&plane, "kube-controller-manager-0");

    reboot(&plane, &world.fleet);
    let settled = world.keelway.run(&["reconcile"], &plane.text).succeeded();
    assert_eq!(world.keelway.run(&["plan", "--exit-code"], &settled.stdout).code(), 0);
}

fn create_cluster<'a>(keelway: &'a Keelway, made: &[u8]) -> TestControlPlane<'a> {
    let injected = keelway.run(&["cluster", "inject", "--name", "c1"], made).succeeded().stdout;
    let text = keelway.run(&["reconcile"], &injected).succeeded().stdout;
    let kubeconfig = keelway.run(&["cluster", "kubeconfig", "--name", "c1"], &text).succeeded().stdout;
    fs::write(keelway.directory().join("c1.kubeconfig"), kubeconfig).unwrap();
    TestControlPlane::new(keelway, text, "c1.kubeconfig")
}

fn is_new(plane: &TestControlPlane<'_>, component: &str, before: &RunningComponent) -> bool {
    plane.running().get(component).is_some_and(|now| now.container != before.container)
}

fn serves(plane: &TestControlPlane<'_>) -> bool {
    plane.kubectl.run(&["get", "--raw", "/readyz", "--request-timeout=2s"]).code() == 0
}

/// Kills the process of a container with SIGKILL. The agent replaces the container and keeps the sandbox.
fn what_is_killed_comes_back(plane: &TestControlPlane<'_>, component: &str) {
    let (machine, before) = find(&plane.machines, component);
    process::kill(machine.container_pid(&before.container));
    let killed = Instant::now();
    deadline::until("a new container", deadline::KUBERNETES, || is_new(plane, component, &before));
    let back = killed.elapsed();
    deadline::until("the API serves", deadline::KUBERNETES, || serves(plane));
    println!("{}  until {component} ran again, {} until the API served", millis(back), millis(killed.elapsed()));
    let (_, after) = find(&plane.machines, component);
    assert_eq!(after.sandbox, before.sandbox, "a sandbox that is well is kept");
}

/// A component whose process is stopped.
struct Silent {
    component: &'static str,
    before: RunningComponent,
    since: Instant,
}

impl Silent {
    fn of(plane: &TestControlPlane<'_>, component: &'static str) -> Self {
        let (machine, before) = find(&plane.machines, component);
        // Failed probes count only for a component that was up before.
        let up = format!("pod={}/{component}", plane.id());
        let is_up = || {
            let log = fs::read_to_string(machine.path("/var/log/keelway-hypervisor-agent.log")).unwrap();
            log.lines().any(|line| line.contains("is up") && line.contains(&up))
        };
        deadline::until("an answer to the agent", deadline::KUBERNETES, is_up);
        process::signal(machine.container_pid(&before.container), Signal::STOP);
        Self { component, before, since: Instant::now() }
    }

    /// Waits until the component is replaced: three probes at intervals of ten seconds, and ten seconds to stop.
    fn comes_back(self, plane: &TestControlPlane<'_>) {
        let limit = deadline::KUBERNETES.max(Duration::from_secs(150));
        deadline::until("a new container", limit, || is_new(plane, self.component, &self.before));
        println!("{}  until {} ran again after it was stopped", millis(self.since.elapsed()), self.component);
    }
}

fn processes(plane: &TestControlPlane<'_>) -> BTreeMap<String, u32> {
    plane.machines.iter().flat_map(TestMachine::pids).collect()
}

fn nothing_restarts(plane: &TestControlPlane<'_>, meanwhile: impl FnOnce()) {
    let before = (plane.running(), processes(plane));
    assert_eq!(before.0.len(), plane.components().len());
    meanwhile();
    assert_eq!((plane.running(), processes(plane)), before);
    assert!(serves(plane));
}

/// The power fails on all machines. After the boot, data is present and the agents start everything.
fn reboot(plane: &TestControlPlane<'_>, fleet: &str) {
    let before = plane.running();
    let names: Vec<&str> = plane.machines.iter().map(TestMachine::name).collect();
    let arguments = [&["hypervisor", "local", "reboot", "--fleet", fleet], names.as_slice()].concat();
    let _ = plane.keelway.run(&arguments, &[]).succeeded();
    let booted = Instant::now();
    deadline::until("the API serves", deadline::KUBERNETES, || serves(plane));
    println!("{}  from booted machines until the API served", millis(booted.elapsed()));
    let all_new = || before.iter().all(|(component, seen)| is_new(plane, component, seen));
    deadline::until("everything runs", deadline::KUBERNETES, all_new);
    let kept = plane.kubectl.get(&["configmap", "kept"]);
    assert_eq!(kept["data"]["from"], "before");
}
