//! Why a machine accepts no config from these documents.

use alloc::{format, string::String};
use core::fmt;

use keelway_api::{
    condition::reason::ConditionReason,
    hypervisor::Applied,
    machine::FormatRange,
    name::{HypervisorName, InstallationId},
};

use crate::{term::HIGHEST_TOLD_TERM, text::count};

/// The consequence, and the remedy.
const STALE: &str = "Keelway changes neither this machine nor clusters with components on it; use the newest documents; if they \
                     are lost, rebuild them from the machines with `keelway recover`; if the machine is lost for good, annotate \
                     its Hypervisor with keelway.dev/lost=true";

/// Why a machine accepts no config. The text names the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineRefusal {
    /// The machine obeys another installation.
    AnotherInstallation {
        /// The installation that it obeys.
        owner: InstallationId,
    },
    /// The machine holds a later config than the documents record.
    Stale {
        /// The config that the machine holds.
        applied: Applied,
        /// The last config that the documents record.
        issued: Option<Applied>,
    },
    /// The machine holds other content than the documents record under the same number.
    TwoWriters {
        /// The config that the machine holds.
        applied: Applied,
    },
    /// The machine reports the term of a leader that no leader can have.
    NoSuchTerm {
        /// The term that the machine reports.
        term: u64,
    },
    /// The documents record a config with the highest possible number, so the next config cannot have one.
    NoNumberLeft {
        /// The config that the documents record.
        issued: Applied,
    },
    /// The agent understands no format of configs that this release sends.
    UnknownFormats {
        /// The formats that the agent understands.
        formats: FormatRange,
    },
    /// A kubelet runs its pods on the machine.
    Kubelet {
        /// The number of the kubelet's pods.
        pods: usize,
    },
    /// The agent also responds for another Hypervisor.
    SameMachine {
        /// The other Hypervisor.
        other: HypervisorName,
    },
}

impl MachineRefusal {
    /// Returns the reason for the condition of the Hypervisor.
    #[must_use]
    pub fn reason(&self) -> ConditionReason {
        match self {
            Self::AnotherInstallation { .. } => ConditionReason::AnotherInstallation,
            Self::Stale { .. } | Self::TwoWriters { .. } => ConditionReason::StaleDocuments,
            Self::NoSuchTerm { .. } => ConditionReason::ObeysAnotherLeader,
            Self::NoNumberLeft { .. } => ConditionReason::NoNumberLeft,
            Self::UnknownFormats { .. } => ConditionReason::UnsupportedAgent,
            Self::Kubelet { .. } => ConditionReason::UsedByKubelet,
            Self::SameMachine { .. } => ConditionReason::SameMachine,
        }
    }

    /// Returns whether the documents are older than what the machine holds. [`PassObservation::stale`] and
    /// [`PassObservation::frozen_clusters`] define what that means for other machines and for clusters.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. } | Self::TwoWriters { .. })
    }
}

impl fmt::Display for MachineRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |applied: &Applied| format!("{}.{}", applied.term, applied.generation);
        match self {
            Self::AnotherInstallation { owner } => write!(
                f,
                "the machine obeys installation {owner}, but these documents belong to another one: use the documents of that \
                 installation, or adopt the machine with `keelway hypervisor adopt --from {owner}`"
            ),
            Self::Stale { applied, issued } => {
                write!(f, "stale documents: the machine holds config {}, but these documents ", number(applied))?;
                match issued {
                    Some(issued) => write!(f, "record {}", number(issued))?,
                    None => write!(f, "record none")?,
                }
                write!(f, ": {STALE}")
            }
            Self::TwoWriters { applied } => write!(
                f,
                "stale documents: the machine holds config {} with different content: another driver used a copy of these \
                 documents; {STALE}",
                number(applied)
            ),
            Self::NoSuchTerm { term } => f.write_str(&later_leader_text(*term)),
            Self::NoNumberLeft { issued } => write!(
                f,
                "the documents record config {}, which has the highest possible number: restore status.issued of its Hypervisor \
                 to the value that `keelway reconcile` wrote",
                number(issued)
            ),
            Self::UnknownFormats { formats } => {
                let older = if formats.last < FormatRange::OWN.first {
                    "keelway-hypervisor-agent on the machine"
                } else {
                    "keelway and the manager"
                };
                write!(
                    f,
                    "the machine's agent supports {formats} of configs, but this release sends {}: upgrade {older}; until then, \
                     Keelway does not change this machine, and its components keep running",
                    FormatRange::OWN
                )
            }
            Self::Kubelet { pods } => write!(
                f,
                "a kubelet uses the machine's container runtime ({}): it would compete with Keelway's components for memory, \
                 ports and images; use another machine, or another container runtime on it",
                count(*pods, "pod")
            ),
            Self::SameMachine { other } => write!(
                f,
                "its agent is also the agent of Hypervisor {other}: both documents describe one machine; correct spec.endpoint of \
                 the one that was copied, or delete it with `keelway hypervisor delete`"
            ),
        }
    }
}

/// Returns why a machine that obeys a later leader accepts nothing, and the remedy.
#[must_use]
pub fn later_leader_text(term: u64) -> String {
    if term > HIGHEST_TOLD_TERM {
        return format!(
            "the machine reports that it obeys the driver of term {term}, and no driver can have this term: its agent's record is \
             damaged or forged; Keelway does not change this machine until its agent is reinstalled"
        );
    }
    format!(
        "the machine obeys the driver of term {term}, which is later than the term in these documents and their Lease: if another \
         manager drives this machine, stop one of the two; otherwise set the annotation keelway.dev/term of the Lease \
         keelway-manager to {term}, and restart the manager"
    )
}
