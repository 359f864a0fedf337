//! The plan: what to write down, mint and do next, and why.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use keelway_api::{
    Cluster, Documents, Shared, Time,
    fault::Faults,
    jiff::Timestamp,
    machine::{DISK_RESERVE, ObservedValue, STATE_DIRECTORY, UnreachableReason},
    name::{ClusterId, ClusterRef, HypervisorName},
};

use crate::{
    AgentOrder, MintRequest, PassObservation, access, authorities, bundles, certificates, class, deletion, draining,
    enrollment, installation, machine_deletion, newer, placement, status, store_creation, store_room, versions, waves,
    waves::Waves, world::ValidatedDocuments,
};

/// What one pass decided.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Plan {
    /// The next documents, before minting.
    pub documents: Documents,
    /// Keys and certificates that they want.
    pub mint: Vec<MintRequest>,
    /// What the agents of machines on a network are to be given.
    pub agents: BTreeMap<HypervisorName, AgentOrder>,
    /// Clusters whose first bindings are to be applied.
    pub bindings: Vec<ClusterId>,
    /// What was decided, in order.
    pub decisions: Vec<Decision>,
    /// What is waited for. A world that waits is not settled.
    pub waiting: Vec<Waiting>,
    /// When there may be something to do although nothing else changes: the time of a certificate comes.
    pub due: Option<Timestamp>,
}

/// One decision that changes the documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A component was given a machine.
    PlaceComponent {
        /// As people see it: `c1/etcd-0`.
        component: String,
        /// The machine.
        hypervisor: HypervisorName,
        /// Why that one.
        reason: String,
    },
    /// A component of the last release was given ports that its role has had since.
    AssignPorts {
        /// As people see it.
        component: String,
        /// Their names.
        ports: Vec<String>,
    },
    /// A component is no longer wanted.
    RetireComponent {
        /// As people see it.
        component: String,
        /// Why.
        reason: String,
    },
    /// A component that was about to leave is wanted again.
    KeepComponent {
        /// As people see it.
        component: String,
    },
    /// A component goes to another release.
    UpgradeComponent {
        /// As people see it.
        component: String,
        /// What it runs.
        from: String,
        /// What it is to run.
        to: String,
    },
    /// Keelway's own parts of a cluster go to another release.
    UpgradeKeelway {
        /// The cluster.
        cluster: String,
        /// The release that they run.
        from: String,
        /// The release that they are to run.
        to: String,
    },
    /// The first members of a store were written down, once in a cluster's life.
    CreateStore {
        /// The cluster.
        cluster: String,
        /// The members.
        members: usize,
    },
    /// A bundle that was missing was derived from the other values of its Secret.
    RestoreBundle {
        /// The cluster, or the namespace of the installation.
        owner: String,
        /// The Secret.
        secret: String,
        /// The key of the bundle.
        key: String,
    },
    /// Nothing of a deleted cluster is left on any machine: its documents go.
    RemoveCluster {
        /// The cluster.
        cluster: String,
    },
    /// Nothing relies on a deleted machine: its document goes.
    RemoveHypervisor {
        /// The machine.
        hypervisor: HypervisorName,
    },
}

/// Something that is not as it should be yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What waits: `c1/kube-apiserver-0`, `hv-1`.
    pub subject: String,
    /// For what, in words for people.
    pub blocker: String,
    /// The cluster that it keeps from being as its document says. None: it is of a machine alone.
    pub delays: Option<(ClusterRef, WaitKind)>,
}

/// Whether what a cluster waits for comes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitKind {
    /// It was begun, and ends.
    InProgress,
    /// Somebody has to do something first.
    Blocked,
}

/// Which part of the documents a plan is of.
#[derive(Debug, Clone, Copy)]
pub enum PlanScope<'a> {
    /// All of them.
    All,
    /// One cluster, with all machines at hand, of whose states it has what they tell of it.
    Cluster(Neighbours<'a>),
    /// The machines, with no cluster at hand, by who is connected to them all the time.
    Machines(Connections<'a>),
}

/// What is known of machines beside their own documents, by who is connected to them.
#[derive(Debug, Clone, Copy)]
pub struct Connections<'a> {
    /// All documents: which components are on them.
    pub documents: &'a Documents,
    /// When each was heard of last.
    pub last_contact: &'a BTreeMap<HypervisorName, Timestamp>,
}

