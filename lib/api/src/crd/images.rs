//! The checks of registries and images, in a Cluster and in a class.

use serde_json::{Value as Json, json};

use super::{
    cel::{CelRule, is, rule},
    forms::{BRACKETED, PORT, subdomain},
    schema::extend,
};
use crate::image_override::{DIGITS, LONGEST_TAG, NAMES};

const REGISTRY: &str = "spec.images.registry";
const OVERRIDES: &str = "spec.images.overrides";
/// More than twice the images of a cluster.
const MOST_OVERRIDES: u32 = 32;
const LONGEST_REGISTRY: u32 = 512;
/// A registry, a name, a tag and a digest.
const LONGEST_IMAGE: u32 = 768;

/// Sets the maximum lengths of lists and texts.
pub(super) fn bounds(root: &mut Json) {
    extend(root, REGISTRY, json!({"maxLength": LONGEST_REGISTRY}));
    extend(root, OVERRIDES, json!({"maxItems": MOST_OVERRIDES}));
    extend(root, &format!("{OVERRIDES}[]"), json!({"maxLength": LONGEST_IMAGE}));
}

pub(super) fn rules() -> Vec<CelRule> {
    let host = format!("({}|{BRACKETED})(:{PORT})?", subdomain());
    let element = "/[a-z0-9]([a-z0-9._-]*[a-z0-9])?";
    let registry = is("self", &format!("{host}(({element})+/*)?"));
    let tag = format!("[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{}}}", LONGEST_TAG - 1);
    let image = is("self", &format!("{host}({element})*/[^/:@]+:{tag}@sha256:[0-9a-f]{{{DIGITS}}}"));
    let known = is("self", &format!(".*/({}):[^/]*", NAMES.join("|")));
    vec![
        rule(
            REGISTRY,
            registry,
            "\"{self}\" is not a registry; write HOST, HOST:PORT or HOST/PATH, in lowercase and without a scheme, such as \
             registry.example.com/mirror",
        ),
        rule(
            format!("{OVERRIDES}[]"),
            image.clone(),
            "\"{self}\" is not an image with a tag and a digest; write REGISTRY/NAME:TAG@sha256:DIGEST, such as \
             registry.example.com/kube-apiserver:v1.37.0@sha256:.. with all 64 digits",
        ),
        rule(
            format!("{OVERRIDES}[]"),
            format!("!({image}) || {known}"),
            format!("Keelway runs no image of this name: \"{{self}}\"; supported values: {}", NAMES.join(", ")),
        ),
    ]
}
