//! Reports on a document that it is refused, as a condition that exists as long as that holds.

use std::collections::BTreeSet;

use keelway_api::{
    condition::reason::ConditionReason, document::DocumentName, event::DocumentEvent, fault::Faults, jiff::Timestamp,
};
use kube::api::{Patch, PatchParams};
use serde_json::{Value as Json, json};

use super::KubernetesStore;
use crate::document_paths::path_of;

pub(super) const ACCEPTED: &str = "Accepted";
/// The field manager of this condition. It differs from that of the other status fields, so that an apply of the condition keeps them.
const MANAGER: &str = "keelway-manager-verdicts";
/// The most characters of a message (`metav1.Condition`).
const LONGEST_MESSAGE: usize = 32_768;

impl KubernetesStore {
    /// Writes or removes the condition. An error is logged and not retried: the log reports the refusal, too.
    pub(super) async fn write_verdict(&self, name: &DocumentName, faults: Option<&Faults>) {
        if !matches!(name, DocumentName::Cluster(_) | DocumentName::Hypervisor(_)) {
            return;
        }
        let known = self.shared.held().known(&path_of(name)).unwrap_or_default();
        let message = faults.map(message);
        // The condition has this message already, for example from an earlier manager.
        if message.is_some() && message == known.refused {
            return;
        }
        if let Some(faults) = faults {
            self.teller.send(refusal(name, known.uid.as_deref(), faults));
        }
        let conditions: Vec<Json> = message.map(|message| self.condition(name, &message)).into_iter().collect();
        let body = self.body(name, json!({ "status": { "conditions": conditions } }));
        let api = self.resources.api(&self.client, name);
        let params = PatchParams::apply(MANAGER).force();
        if let Err(error) = api.patch_status(name.name(), &params, &Patch::Apply(body)).await {
            tracing::warn!(document = %name, %error, "could not write the condition Accepted of the document");
        }
    }

    fn condition(&self, name: &DocumentName, message: &str) -> Json {
        // `kubectl wait` ignores a condition of another generation.
        let generation = self.shared.held().generation_of_refused(&path_of(name));
        json!({
            "type": ACCEPTED,
            "status": "False",
            "reason": ConditionReason::Invalid.as_str(),
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": Timestamp::now().to_string(),
        })
    }
}

fn message(faults: &Faults) -> String {
    faults.to_string().chars().take(LONGEST_MESSAGE).collect()
}

/// Returns an Event with the names of the faulty fields only. The condition contains the details.
fn refusal(name: &DocumentName, uid: Option<&str>, faults: &Faults) -> DocumentEvent {
    let fields: BTreeSet<&str> = faults.0.iter().map(|fault| fault.field.as_str()).collect();
    let fields = fields.into_iter().collect::<Vec<_>>().join(", ");
    DocumentEvent {
        regarding: name.clone(),
        uid: uid.map(str::to_owned),
        related: None,
        warning: true,
        reason: ConditionReason::Invalid.as_str(),
        note: format!("the document is invalid and has no effect ({fields}); the condition Accepted has the details"),
    }
}
