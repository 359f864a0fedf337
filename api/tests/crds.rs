//! The custom resource definitions, generated from the types.

use keelway_api::crd::{crds, worker_crds};

#[test]
fn every_kind_has_a_definition() {
    for definition in crds().into_iter().chain(worker_crds()) {
        let name = definition.spec.names.kind.clone();
        insta::assert_yaml_snapshot!(name, definition);
    }
}
