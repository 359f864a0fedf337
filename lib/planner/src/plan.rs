//! The plan of a pass: what to record, mint and apply, with reasons.

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
    /// Keys and certificates that the documents need.
    pub mint: Vec<MintRequest>,
    /// What to send to the agents of networked machines.
    pub agents: BTreeMap<HypervisorName, AgentOrder>,
    /// Clusters to which the first bindings are to be applied.
    pub bindings: Vec<ClusterId>,
    /// The decisions, in order.
    pub decisions: Vec<Decision>,
    /// What the plan waits for. If this is not empty, the installation is not settled.
    pub waiting: Vec<Waiting>,
    /// The earliest time at which there is work even if nothing else changes: a certificate is due for renewal, or an authority ends.
    pub due: Option<Timestamp>,
}

/// One decision that changes the documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A component was placed on a machine.
    PlaceComponent {
        /// CLUSTER/COMPONENT: `c1/etcd-0`.
        component: String,
        /// The machine that was chosen.
        hypervisor: HypervisorName,
        /// Why this machine was chosen.
        reason: String,
    },
    /// A component of an earlier release got the ports that its role has since this release.
    AssignPorts {
        /// CLUSTER/COMPONENT.
        component: String,
        /// The names of the ports.
        ports: Vec<String>,
    },
    /// A component is no longer needed.
    RetireComponent {
        /// CLUSTER/COMPONENT.
        component: String,
        /// Why it is no longer needed.
        reason: String,
    },
    /// A component that was leaving is needed again.
    KeepComponent {
        /// CLUSTER/COMPONENT.
        component: String,
    },
    /// A component is upgraded to another release of Kubernetes.
    UpgradeComponent {
        /// CLUSTER/COMPONENT.
        component: String,
        /// The release that it runs.
        from: String,
        /// The release that it is to run.
        to: String,
    },
    /// Keelway's own components of a cluster are upgraded to another release of Keelway.
    UpgradeKeelway {
        /// The cluster.
        cluster: String,
        /// The release that they run.
        from: String,
        /// The release that they are to run.
        to: String,
    },
    /// The first members of a store were recorded, which happens once in a cluster's life.
    CreateStore {
        /// The cluster.
        cluster: String,
        /// The number of members.
        members: usize,
    },
    /// A missing bundle was derived from the other values of its Secret.
    RestoreBundle {
        /// The cluster, or the namespace of the installation.
        owner: String,
        /// The Secret.
        secret: String,
        /// The key of the bundle in the Secret.
        key: String,
    },
    /// No machine holds anything of a deleted cluster, so its documents are removed.
    RemoveCluster {
        /// The cluster.
        cluster: String,
    },
    /// Nothing relies on a deleted machine, so its document is removed.
    RemoveHypervisor {
        /// The machine.
        hypervisor: HypervisorName,
    },
}

/// Something that is not in its desired state yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The cluster, component or machine that waits: `c1/kube-apiserver-0`, `hv-1`.
    pub subject: String,
    /// What it waits for, as text for people.
    pub blocker: String,
    /// The cluster that this keeps from its desired state. None: it concerns a machine alone.
    pub delays: Option<(ClusterRef, WaitKind)>,
}

/// Whether a wait of a cluster ends without help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitKind {
    /// Keelway has begun the change and completes it.
    InProgress,
    /// A person has to act first, or a machine has to return.
    Blocked,
}

/// The part of the documents that a plan covers.
#[derive(Debug, Clone, Copy)]
pub enum PlanScope<'a> {
    /// All documents.
    All,
    /// One cluster and all machines. The observation contains only what concerns the cluster.
    Cluster(Neighbours<'a>),
    /// The machines without clusters, for a driver that stays connected to them.
    Machines(Connections<'a>),
}

/// What a driver that stays connected to the machines knows about them besides their documents.
#[derive(Debug, Clone, Copy)]
pub struct Connections<'a> {
    /// All documents: they record which components are on which machine.
    pub documents: &'a Documents,
    /// When each machine was last in contact.
    pub last_contact: &'a BTreeMap<HypervisorName, Timestamp>,
}

/// What the clusters outside of the plan use and decide.
#[derive(Debug, Clone, Copy)]
pub struct Neighbours<'a> {
    /// All documents.
    pub documents: &'a Documents,
    /// The user ids that own files on machines.
    pub users: &'a BTreeSet<u32>,
    /// The waves in which clusters are upgraded to this release of Keelway.
    pub waves: &'a Waves,
}

impl PlanScope<'_> {
    fn has_machines(self) -> bool {
        matches!(self, Self::All | Self::Machines(_))
    }
}

/// Decides the next step of the documents.
///
/// The plan takes the documents and changes only what it decides. It is deterministic: equal arguments give equal plans. In a settled
/// installation it changes nothing.
///
/// # Errors
/// A document is invalid. Documents that [`Documents::read`] returned are valid.
pub fn plan(documents: Documents, seen: &PassObservation, now: Timestamp) -> Result<Plan, Faults> {
    plan_part(documents, PlanScope::All, seen, now)
}

/// Like [`plan`], for a part of the documents. Plans of all parts, made one after the other, decide what one plan of all documents would.
///
/// # Errors
/// A document is invalid.
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

