//! The time is an argument, so hours pass at once. The clock is monotonic, so its start does not matter.

use std::time::Duration;

use keelway_api::{
    machine::{
        CgroupDriver, Container, ContainerCheck, ContainerPhase, ContainerResources, ContainerState, Liveness,
        MachineConfig, MachineState, OnChange, Pod, PodFile, RuntimeFacts, SandboxState, Start,
    },
    name::PodName,
};

use super::*;
use crate::converge::converge;

const SECOND: Duration = Duration::from_secs(1);
const NAME: &str = "etcd";

fn pod() -> PodName {
    PodName { cluster: "0123456789abcdef".parse().unwrap(), component: "etcd-0".parse().unwrap() }
}

fn config() -> MachineConfig {
    let liveness = Liveness {
        check: ContainerCheck::Socket { path: "data/x".to_owned(), request: String::new(), answer: String::new() },
        period_seconds: 10,
        timeout_seconds: 5,
        failure_threshold: 3,
        startup_seconds: Some(60),
    };
    let container = Container {
        name: NAME.to_owned(),
        image: "image".to_owned(),
        command: Vec::new(),
        mounts: Vec::new(),
        resources: ContainerResources { cpu_request_millis: 1, cpu_limit_millis: None, memory_limit_bytes: 1 << 20 },
        stop_seconds: 25,
        liveness: Some(liveness),
    };
    let file = PodFile { path: "a".to_owned(), content: b"1".to_vec(), on_change: OnChange::PickedUp };
    let pod = Pod {
        user: 20000,
        files: vec![file],
        data: vec!["data".to_owned()],
        containers: vec![container],
        pause_image: "pause".to_owned(),
        servers: None,
        start: Start::Always,
        hold: false,
        registries: std::collections::BTreeMap::new(),
        prefetch: std::collections::BTreeSet::new(),
    };
    MachineConfig {
        format: keelway_api::machine::ConfigFormat::NEWEST,
        installation: "00000000000000ff".parse().unwrap(),
        term: 1,
        generation: 1,
        pods: [(self::pod(), pod)].into(),
        others: std::collections::BTreeSet::new(),
        removals: std::collections::BTreeMap::new(),
    }
}

/// A machine with one container, which ends, is created again, and responds or does not.
struct World {
    now: MonotonicTime,
    config: MachineConfig,
    state: MachineState,
    supervisor: Supervisor,
    made: u32,
}

impl World {
    fn starting_at(now: MonotonicTime) -> Self {
        let config = config();
        let wanted = &config.pods[&pod()];
        let runtime =
            RuntimeFacts { name: "model".to_owned(), version: "1".to_owned(), cgroup_driver: CgroupDriver::Cgroupfs };
        let state = MachineState {
            owner: Some(config.installation.clone()),
            sandboxes: vec![SandboxState {
                id: "s".to_owned(),
                pod: pod(),
                attempt: 0,
                digest: wanted.digest(),
                ready: true,
            }],
            files: [(
                format!("{}/files", crate::layout::pod_directory(&pod())),
                keelway_api::machine::FileState { user: 0, group: 20000, mode: 0o750, sha256: None },
            )]
            .into(),
            images: ["image".to_owned(), "pause".to_owned()].into(),
            ..MachineState::empty(runtime)
        };
        let mut world = Self { now, config, state, supervisor: Supervisor::default(), made: 0 };
        world.is(ContainerPhase::Running);
        world
    }

    fn is(&mut self, phase: ContainerPhase) {
        self.state.containers = vec![ContainerState {
            id: format!("c{}", self.made),
            sandbox: "s".to_owned(),
            name: NAME.to_owned(),
            attempt: self.made,
            phase,
            stop_seconds: Some(25),
        }];
    }

    fn round(&mut self) -> SupervisionRound {
        let actions = converge(&self.config, &self.state).unwrap();
        self.supervisor.round(self.now, (&self.config, &self.state), &actions, &BTreeSet::new())
    }

