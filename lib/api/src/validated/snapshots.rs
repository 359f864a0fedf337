//! Validates the snapshots of a Cluster.

use super::{FaultCollector, cluster::LONGEST_LIFE};
use crate::{
    allowed_sink::{AllowedBucket, AllowedSinkSpec},
    duration::Span,
    name::is_subdomain,
    snapshots::{SnapshotBucket, SnapshotDirectory, SnapshotSchedule, SnapshotSinkSpec, SnapshotsSpec},
};

const SINK: &str = "spec.etcd.snapshots.sink";

/// The most snapshots that are kept.
const MOST_SNAPSHOTS: u32 = 1000;

/// Records the faults of `spec.etcd.snapshots`.
pub(super) fn check(spec: Option<&SnapshotsSpec>, faults: &mut FaultCollector) {
    let Some(spec) = spec else { return };
    if !spec.schedule.is_empty() && SnapshotSchedule::parse(&spec.schedule).is_err() {
        faults.add(
            "spec.etcd.snapshots.schedule",
            format!("{:?} is not a schedule", spec.schedule),
            "write minute, hour, day of the month, month and day of the week, such as 0 */6 * * * for every six hours",
        );
    }
    if !(1..=MOST_SNAPSHOTS).contains(&spec.retention.keep) {
        let problem = format!("must be from 1 to {MOST_SNAPSHOTS}, not {}", spec.retention.keep);
        faults.add("spec.etcd.snapshots.retention.keep", problem, "write the number of snapshots to keep");
    }
    if let Some(age) = spec.retention.max_age.filter(|age| *age == Span::of_seconds(0) || *age > LONGEST_LIFE) {
        let problem = format!("must be from 1s to {LONGEST_LIFE}, not {age}");
        faults.add("spec.etcd.snapshots.retention.maxAge", problem, "write an age such as 720h, or remove the field");
    }
    check_sink(&spec.sink, faults);
}

fn check_sink(sink: &SnapshotSinkSpec, faults: &mut FaultCollector) {
    match (&sink.directory, &sink.s3) {
        (Some(directory), None) => check_directory(directory, faults),
        (None, Some(bucket)) => check_bucket(bucket, faults),
        (None, None) | (Some(_), Some(_)) => {
            faults.add(SINK, "must have exactly one of directory and s3", "write one of the two");
        }
    }
}

/// Records the faults of an item of `spec.snapshotSinks` of a class.
pub(super) fn check_allowed(place: &str, sink: &AllowedSinkSpec, faults: &mut FaultCollector) {
    match (&sink.directory, &sink.s3) {
        (Some(directory), None) => check_path(place, &directory.path, faults),
        (None, Some(AllowedBucket { endpoint, bucket, prefix })) => {
            check_endpoint(place, endpoint, faults);
            if let Some(bucket) = bucket {
                check_bucket_name(place, bucket, faults);
            }
            check_prefix(place, prefix, faults);
        }
        (None, None) | (Some(_), Some(_)) => {
            faults.add(place, "must have exactly one of directory and s3", "write one of the two");
        }
    }
}

fn check_directory(directory: &SnapshotDirectory, faults: &mut FaultCollector) {
    check_path(SINK, &directory.path, faults);
}

fn check_path(place: &str, path: &str, faults: &mut FaultCollector) {
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") || path.contains('\0') {
        let problem = format!("{path:?} is not an absolute path without `..`");
        faults.add(&format!("{place}.directory.path"), problem, "write a path such as /var/lib/keelway-snapshots");
    }
}

fn check_endpoint(place: &str, endpoint: &str, faults: &mut FaultCollector) {
    if !is_https(endpoint) {
        let problem = format!("{endpoint:?} is not an https URL without a query");
        faults.add(&format!("{place}.s3.endpoint"), problem, "write a URL such as https://s3.example.com:9000");
    }
}

fn check_bucket_name(place: &str, bucket: &str, faults: &mut FaultCollector) {
    if !is_bucket(bucket) {
        let problem = format!("{bucket:?} is not the name of a bucket");
        let help =
            "it must have 3 to 63 lowercase letters, digits, dots and -, and start and end with a letter or digit";
        faults.add(&format!("{place}.s3.bucket"), problem, help);
    }
}

fn check_prefix(place: &str, prefix: &str, faults: &mut FaultCollector) {
    if !prefix.is_empty() && !prefix.split('/').all(is_part) {
        let problem = format!("{prefix:?} is not a path");
        let help = "write names of letters, digits, dots, _ and -, joined by slashes, such as keelway/production";
        faults.add(&format!("{place}.s3.prefix"), problem, help);
    }
}

fn check_bucket(store: &SnapshotBucket, faults: &mut FaultCollector) {
    check_endpoint(SINK, &store.endpoint, faults);
    check_bucket_name(SINK, &store.bucket, faults);
    check_prefix(SINK, &store.prefix, faults);
    if !is_part(&store.region) {
        let problem = format!("{:?} is not the name of a region", store.region);
        faults.add(&format!("{SINK}.s3.region"), problem, "write a name such as eu-central-1");
    }
    if !is_subdomain(&store.credentials_secret.name) {
        let problem = format!("{:?} is not an RFC 1123 subdomain", store.credentials_secret.name);
        let help = "write the name of a Secret with accessKeyID and secretAccessKey";
        faults.add(&format!("{SINK}.s3.credentialsSecret.name"), problem, help);
    }
}

fn is_https(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("https://") else { return false };
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:/[]".contains(&byte);
    !rest.is_empty() && !rest.starts_with(['/', ':']) && rest.bytes().all(usual)
}

fn is_bucket(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (3..=63).contains(&text.len())
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || matches!(c, '.' | '-'))
}

/// Returns whether the text can be a part of a key, which is not `.` or `..`.
fn is_part(text: &str) -> bool {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=128).contains(&text.len()) && text.bytes().all(usual) && !text.bytes().all(|byte| byte == b'.')
}
