//! The custom resource definitions, generated from the types.

use keelway_api::{
    crd::{WORKER_CRDS_DIGEST, crds, worker_crds},
    machine::sha256_hex,
};

#[test]
fn every_kind_has_a_definition() {
    for definition in crds().into_iter().chain(worker_crds()) {
        let name = definition.spec.names.kind.clone();
        insta::assert_yaml_snapshot!(name, definition);
    }
}

#[test]
fn the_digest_is_that_of_the_definitions() {
    let digest = sha256_hex(&serde_json::to_vec(&worker_crds()).unwrap());
    assert_eq!(digest, WORKER_CRDS_DIGEST, "write it into api/src/crd.rs");
}
