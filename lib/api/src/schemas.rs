//! The schemas of Keelway's kinds, generated from the types.

use std::sync::LazyLock;

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value as Json, json};

use crate::{
    class::ClusterClassSpec,
    cluster::{ClusterSpec, ClusterStatus},
    component::{ComponentSpec, ComponentStatus},
    hypervisor::{HypervisorSpec, HypervisorStatus},
    kind::DocumentKind,
    observation::Observation,
};

impl DocumentKind {
    /// Returns the schema of a document of this kind.
    pub(crate) fn schema(self) -> &'static Json {
        match self {
            Self::ClusterClass => &SCHEMAS.class,
            Self::Hypervisor => &SCHEMAS.hypervisor,
            Self::Cluster => &SCHEMAS.cluster,
            Self::Component => &SCHEMAS.component,
            Self::Secret => &SCHEMAS.secret,
            Self::Observation => &OBSERVATION.0,
        }
    }
}

/// Resolves a reference. Returns the schema, and the name of its type if it was a reference.
pub(crate) fn resolve(schema: &'static Json) -> (&'static str, &'static Json) {
    let name = schema.get("$ref").and_then(Json::as_str).and_then(|reference| reference.strip_prefix("#/$defs/"));
    let defined = |name| SCHEMAS.definitions.get(name).or_else(|| OBSERVATION.1.get(name));
    match name.and_then(|name| Some((name, defined(name)?))) {
        Some(found) => found,
        None => ("", schema),
    }
}

struct Schemas {
    class: Json,
    hypervisor: Json,
    cluster: Json,
    component: Json,
    secret: Json,
    definitions: Map<String, Json>,
}

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    Schemas {
        class: without_status::<ClusterClassSpec>(&mut generator),
        hypervisor: resource::<HypervisorSpec, HypervisorStatus>(&mut generator),
        cluster: resource::<ClusterSpec, ClusterStatus>(&mut generator),
        component: resource::<ComponentSpec, ComponentStatus>(&mut generator),
        secret: generator.subschema_for::<Secret>().to_value(),
        definitions: generator.take_definitions(true),
    }
});

/// The schema of Observation with its types. It is separate, because it is large and rarely needed.
static OBSERVATION: LazyLock<(Json, Map<String, Json>)> = LazyLock::new(|| {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    (generator.subschema_for::<Observation>().to_value(), generator.take_definitions(true))
});

fn resource<Spec: JsonSchema, Status: JsonSchema>(generator: &mut SchemaGenerator) -> Json {
    let mut schema = without_status::<Spec>(generator);
    schema["properties"]["status"] = generator.subschema_for::<Status>().to_value();
    schema
}

fn without_status<Spec: JsonSchema>(generator: &mut SchemaGenerator) -> Json {
    json!({
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": "The API group and version of the document."},
            "kind": {"type": "string", "description": "The kind of the document."},
            "metadata": generator.subschema_for::<ObjectMeta>(),
            "spec": generator.subschema_for::<Spec>(),
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_is_one_type_in_all_schemas() {
        let shared = OBSERVATION.1.iter().filter_map(|(name, one)| Some((name, one, SCHEMAS.definitions.get(name)?)));
        let shared: Vec<_> = shared.collect();
        assert!(!shared.is_empty());
        for (name, one, other) in shared {
            assert_eq!(one, other, "{name}");
        }
    }
}