    /// Ends the container. Returns the delay until it is started again.
    fn end(&mut self) -> Duration {
        self.is(ContainerPhase::Exited { code: 1 });
        let ended = self.now;
        let mut round = self.round();
        while !starts(&round) {
            assert_eq!(round.postponed.len(), 1);
            self.now = round.wake.expect("a moment to look again");
            round = self.round();
        }
        self.supervisor.done(self.now, &pod(), &round.pods[&pod()]);
        self.made += 1;
        self.is(ContainerPhase::Running);
        assert!(!starts(&self.round()));
        self.now.saturating_sub(ended)
    }

    fn answer(&mut self, answer: Result<(), String>) -> bool {
        self.now = self.supervisor.next_query_at().expect("a question");
        let questions = self.supervisor.questions(self.now);
        assert_eq!(questions.len(), 1);
        assert_eq!(self.supervisor.questions(self.now), [], "it is being asked");
        self.supervisor.record_answer(self.now, &questions[0].container, answer)
    }
}

fn starts(round: &SupervisionRound) -> bool {
    let steps = round.pods.get(&pod());
    steps.is_some_and(|steps| steps.iter().any(|step| matches!(step, PodAction::StartContainer { .. })))
}

#[test]
fn restarts_have_growing_pauses() {
    for start in [Duration::ZERO, Duration::from_hours(10_000)] {
        let mut world = World::starting_at(start);
        let pauses: Vec<u64> = (0..12)
            .map(|_| {
                world.now += SECOND;
                world.end().as_secs()
            })
            .collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        world.now += Duration::from_secs(599);
        assert_eq!(world.end().as_secs(), 300);
        world.now += Duration::from_secs(600);
        assert_eq!(world.end(), Duration::ZERO, "what ran for ten minutes is well");
    }
}

#[test]
fn files_are_put_in_place_while_a_restart_is_put_off() {
    let mut world = World::starting_at(Duration::ZERO);
    world.end();
    world.is(ContainerPhase::Exited { code: 1 });
    let round = world.round();
    assert_eq!((round.postponed.len(), round.wake), (1, Some(SECOND)));
    let steps = &round.pods[&pod()];
    assert!(steps.iter().any(|step| matches!(step, PodAction::WriteFile { .. })), "{steps:?}");
    assert!(!steps.iter().any(|step| matches!(step, PodAction::RemoveContainer { .. })), "{steps:?}");
}

#[test]
fn a_failed_start_is_retried_later_unless_something_changed() {
    let mut world = World::starting_at(Duration::ZERO);
    world.state.containers.clear();
    for pause in [1, 2, 4] {
        assert!(starts(&world.round()));
        world.supervisor.failed(world.now, &pod());
        let round = world.round();
        assert_eq!(round.pods.len(), 0, "nothing of it is begun");
        assert_eq!(round.wake, Some(world.now + SECOND * pause));
        world.now += SECOND * pause;
    }
    world.supervisor.failed(world.now, &pod());
    world.supervisor.reset_backoff();
    assert!(starts(&world.round()));
}

#[test]
fn a_pod_of_other_content_waits_for_nothing() {
    let mut world = World::starting_at(Duration::ZERO);
    for _ in 0..5 {
        world.end();
    }
    world.config.pods.get_mut(&pod()).unwrap().containers[0].image = "another".to_owned();
    world.is(ContainerPhase::Exited { code: 1 });
    let round = world.round();
    assert!(starts(&round), "{round:?}");
    assert_eq!(round.postponed, []);
}

#[test]
fn a_sandbox_that_dies_again_and_again_is_put_off_as_a_whole() {
    let mut world = World::starting_at(Duration::ZERO);
    for pause in [0, 1, 2] {
        world.state.sandboxes[0].ready = false;
        let round = world.round();
        assert_eq!(starts(&round), pause == 0, "{pause}");
        world.now += SECOND * pause;
        let round = world.round();
        assert!(starts(&round), "{pause}");
        world.supervisor.done(world.now, &pod(), &round.pods[&pod()]);
    }
}

