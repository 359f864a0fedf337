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
    /// The Hypervisor is deleted, but the agent that Keelway started runs on its machine.
    HoldsAgent,
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
    ConditionReason::HoldsAgent,
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
            | Self::HoldsAgent
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
                ("Answers", "Hypervisor", "Ready", "the machine responds and can run components", "nothing")
            }
            Self::Unreachable => (
                "Unreachable",
                "Hypervisor",
                "Ready",
                "no process responds on the machine's socket, or the machine cannot be reached",
                "check that its container runtime (and its agent, if it has one) runs: `systemctl status containerd keelway-hypervisor-agent`; then run `keelway reconcile`",
            ),
            Self::RuntimeNotAnswering => (
                "RuntimeNotAnswering",
                "Hypervisor",
                "Ready",
                "the machine responds, but its container runtime does not",
                "restart the runtime: `systemctl restart containerd`; running components are not affected",
            ),
            Self::AnotherInstallation => (
                "AnotherInstallation",
                "Hypervisor",
                "Ready",
                "the machine obeys another installation",
                "use the documents of that installation, or adopt the machine: `keelway hypervisor adopt --from ID --name NAME`",
            ),
            Self::StaleDocuments => (
                "StaleDocuments",
                "Hypervisor",
                "Ready",
                "the machine has applied a later config than these documents record",
                "use the newest documents: the output of the last `keelway reconcile`, or the file that it named when it was interrupted; if they are lost, rebuild them from the machines: `keelway recover`",
            ),
            Self::ObeysAnotherLeader => (
                "ObeysAnotherLeader",
                "Hypervisor",
                "Ready",
                "the machine obeys a driver with a later term than this one; other machines are not affected",
                "if two managers run, stop one of them; if only one runs, its Lease was lost: set the annotation keelway.dev/term of the Lease keelway-manager to the term in the message, and restart the manager. If no driver ever had that term, the machine's record is forged or damaged: reinstall the machine's agent",
            ),
            Self::NoNumberLeft => (
                "NoNumberLeft",
                "Hypervisor",
                "Ready",
                "status.issued records a generation that cannot increase any further; other machines are not affected",
                "restore status.issued of the Hypervisor to the value that `keelway reconcile` wrote",
            ),
            Self::SameMachine => (
                "SameMachine",
                "Hypervisor",
                "Ready",
                "the machine's agent also responds for another Hypervisor: both documents describe one machine, and Keelway ignores the second",
                "correct `spec.endpoint` of the copied document, or delete it",
            ),
            Self::UnsupportedAgent => (
                "UnsupportedAgent",
                "Hypervisor",
                "Ready",
                "the machine's agent supports no config format that this release sends; running components and other machines are not affected",
                "upgrade the older side, which the message names: keelway-hypervisor-agent on the machine, or keelway and the manager",
            ),
            Self::AuthorityEnded => (
                "AuthorityEnded",
                "Cluster",
                "AuthoritiesValid",
                "an authority of the cluster has expired: certificates that it signed are no longer valid, and it cannot sign new ones; other clusters are not affected",
                "create a new cluster with a longer `spec.certificates.authorityTTL`, and move your workloads to it",
            ),
            Self::UsedByKubelet => (
                "UsedByKubelet",
                "Hypervisor",
                "Ready",
                "a kubelet runs pods on the machine's runtime",
                "install a separate container runtime for Keelway",
            ),
            Self::NotObserved => (
                "NotObserved",
                "Hypervisor",
                "Ready",
                "no pass has observed the machine yet",
                "run `keelway reconcile`",
            ),
            Self::Certified => (
                "Certified",
                "Hypervisor",
                "Enrolled",
                "the machine's agent has a certificate of this installation",
                "nothing; `keelway reconcile` renews it after two thirds of its lifetime",
            ),
            Self::TokenIssued => (
                "TokenIssued",
                "Hypervisor",
                "Enrolled",
                "the machine's agent is not enrolled yet",
                "on the machine, run the command that `keelway hypervisor enroll` printed; then run `keelway reconcile`",
            ),
            Self::TokenExpired => (
                "TokenExpired",
                "Hypervisor",
                "Enrolled",
                "the machine's agent was not enrolled before its token expired",
                "create a new token: `keelway hypervisor enroll --name NAME`",
            ),
            Self::Revoked => (
                "Revoked",
                "Hypervisor",
                "Enrolled",
                "the certificates of the machine's agent are revoked",
                "delete the Hypervisor, or enroll its agent again: `keelway hypervisor enroll --name NAME`",
            ),
            Self::DiskFull => (
                "DiskFull",
                "Hypervisor",
                "DiskPressure",
                "the disk below /var/lib/keelway is full",
                "free space on the disk; waiting work then continues automatically",
            ),
            Self::Empty => (
                "Empty",
                "Hypervisor",
                "Drained",
                "the machine has no components",
                "nothing; you can remove the machine",
            ),
            Self::MembersStay => (
                "MembersStay",
                "Hypervisor",
                "Drained",
                "only etcd members are left on the machine, and they do not move",
                "run `keelway hypervisor uncordon NAME`, or delete the clusters of these members",
            ),
            Self::Moving => (
                "Moving",
                "Hypervisor",
                "Drained",
                "components will move to other machines",
                "run `keelway reconcile` until the reason is `Empty`",
            ),
            Self::HoldsComponents => (
                "HoldsComponents",
                "Hypervisor",
                "Deleting",
                "the Hypervisor is being deleted, but its machine has components: the document is removed after the last of them, and no new component is placed on the machine",
                "run `keelway hypervisor drain NAME` (`spec.drain`) to move components; etcd members stay until their clusters are deleted",
            ),
            Self::HoldsAgent => (
                "HoldsAgent",
                "Hypervisor",
                "Deleting",
                "the Hypervisor is being deleted, but the agent that Keelway started runs on its machine, or the machine does not respond",
                "wait; if the machine is gone for good, set the annotation `keelway.dev/lost: \"true\"`",
            ),
            Self::ReachesOthers => (
                "ReachesOthers",
                "Hypervisor",
                "Deleting",
                "the Hypervisor is being deleted, but other machines are reached through its machine",
                "set their `spec.endpoint.agent.via` to another Hypervisor, or delete them first",
            ),
            Self::Healthy => ("Healthy", "Component", "Ready", "the component passes its health check", "nothing"),
            Self::Unhealthy => (
                "Unhealthy",
                "Component",
                "Ready",
                "the component runs, but its health check fails",
                "check its logs and events: `keelway logs COMPONENT`, `keelway events`",
            ),
            Self::NotAsked => (
                "NotAsked",
                "Component",
                "Ready",
                "the component runs, but its health was not checked",
                "run `keelway reconcile`",
            ),
            Self::NotStarted => {
                ("NotStarted", "Component", "Ready", "the component has not started yet", "run `keelway reconcile`")
            }
            Self::Exited => (
                "Exited",
                "Component",
                "Ready",
                "the component exited",
                "check its logs: `keelway logs COMPONENT`; its machine's agent or `keelway reconcile` restarts it",
            ),
            Self::MachineUnreachable => (
                "MachineUnreachable",
                "Component",
                "Ready",
                "the component's machine does not respond, so its state is unknown",
                "repair its machine first",
            ),
            Self::PortTaken => (
                "PortTaken",
                "Component",
                "Ready",
                "another process on the machine uses the component's port",
                "stop the process that listens on the port; the message names the port",
            ),
            Self::DataLost => (
                "DataLost",
                "Component",
                "Ready",
                "an etcd member has lost its data, and a member never starts without data",
                "restore its data directory, which the message names",
            ),
            Self::Serving => ("Serving", "Cluster", "Available", "the API serves through every ingress", "nothing"),
            Self::NotServing => (
                "NotServing",
                "Cluster",
                "Available",
                "the API does not serve through every ingress",
                "check which components are not ready: `keelway status`",
            ),
            Self::Deleting => (
                "Deleting",
                "Cluster",
                "Available, Progressing",
                "the cluster is being deleted",
                "run `keelway reconcile` until the cluster is gone",
            ),
            Self::LeavingMachines => (
                "LeavingMachines",
                "Cluster",
                "Deleting",
                "the components of the deleted cluster are being removed from their machines",
                "nothing; the message names the machines that still hold parts of it",
            ),
            Self::MachinesNotAnswering => (
                "MachinesNotAnswering",
                "Cluster",
                "Deleting",
                "machines that may hold parts of the deleted cluster do not respond",
                "repair these machines; if the data of a machine is lost forever, annotate it: `kubectl annotate hypervisor NAME keelway.dev/lost=true`",
            ),
            Self::AllReady => ("AllReady", "Cluster", "Degraded", "every component is ready", "nothing"),
            Self::NotReady => (
                "NotReady",
                "Cluster",
                "Degraded",
                "components are not ready",
                "check which components are not ready, and repair them: `keelway status`",
            ),
            Self::Starting => (
                "Starting",
                "Cluster",
                "Progressing",
                "the cluster starts for the first time; the message names what it waits for",
                "nothing; `keelway status` shows the progress of each component",
            ),
            Self::Changing => (
                "Changing",
                "Cluster",
                "Progressing",
                "components are changed to match the cluster's document, or repaired; the message names what the cluster waits for",
                "nothing; `keelway status` shows the progress of each component",
            ),
            Self::Settled => ("Settled", "Cluster", "Progressing", "the cluster matches its document", "nothing"),
            Self::Blocked => (
                "Blocked",
                "Cluster",
                "Progressing",
                "the cluster cannot continue without an action of yours; the message names what it waits for",
                "follow the message: repair a machine, add a machine, restore a Secret, or change the document",
            ),
            Self::Paused => (
                "Paused",
                "Cluster",
                "Paused, Progressing",
                "`spec.paused` is true, so nothing in the cluster changes; running components continue",
                "set `spec.paused` to false to resume reconciliation",
            ),
            Self::CertificatesDue => (
                "CertificatesDue",
                "Cluster",
                "Paused",
                "the cluster is paused, and some of its certificates should be renewed; the message names them",
                "set `spec.paused` to false before they expire",
            ),
            Self::Invalid => (
                "Invalid",
                "Cluster, Hypervisor",
                "Accepted",
                "the document is invalid and therefore has no effect; running components continue unchanged",
                "correct the fields that the message names: `kubectl edit`; the condition is then removed",
            ),
            Self::BeyondClass => (
                "BeyondClass",
                "Cluster",
                "WithinClass",
                "its ClusterClass was changed or deleted, and the Cluster exceeds its current limits; running components continue unchanged",
                "correct the fields that the message names, which is necessary before any other change of the Cluster, or change the ClusterClass",
            ),
            Self::NewerFields => (
                "NewerFields",
                "Cluster, Hypervisor",
                "FieldsKnown",
                "documents contain fields of a newer release of Keelway, as after a rollback; the fields are kept but have no effect",
                "upgrade Keelway again, or remove the fields that the message names if they are no longer needed",
            ),
            Self::NearQuota => (
                "NearQuota",
                "Cluster",
                "EtcdHasRoom",
                "the database of an etcd member has reached 80 % of its quota or more; at 100 % the API server rejects writes",
                "delete objects that fill etcd, or increase `spec.etcd.quota`: docs/operations.md, \".. etcd runs out of space\"",
            ),
            Self::NoSpace => (
                "NoSpace",
                "Cluster",
                "EtcdHasRoom",
                "etcd has raised the alarm `NOSPACE`: the API server rejects all writes except deletions until the alarm is disarmed",
                "compact and defragment etcd, then disarm the alarm: docs/operations.md, \".. etcd runs out of space\"",
            ),
            Self::Upgrading => (
                "Upgrading",
                "Cluster",
                "KeelwayUpToDate",
                "the cluster's gateways, egresses and cluster-controllers are being upgraded to the manager's release, one at a time",
                "nothing; if it does not finish, the cluster's other conditions name what it waits for; no later wave begins until then",
            ),
            Self::AwaitsWave => (
                "AwaitsWave",
                "Cluster",
                "KeelwayUpToDate",
                "the cluster's gateways, egresses and cluster-controllers stay at an earlier release until every cluster of the earlier waves runs the manager's release, is available and is not degraded",
                "nothing; if it does not finish, check the clusters with the reason `Upgrading`: docs/operations.md, \".. a new release of Keelway\"",
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
