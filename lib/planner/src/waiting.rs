//! What a plan waits for, as data, and its text for people.

use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use keelway_api::{
    documents::SecretName,
    fault::Fault,
    hypervisor::LOST_ANNOTATION,
    jiff::{SignedDuration, Timestamp},
    machine::{DISK_RESERVE, STATE_DIRECTORY},
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    release::{KEELWAY, Release},
    role::Role,
    store_observation::MemberId,
    store_rebuild::RebuildPhase,
};

use crate::{
    ComponentRef, MachineRefusal, MissingKey, PlacementError, PreflightBlocker, RecoveryBlocker, RestoreBlocker,
    RotationBlocker, SleepBlocker, StoreOrder,
    installation::RESTORE,
    minted::UnusableReason,
    recover::role_of,
    store_start::DATA,
    text::{count, joined, listed},
};

/// Something that is not in its desired state yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What waits.
    pub subject: WaitSubject,
    /// What it waits for.
    pub blocker: WaitBlocker,
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

/// What waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitSubject {
    /// Everything: `the installation`.
    Installation,
    /// A machine: `hv-1`.
    Hypervisor(HypervisorName),
    /// A Secret of the installation.
    Secret(SecretName),
    /// A cluster: `c1`.
    Cluster(ClusterRef),
    /// A component of a cluster: `c1/kube-apiserver-0`.
    Component(ComponentRef),
    /// All components of one role of a cluster: `c1/ingress`.
    Role(ClusterRef, Role),
    /// A Secret of a cluster: `c1/kubernetes`.
    ClusterSecret(ClusterRef, &'static str),
}