/// What others have of the machines.
#[derive(Debug, Clone, Copy)]
pub struct Neighbours<'a> {
    /// All documents.
    pub documents: &'a Documents,
    /// The user ids of all files on machines.
    pub users: &'a BTreeSet<u32>,
    /// In which waves clusters go to this release of Keelway.
    pub waves: &'a Waves,
}

impl PlanScope<'_> {
    fn has_machines(self) -> bool {
        matches!(self, Self::All | Self::Machines(_))
    }
}

/// Decides what comes next.
///
/// The documents go into the plan, which changes only what it decides. Deterministic: equal arguments give equal plans. A settled world gives a plan that changes nothing.
///
/// # Errors
/// A document does not mean anything; documents that were read by [`Documents::read`] always do.
pub fn plan(documents: Documents, seen: &PassObservation, now: Timestamp) -> Result<Plan, Faults> {
    plan_part(documents, PlanScope::All, seen, now)
}

/// The same for a part of the documents. What plans of parts decide, one after the other, is what one of all of them would.
///
/// # Errors
/// A document does not mean anything.
pub fn plan_part(
    documents: Documents,
    part: PlanScope<'_>,
    seen: &PassObservation,
    now: Timestamp,
) -> Result<Plan, Faults> {
    let world = ValidatedDocuments::of_pass(&documents, seen)?;
    let mut plan = Plan {
        documents,
        mint: Vec::new(),
        agents: BTreeMap::new(),
        bindings: Vec::new(),
        decisions: Vec::new(),
        waiting: Vec::new(),
        due: due(seen, now),
    };
    if part.has_machines() || seen.stale() {
        wait_for_machines(&mut plan, seen, now);
    }
    if seen.stale() {
        return Ok(plan);
    }
    wait_for_newer_documents(&mut plan, seen);
    class::plan_classes(&mut plan, &Time(now));
    newer::report_of_clusters(&mut plan, &Time(now));
    bundles::restore_bundles(&mut plan, &world);
    store_creation::plan_birth_records(&mut plan);
    store_creation::wait_for_changes(&mut plan, &world);
    deletion::plan_deletions(&mut plan, &world, seen, &Time(now));
    waves::plan_waves(&mut plan, part, &Time(now));
    placement::plan_components(&mut plan, &world, seen, part);
    store_creation::plan_births(&mut plan, &world, &Time(now));
    store_creation::plan_member_phases(&mut plan, &world, seen);
    store_creation::plan_initialization(&mut plan, &world, seen);
    versions::plan_versions(&mut plan, &world, seen);
    if part.has_machines() {
        bundles::restore_bundle_of_installation(&mut plan);
        machine_deletion::plan_deletions(&mut plan, part, seen, &Time(now));
        installation::plan_certificates(&mut plan, &world, seen, now);
        enrollment::plan_agents(&mut plan, seen, &Time(now));
        status::plan_machines(&mut plan, part, seen, &Time(now));
        newer::report_of_machines(&mut plan, &Time(now));
    }
    authorities::plan_authorities(&mut plan, seen, now);
    store_room::plan_room(&mut plan, seen, &Time(now));
    let overdue = certificates::plan_certificates(&mut plan, &world, seen, now);
    access::plan_bindings(&mut plan, &world, seen);
    status::plan_status(&mut plan, &world, (seen, &overdue), &Time(now));
    draining::wait_for_connections(&mut plan, &world, seen);
    Ok(plan)
}

/// When the next certificate has lived two thirds of its life, or an authority all of its. Those that have already are minted now, or nobody
/// wants them.
fn due(seen: &PassObservation, now: Timestamp) -> Option<Timestamp> {
    let renewals = seen.certificates.values().map(|found| found.renew_at).filter(|date| *date > now);
    renewals.chain(authorities::next_end(seen, now)).min()
}

