//! Running containers with probes, and the results.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use keelway_api::{
    machine::{ContainerCheck, ContainerPhase, Liveness, MachineConfig, MachineState},
    name::PodName,
};

use super::MonotonicTime;

/// The longest period of probes of a container that has not responded yet, so that its failures are noticed soon after its startup time.
const STARTUP_PERIOD: Duration = Duration::from_secs(2);

/// A probe to send to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivenessQuery {
    /// The id that the runtime assigned to the container.
    pub container: String,
    /// The component of the container.
    pub pod: PodName,
    /// The check to make.
    pub check: ContainerCheck,
    /// How long the response may take.
    pub within: Duration,
}

/// All containers with probes, by their ids.
#[derive(Debug, Default)]
pub(super) struct Checks(BTreeMap<String, Checked>);

#[derive(Debug)]
struct Checked {
    pod: PodName,
    name: String,
    stop_seconds: u32,
    liveness: Liveness,
    since: MonotonicTime,
    answered: bool,
    failures: u32,
    /// When the next probe is due. `None` while one is in progress.
    next: Option<MonotonicTime>,
    why: String,
}

/// A container that failed too often.
#[derive(Debug)]
pub(super) struct StuckContainer {
    pub(super) pod: PodName,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) stop_seconds: u32,
    pub(super) why: String,
}

impl Checks {
    /// Adds containers that run as the config requires, and drops those that do not run any more.
    pub(super) fn track_containers(&mut self, now: MonotonicTime, config: &MachineConfig, state: &MachineState) {
        let running: BTreeMap<&str, _> = running(config, state).collect();
        self.0.retain(|id, _| running.contains_key(id.as_str()));
        for (id, (pod, container, liveness)) in running {
            let checked = self.0.entry(id.to_owned()).or_insert_with(|| Checked {
                pod: pod.clone(),
                name: container.name.clone(),
                stop_seconds: container.stop_seconds,
                liveness: liveness.clone(),
                since: now,
                answered: false,
                failures: 0,
                next: Some(now.saturating_add(seconds(liveness.period_seconds).min(STARTUP_PERIOD))),
                why: String::new(),
            });
            checked.liveness.clone_from(liveness);
        }
    }

    pub(super) fn due(&mut self, now: MonotonicTime) -> Vec<LivenessQuery> {
        let due = self.0.iter_mut().filter(|(_, checked)| checked.next.is_some_and(|next| next <= now));
        due.map(|(id, checked)| {
            checked.next = None;
            LivenessQuery {
                container: id.clone(),
                pod: checked.pod.clone(),
                check: checked.liveness.check.clone(),
                within: seconds(checked.liveness.timeout_seconds),
            }
        })
        .collect()
    }

    pub(super) fn next(&self) -> Option<MonotonicTime> {
        self.0.values().filter_map(|checked| checked.next).min()
    }

    pub(super) fn record_answer(
        &mut self,
        now: MonotonicTime,
        id: &str,
        answer: Result<(), impl fmt::Display>,
    ) -> bool {
        let Some(checked) = self.0.get_mut(id) else {
            return false;
        };
        match answer {
            Ok(()) => {
                if !std::mem::replace(&mut checked.answered, true) {
                    tracing::info!(pod = %checked.pod, container = checked.name, "is up");
                }
                checked.failures = 0;
            }
            Err(why) if checked.counts(now) => {
                checked.why = why.to_string();
                tracing::info!(pod = %checked.pod, why = checked.why, "a check failed");
                checked.failures = checked.failures.saturating_add(1);
            }
            Err(_) => {}
        }
        let period = seconds(checked.liveness.period_seconds);
        let period = if checked.counts(now) { period } else { period.min(STARTUP_PERIOD) };
        checked.next = Some(now.saturating_add(period));
        checked.is_stuck()
    }

    /// Returns the ids of containers whose last probe succeeded.
    pub(super) fn healthy(&self) -> BTreeSet<String> {
        let healthy = self.0.iter().filter(|(_, checked)| checked.is_healthy());
        healthy.map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn is_healthy(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(Checked::is_healthy)
    }

    pub(super) fn failing(&self, id: &str) -> Option<(&PodName, &str, &str)> {
        let checked = self.0.get(id).filter(|checked| checked.failures > 0)?;
        Some((&checked.pod, &checked.name, &checked.why))
    }

    /// Returns containers that still run although they failed too often. Containers that were replaced are left out.
    pub(super) fn stuck(&self, config: &MachineConfig, state: &MachineState) -> Vec<StuckContainer> {
        let running: BTreeMap<&str, _> = running(config, state).collect();
        let stuck = self.0.iter().filter(|(id, checked)| checked.is_stuck() && running.contains_key(id.as_str()));
        stuck
            .map(|(id, checked)| StuckContainer {
                pod: checked.pod.clone(),
                id: id.clone(),
                name: checked.name.clone(),
                stop_seconds: checked.stop_seconds,
                why: checked.why.clone(),
            })
            .collect()
    }
}

impl Checked {
    /// Returns whether a failure at this time counts. It does not before the component has responded once or its startup time is over.
    fn counts(&self, now: MonotonicTime) -> bool {
        let up = self.liveness.startup_seconds.map(|limit| self.since.saturating_add(seconds(limit)));
        self.answered || up.is_some_and(|up| now >= up)
    }

    fn is_healthy(&self) -> bool {
        self.answered && self.failures == 0
    }

    fn is_stuck(&self) -> bool {
        self.failures >= self.liveness.failure_threshold
    }
}

type LivenessTarget<'a> = (&'a PodName, &'a keelway_api::machine::Container, &'a Liveness);

/// Returns the running containers of the config's pods that have a probe.
fn running<'a>(
    config: &'a MachineConfig,
    state: &'a MachineState,
) -> impl Iterator<Item = (&'a str, LivenessTarget<'a>)> {
    state.containers.iter().filter(|found| found.phase == ContainerPhase::Running).filter_map(|found| {
        let sandbox = state.sandboxes.iter().find(|sandbox| sandbox.id == found.sandbox)?;
        let (pod, wanted) = config.pods.get_key_value(&sandbox.pod)?;
        let container = wanted.containers.iter().find(|container| container.name == found.name)?;
        Some((found.id.as_str(), (pod, container, container.liveness.as_ref()?)))
    })
}

fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}