/// What something waits for. The text follows "waits for", and names the remedy if a person has to act.
#[expect(missing_docs, reason = "the texts state what is missing")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaitBlocker {
    // Of machines.
    #[error("manual action: {0}")]
    RefusingMachine(MachineRefusal),
    #[error("manual action: {0}")]
    LaterLeader(String),
    #[error("a response: {0}")]
    Response(String),
    #[error(
        "its container runtime, which does not respond: restart it (`systemctl restart containerd`); its containers keep running: {0}"
    )]
    SilentRuntime(String),
    #[error("{0}")]
    Enrollment(String),
    #[error("its agent: {0}")]
    NoAgent(String),
    #[error("its agent to remove what Keelway recorded on it")]
    AgentRecords,
    #[error("the agents of {}, which Keelway starts first", joined(.0, ", "))]
    StartingAgents(Vec<HypervisorName>),
    #[error("its agent to stop")]
    AgentStop,
    #[error("its agent to respond, which Keelway then stops; if the machine is gone for good, mark it as lost")]
    AgentToStop,
    #[error(
        "room on its disk: less than {} MiB are left in {STATE_DIRECTORY}: delete files that do not belong to Keelway, or enlarge the \
         disk; no component is placed there until then",
        DISK_RESERVE >> 20
    )]
    FullDisk,
    #[error(
        "{} to leave it: `keelway hypervisor drain {machine}` (spec.drain) moves all components",
        first_of(.components)
    )]
    HeldComponents { machine: HypervisorName, components: Vec<ComponentRef> },
    #[error("the remains of components on it to be removed")]
    Remains,
    #[error("{} to be reached through another machine: change their spec.endpoint.agent.via", joined(.0, ", "))]
    ReachedMachines(Vec<HypervisorName>),

    // Of the installation.
    /// How far the clock of this host is ahead of those of most machines.
    #[error(
        "a correct clock: the clock of the host that Keelway runs on is {} minutes {} the clocks of most machines; correct it or \
         theirs; no certificate is issued until then",
        .0.abs().as_mins(), if .0.is_negative() { "ahead of" } else { "behind" }
    )]
    Clock(SignedDuration),
    #[error("this Secret: {RESTORE}; no agent receives a certificate until then")]
    MissingSecret,

    // Of clusters.
    #[error("manual action on {machine}; until then, Keelway does not change the cluster: {refusal}")]
    FrozenCluster { machine: HypervisorName, refusal: MachineRefusal },
    #[error("{field}: {problem}; {help}", field = .0.field, problem = .0.problem, help = .0.help)]
    UnsupportedChange(Fault),
    #[error("spec.paused to be false: a paused cluster is not deleted")]
    PausedDeletion,
    #[error("its components to leave {}", joined(.0, ", "))]
    Deletion(BTreeSet<HypervisorName>),
    #[error(
        "an authority that is valid: {}; an expired authority issues no certificates: create a new cluster with a longer \
         spec.certificates.authorityTTL, and move your workloads to it",
        expired(.0)
    )]
    ExpiredAuthorities(Vec<(&'static str, Timestamp)>),
    #[error(
        "the Secret {}/{secret}, which {reason}: {RESTORE}; the cluster is not changed until then",
        .cluster.namespace()
    )]
    UnusableSecret { cluster: ClusterId, secret: &'static str, reason: UnusableReason },
    #[error("{0}")]
    Rotation(RotationBlocker),
    #[error("its API to return its bindings: {0}")]
    Bindings(String),
    #[error("the first query of its bindings")]
    FirstBindings,
    #[error("{0}")]
    StoreFault(String),
    #[error("{missing} of its {wanted} members to have a machine")]
    UnplacedMembers { missing: usize, wanted: usize },

    // Of components.
    #[error("{0}")]
    Placement(#[from] PlacementError),
    #[error("its etcd members to report the member list")]
    MemberList,
    #[error(
        "a majority of its etcd members: {responding} of {asked} respond, and none reports the member list; no member is changed until then"
    )]
    StoreMajority { responding: usize, asked: usize },
    #[error(
        "a person: the data of all of its etcd members is gone; restore a snapshot with `keelway cluster restore --name {cluster} --snapshot NAME` \
         (`keelway snapshot list {cluster}` prints the names), or delete the cluster"
    )]
    StoreDataLost { cluster: String },
    #[error(
        "a majority of its etcd members: {} of {} {} ({}; not {}), and the store serves nothing: {next}",
        responding.len(), responding.len() + silent.len(), if responding.len() == 1 { "responds" } else { "respond" },
        joined(.responding, ", "), joined(.silent, ", ")
    )]
    LostQuorum { responding: Vec<ComponentName>, silent: Vec<ComponentName>, next: RecoveryBlocker },
    #[error("{}", rebuild_step(.member, *.phase))]
    Rebuild { member: ComponentName, phase: RebuildPhase },
    #[error(
        "a person: the member {id} ({name:?}) of its etcd is not recorded in status.etcd; if it is not needed, remove it with \
         `etcdctl member remove {id}`; no member is changed until then"
    )]
    UnknownMember { id: MemberId, name: String },
    #[error("{0}")]
    Restore(RestoreBlocker),
    #[error("{0}")]
    Sleep(#[from] SleepBlocker),
    #[error("its data directory")]
    DataDirectory,
    #[error("etcd: {0}")]
    StoreOrder(StoreOrder),
    #[error("{0}")]
    UnclearCorruption(UnclearCorruption),
    #[error(
        "space in its etcd: the data in use fills the quota, so neither compaction nor defragmentation makes room: increase spec.etcd.quota, or \
         delete objects; the alarm NOSPACE is disarmed then"
    )]
    FilledQuota,
    #[error("a response of {0}, which raised the alarm NOSPACE: the alarm is disarmed once its database has room")]
    MemberWithoutSpace(MemberId),
    #[error(
        "a majority of healthy etcd members beside it: its database is to be defragmented, and it does not respond meanwhile; {healthy} of \
         {voters} would be healthy"
    )]
    MajorityBesideDefragmentation { healthy: usize, voters: usize },
    #[error("{0} to be healthy: a member is added only while all others are")]
    HealthyVoter(ComponentName),
    #[error("the start of its etcd as a learner")]
    LearnerStart,
    #[error("its etcd to catch up: it has {percent} % of the log")]
    LearnerBehind { percent: u64 },
    #[error("a majority of healthy etcd members: with its vote, {healthy} of {voters} would be healthy")]
    MajorityAfterPromotion { healthy: usize, voters: usize },
    #[error("a majority of healthy etcd members: without it, {healthy} of {voters} would be healthy")]
    MajorityAfterRemoval { healthy: usize, voters: usize },
    #[error("its etcd to elect a leader")]
    StoreLeader,
    #[error("{0} to stop using it")]
    ServerOfMember(ComponentName),
    #[error("its machine: if it does not respond until {0}, another member replaces it")]
    UnavailableMember(Timestamp),
    #[error("its removal: it is no etcd member")]
    UnusedMember,
    #[error("{} to be ready before it leaves", joined(.0, " or "))]
    ReadyReplicas(Vec<ComponentName>),
    #[error("{0} to stop sending it connections")]
    Sender(ComponentName),
    #[error("{0} to stop it")]
    Stop(HypervisorName),
    #[error("{machine} to respond: {component} may still run there")]
    UnobservedMachine { machine: HypervisorName, component: ComponentName },
    #[error(
        "{machine} to respond: {component} may still run there; bring the machine back, or, if it is lost for good, annotate its \
         Hypervisor with {LOST_ANNOTATION}=true"
    )]
    SilentMachine { machine: HypervisorName, component: ComponentName },
    #[error("the gateway of this name to be removed from its previous machine")]
    PreviousGateway,
    #[error("its haproxy to report its servers")]
    UnreportedServers,
    #[error("{} to {server} to end", count(*.sessions, "connection"))]
    Connections { server: String, sessions: usize },
    #[error("its turn to run {version}: {first} must be ready first")]
    Upgrade { version: Release, first: ComponentName },
    #[error("its turn to run {version}: {leaving}, which runs an earlier minor version, must be removed first")]
    UpgradeAfterRemoval { version: Release, leaving: ComponentName },
    #[error("{0}")]
    Preflight(PreflightBlocker),
    #[error("its turn to run {version}: {machine} has to fetch {image} first{}", following(.failure))]
    Prefetch { version: Release, machine: HypervisorName, image: String, failure: String },
    #[error("its turn to run {version}: {machine} has to have room on its disk first")]
    UpgradeOnFullDisk { version: Release, machine: HypervisorName },
    #[error("its turn to run {version}: Keelway's components of the cluster must run {KEELWAY} first")]
    UpgradeAfterKeelway { version: Release },
    #[error("its replacement: Keelway {KEELWAY}")]
    Replacement,
    #[error("its turn to be replaced: {0} is replaced first")]
    ReplacedAfter(ComponentName),
    #[error("its turn to be replaced: the store has to add or remove {0} first")]
    ReplacedAfterMember(ComponentName),
    #[error("its turn to be replaced: {0} must be observed first")]
    ReplacedOnceObserved(HypervisorName),
    #[error("its turn to be replaced: {0} must be ready first")]
    ReplacedOnceReady(ComponentName),
    #[error("its turn to be replaced: {0} must send connections to another one first")]
    ReplacedOnceUsed(ComponentName),
    #[error("its turn to be replaced: another one, and what is beside it, must be ready first")]
    ReplacedOnceSpared,
    #[error("{missing} in namespace {}: restore it from a backup; until then, its running pod is not changed", .cluster.namespace())]
    UnbuildablePod { cluster: ClusterId, missing: MissingKey },
    #[error(
        "its data: {STATE_DIRECTORY}/{pod}/{DATA} of {machine} is empty or missing, and no member starts empty; {}",
        if *.is_only_member {
            "it was the only member: restore the directory, or the cluster's data is lost; if you cannot, delete the cluster"
        } else {
            "the other members continue without it: restore the directory as it was, or another member replaces it after \
             spec.etcd.replaceAfter"
        }
    )]
    LostData { pod: PodName, machine: HypervisorName, is_only_member: bool },
    #[error("an API server to be ready")]
    ApiServer,
    #[error("its machine to respond")]
    MachineOfComponent,
    #[error(
        "port {port} of {machine}, on which another process listens: stop that process (`ss -lptn 'sport = :{port}'` shows it)"
    )]
    Port { machine: HypervisorName, port: u16 },
    #[error("its start")]
    Start,
    #[error("its restart: it exited with code {code}")]
    Restart { code: i32 },
    #[error("its health check to succeed: {0}")]
    HealthCheck(String),
    #[error("its first health check")]
    FirstHealthCheck,
}

