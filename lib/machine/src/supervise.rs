//! Decides which actions of a plan may run now, and which are postponed: restarts with back-off, and liveness probes. Pure: the time is an argument,
//! as the duration since some start on a monotonic clock.

mod liveness;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use keelway_api::{
    machine::{ContainerPhase, MachineConfig, MachineState},
    name::PodName,
};

use keelway_base::backoff::Backoff;

use crate::action::{Action, PodAction};
use liveness::Checks;
pub use liveness::LivenessQuery;

/// A time on a monotonic clock, as the duration since some start. Changes of the system clock do not affect it.
pub type MonotonicTime = Duration;

/// The longest time to drain for a container that no longer responds.
const STUCK_GRACE_SECONDS: u32 = 10;

/// The state of restarts and probes. It is lost when the agent restarts; then everything is tried once without delay.
#[derive(Debug, Default)]
pub struct Supervisor {
    endings: BTreeMap<(PodName, PodPart), Backoff>,
    checks: Checks,
}

/// The part of a pod that ended or failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PodPart {
    /// An action of the pod.
    Action,
    /// The sandbox of the pod.
    Sandbox,
    /// The container of this name.
    Container(String),
}

/// What may be done now, and what is postponed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SupervisionRound {
    /// The steps of each pod that may run, in order.
    pub pods: BTreeMap<PodName, Vec<PodAction>>,
    /// What is postponed.
    pub postponed: Vec<PostponedAction>,
    /// When to look again at the latest. `None` if nothing is postponed.
    pub wake: Option<MonotonicTime>,
}

/// A postponed action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostponedAction {
    /// The component.
    pub pod: PodName,
    /// The remaining delay.
    pub remaining: Duration,
    what: PodPart,
}

impl PostponedAction {
    /// Returns the name of the postponed container, or an empty text if more than one container is postponed.
    #[must_use]
    pub fn container(&self) -> &str {
        if let PodPart::Container(name) = &self.what { name } else { "" }
    }

    /// Returns the reason of the delay. The text does not change while the action is postponed.
    #[must_use]
    pub fn reason(&self) -> String {
        match &self.what {
            PodPart::Action => "failed actions are retried later".to_owned(),
            PodPart::Sandbox => "the sandbox exited again, and is recreated later".to_owned(),
            PodPart::Container(name) => format!("container {name} exited again, and is restarted later"),
        }
    }
}

impl fmt::Display for PostponedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pod, seconds) = (&self.pod, self.remaining.as_secs_f32().ceil());
        match &self.what {
            PodPart::Action => write!(f, "{pod}: failed actions are retried in {seconds} s"),
            PodPart::Sandbox => write!(f, "{pod}: its sandbox exited again and is recreated in {seconds} s"),
            PodPart::Container(name) => {
                write!(f, "{pod}: container {name} exited again and is restarted in {seconds} s")
            }
        }
    }
}

impl Supervisor {
    /// Returns what may be done now of a plan. Nothing is started for `busy` pods, which have actions in progress.
    pub fn round(
        &mut self,
        now: MonotonicTime,
        (config, state): (&MachineConfig, &MachineState),
        actions: &[Action],
        busy: &BTreeSet<PodName>,
    ) -> SupervisionRound {
        self.endings.retain(|(pod, _), _| config.pods.contains_key(pod));
        self.checks.track_containers(now, config, state);
        let mut round = SupervisionRound::default();
        for (pod, steps) in steps_by_pod(actions) {
            if !busy.contains(pod) {
                self.release(now, state, pod, steps, &mut round);
            }
        }
        for stuck in self.checks.stuck(config, state) {
            let failed = self.endings.get(&(stuck.pod.clone(), PodPart::Action)).and_then(Backoff::held_until);
            if let Some(until) = failed.filter(|until| *until > now) {
                round.wake = Some(round.wake.map_or(until, |wake| wake.min(until)));
            } else if !busy.contains(&stuck.pod) {
                tracing::warn!(pod = %stuck.pod, container = stuck.name, why = stuck.why, "fails its liveness check, and is stopped");
                let stop = PodAction::StopContainer {
                    id: stuck.id,
                    name: stuck.name,
                    grace_seconds: stuck.stop_seconds.min(STUCK_GRACE_SECONDS),
                };
                round.pods.entry(stuck.pod).or_default().insert(0, stop);
            }
        }
        round
    }

    /// Splits the steps of one pod into those that may run now and those that are postponed.
    fn release(
        &mut self,
        now: MonotonicTime,
        state: &MachineState,
        pod: &PodName,
        mut steps: Vec<PodAction>,
        round: &mut SupervisionRound,
    ) {
        let held: Vec<(PodPart, MonotonicTime)> =
            self.ended(now, state, pod, &steps).into_iter().filter(|(_, until)| *until > now).collect();
        for (what, until) in held {
            steps.retain(|step| !belongs_to(&what, step));
            round.wake = Some(round.wake.map_or(until, |wake| wake.min(until)));
            round.postponed.push(PostponedAction { pod: pod.clone(), remaining: until.saturating_sub(now), what });
        }
        // Images are fetched only for what is about to be created.
        if !steps.iter().any(|step| matches!(step, PodAction::CreateSandbox(_) | PodAction::CreateContainer(_))) {
            steps.retain(|step| !matches!(step, PodAction::EnsureImage(_)));
        }
        if !steps.is_empty() {
            round.pods.insert(pod.clone(), steps);
        }
    }

