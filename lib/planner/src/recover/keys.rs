//! Compares keys and certificates in the files of pods with those of the documents.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{ByteString, Cluster, Documents, documents::SecretName, machine::Pod, name::ClusterId, role::Role};
use serde_json::Value;

use super::{
    HeldPod,
    pod::{file, role_of},
};
use crate::{
    minted::{ONCE, fingerprint_of, found},
    secret_names::{ENCRYPTION, ETCD, FRONT_PROXY, INFRASTRUCTURE, KUBERNETES, SERVICE_ACCOUNT, WIREGUARD},
};

/// An authority or key of a cluster that is missing in the documents or differs from them.
pub(super) struct OtherKey {
    pub(super) secret: &'static str,
    pub(super) is_missing: bool,
}

/// Compares the authorities and keys of a cluster with those of its pods. Also returns the digests of those on machines. Recorded digests
/// keep the cluster `Blocked` until its Secrets match.
pub(super) fn compare(
    documents: &Documents,
    id: &ClusterId,
    pods: &[HeldPod],
) -> (Vec<OtherKey>, BTreeMap<String, String>) {
    let (mut others, mut minted) = (Vec::new(), BTreeMap::new());
    for secret in ONCE {
        let data = documents.secrets.get(&SecretName::of(id, secret)).and_then(|secret| secret.data.as_ref());
        let value = |key: &str| data.and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        let Some(held) = pods.iter().find_map(|held| held_key(secret, held)) else { continue };
        let (is_same, active) = match &held {
            HeldKey::Authority(bundle) => {
                let held = certificates_of(bundle);
                let is_same = value("bundle.crt") == Some(bundle) || is_of_authority(&held, value);
                // The newest one is last.
                (is_same, held.last().copied().unwrap_or(bundle))
            }
            // A machine may be one phase of a rotation behind the documents.
            HeldKey::Key(key) => (
                ["active.key", "previous.key"].into_iter().any(|generation| value(generation) == Some(key)),
                key.as_slice(),
            ),
            HeldKey::Signer { key, bundle } => {
                let is_previous = match bundle {
                    Some(bundle) => value("previous.pub").is_some_and(|previous| bundle.starts_with(previous)),
                    None => value("previous.pub").is_some(),
                };
                (value("active.key") == Some(key) || is_previous, key.as_slice())
            }
        };
        if is_same {
            continue;
        }
        minted.insert(secret.to_string(), fingerprint_of(secret, active));
        others.push(OtherKey { secret, is_missing: data.is_none() });
    }
    if !others.is_empty() {
        // Keys that are the same on machines, or on no machine that responds, are the cluster's own as far as can be known.
        let rest: Vec<&str> = ONCE.into_iter().filter(|name| !minted.contains_key(*name)).collect();
        minted.extend(rest.into_iter().filter_map(|name| Some((name.to_string(), found(documents, id, name)?))));
    }
    (others, minted)
}

/// Whether all digests of a cluster's keys would be recorded. Only then does no pass mint a second key.
pub(super) fn are_all_known(cluster: &Cluster, minted: &BTreeMap<String, String>) -> bool {
    let known = cluster.status.as_ref().map(|status| &status.minted);
    ONCE.iter().all(|name| minted.contains_key(*name) || known.is_some_and(|known| known.contains_key(*name)))
}

enum HeldKey {
    /// The bundle of an authority.
    Authority(Vec<u8>),
    /// The active key.
    Key(Vec<u8>),
    /// The key that signs. The bundle begins with its public half; only API servers have it.
    Signer { key: Vec<u8>, bundle: Option<Vec<u8>> },
}

fn held_key(secret: &str, HeldPod { name, pod, .. }: &HeldPod) -> Option<HeldKey> {
    let (role, _) = role_of(&name.component)?;
    let content = |path: &str| file(pod, path).map(|file| file.content.clone());
    let path = match (secret, role) {
        (KUBERNETES, Role::Etcd) => None,
        (ETCD, Role::Etcd) | (KUBERNETES, _) => Some("ca.crt"),
        (ETCD, Role::KubeApiserver) => Some("etcd-ca.crt"),
        (FRONT_PROXY, _) => Some("front-proxy-ca.crt"),
        (INFRASTRUCTURE, Role::KubeControllerManager | Role::KubeScheduler) => Some("server-ca.crt"),
        (INFRASTRUCTURE, _) => Some("infrastructure-ca.crt"),
        (SERVICE_ACCOUNT, _) => {
            let (key, bundle) = (content("service-account.key")?, content("service-account.pub"));
            return Some(HeldKey::Signer { key, bundle });
        }
        (ENCRYPTION, Role::KubeApiserver) => return encryption_key(&content("encryption.json")?).map(HeldKey::Key),
        _ => None,
    };
    content(path?).map(HeldKey::Authority)
}

