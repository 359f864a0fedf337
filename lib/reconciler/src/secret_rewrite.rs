//! Writes the Secrets of a managed cluster again without a change, so that its API servers encrypt them with the key that is active now.
//!
//! An API server skips a write that changes nothing, unless the stored object is encrypted with another key than the first one. The progress is an
//! annotation in the cluster, so it is restored together with the Secrets that it is about.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use keelway_api::{Documents, jiff::Timestamp, machine::ObservedValue, name::ClusterId};
use keelway_planner::{OWNER, SecretRewrite};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::{GroupVersionKind, PartialObjectMeta},
};
use serde_json::{Value, json};

use crate::{
    Machines,
    managed_cluster::{ManagedClusterError, OWN_BINDING, REQUEST, administrator, bindings_api, own_annotation},
    tls::TlsClients,
};

/// The annotation of the driver's own binding with the progress.
const ANNOTATION: &str = "keelway.dev/secrets-rewritten";
/// The number of Secrets that one pass writes.
const PAGE: u32 = 500;
/// The number of Secrets that are written at the same time.
const AT_ONCE: usize = 8;

/// The value of [`ANNOTATION`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RewriteRecord {
    /// The name of the key.
    key: String,
    rewritten: u64,
    /// Where the next page begins. None: all pages were written, or none.
    next: Option<String>,
    is_complete: bool,
}

impl RewriteRecord {
    /// A record that a person changed counts as none.
    fn read(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let word = |name: &str| value.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
        let Some(key) = word("key") else { return Self::default() };
        let rewritten = value.get("rewritten").and_then(Value::as_u64).unwrap_or_default();
        let is_complete = value.get("complete").and_then(Value::as_bool).unwrap_or_default();
        Self { key, rewritten, next: word("next"), is_complete }
    }

    fn text(&self) -> String {
        let Self { key, rewritten, next, is_complete } = self;
        json!({ "key": key, "rewritten": rewritten, "next": next, "complete": is_complete }).to_string()
    }
}

/// Reads the progress with the credentials of the driver.
pub(crate) async fn observe(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
) -> ObservedValue<SecretRewrite> {
    match own_annotation(machines, clients, documents, id, ANNOTATION).await {
        ObservedValue::Known(text) => {
            let RewriteRecord { key, rewritten, is_complete, next: _ } = RewriteRecord::read(&text);
            ObservedValue::Known(SecretRewrite { key, rewritten, is_complete })
        }
        ObservedValue::Unreachable { silent, why } => ObservedValue::Unreachable { silent, why },
    }
}

/// Writes the next page, and records it.
pub(crate) async fn execute(
    machines: &Arc<dyn Machines>,
    documents: &Documents,
    id: &ClusterId,
    (key_name, now): (&str, Timestamp),
) -> Result<(), ManagedClusterError> {
    write_next(&administrator(machines, documents, id, now)?, key_name).await
}

async fn write_next(client: &kube::Client, key_name: &str) -> Result<(), ManagedClusterError> {
    let bindings = bindings_api(client.clone());
    let binding = in_time(bindings.get(OWN_BINDING)).await?;
    let found = binding.annotations().get(ANNOTATION).map(|text| RewriteRecord::read(text)).unwrap_or_default();
    let from = if found.key == key_name { found } else { RewriteRecord::default() };
    let written = write_page(client, from).await?;
    let record = RewriteRecord { key: key_name.to_owned(), ..written };
    let annotation = BTreeMap::from([(ANNOTATION, record.text())]);
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotation } }));
    in_time(bindings.patch(OWN_BINDING, &PatchParams::apply(OWNER), &patch)).await?;
    Ok(())
}

async fn write_page(client: &kube::Client, from: RewriteRecord) -> Result<RewriteRecord, ManagedClusterError> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret"));
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let mut page = ListParams::default().limit(PAGE);
    page.continue_token.clone_from(&from.next);
    let listed = match in_time(all.list_metadata(&page)).await {
        // The position has expired. What was written is skipped by API servers.
        Err(ManagedClusterError::Request(kube::Error::Api(status))) if status.code == 410 && from.next.is_some() => {
            return Ok(RewriteRecord::default());
        }
        listed => listed?,
    };
    let number = listed.items.len() as u64;
    let next = listed.metadata.continue_.clone().filter(|token| !token.is_empty());
    let writes = listed.items.into_iter().map(|secret| write(client, &kind, secret));
    stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    let is_complete = next.is_none();
    Ok(RewriteRecord { key: String::new(), rewritten: from.rewritten + number, next, is_complete })
}

/// A Secret that was changed or removed since it was listed needs no write: whatever wrote it used the new key.
async fn write(
    client: &kube::Client,
    kind: &ApiResource,
    secret: PartialObjectMeta<DynamicObject>,
) -> Result<(), ManagedClusterError> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &secret.namespace().unwrap_or_default(), kind);
    let unchanged = json!({ "metadata": { "uid": secret.uid(), "resourceVersion": secret.resource_version() } });
    let (name, parameters, patch) = (secret.name_any(), PatchParams::default(), Patch::Merge(unchanged));
    match in_time(api.patch_metadata(&name, &parameters, &patch)).await {
        Err(ManagedClusterError::Request(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
        written => written.map(|_| ()),
    }
}

async fn in_time<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, ManagedClusterError> {
    let done = tokio::time::timeout(REQUEST, request).await.map_err(|_| ManagedClusterError::TimedOut)?;
    done.map_err(ManagedClusterError::Request)
}

#[cfg(test)]
mod tests;
