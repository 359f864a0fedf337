//! The custom resource definitions of a fleet's kinds: the checks that an API server applies, and the columns of `kubectl get`.

mod columns;
mod policy;
mod refused;
mod selector;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use keelway_api::crd::{
    cel::{is, rule, write},
    forms::LABEL,
    refined,
    schema::extend,
};
use kube_core::CustomResourceExt;
use serde_json::{Value as Json, json};

use crate::{SchedulePolicy, Work, WorkloadCluster, WorkloadPlacement, names::LONGEST_CLUSTER_NAME};

pub use refused::{RefusedPolicy, refused_policies};

/// Returns the definitions of a fleet's kinds, which the fleet controller applies to the fleet.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        refined(WorkloadCluster::crd(), columns::CLUSTER, refine_cluster),
        refined(SchedulePolicy::crd(), columns::POLICY, policy::refine),
        refined(WorkloadPlacement::crd(), columns::PLACEMENT, refine_placement),
        refined(Work::crd(), columns::WORK, |_| ()),
    ]
}

fn refine_cluster(root: &mut Json) {
    for text in ["spec.provider", "spec.region", "spec.zone", "spec.taints[].value"] {
        extend(root, text, json!({"maxLength": 63}));
    }
    extend(root, "spec.taints", json!({"maxItems": 32}));
    extend(root, "spec.taints[].key", json!({"maxLength": 316, "minLength": 1}));
    let value = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";
    let labels = ["spec.provider", "spec.region", "spec.zone"].map(|path| {
        let message = "\"{self}\" is not a label value: write at most 63 letters, digits, -, _ and ., with a letter or digit at both ends";
        rule(path, format!("self.matches('{value}')"), message)
    });
    let name = "self.metadata.name";
    let named = rule(
        "",
        format!("{name}.size() <= {LONGEST_CLUSTER_NAME} && {}", is(name, LABEL)),
        format!(
            "metadata.name: must be an RFC 1123 label of at most {LONGEST_CLUSTER_NAME} characters; choose a shorter name of lowercase letters, digits and -"
        ),
    );
    write(root, labels.into_iter().chain([named]).collect());
}

/// A Placement is found by the name of its object, so the object never changes.
fn refine_placement(root: &mut Json) {
    for (path, longest) in
        [("group", 253), ("version", 63), ("kind", 63), ("namespace", 63), ("name", 253), ("uid", 128)]
    {
        extend(root, &format!("spec.object.{path}"), json!({"maxLength": longest}));
    }
    let same = "self.group == oldSelf.group && self.kind == oldSelf.kind && self.name == oldSelf.name";
    write(
        root,
        vec![rule(
            "spec.object",
            same,
            "the object of a Placement is immutable; the fleet controller creates one for each object",
        )],
    );
}
