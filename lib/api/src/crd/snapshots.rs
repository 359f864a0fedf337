//! The checks of `spec.etcd.snapshots` of a Cluster, and of `spec.snapshotSinks` of a class, by an API server. `validate` also checks that a
//! schedule exists in the calendar.

use serde_json::{Value as Json, json};

use super::{
    cel::{CelRule, is, rule},
    forms::{ENDLESS, SPAN, subdomain},
    schema::extend,
};
use crate::validated::LONGEST_LIFE;

const AT: &str = "spec.etcd.snapshots";
const ALLOWED: &str = "spec.snapshotSinks";
const PART: &str = "[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*";
const SCHEDULE: &str = " *([A-Za-z0-9*/,-]+ +){4}[A-Za-z0-9*/,-]+ *";

/// Sets the maximum lengths of texts.
pub(super) fn bounds(root: &mut Json) {
    let texts = [
        ("schedule", 256),
        ("retention.maxAge", 32),
        ("sink.directory.path", 1024),
        ("sink.s3.endpoint", 512),
        ("sink.s3.bucket", 63),
        ("sink.s3.prefix", 512),
        ("sink.s3.region", 128),
        ("sink.s3.credentialsSecret.name", 253),
    ];
    for (field, most) in texts {
        extend(root, &format!("{AT}.{field}"), json!({ "maxLength": most }));
    }
}

/// Sets the maximum lengths of the places that a class allows.
pub(super) fn bounds_of_allowed(root: &mut Json) {
    extend(root, ALLOWED, json!({ "maxItems": 32 }));
    for (field, most) in [("directory.path", 1024), ("s3.endpoint", 512), ("s3.bucket", 63), ("s3.prefix", 512)] {
        extend(root, &format!("{ALLOWED}[].{field}"), json!({ "maxLength": most }));
    }
}

pub(super) fn rules_of_allowed() -> Vec<CelRule> {
    place_rules(&format!("{ALLOWED}[]"))
}

pub(super) fn rules() -> Vec<CelRule> {
    let at = |field: &str| format!("{AT}.{field}");
    let s3 = |field: &str| format!("{AT}.sink.s3.{field}");
    let mut rules = vec![
        rule(
            at("schedule"),
            format!("self == '' || {}", is("self", SCHEDULE)),
            "\"{self}\" is not a schedule; write minute, hour, day of the month, month and day of the week, such as 0 */6 * * * for every six hours",
        ),
        rule(
            at("retention.maxAge"),
            is("self", SPAN),
            "\"{self}\" is not a duration such as 8760h, 1h30m or 90s; write it in that form",
        ),
        rule(
            at("retention.maxAge"),
            format!(
                "!{} || (!self.matches('{ENDLESS}') && duration(self) > duration('0s') && duration(self) <= duration('{LONGEST_LIFE}'))",
                is("self", SPAN)
            ),
            format!("must be from 1s to {LONGEST_LIFE}, not {{self}}; write an age such as 720h, or remove the field"),
        ),
        rule(
            s3("region"),
            is("self", PART),
            "\"{self}\" is not the name of a region; write a name such as eu-central-1",
        ),
        rule(
            s3("credentialsSecret.name"),
            is("self", &subdomain()),
            "\"{self}\" is not an RFC 1123 subdomain; write the name of a Secret with accessKeyID and secretAccessKey",
        ),
    ];
    rules.extend(place_rules(&at("sink")));
    rules
}

/// The rules for a directory or a bucket, in a Cluster and in a class.
fn place_rules(place: &str) -> Vec<CelRule> {
    let at = |field: &str| format!("{place}.{field}");
    let parts = format!("{PART}(/{PART})*");
    vec![
        rule(
            place,
            "has(self.directory) != has(self.s3)",
            "must have exactly one of directory and s3; write one of the two",
        ),
        rule(
            at("directory.path"),
            "self.startsWith('/') && !self.matches('(^|/)\\\\.\\\\.(/|$)')",
            "\"{self}\" is not an absolute path without `..`; write a path such as /var/lib/keelway-snapshots",
        ),
        rule(
            at("s3.endpoint"),
            is("self", "https://[A-Za-z0-9._\\[-][A-Za-z0-9._:/\\[\\]-]*"),
            "\"{self}\" is not an https URL without a query; write a URL such as https://s3.example.com:9000",
        ),
        rule(
            at("s3.bucket"),
            is("self", "[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
            "\"{self}\" is not the name of a bucket; it must have 3 to 63 lowercase letters, digits, dots and -, and start and end with a letter or digit",
        ),
        rule(
            at("s3.prefix"),
            format!("self == '' || {}", is("self", &parts)),
            "\"{self}\" is not a path; write names of letters, digits, dots, _ and -, joined by slashes, such as keelway/production",
        ),
    ]
}