/// When the next certificate reaches two thirds of its lifetime, or the next authority ends. Earlier times do not count: certificates past
/// theirs are minted in this pass, or are not needed.
fn due(seen: &PassObservation, now: Timestamp) -> Option<Timestamp> {
    let renewals = seen.certificates.values().map(|found| found.renew_at).filter(|date| *date > now);
    renewals.chain(authorities::next_end(seen, now)).min()
}

/// Waits for each machine that cannot be observed, as nothing is planned on it, and for each whose disk is full. A lost machine that does not
/// respond is left out.
fn wait_for_machines(plan: &mut Plan, seen: &PassObservation, now: Timestamp) {
    let is_lost = |name| plan.documents.hypervisors.get(name).is_some_and(|machine| machine.is_lost());
    let awaited: Vec<_> =
        seen.machines.iter().filter(|(name, state)| state.known().is_some() || !is_lost(name)).collect();
    for (name, state) in awaited {
        if let Some(refused) = seen.refused.get(name) {
            plan.wait(name, format!("manual action: {refused}"));
            continue;
        }
        match &**state {
            ObservedValue::Unreachable { silent: UnreachableReason::Asked, why } => {
                let on = enrollment::waits_for(&plan.documents, name, now);
                plan.wait(name, on.unwrap_or_else(|| format!("a response: {why}")));
            }
            ObservedValue::Unreachable { silent: UnreachableReason::Runtime, why } => {
                plan.wait(name, silent_runtime(why));
            }
            ObservedValue::Unreachable { silent: UnreachableReason::Led, why } => {
                plan.wait(name, format!("manual action: {why}"));
            }
            ObservedValue::Known(state) if state.disk_pressure => plan.wait(name, full_disk()),
            ObservedValue::Known(_) => {}
        }
    }
}

/// Reports each frozen cluster as blocked, before all other waits.
fn wait_for_newer_documents(plan: &mut Plan, seen: &PassObservation) {
    let still = seen.frozen_clusters(&plan.documents);
    let stands = |(name, cluster): (&ClusterRef, &Shared<Cluster>)| Some((name.clone(), *still.get(cluster.id()?)?));
    let all: Vec<_> = plan.documents.clusters.iter().filter_map(stands).collect();
    for (name, machine) in all {
        let Some(refused) = seen.refused.get(machine) else { continue };
        plan.block_in(
            &name,
            &name,
            format!("manual action on {machine}; until then, Keelway does not change the cluster: {refused}"),
        );
    }
}

/// What a machine with a hanging runtime waits for, with the remedy.
pub(crate) fn silent_runtime(why: &str) -> String {
    format!(
        "its container runtime, which does not respond: restart it (`systemctl restart containerd`); its containers keep running: {why}"
    )
}

/// What a machine with a full disk waits for, with the remedy.
pub(crate) fn full_disk() -> String {
    format!(
        "room on its disk: less than {} MiB are left in {STATE_DIRECTORY}: delete files that do not belong to Keelway, or enlarge \
         the disk; no component is placed there until then",
        DISK_RESERVE >> 20
    )
}

impl Plan {
    pub(crate) fn wait(&mut self, subject: &impl ToString, blocker: impl Into<String>) {
        self.waiting.push(Waiting { subject: subject.to_string(), blocker: blocker.into(), delays: None });
    }

    /// Waits for a change of a cluster that is in progress.
    pub(crate) fn wait_in_progress(
        &mut self,
        cluster: &ClusterRef,
        subject: &impl ToString,
        blocker: impl Into<String>,
    ) {
        let delays = Some((cluster.clone(), WaitKind::InProgress));
        self.waiting.push(Waiting { subject: subject.to_string(), blocker: blocker.into(), delays });
    }

    /// Waits for an action of a person that concerns a cluster.
    pub(crate) fn block_in(&mut self, cluster: &ClusterRef, subject: &impl ToString, blocker: impl Into<String>) {
        let delays = Some((cluster.clone(), WaitKind::Blocked));
        self.waiting.push(Waiting { subject: subject.to_string(), blocker: blocker.into(), delays });
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlaceComponent { component, hypervisor, reason } => {
                write!(f, "place {component} on {hypervisor}: {reason}")
            }
            Self::AssignPorts { component, ports } => {
                write!(f, "assign {component} the port {}: its role uses it since this release", ports.join(", "))
            }
            Self::RetireComponent { component, reason } => write!(f, "retire {component}: {reason}"),
            Self::KeepComponent { component } => write!(f, "keep {component}: the cluster needs it again"),
            Self::UpgradeComponent { component, from, to } => write!(f, "replace {component}: from {from} to {to}"),
            Self::UpgradeKeelway { cluster, from, to } => {
                write!(f, "replace the gateways, egresses and cluster-controllers of {cluster}: from {from} to {to}")
            }
            Self::CreateStore { cluster, members } => write!(f, "record {} of {cluster}", first_members(*members)),
            Self::RestoreBundle { owner, secret, key } => {
                write!(f, "restore {key} of the Secret {secret} of {owner}: it is derived from its other values")
            }
            Self::RemoveCluster { cluster } => {
                write!(f, "remove the documents of {cluster}: no machine holds any part of it")
            }
            Self::RemoveHypervisor { hypervisor } => {
                write!(f, "remove the document of {hypervisor}: it holds no component")
            }
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