#[test]
fn a_busy_pod_is_left_alone() {
    let mut world = World::starting_at(Duration::ZERO);
    world.is(ContainerPhase::Exited { code: 1 });
    let actions = converge(&world.config, &world.state).unwrap();
    let busy = BTreeSet::from([pod()]);
    let round = world.supervisor.round(world.now, (&world.config, &world.state), &actions, &busy);
    assert_eq!(round, SupervisionRound::default());
}

fn stops(round: &SupervisionRound) -> Option<u32> {
    round.pods.get(&pod())?.iter().find_map(|step| {
        if let PodAction::StopContainer { grace_seconds, .. } = step { Some(*grace_seconds) } else { None }
    })
}

#[test]
fn silence_counts_after_the_first_answer() {
    let mut world = World::starting_at(Duration::ZERO);
    world.round();
    assert!(!world.answer(Ok(())));
    for stuck in [false, false, true] {
        assert_eq!(world.answer(Err("silence".to_owned())), stuck);
    }
    assert_eq!(stops(&world.round()), Some(STUCK_GRACE_SECONDS), "what is stuck has nothing to drain");
    assert_eq!(world.end(), Duration::ZERO);
    assert_eq!(stops(&world.round()), None, "the next one begins anew");
}

#[test]
fn one_answer_makes_up_for_silence() {
    let mut world = World::starting_at(Duration::ZERO);
    world.round();
    for answer in [Ok(()), Err(()), Err(()), Ok(()), Err(()), Err(())] {
        assert!(!world.answer(answer.map_err(|()| "silence".to_owned())));
    }
}

#[test]
fn a_component_has_its_time_to_come_up() {
    let mut world = World::starting_at(Duration::ZERO);
    world.round();
    let failures = (1..100).take_while(|_| !world.answer(Err("refused".to_owned()))).count();
    // Probes run at 2 s, 4 s, .., 60 s, 70 s, 80 s. Failures from 60 s on count.
    assert_eq!((failures, world.now), (31, SECOND * 80));

    let mut patient = World::starting_at(Duration::ZERO);
    let container = &mut patient.config.pods.get_mut(&pod()).unwrap().containers[0];
    container.liveness.as_mut().unwrap().startup_seconds = None;
    patient.round();
    assert!((0..1000).all(|_| !patient.answer(Err("refused".to_owned()))));
}

#[test]
fn a_stop_that_fails_is_tried_again_later() {
    let mut world = World::starting_at(Duration::ZERO);
    world.round();
    let _ = world.answer(Ok(()));
    for _ in 0..3 {
        let _ = world.answer(Err("silence".to_owned()));
    }
    assert!(stops(&world.round()).is_some());
    world.supervisor.failed(world.now, &pod());
    assert_eq!(stops(&world.round()), None);
    assert_eq!(world.round().wake, Some(world.now + SECOND));
    world.now += SECOND;
    assert!(stops(&world.round()).is_some());
}

#[test]
fn one_is_healthy_from_its_first_answer_until_one_fails() {
    let mut world = World::starting_at(Duration::ZERO);
    world.round();
    let healthy = |world: &World| world.supervisor.healthy().into_iter().collect::<Vec<_>>();
    assert_eq!(healthy(&world), Vec::<String>::new(), "it was not asked yet");
    world.answer(Ok(()));
    assert_eq!(healthy(&world), ["c0"]);
    world.state.healthy = world.supervisor.healthy();
    assert!(world.state.reports_healthy(&pod()));
    world.answer(Err("silence".to_owned()));
    assert_eq!(healthy(&world), Vec::<String>::new());
    world.answer(Ok(()));
    world.end();
    world.state.healthy = world.supervisor.healthy();
    assert!(!world.state.reports_healthy(&pod()), "another container was not asked yet");
}
