//! Machines that accept nothing from these documents, whatever the documents contain about them.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use keelway_api::{
    Documents, Hypervisor,
    condition::reason::ConditionReason,
    hypervisor::Applied,
    machine::{ConfigFormat, FormatRange, MachineState, ObservedValue},
    name::{HypervisorName, InstallationId},
};

use crate::{
    PassObservation,
    term::{HIGHEST_NUMBER, HIGHEST_TOLD_TERM, next_number},
    text::count,
};

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

/// Marks machines that refuse these documents as unreachable, so that nothing is planned on them, and records why in `refused`.
pub fn refuse(documents: &Documents, seen: &mut PassObservation) {
    for (name, other) in twins(documents, seen) {
        let refused = MachineRefusal::SameMachine { other };
        seen.machines.insert(name.clone(), ObservedValue::unreachable(refused.to_string()));
        seen.refused.insert(name, refused);
    }
    for (name, document) in &documents.hypervisors {
        let Some(state) = seen.machine(name) else { continue };
        let Some(refused) = refusal(document, state) else { continue };
        seen.machines.insert(name.clone(), ObservedValue::unreachable(refused.to_string()));
        // If the machine is lost, nothing that it reports counts, not even that the documents are stale.
        if !(refused.is_stale() && document.is_lost()) {
            seen.refused.insert(name.clone(), refused);
        }
    }
}

/// Hypervisors whose agent also responds for another Hypervisor, each with that other one: the one with components, or the first by name.
/// Otherwise members of one store could share the machine, and each document would undo the config of the other.
fn twins(documents: &Documents, seen: &PassObservation) -> Vec<(HypervisorName, HypervisorName)> {
    let mut by_agent: BTreeMap<&str, Vec<&HypervisorName>> = BTreeMap::new();
    for name in documents.hypervisors.keys() {
        if let Some(agent) = seen.machine(name).and_then(|state| state.agent_id.as_deref()) {
            by_agent.entry(agent).or_default().push(name);
        }
    }
    let mut found = Vec::new();
    for mut names in by_agent.into_values().filter(|names| names.len() > 1) {
        names.sort_by_key(|name| !documents.components.values().any(|component| component.spec.hypervisor == **name));
        if let Some((first, others)) = names.split_first() {
            found.extend(others.iter().map(|other| ((*other).clone(), (*first).clone())));
        }
    }
    found
}

/// Returns why a machine accepts nothing from the documents. None: it accepts their configs.
#[must_use]
pub fn refusal(document: &Hypervisor, state: &MachineState) -> Option<MachineRefusal> {
    if state.kubelet_pods > 0 {
        return Some(MachineRefusal::Kubelet { pods: state.kubelet_pods });
    }
    let status = document.status.as_ref();
    let installation = status.and_then(|status| status.installation.as_ref());
    if let Some(owner) = state.owner.as_ref().filter(|owner| Some(*owner) != installation) {
        return Some(MachineRefusal::AnotherInstallation { owner: owner.clone() });
    }
    if state.term > HIGHEST_NUMBER {
        return Some(MachineRefusal::NoSuchTerm { term: state.term });
    }
    let issued = status.and_then(|status| status.issued.as_ref());
    if let Some(issued) = issued.filter(|issued| next_number(issued.generation).is_none()) {
        return Some(MachineRefusal::NoNumberLeft { issued: issued.clone() });
    }
    // Stale documents are reported first: documents of a newer release may be the newest.
    let refused = state.applied.as_ref().and_then(|applied| stale(applied, issued));
    let unknown = ConfigFormat::understood_by(state.formats).is_none();
    refused.or_else(|| unknown.then_some(MachineRefusal::UnknownFormats { formats: state.formats }))
}

/// Compares what a machine holds with what the documents record. None: it is the same or older.
fn stale(applied: &Applied, issued: Option<&Applied>) -> Option<MachineRefusal> {
    let place = |applied: &Applied| (applied.term, applied.generation);
    match issued {
        Some(issued) if place(applied) < place(issued) => None,
        Some(issued) if place(applied) > place(issued) => {
            Some(MachineRefusal::Stale { applied: applied.clone(), issued: Some(issued.clone()) })
        }
        Some(issued) => {
            (issued.digest != applied.digest).then(|| MachineRefusal::TwoWriters { applied: applied.clone() })
        }
        None => Some(MachineRefusal::Stale { applied: applied.clone(), issued: None }),
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
