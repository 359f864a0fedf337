//! All reasons of conditions that Keelway writes.

/// The reason of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionReason {
    /// The machine responds and can run components.
    Answers,
    /// No process listens on the machine's socket, or the machine cannot be reached.
    Unreachable,
    /// The machine responds, but its container runtime does not.
    RuntimeNotAnswering,
    /// The machine obeys another installation.
    AnotherInstallation,
    /// The machine has applied a later config than these documents record.
    StaleDocuments,
    /// The machine obeys a driver with a later term.
    ObeysAnotherLeader,
    /// The documents record a generation that cannot increase any further.
    NoNumberLeft,
    /// The machine's agent supports no config format that this release sends.
    UnsupportedAgent,
    /// A kubelet runs pods on the machine's runtime.
    UsedByKubelet,
    /// The machine's agent also responds for another Hypervisor.
    SameMachine,
    /// An authority of the cluster has expired.
    AuthorityEnded,
    /// No pass has observed the machine yet.
    NotObserved,
    /// The machine's agent has a certificate of this installation.
    Certified,
    /// The machine's agent is not enrolled yet.
    TokenIssued,
    /// The machine's agent was not enrolled before its token expired.
    TokenExpired,
    /// The certificates of the machine's agent are revoked.
    Revoked,
    /// The disk below /var/lib/keelway is full.
    DiskFull,
    /// The machine has no components.
    Empty,
    /// Only etcd members are left on the machine. They do not move.
    MembersStay,
    /// Components will move to other machines.
    Moving,
    /// The Hypervisor is deleted, but components are on its machine.
    HoldsComponents,
    /// The Hypervisor is deleted, but other machines are reached through its machine.
    ReachesOthers,
    /// The component passes its health check.
    Healthy,
    /// The component runs, but its health check fails.
    Unhealthy,
    /// The component runs, but its health was not checked.
    NotAsked,
    /// The component has not started yet.
    NotStarted,
    /// The component exited.
    Exited,
    /// The component's machine does not respond, so its state is unknown.
    MachineUnreachable,
    /// Another process on the machine uses the component's port.
    PortTaken,
    /// An etcd member has lost its data. A member never starts without data.
    DataLost,
    /// The API serves through every ingress.
    Serving,
    /// The API does not serve through every ingress.
    NotServing,
    /// The cluster is being deleted.
    Deleting,
    /// The components of a deleted cluster are being removed from their machines.
    LeavingMachines,
    /// Machines that may hold parts of a deleted cluster do not respond.
    MachinesNotAnswering,
    /// Every component is ready.
    AllReady,
    /// Components are not ready.
    NotReady,
    /// The cluster starts for the first time.
    Starting,
    /// Components are changed to match the cluster's document, or repaired.
    Changing,
    /// The cluster matches its document.
    Settled,
    /// The cluster needs an action of a person to continue.
    Blocked,
    /// The document pauses the cluster, so nothing changes.
    Paused,
    /// The cluster is paused, and some of its certificates should be renewed.
    CertificatesDue,
    /// The document is invalid and therefore has no effect.
    Invalid,
    /// The cluster exceeds the current limits of its class.
    BeyondClass,
    /// Documents contain fields of a newer release of Keelway, which have no effect.
    NewerFields,
    /// The database of an etcd member has nearly reached its quota.
    NearQuota,
    /// etcd rejects writes because of its quota.
    NoSpace,
    /// Keelway's own components of the cluster are being upgraded to another release.
    Upgrading,
    /// Keelway's own components of the cluster are upgraded after those of other clusters.
    AwaitsWave,
}

/// The documentation of a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasonText {
    /// The name, as written in documents.
    pub name: &'static str,
    /// The kind of the documents.
    pub kind: &'static str,
    /// The type of the condition.
    pub condition: &'static str,
    /// The meaning.
    pub meaning: &'static str,
    /// The recommended action.
    pub help: &'static str,
}

