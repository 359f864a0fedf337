//! Planted bugs in rollouts. All but [`RolloutBug::ReplacesTwoServers`] change the saved documents as if the pass before had decided that.

use keelway_api::{
    ByteString, Cluster, Documents,
    component::ComponentSpec,
    documents::SecretName,
    entries::CompactMap,
    name::ClusterId,
    release::{MINORS, MinorRelease, Release, find},
    role::Role,
    rotation::{RotatedKey, RotationPhase},
};
use keelway_planner::trust::secret_of;

use super::{bug::Bug, rollout_rules as rules, state::SimulationState};

/// A bug in a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutBug {
    /// A controller manager is upgraded before the API servers.
    UpgradesControllersFirst,
    /// An API server is upgraded before the etcd members.
    UpgradesServersFirst,
    /// An API server is upgraded by two minor versions at once.
    SkipsAMinorVersion,
    /// An etcd member follows a refused downgrade.
    DowngradesAMember,
    /// All API servers are replaced in one pass.
    ReplacesTwoServers,
    /// An authority signs before every component trusts it.
    ActivatesBeforeAllTrust,
    /// An authority is removed while components present certificates that it signed.
    RetiresBeforeTheIssue,
    /// A key signs tokens before every API server knows it.
    SignsTokensEarly,
    /// An encryption key is removed while it encrypts Secrets.
    RetiresBeforeTheRewrite,
    /// The release that a person requests is forgotten.
    ForgetsAnUpgrade,
    /// The completion of a rotation is forgotten.
    ForgetsARotation,
    /// A rotation that is not immediate does not wait for machines that do not respond.
    SkipsTheSilent,
    /// A rotation does not wait for workers that are away and may return.
    SkipsAbsentWorkers,
    /// The documents do not name what an immediate rotation leaves behind.
    NamesNobody,
    /// The previous authority stays in the bundle after an immediate rotation.
    KeepsTrustAfterwards,
}

impl RolloutBug {
    pub(super) fn rule(self) -> &'static str {
        match self {
            Self::UpgradesControllersFirst => rules::CONTROLLERS,
            Self::UpgradesServersFirst => rules::MEMBERS,
            Self::SkipsAMinorVersion => rules::SERVERS,
            Self::DowngradesAMember => rules::DATA,
            Self::ReplacesTwoServers => rules::TURNS,
            Self::ActivatesBeforeAllTrust
            | Self::RetiresBeforeTheIssue
            | Self::SignsTokensEarly
            | Self::SkipsTheSilent
            | Self::SkipsAbsentWorkers
            | Self::NamesNobody => rules::TRUST,
            Self::RetiresBeforeTheRewrite => rules::DECRYPTED,
            Self::ForgetsAnUpgrade => rules::UPGRADED,
            Self::ForgetsARotation => rules::ROTATED,
            Self::KeepsTrustAfterwards => rules::RETIRED,
        }
    }
}

impl SimulationState {
    /// Changes the saved documents as the planted bug of the run does.
    pub(super) fn plant_in_rollouts(&mut self) {
        let Some(Bug::InRollout(bug)) = self.bug.filter(|_| self.rollouts.happen) else { return };
        let clusters: Vec<Cluster> = self.saved.clusters.values().map(|cluster| (**cluster).clone()).collect();
        for cluster in clusters.iter().filter(|cluster| cluster.is_initialized() && !cluster.deleted()) {
            if let Some(id) = cluster.id() {
                plant(bug, &mut self.saved, (cluster, id));
            }
        }
    }
}

