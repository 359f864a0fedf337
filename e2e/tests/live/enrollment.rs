//! Machines that are enrolled over their network: the documents contain no key of an agent, and the driver has no privileges on the machines.

use std::{fs, net::Ipv4Addr, process::Command};

use keelway_api::{Documents, Hypervisor, condition};
use keelway_e2e::{
    FinishedCommand, Keelway, TestFleet, TestMachine, command::RunningCommand, deadline, host::on_own_host,
};

use crate::{files, life, look, settled, workload};

/// The first of the user ids for agents.
const USERS: u32 = 1_700_000_000;
/// The capabilities of an agent.
const RIGHTS: &str = "-all,+chown,+dac_override,+fowner";
const PROGRAM: &str = "keelway-hypervisor-agent run --enroll kwe1.";

#[test]
fn machines_are_enrolled_over_their_network() {
    on_own_host("enrollment::machines_are_enrolled_over_their_network", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2eenrol");
    let made = world.create_two_without_agents();
    let machines = world.machines();
    let public = machines.iter().find(|machine| machine.is_public()).unwrap();
    let private = machines.iter().find(|machine| !machine.is_public()).unwrap();
    let driver = world.keelway.unprivileged_in(&public.network());

    let (mut text, mut lines) = (made, Vec::new());
    for machine in &machines {
        let address = format!("{}:7443", machine.document.spec.addresses.private[0]);
        let arguments = ["hypervisor", "enroll", "--name", machine.name(), "--zone", "eu-1", "--address", &address];
        let enrolled = driver.run(&arguments, &text).succeeded();
        lines.push(enrolled.stderr.lines().find(|line| line.starts_with(PROGRAM)).unwrap().to_owned());
        text = enrolled.stdout;
    }
    let waiting = driver.run(&["reconcile", "--timeout", "3s"], &text);
    assert_eq!(waiting.code(), 3);
    assert!(waiting.stderr.contains("its agent, which must be started with the token"), "{}", waiting.stderr);
    let mut agents: Vec<RunningCommand> =
        machines.iter().zip(&lines).map(|(machine, line)| start(machine, line)).collect();
    let injected = driver.run(&["cluster", "inject", "--name", "c1"], &waiting.stdout).succeeded().stdout;
    let text = driver.run(&["reconcile"], &injected).succeeded().stdout;
    are_enrolled(&text);

    let plane = life::with_kubeconfig(&driver, text);
    settled::a_second_pass_does_nothing(&plane);
    workload::write(&plane);
    look::logs(&plane);
    look::commands(&plane);
    files::are_users_of_their_own(&plane, agents.iter().map(RunningCommand::pid));

    // A unit restarts the agent with the same command line. The token on it has been used.
    let index = machines.iter().position(|machine| machine.name() == private.name()).unwrap();
    stop(agents.remove(index));
    agents.insert(index, start(private, &lines[index]));
    settled::a_second_pass_does_nothing(&plane);

    let running = plane.running();
    let text = renewed(&driver, &plane.text, private);
    let before = kept(public, "revoked.crl");
    let (text, agent) = revoked_and_enrolled_again(&driver, &text, private, agents.remove(index));
    assert_ne!(kept(public, "revoked.crl"), before, "the others receive the revocation");
    agents.push(agent);
    assert_eq!(plane.running(), running, "nothing of it was started anew");

    let deleted = driver.run(&["cluster", "delete", "--name", "c1"], &text).succeeded().stdout;
    let empty = driver.run(&["reconcile"], &deleted).succeeded().stdout;
    assert!(plane.running().is_empty());
    agents.into_iter().for_each(stop);
    let left = world.keelway.run(&["hypervisor", "local", "destroy"], &empty).succeeded().stdout;
    assert!(Documents::read(&left).unwrap().is_empty());
}

/// Runs the command line that `enroll` printed on the machine, as a user with only the capabilities that the unit grants.
fn start(machine: &TestMachine, line: &str) -> RunningCommand {
    let target = format!("--target={}", machine.pid());
    let private: Ipv4Addr = machine.document.spec.addresses.private[0].parse().unwrap();
    let [.., number] = private.octets();
    let user = USERS + u32::from(number);
    let mut command = Command::new("nsenter");
    command.args([&target, "--mount", "--net", "--", "setpriv", "--clear-groups", "--no-new-privs"]);
    command.args([format!("--reuid={user}"), format!("--regid={user}")]);
    command.args(["--inh-caps", "--ambient-caps", "--bounding-set"].map(|set| format!("{set}={RIGHTS}")));
    command.arg(Keelway::agent());
    command.args(line.split_whitespace().skip(1));
    command.arg(format!("--image-archives={}", keelway_cri::testing::cache().unwrap().join("images").display()));
    RunningCommand::start(&mut command, &[])
}

fn stop(agent: RunningCommand) {
    keelway_e2e::process::signal(agent.pid(), rustix::process::Signal::TERM);
    let ended = agent.end(deadline::READ);
    assert!(!ended.stderr.contains("kwe1."), "{}", ended.stderr);
}

/// Asserts that all machines are enrolled, and that the documents contain neither a token nor a key of an agent.
fn are_enrolled(text: &[u8]) {
    let documents = Documents::read(text).unwrap();
    let is_enrolled = |machine: &Hypervisor| {
        let status = machine.status.as_ref().unwrap();
        condition::is_true(&status.conditions, "Enrolled") && status.agent.as_ref().unwrap().not_after.is_some()
    };
    assert!(documents.hypervisors.values().all(|machine| is_enrolled(machine)));
    let of_installation = documents.installation().unwrap().namespace();
    let secrets = documents.secrets.keys().filter(|name| name.namespace == of_installation);
    let names: Vec<&str> = secrets.map(|name| name.name.as_str()).collect();
    assert_eq!(names, ["driver", "infrastructure-ca", "revoked"]);
}

/// Returns a file of an agent's identity from its machine.
fn kept(machine: &TestMachine, name: &str) -> String {
    fs::read_to_string(machine.path("/var/lib/keelway-agent/current").join(name)).unwrap()
}

/// The driver grants another certificate, as it does after two thirds of the life of the first. The agent creates a new key.
fn renewed(driver: &Keelway, text: &[u8], machine: &TestMachine) -> Vec<u8> {
    let mut documents = Documents::read(text).unwrap();
    let document = documents.hypervisors.get_mut(&machine.name().parse().unwrap()).unwrap();
    document.status.as_mut().unwrap().agent.as_mut().unwrap().certificates += 1;
    let before = ["tls.crt", "tls.key"].map(|name| kept(machine, name));
    let text = driver.run(&["reconcile"], documents.write().as_bytes()).succeeded().stdout;
    let after = ["tls.crt", "tls.key"].map(|name| kept(machine, name));
    assert!(before.iter().zip(&after).all(|(before, after)| before != after));
    text
}

/// Between revocation and enrollment, the driver cannot reach the machine. Its components continue to run.
fn revoked_and_enrolled_again(
    driver: &Keelway,
    text: &[u8],
    machine: &TestMachine,
    agent: RunningCommand,
) -> (Vec<u8>, RunningCommand) {
    let revoked = driver.run(&["hypervisor", "revoke", machine.name()], text).succeeded().stdout;
    let waiting: FinishedCommand = driver.run(&["reconcile", "--timeout", "3s"], &revoked);
    assert_eq!(waiting.code(), 3);
    assert!(waiting.stderr.contains("its certificates are revoked"), "{}", waiting.stderr);
    stop(agent);
    let enrolled = driver.run(&["hypervisor", "enroll", "--name", machine.name()], &waiting.stdout).succeeded();
    let line = enrolled.stderr.lines().find(|line| line.starts_with(PROGRAM)).unwrap();
    let agent = start(machine, line);
    let text = driver.run(&["reconcile"], &enrolled.stdout).succeeded().stdout;
    are_enrolled(&text);
    (text, agent)
}
