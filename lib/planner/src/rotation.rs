//! Rotations of keys and authorities while a cluster runs.
//!
//! The gates, one for each phase. A phase ends when its effect was observed on every component that is concerned, and not because time has passed:
//!
//! 1. Announcing: the next key is minted beside the active one. Everything that verifies or decrypts with it runs with it before it is used, so whatever
//!    it signs is accepted everywhere.
//! 2. Activating: the next key becomes the active one in one save, and the active one the previous one. It ends when every component that signs runs with
//!    the new key, so the previous one signs nothing any more. Of an authority: when every component runs with certificates that the new generation
//!    signed.
//! 3. Reencrypting, of the encryption key only: every Secret is written again. It ends when the cluster records that all were. Before an activation, the
//!    same is done for data that only a previous key decrypts, which a cluster that began with a snapshot of another one may have.
//! 4. Prepared: both keys are valid. Only a person knows whether something still relies on the previous one, and says so in the request.
//! 5. Retiring: the previous key is removed. It ends when no component runs with it. The encryption key is removed only if the store of this moment
//!    records that every Secret was written again: it may have been restored since.
//!
//! Pods and users verify API servers with the authority that signs certificates of clients, too. They know the previous generation only, until a person
//! has replaced what they use. So API servers and gateways present certificates of the previous generation until that person completes the rotation.
//! Then Retiring begins with new certificates for them, and the previous generation is removed once they are in use.
//!
//! An immediate rotation, of a key that was stolen, does not wait for machines that do not respond. For workers and fleet agents it waits for a short
//! time, because the thief can register some that never follow. The encryption key has no immediate rotation: if an unobserved API server writes a
//! Secret, nothing can read it without the previous key.
//!
//! A component on a machine that does not respond may run with the keys of before, so it keeps the phase. So does a component that leaves, until it has
//! left.
//!
//! The Secret is saved before its Cluster. A pass after an interruption between the two finds the next key in use, and continues from there.

mod blocker;
mod report;
mod trust_holder;

use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    ByteString, Cluster, Secret, Time,
    component::ComponentSpec,
    documents::SecretName,
    duration::Span,
    entries::CompactMap,
    machine::ObservedValue,
    name::{ClusterId, ClusterRef, PodName},
    role::Role,
    rotation::{KeyRotation, RotatedKey, RotationPhase, RotationRequest},
};

use crate::{
    Decision, MintRequest, PassObservation, WaitBlocker, WaitKind, WaitSubject, Waiting,
    bundles::derived,
    certificates::awaits_issue,
    minted::{found, is_next},
    plan::Plan,
    pod::{PodInputs, key_name},
    rebuild::rebuild_of,
    secret_names::{common_name, secret_of},
    tenant::Tenant,
    world::ValidatedDocuments,
};

use report::report;

pub use blocker::{RotationBlocker, TrustHolder};
pub use trust_holder::follows_trust;

/// What a phase does, for people.
pub(crate) fn effect_of(phase: RotationPhase) -> &'static str {
    match phase {
        RotationPhase::Announcing => "create the next generation, and distribute it",
        RotationPhase::Activating => "the next generation becomes the active one; the previous one stays valid",
        RotationPhase::Reencrypting => "every Secret is written again, so that the new key encrypts it",
        RotationPhase::Prepared => {
            "only the new generation is used; the previous one stays valid until the rotation is completed"
        }
        RotationPhase::Retiring => "remove the previous generation",
        RotationPhase::Completed => "the previous generation is gone",
    }
}

/// The next step of a rotation.
enum RotationStep {
    Begin(Time),
    Mint,
    Activate,
    Enter(RotationPhase),
    /// Writes Secrets again with the key of this name, of which so many were written.
    Rewrite(String, u64),
    RemovePrevious,
    Retire,
    Wait(WaitKind, RotationBlocker),
}

/// The highest number of names in `leftBehind`. The thief of a key can register any number of workers.
const MOST_NAMES: usize = 100;

/// What a rotation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RotationPace {
    /// For everything that may need the previous key.
    Careful,
    /// For what responds.
    Immediate,
}

