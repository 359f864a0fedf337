//! The custom resource definitions of a fleet's kinds.
#![expect(clippy::unwrap_used, reason = "this is all test")]

use keelway_fleet::{crds, refused_policies};
use serde_json::Value as Json;

#[test]
fn every_kind_has_a_definition() {
    for definition in crds() {
        insta::assert_yaml_snapshot!(definition.metadata.name.clone().unwrap(), definition);
    }
}

/// Calls `check` with each part of a schema and its path.
fn visit(path: &str, schema: &Json, check: &mut impl FnMut(&str, &Json)) {
    check(path, schema);
    for below in ["items", "additionalProperties"] {
        if let Some(below) = schema.get(below) {
            visit(&format!("{path}[]"), below, check);
        }
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        visit(&format!("{path}.{name}"), schema, check);
    }
}

fn schemas() -> Vec<(String, Json)> {
    let one =
        |definition: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition| {
            let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
            (definition.spec.names.kind, schema["openAPIV3Schema"].clone())
        };
    crds().into_iter().map(one).collect()
}

#[test]
fn every_field_is_explained() {
    for (kind, schema) in schemas() {
        visit(&kind, &schema, &mut |path, schema| {
            let is_item = path.ends_with("[]") || path == kind;
            let is_explained = schema["description"].as_str().is_some_and(|text| !text.is_empty());
            assert!(is_item || is_explained, "{path}");
        });
    }
}

/// "Specifying a structural schema" of Kubernetes' documentation, as far as derived schemas can fail it.
#[test]
fn schemas_are_structural() {
    for (kind, schema) in schemas() {
        visit(&kind, &schema, &mut |path, schema| {
            let open =
                schema["x-kubernetes-preserve-unknown-fields"] == true || schema["x-kubernetes-int-or-string"] == true;
            assert!(schema["type"].is_string() || open, "{path} has no type");
            assert!(schema.get("$ref").is_none(), "{path} refers to another schema");
            let both = schema.get("properties").is_some() && schema.get("additionalProperties").is_some();
            assert!(!both, "{path} has properties and additionalProperties");
            for junctor in ["oneOf", "anyOf", "allOf", "not"] {
                assert!(schema.get(junctor).is_none(), "{path} has {junctor}");
            }
        });
    }
}

#[test]
fn every_refused_policy_is_refused_by_a_rule_of_the_schema() {
    let (_, schema) = schemas().into_iter().find(|(kind, _)| kind == "SchedulePolicy").unwrap();
    let text = schema.to_string();
    for case in refused_policies() {
        // Messages of the API server itself are not in the schema.
        let own = ["Duplicate value", "supported values", "should have at least"]
            .iter()
            .any(|own| case.message.contains(own));
        assert!(own || text.contains(case.message), "{}: {}", case.title, case.message);
    }
}
