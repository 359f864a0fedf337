//! Differences between documents and machines.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use keelway_api::{
    cluster::MemberPhase, hypervisor::Applied, name::HypervisorName, role::Role, store_observation::MemberId,
};

use super::UnclearReason;
use crate::MachineRefusal;

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryDifference {
    /// The name of the machine or cluster, or CLUSTER/COMPONENT.
    pub subject: String,
    /// What differs.
    pub kind: DifferenceKind,
}

/// How recovery handled a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The documents now match the machine.
    Realigned,
    /// A document was rebuilt from the machine's config.
    Adopted,
    /// A document was taken from the backup.
    Restored,
    /// Nothing was changed, and nothing has to be.
    Unchanged,
    /// A person has to act.
    NeedsAttention,
}

/// What differs between the documents and a machine.
#[expect(missing_docs, reason = "the names explain the fields")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DifferenceKind {
    /// A machine holds a later config than the documents record.
    LaterConfig { applied: Applied, issued: Option<Applied> },
    /// A machine knows a later term than the documents.
    LaterTerm { told: u64, known: u64 },
    /// A machine does not respond.
    Silent { why: String },
    /// A machine accepts nothing from these documents for another reason.
    Refused(MachineRefusal),
    /// The config of a machine cannot be read.
    UnknownConfig { why: String },
    /// A component has no document.
    NoDocument { machine: HypervisorName },
    /// A component differs from its document.
    Changed { machine: HypervisorName, fields: Vec<String> },
    /// The document of a component cannot be rebuilt.
    Unclear { machine: HypervisorName, why: UnclearReason },
    /// The cluster is paused, because its machines hold something that cannot be adopted.
    Paused,
    /// A machine no longer holds a component of the documents.
    NotHeld { machine: HypervisorName },
    /// A machine no longer holds an etcd member of the documents, and its data is gone.
    DataGone { machine: HypervisorName },
    /// The certificates of a component on its machine differ from those in its Secret.
    Certificates,
    /// The store of a cluster was created after the backup.
    StoreBorn { members: Vec<String> },
    /// A member of a store reached a later phase than the documents record.
    MemberPhase { phase: MemberPhase },
    /// No machine that responds holds a member of a store.
    MemberMissing,
    /// A member joined the store after the backup.
    MemberAdded { machine: HypervisorName },
    /// The store removed a member after the backup.
    MemberRemoved,
    /// The store has a member that no document and no machine that responds names.
    MemberUnknown { id: MemberId, name: String },
    /// An API server of the cluster became ready after the backup.
    Initialized,
    /// Components of the cluster run, and its document says that it sleeps.
    Awake,
    /// The documents lack the port of a cluster's ingresses, or have another one.
    IngressPort { port: u16 },
    /// The components of a cluster run a newer minor release than its document names.
    NewerRelease { wanted: String, runs: String },
    /// More components of a role run than the document of the cluster asks for.
    MoreReplicas { role: Role, wanted: u32, runs: u32 },
    /// An authority or key of the cluster differs from that on its machines, or is missing in the documents.
    OtherKey { secret: &'static str, is_missing: bool },
    /// No machine holds a cluster of the documents.
    Gone,
    /// Machines hold a cluster that the documents do not have.
    UnknownCluster { machines: Vec<String> },
    /// The documents name a Secret that they lack, and the backup has it.
    RestoredSecret,
    /// Machines hold a cluster that the documents lack, and the backup has it.
    RestoredCluster,
}

impl RecoveryDifference {
    pub(crate) fn of(subject: &impl ToString, kind: DifferenceKind) -> Self {
        Self { subject: subject.to_string(), kind }
    }
}

impl DifferenceKind {
    /// Returns how recovery handled the difference.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::LaterConfig { .. }
            | Self::LaterTerm { .. }
            | Self::Changed { .. }
            | Self::Certificates
            | Self::MemberPhase { .. }
            | Self::MemberAdded { .. }
            | Self::MemberRemoved
            | Self::MoreReplicas { .. }
            | Self::Initialized
            | Self::Awake
            | Self::IngressPort { .. } => Remedy::Realigned,
            Self::NoDocument { .. } | Self::StoreBorn { .. } => Remedy::Adopted,
            Self::RestoredSecret | Self::RestoredCluster => Remedy::Restored,
            Self::UnknownConfig { .. } | Self::NotHeld { .. } => Remedy::Unchanged,
            Self::Silent { .. }
            | Self::Refused(_)
            | Self::Unclear { .. }
            | Self::Paused
            | Self::DataGone { .. }
            | Self::MemberMissing
            | Self::MemberUnknown { .. }
            | Self::NewerRelease { .. }
            | Self::OtherKey { .. }
            | Self::Gone
            | Self::UnknownCluster { .. } => Remedy::NeedsAttention,
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Realigned => "realigned",
            Self::Adopted => "adopted",
            Self::Restored => "restored",
            Self::Unchanged => "unchanged",
            Self::NeedsAttention => "needs attention",
        })
    }
}

