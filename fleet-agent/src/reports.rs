//! What the agent has yet to report to the fleet. Reports about one Work are merged, so that an absent fleet costs one report for each Work.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use keelway_fleet::{
    WORK_APPLIED, Work,
    names::{AGENT_FIELD_MANAGER, WORK_FINALIZER},
};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{Patch, PatchParams},
};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

/// The field manager of an object's own status. It is separate, so that conditions are reported without it.
const OBJECT_MANAGER: &str = "keelway-fleet-agent-object";
/// How many reports are sent at once.
const CONCURRENT: usize = 16;
/// The pause between two rounds of reports. A status that changes repeatedly is reported once a round.
const ROUND: Duration = Duration::from_millis(250);

/// The condition `Applied` of a Work, with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AppliedReport {
    pub(crate) generation: i64,
    pub(crate) is_applied: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) drift: Vec<String>,
    /// When `is_applied` changed last.
    pub(crate) since: Timestamp,
}

/// The object's own status.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObjectReport {
    pub(crate) generation: Option<i64>,
    pub(crate) status: Option<Value>,
}

impl ObjectReport {
    /// Returns what identifies the report, so that the status itself need not be kept. The API of the fleet may return fields in another order.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.generation.hash(&mut hasher);
        self.status.hash(&mut hasher);
        hasher.finish()
    }
}

/// What is to be reported of a Work.
#[derive(Debug, Default)]
struct WorkReport {
    applied: Option<AppliedReport>,
    object: Option<ObjectReport>,
    /// The order to delete is carried out: the finalizer is removed.
    releases: Option<String>,
}

/// All reports that were not sent.
#[derive(Debug, Default)]
pub(crate) struct PendingReports {
    reports: Mutex<BTreeMap<String, WorkReport>>,
    added: Notify,
    /// Their number.
    pending: Gauge,
    /// When the status of an object was sent last.
    observed: watch::Sender<Option<Timestamp>>,
}

impl PendingReports {
    pub(crate) fn new(pending: Gauge) -> Self {
        Self { pending, ..Self::default() }
    }

    /// Returns when the status of an object was sent last.
    pub(crate) fn observed(&self) -> watch::Receiver<Option<Timestamp>> {
        self.observed.subscribe()
    }

    pub(crate) fn applied(&self, work: &str, report: AppliedReport) {
        self.add(work, |pending| pending.applied = Some(report));
    }

    pub(crate) fn object(&self, work: &str, report: ObjectReport) {
        self.add(work, |pending| pending.object = Some(report));
    }

    /// Removes the finalizer of this Work, and of no other one of its name.
    pub(crate) fn release(&self, work: &str, uid: &str) {
        self.add(work, |pending| *pending = WorkReport { releases: Some(uid.to_owned()), ..WorkReport::default() });
    }

    fn add(&self, work: &str, add: impl FnOnce(&mut WorkReport)) {
        self.change(|reports| add(reports.entry(work.to_owned()).or_default()));
        self.added.notify_one();
    }

