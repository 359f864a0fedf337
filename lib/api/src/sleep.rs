//! A cluster that sleeps: its components are stopped, and its data stays.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Cluster, Time, name::ComponentName, role::Role};

/// The sleep of a cluster, from its first step until the cluster is awake again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SleepStatus {
    /// The current step.
    pub phase: SleepPhase,
    /// When this step began.
    pub since: Time,
    /// In `StartingStore`: the etcd members that may start. They start one after the other, because members that start at the same time wait for each
    /// other's response for seconds.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub started_members: BTreeSet<ComponentName>,
}

/// The steps of falling asleep, and of waking up. No machine gets the config of a step before the step is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum SleepPhase {
    /// Controllers, schedulers and gateways stop.
    StoppingControllers,
    /// The ingresses are replaced by ones that answer every request with 503.
    Answering,
    /// The API servers stop.
    StoppingServers,
    /// The etcd members stop.
    StoppingStore,
    /// Nothing runs but the ingresses.
    Asleep,
    /// The etcd members start, one after the other.
    StartingStore,
    /// The API servers start, and the ingresses are replaced by ones that forward to them. After that, the cluster is awake, and all others start.
    StartingServers,
}

impl SleepPhase {
    /// Returns whether components of this role are stopped in this phase.
    #[must_use]
    pub fn stops(self, role: Role) -> bool {
        match role {
            Role::KubeControllerManager
            | Role::KubeScheduler
            | Role::ClusterController
            | Role::FleetController
            | Role::Gateway => true,
            Role::KubeApiserver => (Self::StoppingServers..=Self::StartingStore).contains(&self),
            Role::Etcd => (Self::StoppingStore..=Self::Asleep).contains(&self),
            Role::Ingress => false,
        }
    }

    /// Returns whether the ingresses answer requests themselves in this phase, and have no connections to API servers.
    #[must_use]
    pub fn is_answered_by_ingresses(self) -> bool {
        (Self::Answering..=Self::StartingStore).contains(&self)
    }
}

impl Cluster {
    /// Returns the phase of its sleep. None: it is awake.
    #[must_use]
    pub fn sleep_phase(&self) -> Option<SleepPhase> {
        Some(self.status.as_ref()?.sleep.as_ref()?.phase)
    }

    /// Returns whether it sleeps, falls asleep or wakes up.
    #[must_use]
    pub fn is_sleeping(&self) -> bool {
        self.sleep_phase().is_some()
    }

    /// Returns whether its components are to run: it is not deleted, and does not sleep.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        !self.deleted() && !self.is_sleeping()
    }

    /// Returns whether its components are to run and may be changed: it is awake, and its spec does not pause it.
    #[must_use]
    pub fn is_changeable(&self) -> bool {
        self.is_awake() && !self.spec.paused
    }

    /// Returns whether its sleep keeps components of this role from running.
    #[must_use]
    pub fn stops_in_sleep(&self, role: Role) -> bool {
        self.sleep_phase().is_some_and(|phase| phase.stops(role))
    }

    /// Returns whether this etcd member starts after others when the cluster wakes up.
    #[must_use]
    pub fn starts_later(&self, member: &ComponentName) -> bool {
        let sleep = self.status.as_ref().and_then(|status| status.sleep.as_ref());
        sleep.is_some_and(|sleep| sleep.phase == SleepPhase::StartingStore && !sleep.started_members.contains(member))
    }
}