impl RotationPace {
    fn of(tenant: &Tenant, key: RotatedKey) -> Self {
        if tenant.document.rotates_immediately(key) { Self::Immediate } else { Self::Careful }
    }
}

/// A cluster with the key that is rotated.
struct RotationTarget {
    cluster: ClusterRef,
    id: ClusterId,
    key: RotatedKey,
    /// The lifetime of the cluster's authorities.
    authority_ttl: Span,
    /// What the phase leaves behind if it ends now.
    left_behind: BTreeSet<String>,
}

/// Takes the next step of each rotation, and reports those that run.
pub(crate) fn plan_rotations(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation, now: &Time) {
    let mut steps: Vec<(RotationTarget, RotationStep)> = Vec::new();
    for tenant in Tenant::all(&plan.documents, world).filter(is_rotated) {
        for key in RotatedKey::ALL {
            let target = || RotationTarget {
                cluster: tenant.cluster.reference.clone(),
                id: tenant.id.clone(),
                key,
                authority_ttl: tenant.cluster.certificates.authority_ttl,
                left_behind: tenant
                    .document
                    .running_rotation(key)
                    .map(|rotation| left_behind(&tenant, seen, (key, rotation)))
                    .unwrap_or_default(),
            };
            steps.extend(next_step(&tenant, world, seen, (key, now)).map(|step| (target(), step)));
        }
    }
    for (target, step) in &steps {
        take(plan, target, step, now);
    }
    let blocked = steps.iter().filter_map(|(target, step)| {
        let text = match step {
            RotationStep::Wait(_, blocker) => format!("waits for {blocker}"),
            RotationStep::Rewrite(_, rewritten) => format!("{rewritten} Secrets were written again so far"),
            RotationStep::Begin(_)
            | RotationStep::Mint
            | RotationStep::Activate
            | RotationStep::Enter(_)
            | RotationStep::RemovePrevious
            | RotationStep::Retire => return None,
        };
        Some(((&target.cluster, target.key), text))
    });
    report(plan, &blocked.collect(), now);
}

/// While a store is rebuilt, its pods are known by their digests, which a rotation would change.
fn is_rotated(tenant: &Tenant) -> bool {
    let document = &tenant.document;
    let is_left = tenant.cluster.paused || tenant.unusable_secrets.is_some() || rebuild_of(document).is_some();
    !is_left && document.is_initialized() && document.is_awake()
}

