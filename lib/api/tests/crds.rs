//! The custom resource definitions, generated from the types.
//!
//! `cargo xtask docs` writes those of a management cluster, and `INSTA_UPDATE=always` writes the others.

use std::{fs, path::Path};

use keelway_api::{
    crd::{WORKER_CRDS_DIGEST, crds, manifest, worker_crds},
    machine::sha256_hex,
};

#[test]
fn every_kind_has_a_definition() {
    for definition in worker_crds() {
        let name = definition.spec.names.kind.clone();
        insta::assert_yaml_snapshot!(name, definition);
    }
}

#[test]
fn manifests_are_up_to_date() {
    for definition in crds() {
        let name = format!("{}.yaml", definition.metadata.name.as_deref().unwrap());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/crds").join(&name);
        let written = fs::read_to_string(path).unwrap_or_default();
        assert!(written == manifest(&definition), "manifests/crds/{name} is old: cargo xtask docs");
    }
}

#[test]
fn every_field_is_explained() {
    fn check(path: &str, schema: &serde_json::Value) {
        for below in ["items", "additionalProperties"] {
            schema.get(below).into_iter().for_each(|schema| check(path, schema));
        }
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            let is_explained = schema["description"].as_str().is_some_and(|text| !text.is_empty());
            assert!(is_explained, "{path}");
            check(&path, schema);
        }
    }
    for definition in crds() {
        let json = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        check(&definition.spec.names.kind, &json["openAPIV3Schema"]);
    }
}

#[test]
fn the_digest_is_that_of_the_definitions() {
    let digest = sha256_hex(&serde_json::to_vec(&worker_crds()).unwrap());
    assert_eq!(digest, WORKER_CRDS_DIGEST, "write it into lib/api/src/crd.rs");
}
