//! Labels and annotations, with the rules of every API server: "Labels and Selectors" and "Annotations" of Kubernetes' documentation.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{name::is_subdomain, tree::field};

use super::FaultCollector;

/// The maximum length of a label's value, and of the name in a key, in characters.
const LONGEST: usize = 63;
/// The maximum size of all annotations of a document in bytes, keys and values (`TotalAnnotationSizeLimitB`).
const MOST_ANNOTATIONS: usize = 256 << 10;

/// Checks the keys and values of labels, and the keys and the total size of annotations.
pub(super) fn check_metadata(metadata: &ObjectMeta, faults: &mut FaultCollector) {
    check_labels(metadata.labels.iter().flatten(), faults);
    check_annotations(metadata.annotations.as_ref(), faults);
}

pub(super) fn check_labels<'a>(labels: impl Iterator<Item = (&'a String, &'a String)>, faults: &mut FaultCollector) {
    for (key, value) in labels {
        check_key("metadata.labels", key, "label", faults);
        if !is_value(value) {
            let help = format!(
                "use at most {LONGEST} letters, digits, -, _ and ., with a letter or digit at both ends; or leave it empty"
            );
            faults.add(&field("metadata.labels", key), format!("{value:?} is not a valid label value"), help);
        }
    }
}

pub(super) fn check_annotations(annotations: Option<&BTreeMap<String, String>>, faults: &mut FaultCollector) {
    let mut bytes = 0;
    for (key, value) in annotations.into_iter().flatten() {
        check_key("metadata.annotations", key, "annotation", faults);
        bytes += key.len() + value.len();
    }
    if bytes > MOST_ANNOTATIONS {
        let problem = format!("must have at most {MOST_ANNOTATIONS} bytes in total, but have {bytes}");
        faults.add("metadata.annotations", problem, "shorten or remove some");
    }
}

fn check_key(map: &str, key: &str, of: &str, faults: &mut FaultCollector) {
    // API servers ignore the case of annotation keys.
    let is_key = if of == "annotation" { is_key(&key.to_lowercase()) } else { is_key(key) };
    if !is_key {
        let help = format!(
            "write NAME or PREFIX/NAME: NAME has at most {LONGEST} letters, digits, -, _ and ., with a letter or digit at \
             both ends, and PREFIX is a DNS name"
        );
        faults.add(&field(map, key), format!("{key:?} is not a valid {of} key"), help);
    }
}

fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

fn is_value(value: &str) -> bool {
    value.is_empty() || is_name(value)
}

fn is_name(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LONGEST
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases are those of Kubernetes' own validation tests (`apimachinery/pkg/util/validation`).
    #[test]
    fn keys_and_values_are_those_of_kubernetes() {
        let longest = "a".repeat(LONGEST);
        for key in ["simple", "now-with-dashes", "1-starts-with-num", "a.b/1-c", "Example.Com_x", "1/2", &longest] {
            assert!(is_key(key), "{key}");
        }
        let long = format!("{longest}a");
        for key in ["", "/a", "a/", "a/b/c", "nospecial%", "no space", "-a", "a-", "A.b/c", &long, "ü"] {
            assert!(!is_key(key), "{key}");
        }
        for value in ["", "1", "a_b.c-D", &longest] {
            assert!(is_value(value), "{value}");
        }
        for value in ["Frankfurt am Main", "a/b", ".a", "a.", &long, "ü"] {
            assert!(!is_value(value), "{value}");
        }
    }
}