    /// Returns the parts of a pod that ended and are about to be created again, each with the earliest time for that.
    fn ended(
        &mut self,
        now: MonotonicTime,
        state: &MachineState,
        pod: &PodName,
        steps: &[PodAction],
    ) -> Vec<(PodPart, MonotonicTime)> {
        let mut ended = Vec::new();
        if let Some(until) = self.endings.get(&(pod.clone(), PodPart::Action)).and_then(Backoff::held_until) {
            ended.push((PodPart::Action, until));
        }
        let new_sandbox =
            steps.iter().find_map(|step| if let PodAction::CreateSandbox(new) = step { Some(new) } else { None });
        if let Some(new) = new_sandbox {
            // A sandbox with another digest is a change, not an end.
            if state.sandboxes.iter().any(|old| old.pod == *pod && old.digest == new.digest) {
                ended.push((PodPart::Sandbox, self.note(now, pod, PodPart::Sandbox)));
            }
            return ended;
        }
        for step in steps {
            if let PodAction::CreateContainer(new) = step
                && exited(state, new.sandbox_id.as_deref(), &new.container.name)
            {
                let what = PodPart::Container(new.container.name.clone());
                ended.push((what.clone(), self.note(now, pod, what)));
            }
        }
        ended
    }

    fn note(&mut self, now: MonotonicTime, pod: &PodName, what: PodPart) -> MonotonicTime {
        self.endings.entry((pod.clone(), what)).or_default().ended(now)
    }

    /// Records that steps of a pod were done.
    pub fn done(&mut self, now: MonotonicTime, pod: &PodName, steps: &[PodAction]) {
        self.endings.remove(&(pod.clone(), PodPart::Action));
        for step in steps {
            let what = if let PodAction::CreateSandbox(_) = step {
                PodPart::Sandbox
            } else if let PodAction::StartContainer { name, .. } = step {
                PodPart::Container(name.clone())
            } else {
                continue;
            };
            self.endings.entry((pod.clone(), what)).or_default().started(now);
        }
    }

    /// Records that a step of a pod failed.
    pub fn failed(&mut self, now: MonotonicTime, pod: &PodName) {
        self.endings.entry((pod.clone(), PodPart::Action)).or_default().failed(now);
    }

    /// Allows failed actions to be retried at once, because there is another config or the runtime is available again.
    pub fn reset_backoff(&mut self) {
        self.endings.retain(|(_, what), _| *what != PodPart::Action);
    }

    /// Returns the probes that are due. Each container has at most one probe in progress.
    pub fn questions(&mut self, now: MonotonicTime) -> Vec<LivenessQuery> {
        self.checks.due(now)
    }

    /// Returns when the next probe is due.
    #[must_use]
    pub fn next_query_at(&self) -> Option<MonotonicTime> {
        self.checks.next()
    }

    /// Returns the component, the name and the reason of a container whose last result counted as a failure.
    #[must_use]
    pub fn failing(&self, container: &str) -> Option<(&PodName, &str, &str)> {
        self.checks.failing(container)
    }

    /// Returns the ids of containers whose last probe succeeded.
    #[must_use]
    pub fn healthy(&self) -> BTreeSet<String> {
        self.checks.healthy()
    }

    /// Returns whether the last probe of a container succeeded.
    #[must_use]
    pub fn is_healthy(&self, container: &str) -> bool {
        self.checks.is_healthy(container)
    }

    /// Records the result of a probe. Returns whether the container must be stopped because of it.
    pub fn record_answer(
        &mut self,
        now: MonotonicTime,
        container: &str,
        answer: Result<(), impl fmt::Display>,
    ) -> bool {
        self.checks.record_answer(now, container, answer)
    }
}

fn steps_by_pod(actions: &[Action]) -> BTreeMap<&PodName, Vec<PodAction>> {
    let mut by_pod: BTreeMap<&PodName, Vec<PodAction>> = BTreeMap::new();
    for action in actions {
        if let Action::Pod(pod, step) = action {
            by_pod.entry(pod).or_default().push(step.clone());
        }
    }
    by_pod
}

fn exited(state: &MachineState, sandbox: Option<&str>, name: &str) -> bool {
    state.containers.iter().any(|found| {
        let over = match found.phase {
            ContainerPhase::Exited { .. } | ContainerPhase::Unknown => true,
            ContainerPhase::Created | ContainerPhase::Running => false,
        };
        over && Some(found.sandbox.as_str()) == sandbox && found.name == name
    })
}

/// Returns whether a step is postponed together with a part that ended. Files are written meanwhile.
fn belongs_to(what: &PodPart, step: &PodAction) -> bool {
    let of_name = |name: &str| matches!(what, PodPart::Container(held) if held == name);
    match step {
        PodAction::MakeDirectories(_)
        | PodAction::MarkData { .. }
        | PodAction::CopyData { .. }
        | PodAction::WriteFile { .. }
        | PodAction::RemovePath { .. }
        | PodAction::RemoveTree
        | PodAction::ChangeServer { .. }
        | PodAction::EnsureImage(_) => *what == PodPart::Action,
        PodAction::StopSandbox { .. } | PodAction::RemoveSandbox { .. } | PodAction::CreateSandbox(_) => {
            matches!(what, PodPart::Action | PodPart::Sandbox)
        }
        PodAction::StopContainer { name, .. }
        | PodAction::RemoveContainer { name, .. }
        | PodAction::StartContainer { name, .. } => !matches!(what, PodPart::Container(_)) || of_name(name),
        PodAction::CreateContainer(new) => !matches!(what, PodPart::Container(_)) || of_name(&new.container.name),
    }
}
