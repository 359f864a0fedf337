//! Snapshots of a cluster's etcd: when they are taken, how long they are kept, and where they are stored.

use std::path::PathBuf;

use cronexpr::{Crontab, FallbackTimezoneOption, ParseOptions, parse_crontab_with};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Cluster, cluster::LocalSecretReference, documents::SecretName, duration::Span};

/// The Secret of the key that seals a cluster's snapshots.
pub const SNAPSHOT_SECRET: &str = "snapshots";

/// The snapshots of a cluster's etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotsSpec {
    /// When snapshots are taken, in UTC: minute, hour, day of the month, month and day of the week, as in the schedule
    /// of a CronJob. The default is once per hour. If it is empty, only `keelway snapshot create` takes snapshots.
    #[serde(default = "hourly")]
    pub schedule: String,
    /// How long snapshots are kept.
    #[serde(default)]
    pub retention: SnapshotRetention,
    /// Where snapshots are stored.
    pub sink: SnapshotSinkSpec,
}

/// How long snapshots are kept. The newest snapshot is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotRetention {
    /// The number of snapshots. After a new snapshot is stored, older ones are deleted.
    #[serde(default = "a_day")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: u32,
    /// The maximum age of a snapshot, such as `720h`. The default is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Span>,
}

/// Where snapshots are stored: exactly one of the fields is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotSinkSpec {
    /// A directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<SnapshotDirectory>,
    /// An S3-compatible store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<SnapshotBucket>,
}

/// A directory with snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotDirectory {
    /// The absolute path, on the machine where the manager or the `keelway` command runs. It is created if it does not
    /// exist. Use a file system that survives the loss of the hypervisors.
    pub path: String,
}

/// A bucket of an S3-compatible store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotBucket {
    /// The URL of the store's API, such as `https://s3.eu-central-1.amazonaws.com`.
    pub endpoint: String,
    /// The name of the bucket, which must exist.
    pub bucket: String,
    /// A path within the bucket, such as `keelway/production`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The region of the bucket.
    #[serde(default = "region")]
    pub region: String,
    /// A Secret in the cluster's namespace with the keys `accessKeyID` and `secretAccessKey`, and optionally `ca.crt`:
    /// the authorities of the store's certificate, in PEM. The default authorities are those of the operating system.
    pub credentials_secret: LocalSecretReference,
}

/// The last snapshot, and what failed since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotsStatus {
    /// The last snapshot that was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<SnapshotStatus>,
    /// The last attempt, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<SnapshotFailure>,
}

/// A stored snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotStatus {
    /// Its name.
    pub name: String,
    /// When it was taken.
    pub time: Time,
    /// The revision of its database.
    pub revision: u64,
    /// The size of its database in bytes.
    pub size: u64,
}

/// A snapshot that could not be taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotFailure {
    /// When it was tried.
    pub time: Time,
    /// What failed, and why.
    pub message: String,
}

/// Times at which snapshots are taken.
pub struct SnapshotSchedule(Crontab);

/// A text is not a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a schedule of five fields")]
pub struct SnapshotScheduleError(String);

fn hourly() -> String {
    "0 * * * *".to_owned()
}
fn a_day() -> u32 {
    24
}
fn region() -> String {
    "us-east-1".to_owned()
}

impl Default for SnapshotRetention {
    fn default() -> Self {
        Self { keep: a_day(), max_age: None }
    }
}

impl SnapshotsSpec {
    /// Returns the schedule; none if snapshots are taken on request only, or if the schedule is not valid.
    #[must_use]
    pub fn schedule(&self) -> Option<SnapshotSchedule> {
        SnapshotSchedule::parse(&self.schedule).ok().filter(|_| !self.schedule.is_empty())
    }
}

impl Cluster {
    /// Returns the Secret with the credentials of the store of its snapshots.
    #[must_use]
    pub fn snapshot_credentials(&self) -> Option<SecretName> {
        let bucket = self.spec.etcd.snapshots.as_ref()?.sink.s3.as_ref()?;
        let name = bucket.credentials_secret.name.clone();
        Some(SecretName { namespace: self.reference().namespace, name })
    }
}

impl SnapshotSchedule {
    /// Reads the five fields of a schedule, in UTC.
    ///
    /// # Errors
    /// The text is not a schedule.
    pub fn parse(text: &str) -> Result<Self, SnapshotScheduleError> {
        let error = || SnapshotScheduleError(text.to_owned());
        // The library accepts a time zone as a sixth field, which CronJobs have as a field of their own.
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"*/,- ".contains(&byte);
        if text.split_ascii_whitespace().count() != 5 || !text.bytes().all(is_usual) {
            return Err(error());
        }
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        parse_crontab_with(text, options).map(Self).map_err(|_| error())
    }

    /// Returns the first time after this one; none if there is no such time.
    #[must_use]
    pub fn next_after(&self, time: Timestamp) -> Option<Timestamp> {
        self.0.find_next(time).ok().map(|next| next.timestamp())
    }
}

impl SnapshotDirectory {
    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(&self.path)
    }
}