fn plant(bug: RolloutBug, documents: &mut Documents, (cluster, id): (&Cluster, &ClusterId)) {
    use RotatedKey::{Encryption, EtcdAuthority, InfrastructureAuthority, KubernetesAuthority, ServiceAccount};
    use RotationPhase::{Activating, Announcing, Reencrypting};
    let phase = |key: RotatedKey| cluster.rotation(key).map(|rotation| rotation.phase);
    match bug {
        RolloutBug::UpgradesControllersFirst => {
            change_release(documents, (cluster, id), Role::KubeControllerManager, next_minor);
        }
        RolloutBug::UpgradesServersFirst => change_release(documents, (cluster, id), Role::KubeApiserver, next_minor),
        RolloutBug::SkipsAMinorVersion => {
            let skipped = |runs: &Release, wanted: &Release| Some(*wanted).filter(|to| to.minor() > runs.minor() + 1);
            change_release(documents, (cluster, id), Role::KubeApiserver, skipped);
        }
        RolloutBug::DowngradesAMember => {
            let older = |runs: &Release, wanted: &Release| Some(*wanted).filter(|to| to.minor() < runs.minor());
            change_release(documents, (cluster, id), Role::Etcd, older);
        }
        RolloutBug::ActivatesBeforeAllTrust => {
            for key in [EtcdAuthority, KubernetesAuthority].into_iter().filter(|key| phase(*key) == Some(Announcing)) {
                change_key(documents, id, key, activate);
            }
        }
        RolloutBug::SignsTokensEarly if phase(ServiceAccount) == Some(Announcing) => {
            change_key(documents, id, ServiceAccount, activate);
        }
        RolloutBug::RetiresBeforeTheIssue => {
            let authorities = [EtcdAuthority, InfrastructureAuthority, KubernetesAuthority];
            for key in authorities.into_iter().filter(|key| phase(*key) == Some(Activating)) {
                change_key(documents, id, key, retire);
            }
        }
        RolloutBug::RetiresBeforeTheRewrite if matches!(phase(Encryption), Some(Activating | Reencrypting)) => {
            change_key(documents, id, Encryption, retire);
        }
        RolloutBug::ForgetsAnUpgrade => {
            let reached = cluster.status.as_ref().and_then(|status| status.version.clone());
            if let (Some(reached), Some(cluster)) = (reached, documents.clusters.get_mut(&cluster.reference())) {
                cluster.spec.version = reached;
            }
        }
        RolloutBug::ForgetsARotation => {
            if let Some(cluster) = documents.clusters.get_mut(&cluster.reference()) {
                for key in RotatedKey::ALL {
                    if let Some(request) = cluster.spec.rotations.request_mut(key) {
                        request.complete = false;
                    }
                }
            }
        }
        RolloutBug::SkipsTheSilent => {
            if let Some(cluster) = documents.clusters.get_mut(&cluster.reference()) {
                for key in RotatedKey::ALL {
                    if let Some(request) = cluster.spec.rotations.request_mut(key) {
                        request.immediate = true;
                    }
                }
            }
        }
        RolloutBug::SignsTokensEarly
        | RolloutBug::RetiresBeforeTheRewrite
        | RolloutBug::ReplacesTwoServers
        | RolloutBug::SkipsAbsentWorkers
        | RolloutBug::NamesNobody
        | RolloutBug::KeepsTrustAfterwards => {}
    }
}

/// Changes the first component of a role that `to` changes. It gets what a component runs, and what its cluster is to run.
fn change_release(
    documents: &mut Documents,
    (cluster, id): (&Cluster, &ClusterId),
    role: Role,
    to: impl Fn(&Release, &Release) -> Option<Release>,
) {
    let Some(wanted) = find(&cluster.spec.version) else { return };
    let change = |spec: &ComponentSpec| to(&find(&spec.version)?, &wanted);
    let mut of_role = documents.components_of_mut(id).filter(|(_, component)| component.spec.role == role);
    let found = of_role.find_map(|(_, component)| Some((change(&component.spec)?, component)));
    if let Some((release, component)) = found {
        component.spec.version = release.to_string();
    }
}

fn next_minor(runs: &Release, wanted: &Release) -> Option<Release> {
    let next = MINORS.iter().find(|row| row.minor == runs.minor() + 1).filter(|row| row.minor <= wanted.minor());
    next.map(MinorRelease::newest_tested)
}

fn change_key(documents: &mut Documents, id: &ClusterId, key: RotatedKey, change: fn(&mut CompactMap<ByteString>)) {
    if let Some(values) =
        documents.secrets.get_mut(&SecretName::of(id, secret_of(key))).and_then(|secret| secret.data.as_mut())
    {
        change(values);
    }
}

/// The next generation becomes the active one.
fn activate(values: &mut CompactMap<ByteString>) {
    for half in ["key", "crt", "pub"] {
        let Some(next) = values.remove(&format!("next.{half}")) else { continue };
        if let Some(retired) = values.insert(format!("active.{half}"), next) {
            values.insert(format!("previous.{half}"), retired);
        }
    }
}

/// The previous generation is removed. The planner derives the bundle again.
fn retire(values: &mut CompactMap<ByteString>) {
    for entry in ["previous.key", "previous.crt", "previous.pub", "bundle.crt", "bundle.pub"] {
        values.remove(entry);
    }
}

/// Removes the names of what rotations have left behind.
pub(super) fn forget_names(documents: &mut Documents) {
    let rotations = documents.clusters.values_mut().filter_map(|cluster| cluster.status.as_mut()?.rotations.as_mut());
    for rotations in rotations {
        for key in RotatedKey::ALL {
            if let Some(rotation) = rotations.rotation_mut(key) {
                rotation.left_behind.clear();
            }
        }
    }
}