/// Why no member of a store is replaced although etcd raised the alarm `CORRUPT`. Another choice could keep the corrupt data.
#[expect(missing_docs, reason = "the texts state the reasons")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnclearCorruption {
    #[error(
        "a person: etcd raised the alarm CORRUPT for its only member, so there is no other copy of the data: restore a snapshot \
         (`keelway snapshot list`); if there is none, disarm the alarm with `etcdctl alarm disarm` to use the data as it is; no member is changed \
         until then"
    )]
    OnlyMember,
    #[error(
        "a person: etcd raised the alarm CORRUPT, and does not report which member differs: compare `etcdctl endpoint hashkv --cluster`, remove \
         the member that differs from most others with `etcdctl member remove`, and disarm the alarm with `etcdctl alarm disarm`; no member is \
         changed until then"
    )]
    NoCertainMember,
    #[error(
        "a person: etcd raised the alarm CORRUPT for {corrupt} of {voters} members, so it is not certain which data is right: compare \
         `etcdctl endpoint hashkv --cluster`, and restore a snapshot; no member is changed until then"
    )]
    MostMembers { corrupt: usize, voters: usize },
}

/// What the current step of a rebuild waits for.
fn rebuild_step(member: &ComponentName, phase: RebuildPhase) -> String {
    match phase {
        RebuildPhase::Stopping => "its API servers and etcd members to stop, before its etcd is rebuilt".to_string(),
        RebuildPhase::Preparing => format!("the data of {member}, from which its etcd is rebuilt"),
        RebuildPhase::Starting => format!("{member} to become the only member of its etcd"),
        RebuildPhase::Restarting => format!("{member} to start again, as the only member of its etcd"),
        RebuildPhase::Serving => format!("an API server that uses the data of {member}"),
    }
}