    fn take(&self) -> BTreeMap<String, WorkReport> {
        self.change(std::mem::take)
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<String, WorkReport>) -> T) -> T {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut reports);
        self.pending.set(i64::try_from(reports.len()).unwrap_or(i64::MAX));
        changed
    }

    /// Puts back a report that was not sent. What was added since is newer.
    fn put_back(&self, work: String, report: WorkReport) {
        self.change(|reports| {
            let newer = reports.entry(work).or_default();
            newer.applied = newer.applied.take().or(report.applied);
            newer.object = newer.object.take().or(report.object);
            newer.releases = newer.releases.take().or(report.releases);
        });
    }

    /// Sends reports until one fails for a cause that concerns all of them.
    pub(crate) async fn send(&self, client: &Client, namespace: &str) -> Error {
        let api: Api<Work> = Api::namespaced(client.clone(), namespace);
        loop {
            let round = stream::iter(self.take()).map(|(work, report)| self.send_one(&api, work, report));
            let failures: Vec<Option<Error>> = round.buffer_unordered(CONCURRENT).collect().await;
            if let Some(error) = failures.into_iter().flatten().next() {
                self.added.notify_one();
                return error;
            }
            sleep(ROUND).await;
            self.added.notified().await;
        }
    }

    async fn send_one(&self, api: &Api<Work>, work: String, report: WorkReport) -> Option<Error> {
        match send(api, &work, &report).await {
            Ok(()) => {
                if report.object.is_some() {
                    self.observed.send_replace(Some(Timestamp::now()));
                }
                None
            }
            // The Work does not exist any more.
            Err(Error::Api(status)) if status.code == 404 => None,
            Err(Error::Api(status)) if matches!(status.code, 400 | 413 | 422) => {
                tracing::warn!(work, error = %status, "the fleet refused a report");
                None
            }
            Err(error) => {
                self.put_back(work, report);
                Some(error)
            }
        }
    }
}

async fn send(api: &Api<Work>, work: &str, report: &WorkReport) -> Result<(), Error> {
    if let Some(uid) = &report.releases {
        return release(api, work, uid).await;
    }
    if let Some(applied) = &report.applied {
        apply_status(api, work, AGENT_FIELD_MANAGER, &applied_status(applied)).await?;
    }
    if let Some(object) = &report.object {
        let status = json!({
            "objectGeneration": object.generation,
            "objectStatus": object.status,
            "observedTime": MicroTime(Timestamp::now()),
        });
        apply_status(api, work, OBJECT_MANAGER, &without_nulls(status)).await?;
    }
    Ok(())
}

fn applied_status(report: &AppliedReport) -> Value {
    json!({
        "observedGeneration": report.generation,
        "drift": report.drift,
        "conditions": [{
            "type": WORK_APPLIED,
            "status": if report.is_applied { "True" } else { "False" },
            "reason": report.reason,
            "message": report.message,
            "observedGeneration": report.generation,
            "lastTransitionTime": report.since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }],
    })
}

fn without_nulls(mut status: Value) -> Value {
    if let Some(fields) = status.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    status
}

async fn apply_status(api: &Api<Work>, work: &str, manager: &str, status: &Value) -> Result<(), Error> {
    let body = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Work",
        "metadata": { "name": work },
        "status": status,
    });
    api.patch_status(work, &PatchParams::apply(manager).force(), &Patch::Apply(&body)).await?;
    Ok(())
}

/// Removes the finalizer. A Work that changed meanwhile is a conflict, and is tried again.
async fn release(api: &Api<Work>, work: &str, uid: &str) -> Result<(), Error> {
    let Some(found) = api.get_opt(work).await? else { return Ok(()) };
    let is_the_same = found.uid().as_deref() == Some(uid);
    if !is_the_same || !found.finalizers().iter().any(|finalizer| finalizer == WORK_FINALIZER) {
        return Ok(());
    }
    let finalizers: Vec<&String> = found.finalizers().iter().filter(|name| *name != WORK_FINALIZER).collect();
    let change = json!({ "metadata": { "resourceVersion": found.resource_version(), "finalizers": finalizers } });
    let parameters = PatchParams { field_manager: Some(AGENT_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    api.patch(work, &parameters, &Patch::Merge(&change)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_fields_does_not_matter() {
        let digest = |status: Value| ObjectReport { generation: Some(1), status: Some(status) }.digest();
        let one = digest(json!({ "replicas": 1, "list": [{ "a": 1, "b": 2 }] }));
        assert_eq!(one, digest(json!({ "list": [{ "b": 2, "a": 1 }], "replicas": 1 })));
        assert_ne!(one, digest(json!({ "list": [{ "b": 2, "a": 2 }], "replicas": 1 })));
        assert_ne!(digest(json!({ "a": "1" })), digest(json!({ "a": 1 })));
    }
}
