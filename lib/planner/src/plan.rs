//! The plan of a pass: what to record, mint and apply, with reasons.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use keelway_api::{
    Documents,
    jiff::Timestamp,
    membership::{MembershipChangeKind, MembershipReason},
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName},
    rotation::{RotatedKey, RotationPhase},
};

use crate::{
    ComponentRef, MintRequest, StoreOrder, WaitBlocker, WaitKind, WaitSubject, Waiting, rotation, store_order,
    text::listed, waves::Waves,
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
    /// What to change in stores, after the documents are saved.
    pub stores: BTreeMap<ClusterId, StoreOrder>,
    /// Clusters whose Secrets are to be written again, after the documents are saved, each with the name of the key that is to encrypt them.
    pub rewrites: BTreeMap<ClusterId, String>,
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
        /// The component.
        component: ComponentRef,
        /// The machine that was chosen.
        hypervisor: HypervisorName,
        /// Why this machine was chosen.
        reason: String,
    },
    /// A component of an earlier release got the ports that its role has since this release.
    AssignPorts {
        /// The component.
        component: ComponentRef,
        /// The names of the ports.
        ports: Vec<String>,
    },
    /// A component is no longer needed.
    RetireComponent {
        /// The component.
        component: ComponentRef,
        /// Why it is no longer needed.
        reason: String,
    },
    /// A component that was leaving is needed again.
    KeepComponent {
        /// The component.
        component: ComponentRef,
    },
    /// A component is upgraded to another release of Kubernetes.
    UpgradeComponent {
        /// The component.
        component: ComponentRef,
        /// The release that it runs.
        from: String,
        /// The release that it is to run.
        to: String,
    },
    /// Keelway's own components of a cluster are upgraded to another release of Keelway.
    UpgradeKeelway {
        /// The cluster.
        cluster: ClusterRef,
        /// The release that they run.
        from: String,
        /// The release that they are to run.
        to: String,
    },
    /// The first members of a store were recorded, which happens once in a cluster's life.
    CreateStore {
        /// The cluster.
        cluster: ClusterRef,
        /// The number of members.
        members: usize,
    },
    /// The store is made from a snapshot.
    RestoreStore {
        /// The member that is made from it.
        component: ComponentRef,
        /// The name of the snapshot.
        snapshot: String,
    },
    /// The store of a new cluster is made from a snapshot of another one.
    CreateStoreFromSnapshot {
        /// The member that is made from it.
        component: ComponentRef,
        /// The name of the snapshot.
        snapshot: String,
    },
    /// A restore is withdrawn before its data was complete.
    WithdrawRestore {
        /// The member that was to be made from the snapshot.
        component: ComponentRef,
    },
    /// A change of a store's members begins.
    ChangeMembers {
        /// The component that is added or removed.
        component: ComponentRef,
        /// What the change does.
        kind: MembershipChangeKind,
        /// Why the members change.
        reason: MembershipReason,
    },
    /// A store that lost its quorum is rebuilt from one member.
    RebuildStore {
        /// The component of the member.
        component: ComponentRef,
        /// The members that were lost.
        lost: Vec<ComponentName>,
    },
    /// A cluster falls asleep.
    Sleep {
        /// The cluster.
        cluster: ClusterRef,
    },
    /// A cluster wakes up.
    Wake {
        /// The cluster.
        cluster: ClusterRef,
    },
    /// The rotation of a key enters its next phase.
    RotateKey {
        /// The cluster.
        cluster: ClusterRef,
        /// The key.
        key: RotatedKey,
        /// The phase that begins.
        phase: RotationPhase,
    },
    /// A phase of a rotation ends, and these have not followed.
    LeaveBehind {
        /// The cluster.
        cluster: ClusterRef,
        /// The key.
        key: RotatedKey,
        /// Components with their machines, and workers.
        names: Vec<String>,
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
        cluster: ClusterRef,
    },
    /// Nothing relies on a deleted machine, so its document is removed.
    RemoveHypervisor {
        /// The machine.
        hypervisor: HypervisorName,
    },
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
    pub(crate) fn has_machines(self) -> bool {
        matches!(self, Self::All | Self::Machines(_))
    }
}

