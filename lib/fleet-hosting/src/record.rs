//! The record of a fleet in its hosting cluster: a Secret with the documents of the fleet, which contain its authorities and keys.

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{Documents, fault::Faults, name::ClusterId};
use serde_json::{Value, json};

use crate::metadata::{NAME, labels_of};

/// The label of the Secret, by which `kubectl get secrets` finds it.
const LABEL: &str = "fleet.keelway.dev/documents";
/// The key of the documents in the Secret.
const DOCUMENTS: &str = "documents.yaml";

/// A fleet, as the Secret in its namespace records it.
pub struct FleetRecord {
    /// The namespace.
    pub namespace: String,
    /// Its Cluster and Secrets.
    pub documents: Documents,
}

/// The record of a fleet cannot be read. No text quotes the Secret.
#[derive(Debug, thiserror::Error)]
pub enum FleetRecordError {
    /// The input is not YAML or JSON.
    #[error("the input is not the output of kubectl get secrets -o yaml")]
    Text(#[source] serde_saphyr::Error),
    /// There is no record.
    #[error("no Secret of the input has the label {LABEL}")]
    Missing,
    /// There are several fleets, and only one of them runs.
    #[error("the input has the Secrets of several fleets: {0}")]
    Several(String),
    /// The Secret has no documents.
    #[error("the Secret {0} has no valid {DOCUMENTS}")]
    Content(String),
    /// The documents have faults.
    #[error("the documents in the Secret {name} are not valid")]
    Documents {
        /// The name of the Secret.
        name: String,
        /// The faults.
        #[source]
        faults: Faults,
    },
}

impl FleetRecord {
    /// Reads the record from a Secret or a list of Secrets, in YAML or JSON. Other Secrets are ignored.
    ///
    /// # Errors
    /// There is not exactly one record, or it cannot be read.
    pub fn read(text: &str) -> Result<Self, FleetRecordError> {
        let input: Value = serde_saphyr::from_str(text).map_err(FleetRecordError::Text)?;
        let items = match input.get("items").and_then(Value::as_array) {
            Some(items) => items.iter().collect(),
            None => vec![&input],
        };
        let is_record = |item: &&Value| {
            let labels = item.pointer("/metadata/labels");
            labels.is_some_and(|labels| labels.get(LABEL).is_some())
        };
        let records: Vec<&Value> = items.into_iter().filter(is_record).collect();
        match records.as_slice() {
            [] => Err(FleetRecordError::Missing),
            [record] => Self::of(record),
            several => {
                let names: Vec<&str> = several.iter().map(|record| text_at(record, "/metadata/name")).collect();
                Err(FleetRecordError::Several(names.join(", ")))
            }
        }
    }

    fn of(secret: &Value) -> Result<Self, FleetRecordError> {
        let name = text_at(secret, "/metadata/name").to_owned();
        let content = secret.get("data").and_then(|data| data.get(DOCUMENTS)).and_then(Value::as_str);
        let Some(content) = content.and_then(|content| STANDARD.decode(content).ok()) else {
            return Err(FleetRecordError::Content(name));
        };
        let documents = Documents::read(&content).map_err(|faults| FleetRecordError::Documents { name, faults })?;
        Ok(Self { namespace: text_at(secret, "/metadata/namespace").to_owned(), documents })
    }

    /// Returns the Secret. Its name contains the id of the fleet, so that a second fleet in the namespace does not replace it.
    pub(crate) fn secret(namespace: &str, id: &ClusterId, documents: &Documents) -> Value {
        let mut labels = labels_of(NAME);
        labels[LABEL] = json!("");
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": format!("{NAME}-{id}"), "namespace": namespace, "labels": labels },
            "data": { DOCUMENTS: STANDARD.encode(documents.write()) },
        })
    }
}

fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
