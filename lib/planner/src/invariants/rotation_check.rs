//! The checks of rotated keys and authorities.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{
    Secret,
    documents::SecretName,
    machine::{MachineConfig, Pod, sha256_hex},
    name::{ClusterId, HypervisorName, PodName},
    role::Role,
    rotation::RotatedKey,
};

use super::PlanTransition;
use crate::{machine_configs, secret_names::secret_of};

type KeyValues<'a> = BTreeMap<&'a str, &'a [u8]>;

/// What a plan does with the generations of a key.
enum KeyTransition<'a> {
    /// A next key is added.
    Announced,
    /// The next key becomes the active one. The values are those of before.
    Activated(KeyValues<'a>),
    /// The previous key is removed. The values are those of before.
    Retired(KeyValues<'a>),
}

/// The values of a Secret without its bundle, which is derived from them.
fn values(secret: &Secret) -> KeyValues<'_> {
    let all = secret.data.iter().flatten().filter(|(key, _)| !key.starts_with("bundle."));
    all.map(|(key, value)| (key.as_str(), value.0.as_slice())).collect()
}

/// The values of a generation, without its name.
fn generation<'a>(values: &KeyValues<'a>, generation: &str) -> BTreeMap<&'a str, &'a [u8]> {
    let named =
        values.iter().filter_map(|(key, value)| Some((key.strip_prefix(generation)?.strip_prefix('.')?, *value)));
    named.collect()
}

/// None: a key was changed in another way.
fn transition<'a>(before: &'a Secret, after: &Secret) -> Option<KeyTransition<'a>> {
    let (before, after) = (values(before), values(after));
    let of = |values: &KeyValues<'_>, name: &str| -> Vec<(String, Vec<u8>)> {
        generation(values, name).into_iter().map(|(key, value)| (key.to_string(), value.to_vec())).collect()
    };
    let is_same = |name: &str| of(&before, name) == of(&after, name);
    let has = |values: &KeyValues<'_>, name: &str| !of(values, name).is_empty();
    // A public half may be added to a Secret without one.
    let keeps_active = ["active.key", "active.crt"].iter().all(|entry| before.get(entry) == after.get(entry));
    if keeps_active && is_same("previous") && !has(&before, "next") {
        return Some(KeyTransition::Announced);
    }
    let is_kept = of(&after, "previous").iter().all(|part| of(&before, "active").contains(part));
    if of(&before, "next") == of(&after, "active") && !has(&after, "next") && has(&after, "previous") && is_kept {
        return Some(KeyTransition::Activated(before));
    }
    if is_same("active") && is_same("next") && has(&before, "previous") && !has(&after, "previous") {
        return Some(KeyTransition::Retired(before));
    }
    None
}

/// Whether the change of a Secret is one step of a rotation.
pub(super) fn is_step(name: &str, before: &Secret, after: &Secret) -> bool {
    RotatedKey::ALL.iter().any(|key| secret_of(*key) == name) && transition(before, after).is_some()
}

/// All that verify have a key before it signs or encrypts, and nothing uses a key that is removed.
pub(super) fn keys_are_verified(step: &PlanTransition) -> Vec<String> {
    let mut found = Vec::new();
    let mut configs = None;
    for cluster in step.before.clusters.values() {
        let Some(id) = cluster.id() else { continue };
        for key in RotatedKey::ALL {
            let name = SecretName::of(id, secret_of(key));
            let both = step.before.secrets.get(&name).zip(step.after.secrets.get(&name));
            let Some((before, after)) = both.filter(|(before, after)| before != after) else { continue };
            let configs = configs.get_or_insert_with(|| machine_configs(step.before, step.seen).unwrap_or_default());
            let Some(UsedKey { files, value }) = UsedKey::of(key, before, after) else { continue };
            let is_immediate = cluster.rotates_immediately(key);
            for (role, path) in files {
                let concerned =
                    of_role(step, configs, id, *role).filter(|(pod, _)| !is_immediate || responds(step, pod));
                found.extend(concerned.filter_map(|(pod, running)| {
                    let file = running.and_then(|running| running.files.iter().find(|file| file.path == *path));
                    let has = file.is_some_and(|file| contains(&file.content, &value));
                    (!has).then(|| format!("{pod} does not run with {path}"))
                }));
            }
            if key == RotatedKey::KubernetesAuthority && !is_immediate {
                found.extend(unconfirmed(step, id, before));
            }
            if key == RotatedKey::Encryption && matches!(transition(before, after), Some(KeyTransition::Retired(_))) {
                found.extend(unwritten(step, id, before));
            }
        }
    }
    found
}

/// What components have to run with before a Secret changes.
struct UsedKey {
    /// The files that have to contain the value.
    files: &'static [(Role, &'static str)],
    value: Vec<u8>,
}