impl Plan {
    /// Waits for something that concerns a machine or the installation.
    pub(crate) fn wait(&mut self, subject: impl Into<WaitSubject>, blocker: WaitBlocker) {
        self.waiting.push(Waiting { subject: subject.into(), blocker, delays: None });
    }

    /// Waits for a change of a cluster that is in progress.
    pub(crate) fn wait_in_progress(&mut self, subject: impl Into<WaitSubject>, blocker: WaitBlocker) {
        self.waiting.push(Waiting::of_cluster(subject, WaitKind::InProgress, blocker));
    }

    /// Waits for an action of a person that concerns a cluster.
    pub(crate) fn block(&mut self, subject: impl Into<WaitSubject>, blocker: impl Into<WaitBlocker>) {
        self.waiting.push(Waiting::of_cluster(subject, WaitKind::Blocked, blocker));
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
                write!(f, "replace Keelway's components of {cluster}: from {from} to {to}")
            }
            Self::CreateStore { cluster, members } => write!(f, "record {} of {cluster}", first_members(*members)),
            Self::RestoreStore { component, snapshot } => write!(
                f,
                "restore {} from the snapshot {snapshot}: its etcd and its API servers stop, and {component} becomes the only member; what was \
                 written after the snapshot is lost",
                component.cluster
            ),
            Self::CreateStoreFromSnapshot { component, snapshot } => {
                write!(f, "make the data of {component} from the snapshot {snapshot} of another cluster")
            }
            Self::WithdrawRestore { component } => {
                write!(f, "withdraw the restore to {component}: spec.etcd.restore does not request it any more")
            }
            Self::ChangeMembers { component, kind: MembershipChangeKind::Add, reason } => {
                write!(f, "add the etcd member {component}: {}", store_order::text_of_addition(*reason))
            }
            Self::ChangeMembers { component, kind: MembershipChangeKind::Remove, reason } => {
                write!(f, "remove the etcd member {component}: {}", store_order::text_of_removal(*reason))
            }
            Self::RebuildStore { component, lost } => write!(
                f,
                "rebuild etcd from the data of {component}: {} lost, and no other member that responds has newer data; writes that \
                 {component} does not know to be committed will be missing",
                are_named(lost)
            ),
            Self::Sleep { cluster } => write!(
                f,
                "put {cluster} to sleep: its components stop, controllers first and etcd last, and its ingresses answer with 503; data, ports, \
                 addresses and keys stay, and pods on workers continue"
            ),
            Self::Wake { cluster } => {
                write!(f, "wake {cluster}: its etcd starts first, then its API servers, then all others")
            }
            Self::RotateKey { cluster, key, phase } => {
                write!(f, "rotate the {key} of {cluster}: {}", rotation::effect_of(*phase))
            }
            Self::LeaveBehind { cluster, key, names } => write!(
                f,
                "the rotation of the {key} of {cluster} continues without {}, which {} not followed",
                listed(names.iter()),
                if names.len() == 1 { "has" } else { "have" }
            ),
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

fn are_named(members: &[ComponentName]) -> String {
    format!("{} {}", listed(members.iter()), if members.len() == 1 { "is" } else { "are" })
}

fn first_members(number: usize) -> String {
    if number == 1 { "the first etcd member".to_string() } else { format!("the first {number} etcd members") }
}

/// What to send to the agent of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentOrder {
    /// Its first certificate, with this serial number.
    Enroll(String),
    /// A new certificate, with this serial number.
    Renew(String),
    /// The authorities and the revocation list by which it verifies its driver.
    Trust,
    /// To start, in a container on the machine's runtime, and its first certificate, with this serial number, if it has none.
    Start(String),
    /// To stop, because its machine is no longer needed.
    Stop,
}

impl fmt::Display for AgentOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enroll(_) => "enroll its agent",
            Self::Renew(_) => "renew its agent's certificate",
            Self::Trust => "send its agent the authorities to trust",
            Self::Start(_) => "start its agent",
            Self::Stop => "stop its agent",
        })
    }
}
