//! Machines that take nothing from these documents, whatever the documents say of them.

use alloc::string::ToString;
use core::fmt;

use keelway_api::{
    Documents, Hypervisor,
    condition::reason::Reason,
    hypervisor::Applied,
    machine::{MachineState, Seen},
    name::InstallationId,
};

use crate::{Observation, words::count};

/// Why a machine takes nothing. The text tells what mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// It has another owner.
    AnotherInstallation {
        /// Who it obeys.
        owner: InstallationId,
    },
    /// It holds a config that came after the last one that the documents tell of.
    Stale {
        /// What it holds.
        applied: Applied,
        /// What the documents tell of.
        issued: Option<Applied>,
    },
    /// It holds other content than the documents tell of, under the same number.
    TwoWriters {
        /// What it holds.
        applied: Applied,
    },
    /// A kubelet runs its pods there.
    Kubelet {
        /// How many.
        pods: usize,
    },
}

impl Refused {
    /// One word, as conditions have it.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::AnotherInstallation { .. } => Reason::AnotherInstallation,
            Self::Stale { .. } | Self::TwoWriters { .. } => Reason::StaleDocuments,
            Self::Kubelet { .. } => Reason::UsedByKubelet,
        }
    }

    /// Whether the fault is of the documents as a whole: what they say of other machines is as old.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. } | Self::TwoWriters { .. })
    }
}

/// Takes machines that refuse out of what was seen: nothing is planned on them, as if they did not answer.
pub fn refuse(documents: &Documents, seen: &mut Observation) {
    for (name, document) in &documents.hypervisors {
        let Some(state) = seen.machine(name) else { continue };
        let Some(refused) = refusal(document, state) else { continue };
        seen.machines.insert(name.clone(), Seen::unreachable(refused.to_string()));
        seen.refused.insert(name.clone(), refused);
    }
}

/// Why a machine takes nothing of what the documents tell, where it does not.
#[must_use]
pub fn refusal(document: &Hypervisor, state: &MachineState) -> Option<Refused> {
    if state.kubelet_pods > 0 {
        return Some(Refused::Kubelet { pods: state.kubelet_pods });
    }
    let status = document.status.as_ref();
    let installation = status.and_then(|status| status.installation.as_ref());
    if let Some(owner) = state.owner.as_ref().filter(|owner| Some(*owner) != installation) {
        return Some(Refused::AnotherInstallation { owner: owner.clone() });
    }
    let applied = state.applied.as_ref()?;
    let issued = status.and_then(|status| status.issued.as_ref());
    let place = |applied: &Applied| (applied.term, applied.generation);
    match issued {
        Some(issued) if place(applied) < place(issued) => None,
        Some(issued) if place(applied) > place(issued) => {
            Some(Refused::Stale { applied: applied.clone(), issued: Some(issued.clone()) })
        }
        Some(issued) => (issued.digest != applied.digest).then(|| Refused::TwoWriters { applied: applied.clone() }),
        None => Some(Refused::Stale { applied: applied.clone(), issued: None }),
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |applied: &Applied| alloc::format!("{}.{}", applied.term, applied.generation);
        match self {
            Self::AnotherInstallation { owner } => write!(
                f,
                "the machine obeys installation {owner}, which these documents are not of: use that installation's \
                 documents, or take the machine over with `keelway hypervisor adopt --from {owner}`"
            ),
            Self::Stale { applied, issued } => {
                write!(f, "stale documents: the machine holds config {}, and these documents ", number(applied))?;
                match issued {
                    Some(issued) => write!(f, "end at {}", number(issued))?,
                    None => write!(f, "tell of none")?,
                }
                write!(f, ": nothing is done from them anywhere; use the newest documents")
            }
            Self::TwoWriters { applied } => write!(
                f,
                "stale documents: the machine holds config {} with other content: somebody else went on from the same \
                 documents; nothing is done from them anywhere; use the newest documents",
                number(applied)
            ),
            Self::Kubelet { pods } => write!(
                f,
                "a kubelet uses the machine's container runtime ({}): it would fight over memory, ports and images with \
                 what Keelway runs; use another machine, or another container runtime on it",
                count(*pods, "pod")
            ),
        }
    }
}
