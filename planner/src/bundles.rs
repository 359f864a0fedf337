//! Bundles of authorities: derived from the generations of a keyring where somebody removed them.

use alloc::{string::ToString, vec::Vec};

use keelway_api::{ByteString, Secret, documents::SecretName, name::ClusterId};

use crate::{
    Decision,
    certificates::{Holds, holds},
    plan::Plan,
    world::World,
};

/// The order of a bundle.
const GENERATIONS: [&str; 3] = ["active", "next", "previous"];

/// Writes each bundle that is missing and follows from what its Secret still has.
pub(crate) fn restore_bundles(plan: &mut Plan, world: &World) {
    for (cluster, id, _) in world.looked_after() {
        for (name, key, bundle) in missing(plan, id) {
            if let Some(secret) = plan.documents.secrets.get_mut(&name) {
                secret.data.get_or_insert_default().insert(key.to_string(), bundle);
            }
            let (cluster, secret, key) = (cluster.to_string(), name.name.clone(), key.to_string());
            plan.decisions.push(Decision::Restore { cluster, secret, key });
        }
    }
}

fn missing(plan: &Plan, id: &ClusterId) -> Vec<(SecretName, &'static str, ByteString)> {
    let secrets = plan.documents.secrets_of(id);
    let found = secrets.filter_map(|(name, secret)| {
        let (key, half) = match holds(name) {
            Holds::Authority => ("bundle.crt", "crt"),
            Holds::ServiceAccountKey => ("bundle.pub", "pub"),
            Holds::EncryptionKey | Holds::Certificates => return None,
        };
        Some((SecretName::of(id, name), key, derived(secret, key, half)?))
    });
    found.collect()
}

/// The bundle of a Secret that has its active generation and no bundle.
fn derived(secret: &Secret, bundle: &str, half: &str) -> Option<ByteString> {
    let data = secret.data.as_ref()?;
    let part = |generation: &str| data.get([generation, ".", half].concat().as_str());
    if data.contains_key(bundle) || part(GENERATIONS[0]).is_none() {
        return None;
    }
    Some(ByteString(
        GENERATIONS.iter().filter_map(|generation| part(generation)).flat_map(|part| &part.0).copied().collect(),
    ))
}
