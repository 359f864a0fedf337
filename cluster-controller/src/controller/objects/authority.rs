//! The authority that Kubernetes publishes to pods, and the restart of add-ons after it was replaced.
//!
//! Pods of add-ons read the authorities only when they start. After kube-controller-manager has published a further authority, their templates get an
//! annotation with its fingerprint, so that they are started again. The further authority is the last one, also after the earlier one was removed,
//! so that this happens once.

use k8s_openapi::api::core::v1::ConfigMap;
use keelway_api::{machine::sha256_hex, worker::AUTHORITIES_KEY};
use keelway_pki::CertificateFacts;
use kube::core::DynamicObject;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Map, Value, json};

/// The annotation of pods with the SHA-256 of the authority's certificate.
const ANNOTATION: &str = "keelway.dev/authority";
/// The common name of the first authority of a cluster. Later ones have other names.
const FIRST_NAME: &str = "kubernetes";

/// The last of the authorities that pods read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PublishedAuthority {
    /// The first one of the cluster. Add-ons have no annotation, so that those of earlier releases stay as they are.
    First,
    /// A later one, with this SHA-256 of its certificate.
    Later(String),
}

impl PublishedAuthority {
    /// Returns the authority of the ConfigMap that pods read. `None` if it is not known. In a new cluster, the ConfigMap does not exist yet. If the
    /// cluster's own authorities (PEM) contain a later one, kube-controller-manager is about to write the ConfigMap again.
    pub(crate) fn of(map: Option<&ConfigMap>, own: &str) -> Option<Self> {
        match map {
            Some(map) => Self::last(map.data.as_ref()?.get(AUTHORITIES_KEY)?),
            None => Self::last(own).filter(|last| *last == Self::First),
        }
    }

    fn last(pem: &str) -> Option<Self> {
        let last = CertificateDer::pem_slice_iter(pem.as_bytes()).last()?.ok()?;
        let name = CertificateFacts::from_der(&last).ok()?.common_name;
        Some(if name.as_deref() == Some(FIRST_NAME) { Self::First } else { Self::Later(sha256_hex(&last)) })
    }
}

/// Whether an object has a template of pods.
pub(crate) fn has_pods(object: &DynamicObject) -> bool {
    object.types.as_ref().is_some_and(|types| matches!(types.kind.as_str(), "Deployment" | "DaemonSet"))
}

/// Annotates the pods of all objects with the authority.
pub(crate) fn annotate_pods(objects: &mut [DynamicObject], authority: &PublishedAuthority) {
    let PublishedAuthority::Later(fingerprint) = authority else { return };
    for object in objects.iter_mut().filter(|object| has_pods(object)) {
        let Some(metadata) = object.data.pointer_mut("/spec/template/metadata").and_then(Value::as_object_mut) else {
            continue;
        };
        let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(ANNOTATION.to_owned(), json!(fingerprint));
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use keelway_pki::{Authority, Validity};
    use rand::{SeedableRng as _, rngs::ChaCha8Rng};

    use super::*;

    fn validity() -> Validity {
        Validity::starting("2030-01-01T00:00:00Z".parse().unwrap(), SignedDuration::from_hours(1)).unwrap()
    }

    fn first() -> String {
        let authority = Authority::mint("kubernetes", validity(), &mut ChaCha8Rng::seed_from_u64(1)).unwrap();
        authority.certificate().pem().to_owned()
    }

    fn later() -> String {
        let random = &mut ChaCha8Rng::seed_from_u64(2);
        Authority::mint_generation("kubernetes", validity(), random).unwrap().certificate().pem().to_owned()
    }

    fn published(pem: &str) -> Option<PublishedAuthority> {
        let map = ConfigMap { data: Some([("ca.crt".to_owned(), pem.to_owned())].into()), ..ConfigMap::default() };
        PublishedAuthority::of(Some(&map), &first())
    }

    #[test]
    fn the_last_authority_counts_unless_it_is_the_first_of_the_cluster() {
        assert_eq!(published(&first()), Some(PublishedAuthority::First));
        let both = published(&(first() + &later())).unwrap();
        assert!(matches!(&both, PublishedAuthority::Later(fingerprint) if fingerprint.len() == 64));
        // The rotation completes: nothing restarts twice.
        assert_eq!(published(&later()), Some(both));
    }

    #[test]
    fn an_unreadable_list_of_authorities_is_not_the_first_authority() {
        assert_eq!(published(""), None);
        assert_eq!(published("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"), None);
        assert_eq!(PublishedAuthority::of(Some(&ConfigMap::default()), &first()), None);
    }

    #[test]
    fn an_absent_list_counts_only_while_the_cluster_has_its_first_authority() {
        assert_eq!(PublishedAuthority::of(None, &first()), Some(PublishedAuthority::First));
        assert_eq!(PublishedAuthority::of(None, &(first() + &later())), None);
        assert_eq!(PublishedAuthority::of(None, &later()), None);
    }

    #[test]
    fn only_templates_of_pods_are_annotated() {
        let object = |kind: &str| -> DynamicObject {
            let metadata = json!({ "labels": { "k8s-app": "a" }, "annotations": { "b": "c" } });
            let spec = json!({ "template": { "metadata": metadata } });
            serde_json::from_value(
                json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": "a" }, "spec": spec }),
            )
            .unwrap()
        };
        let before = [object("Deployment"), object("DaemonSet"), object("ConfigMap")];
        let mut objects = before.clone();
        annotate_pods(&mut objects, &PublishedAuthority::First);
        assert_eq!(objects, before);
        annotate_pods(&mut objects, &PublishedAuthority::Later("ab".to_owned()));
        let annotated = |object: &DynamicObject| object.data["spec"]["template"]["metadata"]["annotations"].clone();
        assert_eq!(annotated(&objects[0]), json!({ "b": "c", "keelway.dev/authority": "ab" }));
        assert_eq!(annotated(&objects[1]), json!({ "b": "c", "keelway.dev/authority": "ab" }));
        assert_eq!(objects[2], before[2]);
    }
}
