//! What differs between documents and machines.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use keelway_api::{cluster::MemberPhase, hypervisor::Applied, name::HypervisorName};

use crate::MachineRefusal;

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryDifference {
    /// The machine, cluster or component, as people see it.
    pub subject: String,
    /// What differs.
    pub kind: DifferenceKind,
}

/// What became of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// The documents are now as the machine is.
    Realigned,
    /// A document was rebuilt from the machine's config.
    Adopted,
    /// Nothing was changed, and nothing has to be.
    Unchanged,
    /// A person has to do something.
    NeedsAttention,
}

/// What differs.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DifferenceKind {
    /// A machine holds a later config than the documents know.
    LaterConfig { applied: Applied, issued: Option<Applied> },
    /// A machine was told of a later leader than the documents know.
    LaterTerm { told: u64, known: u64 },
    /// A machine does not answer.
    Silent { why: String },
    /// A machine takes nothing from these documents for another reason.
    Refused(MachineRefusal),
    /// The config of a machine cannot be read.
    UnknownConfig { why: String },
    /// A component has no document.
    NoDocument { machine: HypervisorName },
    /// A component differs from its document.
    Changed { machine: HypervisorName, fields: Vec<String> },
    /// A component's document cannot be rebuilt.
    Unclear { machine: HypervisorName, why: String },
    /// A cluster's machines hold what cannot be adopted.
    Paused,
    /// A machine does not hold a component of the documents any more.
    NotHeld { machine: HypervisorName },
    /// The same of an etcd member without its data.
    DataGone { machine: HypervisorName },
    /// The certificates of a component on its machine are others than in its Secret.
    Certificates,
    /// The store of a cluster was born since.
    StoreBorn { members: Vec<String> },
    /// A member of a store came further than the documents know.
    MemberPhase { phase: MemberPhase },
    /// A member of a store is on no machine that answers.
    MemberMissing,
    /// An API server of the cluster was ready since.
    Initialized,
    /// The port of a cluster's ingresses.
    IngressPort { port: u16 },
    /// A cluster's components run a newer minor release than the cluster's document asks for.
    NewerRelease { wanted: String, runs: String },
    /// An authority or key of the cluster is another one on its machines, or is missing in the documents.
    OtherKey { secret: &'static str, is_missing: bool },
    /// A cluster of the documents is on no machine.
    Gone,
    /// The documents do not know a cluster.
    UnknownCluster { machines: Vec<String> },
}

impl RecoveryDifference {
    pub(crate) fn of(subject: &impl ToString, kind: DifferenceKind) -> Self {
        Self { subject: subject.to_string(), kind }
    }
}

impl DifferenceKind {
    /// What became of it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::LaterConfig { .. }
            | Self::LaterTerm { .. }
            | Self::Changed { .. }
            | Self::Certificates
            | Self::MemberPhase { .. }
            | Self::Initialized
            | Self::IngressPort { .. } => Remedy::Realigned,
            Self::NoDocument { .. } | Self::StoreBorn { .. } => Remedy::Adopted,
            Self::UnknownConfig { .. } | Self::NotHeld { .. } => Remedy::Unchanged,
            Self::Silent { .. }
            | Self::Refused(_)
            | Self::Unclear { .. }
            | Self::Paused
            | Self::DataGone { .. }
            | Self::MemberMissing
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
                write!(f, "holds config {} with other content", number(applied))
            }
            Self::LaterConfig { applied, issued } => {
                let end = issued.as_ref().map_or_else(|| "name none".to_string(), |at| format!("end at {}", number(at)));
                write!(f, "holds config {}, and the documents {end}", number(applied))
            }
            Self::LaterTerm { told, known } => {
                write!(f, "obeys the leader of term {told}, and the documents end at term {known}")
            }
            Self::Silent { why } => write!(
                f,
                "does not answer ({why}); its numbers stay as they are: run keelway recover again once it answers"
            ),
            Self::Refused(refused) => write!(f, "{refused}"),
            Self::UnknownConfig { why } => write!(f, "its config cannot be read ({why}): only its numbers are realigned"),
            Self::NoDocument { machine } => write!(f, "runs on {machine}, and has no document"),
            Self::Changed { machine, fields } => {
                write!(f, "has another {} on {machine} than in its document", fields.join(", "))
            }
            Self::Unclear { machine, why } => write!(f, "is on {machine}, and its document cannot be rebuilt: {why}"),
            Self::Paused => f.write_str(
                "is paused (spec.paused), so that nothing of it is stopped: resolve the lines about its components, then set \
                 spec.paused to false; what no document names is stopped then",
            ),
            Self::NotHeld { machine } => write!(f, "is not on {machine} any more: the next pass starts it again"),
            Self::DataGone { machine } => write!(
                f,
                "has no data on {machine} any more, and does not start without it: restore its data, or delete its cluster"
            ),
            Self::Certificates => f.write_str("has newer certificates on its machine than in its Secret"),
            Self::StoreBorn { members } => {
                write!(f, "its store has the members {}, and the documents name none", members.join(", "))
            }
            Self::MemberPhase { phase } => write!(f, "is {phase:?}, and its document has an earlier phase"),
            Self::MemberMissing => f.write_str(
                "is a member of the store, and no machine that answers holds it: restore the document of its machine, and run \
                 keelway recover again",
            ),
            Self::Initialized => f.write_str("an API server of it was ready, and the documents do not know it"),
            Self::IngressPort { port } => write!(f, "its ingresses have port {port}, and status.ingressPort differs"),
            Self::NewerRelease { wanted, runs } => write!(
                f,
                "its components run {runs}, and spec.version is {wanted}: write {runs} into spec.version; nothing goes back"
            ),
            Self::OtherKey { secret, is_missing } => {
                let what = if *is_missing { "is missing" } else { "holds another key than its machines have" };
                write!(
                    f,
                    "the Secret {secret} {what}: restore it from a newer backup; nothing of the cluster changes until then"
                )
            }
            Self::Gone => f.write_str(
                "its store was born, and no machine holds anything of it: it was deleted since. Its store does not start without \
                 its data; delete it with keelway cluster delete",
            ),
            Self::UnknownCluster { machines } => write!(
                f,
                "a cluster on {} without documents; the keys of its authorities are not on machines; it is left running",
                machines.join(", ")
            ),
        }
    }
}