/// All reasons, by kind and condition.
pub const ALL: &[ConditionReason] = &[
    ConditionReason::Answers,
    ConditionReason::Unreachable,
    ConditionReason::RuntimeNotAnswering,
    ConditionReason::AnotherInstallation,
    ConditionReason::StaleDocuments,
    ConditionReason::ObeysAnotherLeader,
    ConditionReason::NoNumberLeft,
    ConditionReason::UnsupportedAgent,
    ConditionReason::UsedByKubelet,
    ConditionReason::SameMachine,
    ConditionReason::NotObserved,
    ConditionReason::Certified,
    ConditionReason::TokenIssued,
    ConditionReason::TokenExpired,
    ConditionReason::Revoked,
    ConditionReason::DiskFull,
    ConditionReason::Empty,
    ConditionReason::MembersStay,
    ConditionReason::Moving,
    ConditionReason::HoldsComponents,
    ConditionReason::ReachesOthers,
    ConditionReason::Healthy,
    ConditionReason::Unhealthy,
    ConditionReason::NotAsked,
    ConditionReason::NotStarted,
    ConditionReason::Exited,
    ConditionReason::MachineUnreachable,
    ConditionReason::PortTaken,
    ConditionReason::DataLost,
    ConditionReason::Serving,
    ConditionReason::NotServing,
    ConditionReason::Deleting,
    ConditionReason::LeavingMachines,
    ConditionReason::MachinesNotAnswering,
    ConditionReason::AllReady,
    ConditionReason::NotReady,
    ConditionReason::Starting,
    ConditionReason::Changing,
    ConditionReason::Settled,
    ConditionReason::Blocked,
    ConditionReason::Paused,
    ConditionReason::CertificatesDue,
    ConditionReason::Invalid,
    ConditionReason::BeyondClass,
    ConditionReason::AuthorityEnded,
    ConditionReason::NewerFields,
    ConditionReason::NearQuota,
    ConditionReason::NoSpace,
    ConditionReason::Upgrading,
    ConditionReason::AwaitsWave,
];

