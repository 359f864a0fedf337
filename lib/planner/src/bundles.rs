//! Bundles of authorities and of keys: derived from the generations in their Secret if they are missing.

use alloc::{string::ToString, vec::Vec};

use keelway_api::{ByteString, Secret, documents::SecretName, name::ClusterId};

use crate::{
    Decision,
    installation::installation_authority,
    plan::Plan,
    secret_names::{SecretContents, holds},
    world::ValidatedDocuments,
};

/// The key of an authority's bundle in its Secret.
const AUTHORITIES: &str = "bundle.crt";
/// The order of generations in a bundle of keys.
const KEYS_IN_ORDER: [&str; 3] = ["active", "next", "previous"];
/// The order of generations in a bundle of authorities, from the oldest one. An activation does not change the bundle, so what reads it only when it
/// starts is not restarted.
const AUTHORITIES_IN_ORDER: [&str; 3] = ["previous", "active", "next"];

/// Restores each missing bundle of a cluster that can be derived from the other values of its Secret.
pub(crate) fn restore_bundles(plan: &mut Plan, world: &ValidatedDocuments) {
    for (cluster, id, _) in world.reconciled_clusters() {
        for found in missing(plan, id) {
            restore(plan, &cluster.to_string(), found);
        }
    }
}

/// Restores the bundle of the installation's authority in the same way.
pub(crate) fn restore_bundle_of_installation(plan: &mut Plan) {
    let Some(id) = plan.documents.installation() else { return };
    let (owner, name) = (id.namespace(), installation_authority(id));
    let derived = plan.documents.secrets.get(&name).and_then(|secret| derived(secret, AUTHORITIES, "crt"));
    if let Some(bundle) = derived {
        restore(plan, &owner, (name, AUTHORITIES, bundle));
    }
}

fn restore(plan: &mut Plan, owner: &str, (name, key, bundle): (SecretName, &str, ByteString)) {
    if let Some(secret) = plan.documents.secrets.get_mut(&name) {
        secret.data.get_or_insert_default().insert(key.to_string(), bundle);
    }
    let (owner, secret, key) = (owner.to_string(), name.name, key.to_string());
    plan.decisions.push(Decision::RestoreBundle { owner, secret, key });
}

fn missing(plan: &Plan, id: &ClusterId) -> Vec<(SecretName, &'static str, ByteString)> {
    let secrets = plan.documents.secrets_of(id);
    let found = secrets.filter_map(|(name, secret)| {
        let (key, half) = match holds(name) {
            SecretContents::Authority => (AUTHORITIES, "crt"),
            SecretContents::ServiceAccountKey => ("bundle.pub", "pub"),
            SecretContents::EncryptionKey | SecretContents::Certificates => return None,
        };
        Some((SecretName::of(id, name), key, derived(secret, key, half)?))
    });
    found.collect()
}

/// The bundle of a Secret. None: the Secret has a bundle, or lacks its active generation.
pub(crate) fn derived(secret: &Secret, bundle: &str, half: &str) -> Option<ByteString> {
    let data = secret.data.as_ref()?;
    let part = |generation: &str| data.get([generation, ".", half].concat().as_str());
    if data.contains_key(bundle) || part("active").is_none() {
        return None;
    }
    let order = if bundle == AUTHORITIES { AUTHORITIES_IN_ORDER } else { KEYS_IN_ORDER };
    Some(ByteString(order.into_iter().filter_map(part).flat_map(|part| &part.0).copied().collect()))
}