impl UsedKey {
    /// None: the change does not depend on what runs.
    fn of(key: RotatedKey, before: &Secret, after: &Secret) -> Option<Self> {
        const SIGNERS: &[(Role, &str)] =
            &[(Role::KubeApiserver, "service-account.key"), (Role::KubeControllerManager, "service-account.key")];
        let (values, is_activated) = match transition(before, after)? {
            KeyTransition::Announced => return None,
            KeyTransition::Activated(before) => (before, true),
            KeyTransition::Retired(before) => (before, false),
        };
        let value = |half: &str| {
            let generation = if is_activated { "next" } else { "active" };
            values.get(format!("{generation}.{half}").as_str()).map(|value| value.to_vec())
        };
        let (files, value): (&'static [(Role, &'static str)], _) = match key {
            RotatedKey::ServiceAccount if is_activated => {
                (&[(Role::KubeApiserver, "service-account.pub")], value("pub")?)
            }
            RotatedKey::ServiceAccount => (SIGNERS, value("key")?),
            RotatedKey::Encryption => {
                (&[(Role::KubeApiserver, "encryption.json")], STANDARD.encode(value("key")?).into_bytes())
            }
            RotatedKey::EtcdAuthority => {
                (&[(Role::Etcd, "ca.crt"), (Role::KubeApiserver, "etcd-ca.crt")], value("crt")?)
            }
            RotatedKey::FrontProxyAuthority => (
                &[
                    (Role::KubeApiserver, "front-proxy-ca.crt"),
                    (Role::KubeControllerManager, "front-proxy-ca.crt"),
                    (Role::KubeScheduler, "front-proxy-ca.crt"),
                ],
                value("crt")?,
            ),
            RotatedKey::InfrastructureAuthority => (
                &[
                    (Role::Gateway, "infrastructure-ca.crt"),
                    (Role::KubeControllerManager, "server-ca.crt"),
                    (Role::KubeScheduler, "server-ca.crt"),
                ],
                value("crt")?,
            ),
            RotatedKey::KubernetesAuthority => (
                &[
                    (Role::KubeApiserver, "ca.crt"),
                    (Role::KubeControllerManager, "ca.crt"),
                    (Role::KubeScheduler, "ca.crt"),
                    (Role::ClusterController, "ca.crt"),
                    (Role::FleetController, "ca.crt"),
                    (Role::Ingress, "ca.crt"),
                    (Role::Gateway, "ca.crt"),
                ],
                value("crt")?,
            ),
        };
        Some(Self { files, value })
    }
}

/// Every worker or agent that is ready has to trust what the documents of before contain, so that none is cut off.
fn unconfirmed(step: &PlanTransition, id: &ClusterId, before: &Secret) -> Vec<String> {
    let bundle = before.data.iter().flatten().find(|(key, _)| key.as_str() == "bundle.crt");
    let wanted = bundle.map(|(_, bundle)| sha256_hex(&bundle.0));
    let Some(reports) = step.seen.trust.get(id).and_then(|seen| seen.known()) else {
        return [format!("{id}: nobody knows what its workers or agents trust")].to_vec();
    };
    let others = reports.iter().filter(|report| report.is_ready && report.trusted != wanted);
    others.map(|report| format!("{id}: {} trusts other authorities", report.name)).collect()
}

/// The store of a cluster has to record that the active key encrypts every Secret.
fn unwritten(step: &PlanTransition, id: &ClusterId, before: &Secret) -> Option<String> {
    let active = values(before).get("active.key").map(|key| sha256_hex(key).chars().take(16).collect::<String>());
    let rewrite = step.seen.rewrites.get(id).and_then(|seen| seen.known());
    let is_written = rewrite.is_some_and(|found| found.is_complete && Some(&found.key) == active.as_ref());
    (!is_written).then(|| format!("{id}: Secrets may be encrypted with the previous key"))
}

/// The components of a role, each with its pod if it is known to run as the documents of before specify. One that the plan removes was observed to be
/// gone, which another check demands.
fn of_role<'a>(
    step: &'a PlanTransition,
    configs: &'a BTreeMap<HypervisorName, MachineConfig>,
    id: &'a ClusterId,
    role: Role,
) -> impl Iterator<Item = (&'a PodName, Option<&'a Pod>)> {
    let all = step.before.components_of(id).filter(move |(_, component)| component.spec.role == role);
    let staying = all.filter(move |(name, _)| step.after.components.contains_key(*name));
    staying.map(move |(name, component)| {
        let machine = &component.spec.hypervisor;
        let pod = configs.get(machine).and_then(|config| config.pods.get(name));
        let runs = |pod: &&Pod| {
            let state = step.seen.machine(machine);
            state.is_some_and(|state| state.runs_with_files(name, (pod, &pod.digests())))
        };
        (name, pod.filter(runs))
    })
}

/// Whether a component runs on a machine that responds. An immediate rotation waits for no other.
fn responds(step: &PlanTransition, pod: &PodName) -> bool {
    let component = step.before.components.get(pod);
    component.and_then(|component| step.seen.machine(&component.spec.hypervisor)).is_some_and(|state| state.runs(pod))
}

fn contains(content: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && content.windows(part.len()).any(|found| found == part)
}
