//! The places that a ClusterClass allows for snapshots.

use std::{fmt, path::Path};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::snapshots::{SnapshotBucket, SnapshotSinkSpec};

/// A place where Clusters of a class may store snapshots: exactly one of the fields is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedSinkSpec {
    /// A directory and all directories below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<AllowedDirectory>,
    /// An S3-compatible store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<AllowedBucket>,
}

/// A directory in which Clusters of a class may store snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedDirectory {
    /// The absolute path.
    pub path: String,
}

/// An S3-compatible store in which Clusters of a class may store snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedBucket {
    /// The URL of the store's API, such as `https://s3.example.com:9000`.
    pub endpoint: String,
    /// The name of the bucket. The default is all buckets of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// A path within the bucket. Prefixes of Clusters must be this path or below it. The default is all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

impl AllowedSinkSpec {
    /// Returns whether a sink is within the place. The sink must be valid: a path with `..` is below nothing.
    #[must_use]
    pub fn allows(&self, sink: &SnapshotSinkSpec) -> bool {
        match (&self.directory, &self.s3) {
            (Some(allowed), None) => {
                sink.s3.is_none() && sink.directory.as_ref().is_some_and(|own| allowed.contains(&own.path))
            }
            (None, Some(allowed)) => {
                sink.directory.is_none() && sink.s3.as_ref().is_some_and(|own| allowed.contains(own))
            }
            (None, None) | (Some(_), Some(_)) => false,
        }
    }
}

impl AllowedDirectory {
    fn contains(&self, path: &str) -> bool {
        let has_parent = path.split('/').any(|part| part == "..");
        !has_parent && Path::new(path).starts_with(&self.path)
    }
}

impl AllowedBucket {
    fn contains(&self, own: &SnapshotBucket) -> bool {
        same_endpoint(&self.endpoint, &own.endpoint)
            && self.bucket.as_ref().is_none_or(|bucket| *bucket == own.bucket)
            && is_below(&self.prefix, &own.prefix)
    }
}

/// Compares two URLs. The case of letters in the host, the port 443 and a slash at the end make no difference.
fn same_endpoint(one: &str, other: &str) -> bool {
    let usual = |url: &str| {
        let (scheme, rest) = url.trim_end_matches('/').split_once("://").unwrap_or(("", url));
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = host.to_ascii_lowercase();
        (scheme.to_ascii_lowercase(), host.strip_suffix(":443").unwrap_or(&host).to_owned(), path.to_owned())
    };
    usual(one) == usual(other)
}

fn is_below(prefix: &str, path: &str) -> bool {
    prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl fmt::Display for AllowedSinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.directory, &self.s3) {
            (Some(directory), _) => write!(f, "directory {}", directory.path),
            (None, Some(AllowedBucket { endpoint, bucket, prefix })) => {
                match bucket {
                    Some(bucket) => write!(f, "bucket {bucket} of {endpoint}")?,
                    None => write!(f, "any bucket of {endpoint}")?,
                }
                if prefix.is_empty() { Ok(()) } else { write!(f, " with prefix {prefix}") }
            }
            (None, None) => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(allowed: &str, sink: &str) -> bool {
        let allowed: AllowedSinkSpec = serde_json::from_str(allowed).unwrap();
        allowed.allows(&serde_json::from_str(sink).unwrap())
    }

    #[test]
    fn a_directory_allows_itself_and_what_is_below() {
        let allowed = r#"{"directory":{"path":"/srv/snapshots"}}"#;
        for (path, is_allowed) in [
            ("/srv/snapshots", true),
            ("/srv/snapshots/", true),
            ("/srv/snapshots/team-a", true),
            ("/srv//snapshots/./team-a", true),
            ("/srv/snapshots-of-others", false),
            ("/srv", false),
            ("/srv/snapshots/../other", false),
        ] {
            let sink = format!(r#"{{"directory":{{"path":"{path}"}}}}"#);
            assert_eq!(allows(allowed, &sink), is_allowed, "{path}");
        }
        assert!(allows(r#"{"directory":{"path":"/"}}"#, r#"{"directory":{"path":"/srv"}}"#));
    }

    #[test]
    fn a_bucket_allows_its_prefix_and_what_is_below() {
        let sink = |endpoint: &str, bucket: &str, prefix: &str| {
            format!(
                r#"{{"s3":{{"endpoint":"{endpoint}","bucket":"{bucket}","prefix":"{prefix}","credentialsSecret":{{"name":"s"}}}}}}"#
            )
        };
        let of_store = r#"{"s3":{"endpoint":"https://s3.example.com"}}"#;
        let of_prefix = r#"{"s3":{"endpoint":"https://s3.example.com:443/","bucket":"backups","prefix":"team-a"}}"#;
        for (endpoint, bucket, prefix, by_store, by_prefix) in [
            ("https://S3.example.com", "backups", "team-a/c1", true, true),
            ("https://s3.example.com:443", "backups", "team-a", true, true),
            ("https://s3.example.com", "backups", "team-ab", true, false),
            ("https://s3.example.com", "backups", "", true, false),
            ("https://s3.example.com", "other", "team-a", true, false),
            ("https://s3.example.com:9000", "backups", "team-a", false, false),
            ("https://s3.example.com/tenant", "backups", "team-a", false, false),
            ("https://s3.example.com.evil.test", "backups", "team-a", false, false),
        ] {
            let sink = sink(endpoint, bucket, prefix);
            assert_eq!((allows(of_store, &sink), allows(of_prefix, &sink)), (by_store, by_prefix), "{sink}");
        }
        let of_tenant = r#"{"s3":{"endpoint":"https://s3.example.com/Tenant"}}"#;
        assert!(allows(of_tenant, &sink("https://S3.example.com:443/Tenant/", "backups", "")));
        assert!(!allows(of_tenant, &sink("https://s3.example.com/tenant", "backups", "")), "paths have a case");
        assert!(!allows(of_store, r#"{"directory":{"path":"/srv"}}"#));
        assert!(!allows(r#"{"directory":{"path":"/"}}"#, &sink("https://s3.example.com", "backups", "")));
    }
}