fn next_step(
    tenant: &Tenant,
    world: &ValidatedDocuments,
    seen: &PassObservation,
    (key, now): (RotatedKey, &Time),
) -> Option<RotationStep> {
    let Some(rotation) = tenant.document.running_rotation(key) else {
        let request = tenant.document.pending_rotation(key)?;
        return Some(RotationStep::Begin(request.requested_at.clone()));
    };
    let pace = RotationPace::of(tenant, key);
    let outdated = || {
        let holders =
            || has_holders(key).then(|| trust_holder::unconfirmed(tenant, seen, (rotation, pace), now)).flatten();
        outdated(tenant, world, seen, (key, rotation.phase, pace)).or_else(holders)
    };
    let after = |step: RotationStep| Some(outdated().unwrap_or(step));
    match rotation.phase {
        RotationPhase::Announcing if is_activated(tenant, key, rotation) => Some(RotationStep::Activate),
        RotationPhase::Announcing if !is_minted(tenant, key) => Some(RotationStep::Mint),
        RotationPhase::Announcing if key == RotatedKey::Encryption && has_previous(tenant, key) => {
            outdated().or_else(|| rewrite(tenant, seen)).or(Some(RotationStep::RemovePrevious))
        }
        RotationPhase::Announcing => after(RotationStep::Activate),
        // Only an authority issues certificates.
        RotationPhase::Activating if awaits_issue(tenant, world, seen, (secret_of(key), now.0)) => {
            Some(RotationStep::Wait(WaitKind::InProgress, RotationBlocker::Certificates(key)))
        }
        RotationPhase::Activating => after(RotationStep::Enter(match key {
            RotatedKey::Encryption => RotationPhase::Reencrypting,
            RotatedKey::ServiceAccount
            | RotatedKey::EtcdAuthority
            | RotatedKey::FrontProxyAuthority
            | RotatedKey::InfrastructureAuthority
            | RotatedKey::KubernetesAuthority => RotationPhase::Prepared,
        })),
        RotationPhase::Reencrypting => {
            Some(rewrite(tenant, seen).unwrap_or(RotationStep::Enter(RotationPhase::Prepared)))
        }
        RotationPhase::Prepared => {
            let request = tenant.document.spec.rotations.request(key)?;
            if request.requested_at != rotation.requested_at {
                let requested_at = rotation.requested_at.clone();
                return Some(RotationStep::Wait(
                    WaitKind::Blocked,
                    RotationBlocker::OtherRequest { key, requested_at },
                ));
            }
            let unwritten = || (key == RotatedKey::Encryption).then(|| rewrite(tenant, seen)).flatten();
            let retire =
                if has_holders(key) { RotationStep::Enter(RotationPhase::Retiring) } else { RotationStep::Retire };
            request.is_complete().then(|| outdated().or_else(unwritten).unwrap_or(retire))
        }
        RotationPhase::Retiring if has_holders(key) && has_previous(tenant, key) => {
            if awaits_issue(tenant, world, seen, (secret_of(key), now.0)) {
                return Some(RotationStep::Wait(WaitKind::InProgress, RotationBlocker::Certificates(key)));
            }
            after(RotationStep::RemovePrevious)
        }
        RotationPhase::Retiring => after(RotationStep::Enter(RotationPhase::Completed)),
        RotationPhase::Completed => None,
    }
}

/// Whether the next key is in use already: the last pass was interrupted after it had saved the Secret.
fn is_activated(tenant: &Tenant, key: RotatedKey, rotation: &KeyRotation) -> bool {
    let secret = secret_of(key);
    tenant.fingerprint(secret).is_some_and(|active| is_next(rotation, &active))
}

/// Whether this authority is trusted outside of the control plane: by workers or fleet agents, which report it, and by users.
fn has_holders(key: RotatedKey) -> bool {
    key == RotatedKey::KubernetesAuthority
}

/// Whether a previous generation is left. Before an activation, it is an encryption key of another cluster, whose snapshot this one began with.
fn has_previous(tenant: &Tenant, key: RotatedKey) -> bool {
    kept_halves(key).iter().any(|half| tenant.value(secret_of(key), &entry("previous", half)).is_some())
}

/// Writes Secrets again until the store records that the active key encrypts all of them. None: it does.
fn rewrite(tenant: &Tenant, seen: &PassObservation) -> Option<RotationStep> {
    let wait = |why: &str| Some(RotationStep::Wait(WaitKind::InProgress, RotationBlocker::Api(why.to_string())));
    let Some(active) = tenant.value(secret_of(RotatedKey::Encryption), "active.key") else {
        return wait("the documents have no active key");
    };
    let key_name = key_name(active);
    match seen.rewrites.get(tenant.id) {
        None => wait("it was not asked yet"),
        Some(ObservedValue::Unreachable { why, .. }) => wait(why),
        Some(ObservedValue::Known(found)) if found.key != key_name => Some(RotationStep::Rewrite(key_name, 0)),
        Some(ObservedValue::Known(found)) if !found.is_complete => {
            Some(RotationStep::Rewrite(key_name, found.rewritten))
        }
        Some(ObservedValue::Known(_)) => None,
    }
}

/// Whether a pass needs to know which Secrets of the cluster were written again with its encryption key.
#[must_use]
pub fn rewrites_secrets(cluster: &Cluster) -> bool {
    let key = RotatedKey::Encryption;
    let is_complete = || cluster.spec.rotations.request(key).is_some_and(RotationRequest::is_complete);
    cluster.running_rotation(key).filter(|_| cluster.is_changeable()).is_some_and(|rotation| match rotation.phase {
        RotationPhase::Announcing | RotationPhase::Reencrypting => true,
        RotationPhase::Prepared => is_complete(),
        RotationPhase::Activating | RotationPhase::Retiring | RotationPhase::Completed => false,
    })
}