impl fmt::Display for DifferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |applied: &Applied| format!("{}.{}", applied.term, applied.generation);
        match self {
            Self::LaterConfig { applied, issued: Some(issued) } if number(applied) == number(issued) => {
                write!(f, "holds config {} with different content", number(applied))
            }
            Self::LaterConfig { applied, issued } => {
                let end = issued.as_ref().map_or_else(|| "record none".to_string(), |at| format!("record {}", number(at)));
                write!(f, "holds config {}, but the documents {end}", number(applied))
            }
            Self::LaterTerm { told, known } => {
                write!(f, "obeys the driver of term {told}, but the documents record term {known}")
            }
            Self::Silent { why } => write!(
                f,
                "does not respond ({why}); its term and generation are not changed: run keelway recover again once it responds"
            ),
            Self::Refused(refused) => write!(f, "{refused}"),
            Self::UnknownConfig { why } => write!(f, "its config cannot be read ({why}): only its term and generation are realigned"),
            Self::NoDocument { machine } => write!(f, "runs on {machine}, and has no document"),
            Self::Changed { machine, fields } => {
                write!(f, "has a different {} on {machine} than in its document", fields.join(", "))
            }
            Self::Unclear { machine, why } => write!(f, "is on {machine}, and its document cannot be rebuilt: {why}"),
            Self::Paused => f.write_str(
                "is paused (spec.paused), so that no component of it is stopped: resolve the lines about its components, then set \
                 spec.paused to false; components without a document are stopped then",
            ),
            Self::NotHeld { machine } => write!(f, "is no longer on {machine}: the next pass starts it again"),
            Self::DataGone { machine } => write!(
                f,
                "has lost its data on {machine}, and does not start without it: restore its data, or delete its cluster"
            ),
            Self::Certificates => f.write_str("has newer certificates on its machine than in its Secret"),
            Self::Awake => f.write_str("runs, but its document says that it sleeps: spec.asleep is false now"),
            Self::StoreBorn { members } => {
                write!(f, "its store has the members {}, but the documents record none", members.join(", "))
            }
            Self::MemberPhase { phase } => write!(f, "is {phase:?}, but its document records an earlier phase"),
            Self::MemberMissing => f.write_str(
                "is an etcd member, but no machine that responds holds it: restore the document of its machine, and run keelway \
                 recover again",
            ),
            Self::MemberAdded { machine } => write!(f, "is an etcd member on {machine}, but status.etcd does not record it"),
            Self::MemberRemoved => f.write_str(
                "is no etcd member any more: the member list of a majority lacks it; the next pass stops it and removes its data",
            ),
            Self::MemberUnknown { id, name } => write!(
                f,
                "etcd has the member {id} ({}), which no machine that responds holds: restore the document of its machine, and run keelway \
                 recover again",
                if name.is_empty() { "not started" } else { name }
            ),
            Self::Initialized => f.write_str("one of its API servers was ready, but the documents do not record it"),
            Self::IngressPort { port } => write!(f, "its ingresses use port {port}, but status.ingressPort differs"),
            Self::NewerRelease { wanted, runs } => write!(
                f,
                "its components run {runs}, but spec.version is {wanted}: set spec.version to {runs}; a cluster cannot be downgraded"
            ),
            Self::MoreReplicas { role, wanted, runs } => write!(
                f,
                "{runs} components of the role {role} run, but its document asks for {wanted}: the replicas are raised, so that none is removed"
            ),
            Self::OtherKey { secret, is_missing } => {
                let what = if *is_missing { "is missing" } else { "holds a different key than its machines" };
                write!(
                    f,
                    "the Secret {secret} {what}: restore it from a newer backup; the cluster is not changed until then"
                )
            }
            Self::Gone => f.write_str(
                "its store was created, but no machine holds any part of it: it was deleted after the backup; its store does not \
                 start without its data: delete the cluster with keelway cluster delete",
            ),
            Self::UnknownCluster { machines } => write!(
                f,
                "a cluster on {} that has no documents; it is left running, because machines do not hold the keys of its authorities",
                machines.join(", ")
            ),
            Self::RestoredSecret => f.write_str("the documents name it and lack it: it is taken from the backup"),
            Self::RestoredCluster => {
                f.write_str("machines hold it and it has no documents: they are taken from the backup")
            }
        }
    }
}