impl ConditionReason {
    /// Returns the name, as written in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.explained().name
    }

    /// Returns the reason with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|reason| reason.as_str() == name)
    }

    /// Returns whether a person should react: the Event of such a reason is a warning.
    #[must_use]
    pub fn is_warning(self) -> bool {
        match self {
            Self::Unreachable
            | Self::RuntimeNotAnswering
            | Self::AnotherInstallation
            | Self::StaleDocuments
            | Self::ObeysAnotherLeader
            | Self::NoNumberLeft
            | Self::UnsupportedAgent
            | Self::UsedByKubelet
            | Self::SameMachine
            | Self::TokenExpired
            | Self::Revoked
            | Self::DiskFull
            | Self::MembersStay
            | Self::ReachesOthers
            | Self::MachinesNotAnswering
            | Self::Unhealthy
            | Self::Exited
            | Self::MachineUnreachable
            | Self::PortTaken
            | Self::DataLost
            | Self::NotServing
            | Self::NotReady
            | Self::Blocked
            | Self::CertificatesDue
            | Self::Invalid
            | Self::AuthorityEnded
            | Self::BeyondClass
            | Self::NewerFields
            | Self::NearQuota
            | Self::NoSpace => true,
            Self::Answers
            | Self::NotObserved
            | Self::Certified
            | Self::TokenIssued
            | Self::Empty
            | Self::Moving
            | Self::HoldsComponents
            | Self::LeavingMachines
            | Self::Healthy
            | Self::NotAsked
            | Self::NotStarted
            | Self::Serving
            | Self::Deleting
            | Self::AllReady
            | Self::Starting
            | Self::Changing
            | Self::Settled
            | Self::Paused
            | Self::Upgrading
            | Self::AwaitsWave => false,
        }
    }

    /// Returns the documentation of the reason.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "a table")]
    pub fn explained(self) -> ReasonText {
        let (name, kind, condition, meaning, help) = match self {
            Self::Answers => {
                ("Answers", "Hypervisor", "Ready", "the machine answers, and can run components", "nothing")
            }
            Self::Unreachable => (
                "Unreachable",
                "Hypervisor",
                "Ready",
                "nobody answers behind the machine's socket, or it cannot be reached",
                "see that its runtime (and its agent, where it has one) runs: `systemctl status containerd keelway-hypervisor-agent`; then `keelway reconcile`",
            ),
            Self::RuntimeNotAnswering => (
                "RuntimeNotAnswering",
                "Hypervisor",
                "Ready",
                "the machine answers, and its container runtime does not",
                "restart the runtime: `systemctl restart containerd`; what runs goes on meanwhile",
            ),
            Self::AnotherInstallation => (
                "AnotherInstallation",
                "Hypervisor",
                "Ready",
                "the machine obeys another installation",
                "use the documents of that one, or take the machine over: `keelway hypervisor adopt --from ID --name NAME`",
            ),
            Self::StaleDocuments => (
                "StaleDocuments",
                "Hypervisor",
                "Ready",
                "the machine holds a later config than these documents know",
                "use the newest documents: those that the last `keelway reconcile` wrote, or the file that an interrupted one named; if they are lost, bring these to what machines hold: `keelway recover`",
            ),
            Self::ObeysAnotherLeader => (
                "ObeysAnotherLeader",
                "Hypervisor",
                "Ready",
                "the machine says that it obeys a later leader than the one that looks at it; all other machines go on",
                "end the manager that is one too many; where there is only one, its Lease was lost: set the annotation keelway.dev/term of the Lease keelway-manager to the term that the message names, and start the manager again. A term that no leader has is forged or damaged: install the machine's agent anew",
            ),
            Self::NoNumberLeft => (
                "NoNumberLeft",
                "Hypervisor",
                "Ready",
                "status.issued tells of a config after which there is no number; all other machines go on",
                "put status.issued of the Hypervisor back as `keelway reconcile` wrote it",
            ),
            Self::SameMachine => (
                "SameMachine",
                "Hypervisor",
                "Ready",
                "the agent behind the machine answers for another Hypervisor as well: both documents are of one machine, and nothing is done by the second",
                "correct `spec.endpoint` of the one that was copied, or delete it",
            ),
            Self::UnsupportedAgent => (
                "UnsupportedAgent",
                "Hypervisor",
                "Ready",
                "the machine's agent understands no format of configs that this release sends; what runs there goes on, and so do all other machines",
                "upgrade whichever is older, as the message says: keelway-hypervisor-agent on the machine, or keelway and the manager",
            ),
            Self::AuthorityEnded => (
                "AuthorityEnded",
                "Cluster",
                "AuthoritiesValid",
                "the life of an authority of the cluster is over: nothing that it signed is believed any more, and it signs nothing; all other clusters go on",
                "make a new cluster, with a longer `spec.certificates.authorityTTL`, and move to it",
            ),
            Self::UsedByKubelet => (
                "UsedByKubelet",
                "Hypervisor",
                "Ready",
                "a kubelet runs pods on the machine's runtime",
                "give Keelway a container runtime of its own",
            ),
            Self::NotObserved => {
                ("NotObserved", "Hypervisor", "Ready", "no pass has looked at the machine yet", "`keelway reconcile`")
            }
            Self::Certified => (
                "Certified",
                "Hypervisor",
                "Enrolled",
                "the machine's agent has a certificate of this installation",
                "nothing; it is renewed by `keelway reconcile` when two thirds of its life are over",
            ),
            Self::TokenIssued => (
                "TokenIssued",
                "Hypervisor",
                "Enrolled",
                "the machine's agent was not enrolled yet",
                "run on the machine what `keelway hypervisor enroll` printed; then `keelway reconcile`",
            ),
            Self::TokenExpired => (
                "TokenExpired",
                "Hypervisor",
                "Enrolled",
                "the machine's agent was not enrolled while its token was good",
                "make a new token: `keelway hypervisor enroll --name NAME`",
            ),
            Self::Revoked => (
                "Revoked",
                "Hypervisor",
                "Enrolled",
                "the certificates of the machine's agent are revoked",
                "take the machine out of the documents, or enrol it again: `keelway hypervisor enroll --name NAME`",
            ),
            Self::DiskFull => (
                "DiskFull",
                "Hypervisor",
                "DiskPressure",
                "the disk below /var/lib/keelway is full",
                "make room on it: what waits goes on by itself",
            ),
            Self::Empty => (
                "Empty",
                "Hypervisor",
                "Drained",
                "no component is on the machine",
                "nothing; the machine may be taken away",
            ),
            Self::MembersStay => (
                "MembersStay",
                "Hypervisor",
                "Drained",
                "only members of stores are left on the machine, which do not move yet",
                "`keelway hypervisor uncordon NAME`, or delete their clusters",
            ),
            Self::Moving => (
                "Moving",
                "Hypervisor",
                "Drained",
                "components are about to move to other machines",
                "`keelway reconcile` until it is `Empty`",
            ),
            Self::HoldsComponents => (
                "HoldsComponents",
                "Hypervisor",
                "Deleting",
                "the machine is deleted, and components are on it: it goes once they are gone, and gets no more of them",
                "`keelway hypervisor drain NAME` (`spec.drain`) for what can move; members of stores go with their clusters",
            ),
            Self::ReachesOthers => (
                "ReachesOthers",
                "Hypervisor",
                "Deleting",
                "the machine is deleted, and others are reached through it",
                "name another one in their `spec.endpoint.agent.via`, or delete them first",
            ),
            Self::Healthy => ("Healthy", "Component", "Ready", "the component answers its health check", "nothing"),
            Self::Unhealthy => (
                "Unhealthy",
                "Component",
                "Ready",
                "the component runs, and its health check fails",
                "see what it says: `keelway logs COMPONENT`, `keelway events`",
            ),
            Self::NotAsked => (
                "NotAsked",
                "Component",
                "Ready",
                "the component runs, and was not asked for its health",
                "`keelway reconcile`",
            ),
            Self::NotStarted => {
                ("NotStarted", "Component", "Ready", "the component was not started yet", "`keelway reconcile`")
            }
            Self::Exited => (
                "Exited",
                "Component",
                "Ready",
                "the component ended",
                "see its last words: `keelway logs COMPONENT`; it is restarted by its machine's agent, or by `keelway reconcile`",
            ),
            Self::MachineUnreachable => (
                "MachineUnreachable",
                "Component",
                "Ready",
                "the component's machine does not answer, so nobody knows",
                "see to its machine first",
            ),
            Self::PortTaken => (
                "PortTaken",
                "Component",
                "Ready",
                "something else on the machine took the component's port",
                "end what listens there; the message says which port",
            ),
            Self::DataLost => (
                "DataLost",
                "Component",
                "Ready",
                "a member of a store has lost its data, and no member starts empty",
                "put its directory back; the message says which",
            ),
            Self::Serving => ("Serving", "Cluster", "Available", "the API serves through every ingress", "nothing"),
            Self::NotServing => (
                "NotServing",
                "Cluster",
                "Available",
                "the API does not serve through every ingress",
                "see which components are not ready: `keelway status`",
            ),
            Self::Deleting => (
                "Deleting",
                "Cluster",
                "Available, Progressing",
                "the cluster is being deleted",
                "`keelway reconcile` until it is gone",
            ),
            Self::LeavingMachines => (
                "LeavingMachines",
                "Cluster",
                "Deleting",
                "the components of the deleted cluster are leaving their machines",
                "nothing; the message says which machines hold something of it",
            ),
            Self::MachinesNotAnswering => (
                "MachinesNotAnswering",
                "Cluster",
                "Deleting",
                "machines that may hold something of the deleted cluster do not answer",
                "bring them back; of those that are lost for good say so: `kubectl annotate hypervisor NAME keelway.dev/lost=true`",
            ),
            Self::AllReady => ("AllReady", "Cluster", "Degraded", "every component is ready", "nothing"),
            Self::NotReady => {
                ("NotReady", "Cluster", "Degraded", "components are not ready", "see to them first: `keelway status`")
            }
            Self::Starting => (
                "Starting",
                "Cluster",
                "Progressing",
                "the cluster comes up for the first time; the message names what it waits for",
                "nothing; `keelway status` says how far each component is",
            ),
            Self::Changing => (
                "Changing",
                "Cluster",
                "Progressing",
                "components become what the document says, or well again; the message names what is waited for",
                "nothing; `keelway status` says how far each component is",
            ),
            Self::Settled => ("Settled", "Cluster", "Progressing", "the cluster is as its document says", "nothing"),
            Self::Blocked => (
                "Blocked",
                "Cluster",
                "Progressing",
                "the cluster gets no further before somebody does something; the message says what is waited for",
                "what the message says: mend a machine, bring another one, put a Secret back, or change the document",
            ),
            Self::Paused => (
                "Paused",
                "Cluster",
                "Paused, Progressing",
                "nothing is done about the cluster, as `spec.paused` says; what runs goes on",
                "set `spec.paused` to false once it is to be looked after again",
            ),
            Self::CertificatesDue => (
                "CertificatesDue",
                "Cluster",
                "Paused",
                "nothing is done about the cluster, and certificates of it should be renewed; the message names them",
                "set `spec.paused` to false before they end",
            ),
            Self::Invalid => (
                "Invalid",
                "Cluster, Hypervisor",
                "Accepted",
                "the document is not sound, so that it has no effect; what runs goes on as it was",
                "mend the fields that the message names: `kubectl edit`; the condition goes then",
            ),
            Self::BeyondClass => (
                "BeyondClass",
                "Cluster",
                "WithinClass",
                "its ClusterClass was changed or taken away, and would not take the Cluster as it is; what runs goes on as it was",
                "mend the fields that the message names, which any change of the Cluster needs, or the ClusterClass",
            ),
            Self::NewerFields => (
                "NewerFields",
                "Cluster, Hypervisor",
                "FieldsKnown",
                "documents have fields of a newer release of Keelway, as after a rollback; they are kept, and have no effect",
                "upgrade Keelway again, or remove the fields that the message names if nobody needs them",
            ),
            Self::NearQuota => (
                "NearQuota",
                "Cluster",
                "EtcdHasRoom",
                "the database of an etcd member has 80 % or more of its quota; at all of it the API server takes no more writes",
                "delete what fills the store, or write a larger `spec.etcd.quota`: docs/operations.md, \".. etcd runs out of space\"",
            ),
            Self::NoSpace => (
                "NoSpace",
                "Cluster",
                "EtcdHasRoom",
                "etcd has raised the alarm `NOSPACE`: the API server takes no writes but deletions until somebody disarms the alarm",
                "compact, defragment and disarm: docs/operations.md, \".. etcd runs out of space\"",
            ),
            Self::Upgrading => (
                "Upgrading",
                "Cluster",
                "KeelwayUpToDate",
                "the cluster's gateways, egresses and cluster-controllers are replaced, one at a time, by those of the manager's release",
                "nothing; if it lasts, the cluster's other conditions name what it waits for, and no later wave begins until then",
            ),
            Self::AwaitsWave => (
                "AwaitsWave",
                "Cluster",
                "KeelwayUpToDate",
                "the cluster's gateways, egresses and cluster-controllers stay at an earlier release until every cluster of the waves before runs the manager's, is available and is not degraded",
                "nothing; if it lasts, look at the clusters with the reason `Upgrading`: docs/operations.md, \".. a new release of Keelway\"",
            ),
        };
        ReasonText { name, kind, condition, meaning, help }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        for reason in ALL {
            assert_eq!(ConditionReason::of_name(reason.as_str()), Some(*reason));
            assert_eq!(format!("{reason:?}"), reason.as_str());
        }
    }
}