/// Whether the Secret has everything that an activation needs.
fn is_minted(tenant: &Tenant, key: RotatedKey) -> bool {
    let secret = secret_of(key);
    halves(key).iter().all(|half| {
        let has = |generation: &str| tenant.value(secret, &entry(generation, half)).is_some();
        has("active") && has("next")
    })
}

/// The parts of each generation in the Secret of a key.
fn halves(key: RotatedKey) -> &'static [&'static str] {
    match key {
        RotatedKey::ServiceAccount => &["key", "pub"],
        RotatedKey::Encryption => &["key"],
        RotatedKey::EtcdAuthority
        | RotatedKey::FrontProxyAuthority
        | RotatedKey::InfrastructureAuthority
        | RotatedKey::KubernetesAuthority => &["key", "crt"],
    }
}

/// The parts of the previous generation that stay: of a key that signs, the half that verifies. A key that encrypts also decrypts. The authority of
/// workers and users still signs certificates of servers.
fn kept_halves(key: RotatedKey) -> &'static [&'static str] {
    match key {
        RotatedKey::ServiceAccount => &["pub"],
        RotatedKey::Encryption => &["key"],
        RotatedKey::EtcdAuthority | RotatedKey::FrontProxyAuthority | RotatedKey::InfrastructureAuthority => &["crt"],
        RotatedKey::KubernetesAuthority => &["key", "crt"],
    }
}

fn entry(generation: &str, half: &str) -> String {
    format!("{generation}.{half}")
}

/// The roles that have to run with the keys of a phase before it ends.
fn concerned(key: RotatedKey, phase: RotationPhase) -> &'static [Role] {
    match (key, phase) {
        // Both sign tokens, and the API servers verify them.
        (RotatedKey::ServiceAccount, RotationPhase::Activating | RotationPhase::Prepared) => {
            &[Role::KubeApiserver, Role::KubeControllerManager]
        }
        (RotatedKey::ServiceAccount | RotatedKey::Encryption, _) => &[Role::KubeApiserver],
        (RotatedKey::EtcdAuthority, _) => &[Role::Etcd, Role::KubeApiserver],
        (RotatedKey::FrontProxyAuthority, _) => {
            &[Role::KubeApiserver, Role::KubeControllerManager, Role::KubeScheduler]
        }
        (RotatedKey::InfrastructureAuthority, _) => {
            &[Role::KubeApiserver, Role::KubeControllerManager, Role::KubeScheduler, Role::Gateway]
        }
        (RotatedKey::KubernetesAuthority, _) => &[
            Role::KubeApiserver,
            Role::KubeControllerManager,
            Role::KubeScheduler,
            Role::ClusterController,
            Role::FleetController,
            Role::Ingress,
            Role::Gateway,
        ],
    }
}

/// Whether a component runs with every file that its document specifies. Unless the rotation is immediate, it has to be healthy, too.
fn has_all_files(
    tenant: &Tenant,
    world: &ValidatedDocuments,
    seen: &PassObservation,
    (pod, spec, pace): (&PodName, &ComponentSpec, RotationPace),
) -> bool {
    let state = seen.machine(&spec.hypervisor);
    let runs_with_files = || {
        let wanted = PodInputs::of(tenant, world, pod, spec)?.pod().ok()?;
        Some(state?.runs_with_files(pod, (&wanted, &wanted.digests())))
    };
    match pace {
        RotationPace::Careful => seen.healthy(pod) && runs_with_files() == Some(true),
        // What does not run has no key, and starts with the files of its document.
        RotationPace::Immediate => !state.is_some_and(|state| state.runs(pod)) || runs_with_files() == Some(true),
    }
}

