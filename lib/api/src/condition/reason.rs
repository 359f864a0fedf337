//! All reasons of conditions that Keelway writes.

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
    /// Whether a person should react: the Event of such a reason is a warning.
    pub warning: bool,
}

const WARNING: bool = true;
const NORMAL: bool = false;

/// Defines each reason by one row: name, type of its Events, kind of the documents, type of the condition, meaning, recommended action.
macro_rules! reasons {
    ($($name:ident, $warning:ident, $kind:literal, $condition:literal: $meaning:literal => $help:literal;)+) => {
        /// The reason of a condition.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ConditionReason {
            $(#[doc = concat!("Of ", $condition, ": ", $meaning, ".")] $name,)+
        }

        /// All reasons, by kind and condition.
        pub const ALL: &[ConditionReason] = &[$(ConditionReason::$name),+];

        impl ConditionReason {
            /// Returns the documentation of the reason.
            #[must_use]
            pub fn explained(self) -> ReasonText {
                let (name, warning, kind, condition, meaning, help) = match self {
                    $(Self::$name => (stringify!($name), $warning, $kind, $condition, $meaning, $help),)+
                };
                ReasonText { name, kind, condition, meaning, help, warning }
            }
        }
    };
}

reasons! {
    Answers, NORMAL, "Hypervisor", "Ready":
        "the machine responds and can run components"
        => "nothing";
    Unreachable, WARNING, "Hypervisor", "Ready":
        "no process responds on the machine's socket, or the machine cannot be reached"
        => "check that its container runtime (and its agent, if it has one) runs: `systemctl status containerd keelway-hypervisor-agent`; then run `keelway reconcile`";
    RuntimeNotAnswering, WARNING, "Hypervisor", "Ready":
        "the machine responds, but its container runtime does not"
        => "restart the runtime: `systemctl restart containerd`; running components are not affected";
    AnotherInstallation, WARNING, "Hypervisor", "Ready":
        "the machine obeys another installation"
        => "use the documents of that installation, or adopt the machine: `keelway hypervisor adopt --from ID --name NAME`";
    StaleDocuments, WARNING, "Hypervisor", "Ready":
        "the machine has applied a later config than these documents record"
        => "use the newest documents: the output of the last `keelway reconcile`, or the file that it named when it was interrupted; if they are lost, rebuild them from the machines: `keelway recover`";
    ObeysAnotherLeader, WARNING, "Hypervisor", "Ready":
        "the machine obeys a driver with a later term than this one; other machines are not affected"
        => "if two managers run, stop one of them; if only one runs, its Lease was lost: set the annotation keelway.dev/term of the Lease keelway-manager to the term in the message, and restart the manager. If no driver ever had that term, the machine's record is forged or damaged: reinstall the machine's agent";
    NoNumberLeft, WARNING, "Hypervisor", "Ready":
        "status.issued records a generation that cannot increase any further; other machines are not affected"
        => "restore status.issued of the Hypervisor to the value that `keelway reconcile` wrote";
    UnsupportedAgent, WARNING, "Hypervisor", "Ready":
        "the machine's agent supports no config format that this release sends; running components and other machines are not affected"
        => "upgrade the older side, which the message names: keelway-hypervisor-agent on the machine, or keelway and the manager";
    UsedByKubelet, WARNING, "Hypervisor", "Ready":
        "a kubelet runs pods on the machine's runtime"
        => "install a separate container runtime for Keelway";
    SameMachine, WARNING, "Hypervisor", "Ready":
        "the machine's agent also responds for another Hypervisor: both documents describe one machine, and Keelway ignores the second"
        => "correct `spec.endpoint` of the copied document, or delete it";
    NotObserved, NORMAL, "Hypervisor", "Ready":
        "no pass has observed the machine yet"
        => "run `keelway reconcile`";
    Certified, NORMAL, "Hypervisor", "Enrolled":
        "the machine's agent has a certificate of this installation"
        => "nothing; `keelway reconcile` renews it after two thirds of its lifetime";
    TokenIssued, NORMAL, "Hypervisor", "Enrolled":
        "the machine's agent is not enrolled yet"
        => "on the machine, run the command that `keelway hypervisor enroll` printed; then run `keelway reconcile`";
    AgentStarting, NORMAL, "Hypervisor", "Enrolled":
        "Keelway starts the agent on a machine whose container runtime is behind a proxy"
        => "wait; if it stays, see the errors of `keelway reconcile` and the agent's log in `/var/log/keelway-agent`";
    TokenExpired, WARNING, "Hypervisor", "Enrolled":
        "the machine's agent was not enrolled before its token expired"
        => "create a new token: `keelway hypervisor enroll --name NAME`";
    Revoked, WARNING, "Hypervisor", "Enrolled":
        "the certificates of the machine's agent are revoked"
        => "delete the Hypervisor, or enroll its agent again: `keelway hypervisor enroll --name NAME`";
    DiskFull, WARNING, "Hypervisor", "DiskPressure":
        "the disk below /var/lib/keelway is full"
        => "free space on the disk; waiting work then continues automatically";
    AddressNotFound, WARNING, "Hypervisor", "AddressesFound":
        "no interface of the machine has an address on which components listen, so those fail to start there"
        => "correct `spec.addresses`; behind a NAT that maps a public address to the machine, write the address of the interface into `spec.addresses.bind`";
    Empty, NORMAL, "Hypervisor", "Drained":
        "the machine has no components"
        => "nothing; you can remove the machine";
    Moving, NORMAL, "Hypervisor", "Drained":
        "components will move to other machines"
        => "run `keelway reconcile` until the reason is `Empty`";
    HoldsComponents, NORMAL, "Hypervisor", "Deleting":
        "the Hypervisor is being deleted, but its machine has components: the document is removed after the last of them, and no new component is placed on the machine"
        => "run `keelway hypervisor drain NAME` (`spec.drain`) to move components";
    HoldsAgent, NORMAL, "Hypervisor", "Deleting":
        "the Hypervisor is being deleted, but the agent that Keelway started runs on its machine, or the machine does not respond"
        => "wait; if the machine is gone for good, set the annotation `keelway.dev/lost: \"true\"`";
    ReachesOthers, WARNING, "Hypervisor", "Deleting":
        "the Hypervisor is being deleted, but other machines are reached through its machine"
        => "set their `spec.endpoint.agent.via` to another Hypervisor, or delete them first";
    Healthy, NORMAL, "Component", "Ready":
        "the component passes its health check"
        => "nothing";
    Unhealthy, WARNING, "Component", "Ready":
        "the component runs, but its health check fails"
        => "check its logs and events: `keelway logs COMPONENT`, `keelway events`";
    NotAsked, NORMAL, "Component", "Ready":
        "the component runs, but its health was not checked"
        => "run `keelway reconcile`";
    NotStarted, NORMAL, "Component", "Ready":
        "the component has not started yet"
        => "run `keelway reconcile`";
    Exited, WARNING, "Component", "Ready":
        "the component exited"
        => "check its logs: `keelway logs COMPONENT`; its machine's agent or `keelway reconcile` restarts it";
    MachineUnreachable, WARNING, "Component", "Ready":
        "the component's machine does not respond, so its state is unknown"
        => "repair its machine first";
    PortTaken, WARNING, "Component", "Ready":
        "another process on the machine uses the component's port"
        => "stop the process that listens on the port; the message names the port";
    DataLost, WARNING, "Component", "Ready":
        "an etcd member has lost its data, and a member never starts without data"
        => "restore its data directory, which the message names";
    Serving, NORMAL, "Cluster", "Available":
        "the API serves through every ingress"
        => "nothing";
    NotServing, WARNING, "Cluster", "Available":
        "the API does not serve through every ingress"
        => "check which components are not ready: `keelway status`";
    Deleting, NORMAL, "Cluster", "Available, Progressing":
        "the cluster is being deleted"
        => "run `keelway reconcile` until the cluster is gone";
    LeavingMachines, NORMAL, "Cluster", "Deleting":
        "the components of the deleted cluster are being removed from their machines"
        => "nothing; the message names the machines that still hold parts of it";
    MachinesNotAnswering, WARNING, "Cluster", "Deleting":
        "machines that may hold parts of the deleted cluster do not respond"
        => "repair these machines; if the data of a machine is lost forever, annotate it: `kubectl annotate hypervisor NAME keelway.dev/lost=true`";
    AllReady, NORMAL, "Cluster", "Degraded":
        "every component is ready"
        => "nothing";
    NotReady, WARNING, "Cluster", "Degraded":
        "components are not ready"
        => "check which components are not ready, and repair them: `keelway status`";
    Starting, NORMAL, "Cluster", "Progressing":
        "the cluster starts for the first time; the message names what it waits for"
        => "nothing; `keelway status` shows the progress of each component";
    Changing, NORMAL, "Cluster", "Progressing":
        "components are changed to match the cluster's document, or repaired; the message names what the cluster waits for"
        => "nothing; `keelway status` shows the progress of each component";
    Settled, NORMAL, "Cluster", "Progressing":
        "the cluster matches its document"
        => "nothing";
    Blocked, WARNING, "Cluster", "Progressing":
        "the cluster cannot continue without an action of yours; the message names what it waits for"
        => "follow the message: repair a machine, add a machine, restore a Secret, or change the document";
    Paused, NORMAL, "Cluster", "Paused, Progressing":
        "`spec.paused` is true, so nothing in the cluster changes; running components continue"
        => "set `spec.paused` to false to resume reconciliation";
    Asleep, NORMAL, "Cluster, Component", "Asleep, Available, Degraded, Ready":
        "the cluster sleeps: its components are stopped, its data stays, and its ingresses answer requests with 503"
        => "run `keelway cluster wake --name NAME` (`spec.asleep`) to use the cluster again: docs/sleep.md";
    FallingAsleep, NORMAL, "Cluster", "Asleep, Available":
        "the components of the cluster are being stopped, one role after the other; the message names the step"
        => "nothing; if it does not finish, `keelway plan` names what the cluster waits for: docs/sleep.md";
    WakingUp, NORMAL, "Cluster", "Asleep, Available":
        "the components of the cluster start again, etcd first; the message names the step"
        => "nothing; if it does not finish, `keelway plan` names what the cluster waits for: docs/sleep.md";
    CertificatesDue, WARNING, "Cluster", "Paused":
        "the cluster is paused, and some of its certificates should be renewed; the message names them"
        => "set `spec.paused` to false before they expire";
    Invalid, WARNING, "Cluster, Hypervisor", "Accepted":
        "the document is invalid and therefore has no effect; running components continue unchanged"
        => "correct the fields that the message names: `kubectl edit`; the condition is then removed";
    BeyondClass, WARNING, "Cluster", "WithinClass":
        "its ClusterClass was changed or deleted, and the Cluster exceeds its current limits; running components continue unchanged"
        => "correct the fields that the message names, which is necessary before any other change of the Cluster, or change the ClusterClass";
    AuthorityEnded, WARNING, "Cluster", "AuthoritiesValid":
        "an authority of the cluster has expired: certificates that it signed are no longer valid, and it cannot sign new ones; other clusters are not affected"
        => "create a new cluster with a longer `spec.certificates.authorityTTL`, and move your workloads to it";
    NewerFields, WARNING, "Cluster, Hypervisor", "FieldsKnown":
        "documents contain fields of a newer release of Keelway, as after a rollback; the fields are kept but have no effect"
        => "upgrade Keelway again, or remove the fields that the message names if they are no longer needed";
    NearQuota, WARNING, "Cluster", "EtcdHasRoom":
        "the database of an etcd member has reached 80 % of its quota or more; at 100 % the API server rejects writes"
        => "Keelway defragments members of which a fifth or more is free; otherwise delete objects that fill etcd, or increase `spec.etcd.quota`: docs/operations.md, \".. etcd runs out of space\"";
    NoSpace, WARNING, "Cluster", "EtcdHasRoom":
        "etcd has raised the alarm `NOSPACE`: the API server rejects all writes except deletions until the alarm is disarmed"
        => "Keelway compacts and defragments etcd, and disarms the alarm; if the message reports that the data in use fills the quota, increase `spec.etcd.quota` or delete objects: docs/operations.md, \".. etcd runs out of space\"";
    NoMajority, WARNING, "Cluster", "EtcdMembersHealthy":
        "fewer than a majority of the etcd members work together: the API server serves nothing until they do"
        => "bring the machines of the members that the message names back; if they are gone for good: docs/operations.md, \".. etcd lost its quorum\"";
    StoreRebuilding, WARNING, "Cluster", "EtcdMembersHealthy":
        "Keelway rebuilds the store from one member, after a majority was lost or to restore a snapshot; the API serves nothing until an API server is ready again"
        => "nothing; the message names the step, and `keelway plan` what it waits for: docs/etcd-members.md";
    MemberCorrupt, WARNING, "Cluster", "EtcdMembersHealthy":
        "etcd has raised the alarm `CORRUPT`: the data of a member differs from that of the others, and the API server serves nothing until the alarm is disarmed"
        => "Keelway replaces the member; if etcd does not report which one it is, or most members are corrupt, `keelway plan` reports what to do: docs/operations.md, \".. an etcd member is corrupt\"";
    MemberMissing, WARNING, "Cluster", "EtcdMembersHealthy":
        "a member that the documents record is not in etcd's member list: a person removed it with another client"
        => "Keelway replaces the member once the members that remain work: docs/stores.md, \"Conditions\"";
    MemberUnknown, WARNING, "Cluster", "EtcdMembersHealthy":
        "etcd's member list has a member that no component of the cluster runs: a person added it with another client"
        => "remove it from the list: docs/stores.md, \"Conditions\"";
    MemberLagging, WARNING, "Cluster", "EtcdMembersHealthy":
        "a member responds and is more than 5000 entries of the log behind the leader"
        => "check the disk and the network of the member's machine; the condition is removed once the member has caught up";
    SnapshotFailed, WARNING, "Cluster", "EtcdBackedUp":
        "the last attempt to take a snapshot of etcd failed, as the message says; earlier snapshots are not affected"
        => "correct what the message names; Keelway tries again at the next time of `spec.etcd.snapshots.schedule`, and `keelway snapshot create` at once: docs/backup.md";
    UpgradingKubernetes, NORMAL, "Cluster", "KubernetesUpToDate":
        "the components are changed to the Kubernetes release of the document, one at a time; the message has the progress"
        => "nothing; if it does not continue, repair the component that the message names: docs/upgrades.md";
    PreflightFailed, WARNING, "Cluster", "KubernetesUpToDate":
        "an upgrade of Kubernetes has not begun: checks of the cluster found what would fail with the next minor version, or a machine cannot fetch an image of the \
         release"
        => "correct what the message names, or ignore a check with `keelway cluster upgrade --ignore-preflight-errors`: docs/upgrades.md";
    UntestedPatch, WARNING, "Cluster", "VersionTested":
        "`spec.version` is a patch release that is newer than those with which this release of Keelway was tested"
        => "nothing, if you need a fix of that patch release; the condition is removed by a release of Keelway that was tested with it";
    RotationInProgress, NORMAL, "Cluster", "KeysRotating":
        "a key of the cluster is being rotated, and both its generations are valid; the message names the phase and what it waits for"
        => "nothing; if it does not finish, repair what the message names: docs/rotation.md";
    RotationPrepared, NORMAL, "Cluster", "KeysRotating":
        "a new key is in use, and the previous one is still valid"
        => "once nothing relies on the previous key, remove it: `keelway cluster rotate --complete` with the flag of the key: docs/rotation.md";
    Upgrading, NORMAL, "Cluster", "KeelwayUpToDate":
        "Keelway's components of the cluster are being upgraded to the manager's release, one at a time"
        => "nothing; if it does not finish, the cluster's other conditions name what it waits for; no later wave begins until then";
    AwaitsWave, NORMAL, "Cluster", "KeelwayUpToDate":
        "Keelway's components of the cluster stay at an earlier release until every cluster of the earlier waves runs the manager's release, is available and is not degraded"
        => "nothing; if it does not finish, check the clusters with the reason `Upgrading`: docs/operations.md, \".. a new release of Keelway\"";
}

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        for reason in ALL {
            assert_eq!(ConditionReason::of_name(reason.as_str()), Some(*reason));
        }
    }
}