/// The authorities of API servers, users and workers that a pod trusts.
pub(super) fn kubernetes_authorities(held: &HeldPod) -> Option<Vec<u8>> {
    match held_key(KUBERNETES, held)? {
        HeldKey::Authority(bundle) => Some(bundle),
        HeldKey::Key(_) | HeldKey::Signer { .. } => None,
    }
}

/// The key with which an API server encrypts new values.
fn encryption_key(file: &[u8]) -> Option<Vec<u8>> {
    let file: Value = serde_json::from_slice(file).ok()?;
    let key = file["resources"].get(0)?["providers"].get(0)?["secretbox"]["keys"].get(0)?["secret"].as_str()?;
    STANDARD.decode(key).ok()
}

/// Whether the bundle of a machine is of the authority of the documents. The machine may be one phase of a rotation behind them.
fn is_of_authority<'a>(held: &[&'a [u8]], value: impl Fn(&str) -> Option<&'a [u8]>) -> bool {
    let (active, others) = (value("active.crt"), [value("next.crt"), value("previous.crt")]);
    let is_active = |held: &[u8]| active == Some(held);
    let is_known = |held: &[u8]| is_active(held) || others.contains(&Some(held));
    let is_retired_later = || held.last().is_some_and(|last| is_active(last));
    is_retired_later() || (held.iter().any(|held| is_active(held)) && held.iter().all(|held| is_known(held)))
}

/// The certificates of a bundle, in its order.
fn certificates_of(bundle: &[u8]) -> Vec<&[u8]> {
    const END: &[u8] = b"-----END CERTIFICATE-----\n";
    let mut certificates = Vec::new();
    let mut rest = bundle;
    while let Some(at) = rest.windows(END.len()).position(|window| window == END) {
        let (certificate, behind) = rest.split_at(at + END.len());
        certificates.push(certificate);
        rest = behind;
    }
    certificates
}

/// The values of a component's own Secret, from its pod. The pod does not have the public half of a gateway's key.
pub(super) fn certificates(name: &str, pod: &Pod) -> Vec<(String, ByteString)> {
    let mut values = Vec::new();
    for key in &pod.files {
        let Some(stem) = key.path.strip_suffix(".key") else { continue };
        let certificate = file(pod, &format!("{stem}.crt"));
        match certificate {
            // The authority's own key, with which kube-controller-manager signs.
            Some(_) if stem == "signer" => continue,
            Some(certificate) => {
                values.push((
                    certificate.path.clone(),
                    ByteString(own_part(name, stem, certificate.content.clone(), pod)),
                ));
            }
            None if stem == WIREGUARD => {}
            None => continue,
        }
        values.push((key.path.clone(), ByteString(key.content.clone())));
    }
    values
}

/// The authorities are appended to the serving certificate of an API server.
fn own_part(name: &str, stem: &str, content: Vec<u8>, pod: &Pod) -> Vec<u8> {
    let is_followed = name.starts_with(Role::KubeApiserver.row().name) && stem == "server";
    let behind = file(pod, "ca.crt").filter(|_| is_followed);
    match behind.and_then(|behind| content.strip_suffix(behind.content.as_slice())) {
        Some(own) => own.to_vec(),
        None => content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "old\n-----END CERTIFICATE-----\n";
    const NEW: &str = "new\n-----END CERTIFICATE-----\n";

    /// Whether documents with these generations, active, next and previous, are those of a machine with this bundle.
    fn is_same(bundle: &[&str], [active, next, previous]: [Option<&str>; 3]) -> bool {
        let bundle = bundle.concat();
        let values = BTreeMap::from([("active.crt", active), ("next.crt", next), ("previous.crt", previous)]);
        let value = |name: &str| {
            let found = values.get(name).copied().flatten();
            found.map(str::as_bytes)
        };
        is_of_authority(&certificates_of(bundle.as_bytes()), value)
    }

    #[test]
    fn a_machine_may_be_one_phase_behind_the_documents() {
        let announcing = [Some(OLD), Some(NEW), None];
        let activated = [Some(NEW), None, Some(OLD)];
        let retired = [Some(NEW), None, None];
        assert!(is_same(&[OLD], [Some(OLD), None, None]));
        assert!(is_same(&[OLD], announcing) && is_same(&[OLD, NEW], announcing));
        assert!(is_same(&[OLD, NEW], activated));
        assert!(is_same(&[OLD, NEW], retired) && is_same(&[NEW], retired));
    }

    #[test]
    fn documents_that_are_behind_a_machine_are_not_its_own() {
        // The machine may use an authority that the documents lack, or that is not in use by them.
        assert!(!is_same(&[OLD, NEW], [Some(OLD), None, None]));
        assert!(!is_same(&[NEW], [Some(OLD), None, None]));
        assert!(!is_same(&[NEW], [Some(OLD), Some(NEW), None]));
        assert!(!is_same(&[OLD], [Some(NEW), None, None]));
        assert!(!is_same(&[], [Some(OLD), None, None]));
    }
}