/// The workers or agents that do not have what the phase requires, and the components on machines that do not respond. Only an immediate rotation continues
/// without such components.
fn left_behind(
    tenant: &Tenant,
    seen: &PassObservation,
    (key, rotation): (RotatedKey, &KeyRotation),
) -> BTreeSet<String> {
    let is_immediate = RotationPace::of(tenant, key) == RotationPace::Immediate;
    let components = concerned(key, rotation.phase).iter().flat_map(|role| tenant.of_role(*role));
    let silent = components.filter(|(_, found)| is_immediate && seen.machine(&found.spec.hypervisor).is_none());
    let silent = silent.map(|(pod, component)| format!("{} on {}", pod.component, component.spec.hypervisor));
    let holders = has_holders(key).then(|| trust_holder::left_behind(tenant, seen, rotation.phase));
    silent.chain(holders.into_iter().flatten()).collect()
}

/// The first component that does not run with the keys of the phase, or may not.
fn outdated(
    tenant: &Tenant,
    world: &ValidatedDocuments,
    seen: &PassObservation,
    (key, phase, pace): (RotatedKey, RotationPhase, RotationPace),
) -> Option<RotationStep> {
    let mut all = concerned(key, phase).iter().flat_map(|role| tenant.of_role(*role));
    let (pod, component) =
        all.find(|(pod, component)| !has_all_files(tenant, world, seen, (pod, &component.spec, pace)))?;
    let (component, machine) = (pod.component.clone(), component.spec.hypervisor.clone());
    Some(if seen.machine(&machine).is_some() {
        RotationStep::Wait(WaitKind::InProgress, RotationBlocker::Component { component, key, phase })
    } else {
        RotationStep::Wait(WaitKind::Blocked, RotationBlocker::Machine { machine, component, key, phase })
    })
}

fn take(plan: &mut Plan, target: &RotationTarget, step: &RotationStep, now: &Time) {
    match step {
        RotationStep::Begin(requested_at) => {
            change(plan, target, |place| {
                let phase = RotationPhase::Announcing;
                *place = Some(KeyRotation {
                    requested_at: requested_at.clone(),
                    phase,
                    since: now.clone(),
                    next: None,
                    rewritten: None,
                    left_behind: BTreeSet::new(),
                });
            });
            decide(plan, target, RotationPhase::Announcing);
            mint(plan, target);
        }
        RotationStep::Mint => mint(plan, target),
        RotationStep::Activate => {
            change_secret(plan, target, |secret| activate(secret, target.key));
            enter(plan, target, RotationPhase::Activating, now);
            record_active(plan, target);
        }
        RotationStep::Enter(phase) => enter(plan, target, *phase, now),
        RotationStep::Rewrite(key_name, rewritten) => {
            let (key_name, rewritten) = (key_name.clone(), *rewritten);
            change(plan, target, |place| {
                if let Some(rotation) = place {
                    rotation.rewritten = Some(rewritten);
                }
            });
            plan.rewrites.insert(target.id.clone(), key_name.clone());
            wait(plan, target, WaitKind::InProgress, RotationBlocker::Secrets { key_name, rewritten });
        }
        RotationStep::RemovePrevious => {
            remove_previous(plan, target);
            // Workers and agents read the last bundle from now on.
            change(plan, target, |place| {
                if let Some(rotation) = place {
                    rotation.since = now.clone();
                }
            });
        }
        RotationStep::Retire => {
            remove_previous(plan, target);
            enter(plan, target, RotationPhase::Retiring, now);
        }
        RotationStep::Wait(kind, blocker) => wait(plan, target, *kind, blocker.clone()),
    }
}

fn wait(plan: &mut Plan, target: &RotationTarget, kind: WaitKind, blocker: RotationBlocker) {
    let subject = WaitSubject::ClusterSecret(target.cluster.clone(), secret_of(target.key));
    plan.waiting.push(Waiting::of_cluster(subject, kind, WaitBlocker::Rotation(blocker)));
}

fn remove_previous(plan: &mut Plan, target: &RotationTarget) {
    change_secret(plan, target, |secret| {
        for half in kept_halves(target.key) {
            secret.remove(&entry("previous", half));
        }
    });
}