/// The first of the components, and the number of the others.
fn first_of(components: &[ComponentRef]) -> String {
    const MOST: usize = 8;
    let first = joined(components.iter().take(MOST), ", ");
    match components.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {} more", count(more, "component")),
    }
}

fn expired(authorities: &[(&str, Timestamp)]) -> String {
    let all: Vec<_> = authorities.iter().map(|(secret, end)| format!("{secret} expired at {end}")).collect();
    listed(all.iter())
}

impl WaitBlocker {
    /// Whether a replica waits for its turn to be replaced, which ends by what other components report.
    #[must_use]
    pub fn is_turn(&self) -> bool {
        matches!(
            self,
            Self::ReplacedAfter(_) | Self::ReplacedOnceReady(_) | Self::ReplacedOnceUsed(_) | Self::ReplacedOnceSpared
        )
    }

    /// Whether it reports what is wrong with the members of a store.
    pub(crate) fn is_of_store(&self) -> bool {
        matches!(
            self,
            Self::StoreMajority { .. }
                | Self::StoreDataLost { .. }
                | Self::UnknownMember { .. }
                | Self::UnclearCorruption(_)
                | Self::StoreOrder(_)
        )
    }
}

impl Waiting {
    /// A wait of a cluster, or of a part of it.
    pub(crate) fn of_cluster(subject: impl Into<WaitSubject>, kind: WaitKind, blocker: impl Into<WaitBlocker>) -> Self {
        let subject = subject.into();
        let delays = subject.cluster().map(|cluster| (cluster.clone(), kind));
        Self { subject, blocker: blocker.into(), delays }
    }
}

impl WaitSubject {
    fn cluster(&self) -> Option<&ClusterRef> {
        match self {
            Self::Installation | Self::Hypervisor(_) | Self::Secret(_) => None,
            Self::Cluster(cluster) | Self::Role(cluster, _) | Self::ClusterSecret(cluster, _) => Some(cluster),
            Self::Component(component) => Some(&component.cluster),
        }
    }

    /// Whether it is the role of the cluster, or one replica of it.
    pub(crate) fn is_of_role(&self, cluster: &ClusterRef, role: Role) -> bool {
        let is_replica = |name: &ComponentName| role_of(name).is_some_and(|(of, _)| of == role);
        match self {
            Self::Component(component) => component.cluster == *cluster && is_replica(&component.component),
            Self::Role(of, other) => of == cluster && *other == role,
            Self::Installation | Self::Hypervisor(_) | Self::Secret(_) | Self::Cluster(_) | Self::ClusterSecret(..) => {
                false
            }
        }
    }

    /// The name within its cluster. None: it is not a part of a cluster.
    pub(crate) fn name_in_cluster(&self) -> Option<String> {
        match self {
            Self::Installation | Self::Hypervisor(_) | Self::Secret(_) | Self::Cluster(_) => None,
            Self::Component(component) => Some(component.component.to_string()),
            Self::Role(_, role) => Some(role.to_string()),
            Self::ClusterSecret(_, secret) => Some((*secret).to_string()),
        }
    }
}

impl From<&ClusterRef> for WaitSubject {
    fn from(cluster: &ClusterRef) -> Self {
        Self::Cluster(cluster.clone())
    }
}

/// A cause, after what it prevents.
fn following(cause: &str) -> String {
    if cause.is_empty() { String::new() } else { format!(": {cause}") }
}

impl From<&HypervisorName> for WaitSubject {
    fn from(machine: &HypervisorName) -> Self {
        Self::Hypervisor(machine.clone())
    }
}

impl From<ComponentRef> for WaitSubject {
    fn from(component: ComponentRef) -> Self {
        Self::Component(component)
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits for {}", self.subject, self.blocker)
    }
}

impl fmt::Display for WaitSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Installation => f.write_str("the installation"),
            Self::Hypervisor(machine) => write!(f, "{machine}"),
            Self::Secret(secret) => write!(f, "{}/{}", secret.namespace, secret.name),
            Self::Cluster(cluster) => write!(f, "{cluster}"),
            Self::Component(component) => write!(f, "{component}"),
            Self::Role(cluster, role) => write!(f, "{cluster}/{role}"),
            Self::ClusterSecret(cluster, secret) => write!(f, "{cluster}/{secret}"),
        }
    }
}
