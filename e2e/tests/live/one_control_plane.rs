//! The commands of docs/tour.md, and everything that must hold while its cluster runs.

use std::{fs, time::Instant};

use keelway_e2e::{
    Keelway, MachineFacts, TestControlPlane, TestFleet, TestMachine,
    host::on_own_host,
    transcript::{TranscriptStep, of_readme, of_tour},
};

use crate::{
    files,
    input::{self, among_others, others_are_in_place},
    keys, look, reach, recovery, settled, versions, watch, workers, workload,
};

#[test]
fn one_control_plane() {
    on_own_host("one_control_plane::one_control_plane", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2eone");
    let host = MachineFacts::on_host(&world.fleet);
    let steps = of_tour();
    goes_as_the_readme(&steps);
    let cluster = steps.iter().position(|step| step.command.contains("cluster inject")).unwrap();
    let deletion = steps.iter().position(|step| step.command.contains("cluster delete")).unwrap();

    steps[..cluster].iter().for_each(|step| create(&mut world, step));
    let machines = world.machines();
    let found: Vec<MachineFacts> = machines.iter().map(|machine| MachineFacts::on(machine, &world.fleet)).collect();

    let keelway = &world.keelway;
    there_is_something_to_do(keelway);
    steps[cluster..deletion].iter().for_each(|step| run(keelway, step));
    let plane = TestControlPlane::new(keelway, read(keelway, "c1.yaml"), "c1.kubeconfig");
    settled(&plane, &world.fleet);
    let images = machines.iter().map(TestMachine::images).collect::<Vec<_>>();
    for (before, machine) in found.iter().zip(&machines) {
        let now = before.difference(&MachineFacts::on(machine, &world.fleet));
        for kind in ["file", "mount", "cgroup", "process", "runtime"] {
            assert!(now.contains(&format!("+ {kind} ")), "{kind} of {}: {now}", machine.name());
        }
    }

    let log = look::follow(&plane);
    run(keelway, &steps[deletion]);
    look::ended(keelway, log);
    for (before, machine) in found.iter().zip(&machines) {
        same(before, &MachineFacts::on(machine, &world.fleet));
    }
    assert_eq!(machines.iter().map(TestMachine::images).collect::<Vec<_>>(), images, "images stay");
    others_are_in_place(&String::from_utf8(read(keelway, "empty.yaml")).unwrap());
    steps[deletion + 1..].iter().for_each(|step| run(keelway, step));
    same(&host, &MachineFacts::on_host(&world.fleet));
}

/// Checks everything that must hold while the cluster runs.
fn settled(plane: &TestControlPlane<'_>, fleet: &str) {
    stage("settled", || {
        settled::a_second_pass_does_nothing(plane);
        settled::status(plane, fleet);
    });
    let watch = watch::open(plane);
    stage("workload", || {
        workload::write(plane);
        workload::secret_is_there(plane);
        workload::secret_is_encrypted(plane);
        workload::administrators(plane);
        workload::strangers(plane);
        workload::endpoints(plane);
    });
    stage("reach", || {
        reach::only_the_ingress(plane);
        reach::only_health(plane);
        reach::peers_only(plane);
    });
    stage("files", || {
        files::files_are_private(plane);
        files::agents_keep_to_themselves(plane);
        files::processes_have_no_privilege(plane);
        files::agents_are_users_of_their_own(plane);
        keys::are_nowhere_else(plane);
    });
    stage("look", || {
        look::logs(plane);
        look::commands(plane);
    });
    stage("versions", || {
        versions::programs_answer(plane);
        versions::programs_take_arguments(plane);
    });
    stage("workers", || {
        workers::tokens(plane);
        workers::eviction(plane);
        workers::driver(plane);
    });
    stage("input", || {
        input::bad_input_does_nothing(plane);
        others_are_in_place(std::str::from_utf8(&plane.text).unwrap());
    });
    // The watch stays open without these two components.
    for component in ["kube-scheduler-0", "kube-controller-manager-0"] {
        dies(plane, component);
    }
    stage("watch", || watch.wakes(plane));
    for component in ["ingress-0", "etcd-0", "kube-apiserver-0"] {
        dies(plane, component);
    }
    stage("events", || look::what_died(plane, "kube-scheduler-0"));
    stage("settled", || settled::a_second_pass_does_nothing(plane));
}

fn dies(plane: &TestControlPlane<'_>, component: &str) {
    stage(component, || {
        for kill in [recovery::container, recovery::sandbox] {
            kill(plane, component);
            workload::secret_is_there(plane);
        }
    });
}

fn stage(name: &str, body: impl FnOnce()) {
    let started = Instant::now();
    body();
    println!("{:>7} ms  {name}: done", started.elapsed().as_millis());
}

/// Before the first pass, a plan has work to do. From here on, the documents are among documents of other programs.
fn there_is_something_to_do(keelway: &Keelway) {
    let world = among_others(&String::from_utf8(read(keelway, "world.yaml")).unwrap());
    fs::write(keelway.directory().join("world.yaml"), &world).unwrap();
    let injected = keelway.run(&["cluster", "inject", "--name", "c1"], world.as_bytes()).succeeded().stdout;
    let planned = keelway.run(&["plan", "--exit-code"], &injected);
    assert_eq!(planned.code(), 4);
    assert!(planned.text().contains("etcd-0"), "{}", planned.text());
    assert_eq!(keelway.run(&["plan"], &injected).code(), 0);
}

fn same(before: &MachineFacts, after: &MachineFacts) {
    let difference = before.difference(after);
    assert!(difference.is_empty(), "not as it was found:\n{difference}");
}

/// The README contains some steps of the tour, in the same order.
fn goes_as_the_readme(tour: &[TranscriptStep]) {
    let mut tour = tour.iter();
    for step in of_readme() {
        assert!(tour.any(|of_tour| of_tour.command == step.command), "docs/tour.md lacks {}", step.command);
    }
}

/// Creates the tour's fleet, under the test's name instead of `local`.
fn create(world: &mut TestFleet, step: &TranscriptStep) {
    let made = world.create(|keelway, fleet| {
        let (command, file) = step.command.split_once(" > ").unwrap();
        keelway.shell(&format!("{command} --fleet {fleet} | tee {file}"))
    });
    assert_eq!(made, read(&world.keelway, "world.yaml"));
}

fn run(keelway: &Keelway, step: &TranscriptStep) {
    let finished = keelway.shell(&step.command).succeeded();
    if !step.output.is_empty() {
        assert_eq!(finished.text().trim_end(), step.output.trim_end(), "{}", step.command);
    }
}

fn read(keelway: &Keelway, file: &str) -> Vec<u8> {
    fs::read(keelway.directory().join(file)).unwrap()
}