fn mint(plan: &mut Plan, RotationTarget { id, key, authority_ttl, .. }: &RotationTarget) {
    let secret = SecretName::of(id, secret_of(*key));
    plan.mint.push(match key {
        RotatedKey::ServiceAccount => MintRequest::NextServiceAccountKey { secret },
        RotatedKey::Encryption => MintRequest::NextEncryptionKey { secret },
        RotatedKey::EtcdAuthority
        | RotatedKey::FrontProxyAuthority
        | RotatedKey::InfrastructureAuthority
        | RotatedKey::KubernetesAuthority => {
            let common_name = common_name(&secret.name).to_string();
            MintRequest::NextAuthority { secret, common_name, ttl: *authority_ttl }
        }
    });
}

fn enter(plan: &mut Plan, target: &RotationTarget, phase: RotationPhase, now: &Time) {
    change(plan, target, |place| {
        if let Some(rotation) = place {
            (rotation.phase, rotation.since) = (phase, now.clone());
            (rotation.next, rotation.rewritten) = (None, None);
            let room = MOST_NAMES.saturating_sub(rotation.left_behind.len());
            rotation.left_behind.extend(target.left_behind.iter().take(room).cloned());
        }
    });
    if !target.left_behind.is_empty() {
        let (cluster, names) = (target.cluster.clone(), target.left_behind.iter().take(MOST_NAMES).cloned().collect());
        plan.decisions.push(Decision::LeaveBehind { cluster, key: target.key, names });
    }
    decide(plan, target, phase);
}

fn decide(plan: &mut Plan, RotationTarget { cluster, key, .. }: &RotationTarget, phase: RotationPhase) {
    plan.decisions.push(Decision::RotateKey { cluster: cluster.clone(), key: *key, phase });
}

fn change(plan: &mut Plan, target: &RotationTarget, change: impl FnOnce(&mut Option<KeyRotation>)) {
    let Some(cluster) = plan.documents.clusters.get_mut(&target.cluster) else { return };
    let rotations = cluster.status.get_or_insert_default().rotations.get_or_insert_default();
    change(rotations.rotation_mut(target.key));
}

type SecretValues = CompactMap<ByteString>;

/// Changes the generations of a key, and derives its bundle again.
fn change_secret(plan: &mut Plan, target: &RotationTarget, change: impl FnOnce(&mut SecretValues)) {
    let name = SecretName::of(&target.id, secret_of(target.key));
    let Some(secret) = plan.documents.secrets.get_mut(&name) else { return };
    change(secret.data.get_or_insert_default());
    match target.key {
        RotatedKey::ServiceAccount => derive_bundle(secret, "bundle.pub", "pub"),
        RotatedKey::Encryption => {}
        RotatedKey::EtcdAuthority
        | RotatedKey::FrontProxyAuthority
        | RotatedKey::InfrastructureAuthority
        | RotatedKey::KubernetesAuthority => {
            derive_bundle(secret, "bundle.crt", "crt");
        }
    }
}

fn derive_bundle(secret: &mut Secret, bundle: &str, half: &str) {
    secret.data.get_or_insert_default().remove(bundle);
    if let Some(content) = derived(secret, bundle, half) {
        secret.data.get_or_insert_default().insert(bundle.to_string(), content);
    }
}

/// Does nothing if the next key is in use already.
fn activate(values: &mut SecretValues, key: RotatedKey) {
    for half in halves(key) {
        let Some(next) = values.remove(&entry("next", half)) else { continue };
        let retired = values.insert(entry("active", half), next);
        if let Some(retired) = retired.filter(|_| kept_halves(key).contains(half)) {
            values.insert(entry("previous", half), retired);
        }
    }
}

/// The new key is the cluster's own from now on.
fn record_active(plan: &mut Plan, target: &RotationTarget) {
    let secret = secret_of(target.key);
    let Some(active) = found(&plan.documents, &target.id, secret) else { return };
    if let Some(cluster) = plan.documents.clusters.get_mut(&target.cluster) {
        cluster.status.get_or_insert_default().minted.insert(secret.to_string(), active);
    }
}