/// Every machine that cannot be seen is waited for: nothing is planned on it. So is one that has no room.
fn wait_for_machines(plan: &mut Plan, seen: &PassObservation, now: Timestamp) {
    let is_lost = |name| plan.documents.hypervisors.get(name).is_some_and(|machine| machine.is_lost());
    let awaited: Vec<_> =
        seen.machines.iter().filter(|(name, state)| state.known().is_some() || !is_lost(name)).collect();
    for (name, state) in awaited {
        if let Some(refused) = seen.refused.get(name) {
            plan.wait(name, format!("a mend: {refused}"));
            continue;
        }
        match &**state {
            ObservedValue::Unreachable { silent: UnreachableReason::Asked, why } => {
                let on = enrollment::waits_for(&plan.documents, name, now);
                plan.wait(name, on.unwrap_or_else(|| format!("an answer: {why}")));
            }
            ObservedValue::Unreachable { silent: UnreachableReason::Runtime, why } => {
                plan.wait(name, silent_runtime(why));
            }
            ObservedValue::Unreachable { silent: UnreachableReason::Led, why } => {
                plan.wait(name, format!("a mend: {why}"));
            }
            ObservedValue::Known(state) if state.disk_pressure => plan.wait(name, full_disk()),
            ObservedValue::Known(_) => {}
        }
    }
}

/// A cluster that stands still says so first of all.
fn wait_for_newer_documents(plan: &mut Plan, seen: &PassObservation) {
    let still = seen.frozen_clusters(&plan.documents);
    let stands = |(name, cluster): (&ClusterRef, &Shared<Cluster>)| Some((name.clone(), *still.get(cluster.id()?)?));
    let all: Vec<_> = plan.documents.clusters.iter().filter_map(stands).collect();
    for (name, machine) in all {
        let Some(refused) = seen.refused.get(machine) else { continue };
        plan.block_in(&name, &name, format!("a mend of {machine}, and nothing is done about it until then: {refused}"));
    }
}

/// What mends a runtime that hangs.
pub(crate) fn silent_runtime(why: &str) -> String {
    format!(
        "its container runtime, which does not answer: restart it (`systemctl restart containerd`), what it runs goes on: \
         {why}"
    )
}

/// What mends a disk that is full.
pub(crate) fn full_disk() -> String {
    format!(
        "room on its disk: less than {} MiB are left in {STATE_DIRECTORY}: remove what is not Keelway's, or give it more; \
         nothing is placed there until then",
        DISK_RESERVE >> 20
    )
}

impl Plan {
    pub(crate) fn wait(&mut self, what: &impl ToString, on: impl Into<String>) {
        self.waiting.push(Waiting { subject: what.to_string(), blocker: on.into(), delays: None });
    }

    /// Waits for what was begun about a cluster.
    pub(crate) fn wait_in_progress(&mut self, cluster: &ClusterRef, what: &impl ToString, on: impl Into<String>) {
        let holds_up = Some((cluster.clone(), WaitKind::InProgress));
        self.waiting.push(Waiting { subject: what.to_string(), blocker: on.into(), delays: holds_up });
    }

    /// Waits for what somebody has to do about a cluster.
    pub(crate) fn block_in(&mut self, cluster: &ClusterRef, what: &impl ToString, on: impl Into<String>) {
        let holds_up = Some((cluster.clone(), WaitKind::Blocked));
        self.waiting.push(Waiting { subject: what.to_string(), blocker: on.into(), delays: holds_up });
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlaceComponent { component, hypervisor, reason } => {
                write!(f, "place {component} on {hypervisor}: {reason}")
            }
            Self::AssignPorts { component, ports } => {
                write!(f, "give {component} the port {}: its role has it since this release", ports.join(", "))
            }
            Self::RetireComponent { component, reason } => write!(f, "retire {component}: {reason}"),
            Self::KeepComponent { component } => write!(f, "keep {component}: the cluster asks for it again"),
            Self::UpgradeComponent { component, from, to } => write!(f, "replace {component}: from {from} to {to}"),
            Self::UpgradeKeelway { cluster, from, to } => {
                write!(f, "replace Keelway's own parts of {cluster}: from {from} to {to}")
            }
            Self::CreateStore { cluster, members } => write!(f, "write down {} of {cluster}", first_members(*members)),
            Self::RestoreBundle { owner, secret, key } => {
                write!(f, "restore {key} of the Secret {secret} of {owner}: it follows from its other values")
            }
            Self::RemoveCluster { cluster } => write!(f, "forget {cluster}: nothing of it is left on any machine"),
            Self::RemoveHypervisor { hypervisor } => write!(f, "release {hypervisor}: nothing is on it"),
        }
    }
}

fn first_members(number: usize) -> String {
    if number == 1 { "the first etcd member".to_string() } else { format!("the first {number} etcd members") }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits for {}", self.subject, self.blocker)
    }
}
