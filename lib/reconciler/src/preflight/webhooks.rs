//! Admission webhooks that would keep an API server of another minor version from starting.
//!
//! An API server that starts writes the roles, flow schemas and priority classes of its release, and ends if it cannot. Rules for objects without a
//! namespace ignore a namespaceSelector. Webhooks with an objectSelector or matchConditions are not considered, because they may exempt these objects,
//! and neither are those with a URL, whose server only the API servers may reach.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use k8s_openapi::{
    api::{
        admissionregistration::v1::{
            MutatingWebhookConfiguration, RuleWithOperations, ServiceReference, ValidatingWebhook,
            ValidatingWebhookConfiguration,
        },
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use keelway_planner::SilentWebhook;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};

use crate::listing::list_all;

/// What API servers write when they start, by group and resource.
const WRITTEN: [(&str, &str); 5] = [
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
    ("scheduling.k8s.io", "priorityclasses"),
];

/// A webhook of either kind of configuration. A mutating one has the fields of a validating one, and others that are not read.
struct AdmissionWebhook {
    /// The configuration, as kubectl names it.
    configuration: String,
    webhook: ValidatingWebhook,
}

impl AdmissionWebhook {
    /// Returns the Service that an API server which starts asks.
    fn asked(&self) -> Option<&ServiceReference> {
        let ValidatingWebhook { failure_policy, object_selector, match_conditions, rules, client_config, .. } =
            &self.webhook;
        // `Fail` is the default.
        let is_required = failure_policy.as_deref().is_none_or(|policy| policy == "Fail");
        let selects_objects = object_selector.as_ref().is_some_and(|selector| *selector != LabelSelector::default());
        let is_selective = selects_objects || match_conditions.is_some();
        let is_asked = is_required && !is_selective && rules.iter().flatten().any(concerns_starts);
        client_config.service.as_ref().filter(|_| is_asked)
    }
}

/// Returns the webhooks that are asked and have no ready endpoint. The error is text for users.
pub(super) async fn silent(client: &Client) -> Result<BTreeSet<SilentWebhook>, String> {
    let kinds = [
        ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
        ApiResource::erase::<MutatingWebhookConfiguration>(&()),
    ];
    let mut webhooks = Vec::new();
    for kind in kinds {
        for configuration in
            list_all(&Api::<DynamicObject>::all_with(client.clone(), &kind), ListParams::default()).await?
        {
            webhooks.extend(webhooks_of(&kind.kind, &configuration)?);
        }
    }
    let found = try_join_all(webhooks.iter().map(|webhook| silence_of(client, webhook))).await?;
    Ok(found.into_iter().flatten().collect())
}

async fn silence_of(client: &Client, asked: &AdmissionWebhook) -> Result<Option<SilentWebhook>, String> {
    let Some(service) = asked.asked() else { return Ok(None) };
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), &service.namespace);
    let slices =
        list_all(&slices, ListParams::default().labels(&format!("kubernetes.io/service-name={}", service.name)))
            .await?;
    let is_silent = !slices.iter().any(has_ready_endpoint);
    Ok(is_silent.then(|| SilentWebhook {
        configuration: asked.configuration.clone(),
        name: asked.webhook.name.clone(),
        service: format!("{}/{}", service.namespace, service.name),
    }))
}

fn webhooks_of(kind: &str, configuration: &DynamicObject) -> Result<Vec<AdmissionWebhook>, String> {
    let name = format!("{}/{}", kind.to_lowercase(), configuration.name_any());
    let webhooks = configuration.data.get("webhooks").cloned().unwrap_or_default();
    let webhooks: Option<Vec<ValidatingWebhook>> =
        serde_json::from_value(webhooks).map_err(|error| format!("cannot read {name}: {error}"))?;
    let of_configuration = |webhook| AdmissionWebhook { configuration: name.clone(), webhook };
    Ok(webhooks.into_iter().flatten().map(of_configuration).collect())
}

fn concerns_starts(rule: &RuleWithOperations) -> bool {
    let has = |list: &Option<Vec<String>>, wanted: &[&str]| {
        list.iter().flatten().any(|found| wanted.contains(&found.as_str()))
    };
    let writes = has(&rule.operations, &["*", "CREATE", "UPDATE"]);
    let scope = rule.scope.as_deref().is_none_or(|scope| scope != "Namespaced");
    let is_written = |(group, resource): &(&str, &str)| {
        has(&rule.api_groups, &["*", group]) && has(&rule.resources, &["*", "*/*", resource])
    };
    writes && scope && WRITTEN.iter().any(is_written)
}

fn has_ready_endpoint(slice: &EndpointSlice) -> bool {
    // An endpoint without the condition counts as ready.
    slice
        .endpoints
        .iter()
        .any(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn asked(change: impl FnOnce(&mut Value)) -> Option<String> {
        let mut configuration = json!({
            "metadata": { "name": "policies" },
            "webhooks": [{
                "name": "check.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": { "service": { "namespace": "policies", "name": "webhook" } },
                "rules": [{ "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"] }],
            }],
        });
        change(&mut configuration["webhooks"][0]);
        let webhooks = webhooks_of("ValidatingWebhookConfiguration", &serde_json::from_value(configuration).unwrap());
        webhooks.unwrap()[0].asked().map(|service| format!("{}/{}", service.namespace, service.name))
    }

    /// A mutating webhook has fields of its own, and a configuration can be without webhooks.
    #[test]
    fn both_kinds_of_configurations_are_read() {
        let of = |configuration: Value| {
            webhooks_of("MutatingWebhookConfiguration", &serde_json::from_value(configuration).unwrap()).unwrap()
        };
        let webhook = json!({
            "name": "set.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "reinvocationPolicy": "Never",
            "clientConfig": { "service": { "namespace": "policies", "name": "webhook" } },
        });
        let [read] = of(json!({ "metadata": { "name": "defaults" }, "webhooks": [webhook] })).try_into().ok().unwrap();
        assert_eq!(read.configuration, "mutatingwebhookconfiguration/defaults");
        assert_eq!(read.webhook.name, "set.example.com");
        assert_eq!(of(json!({ "metadata": { "name": "empty" } })).len(), 0);
    }

    #[test]
    fn a_webhook_for_everything_is_asked() {
        assert_eq!(asked(|_| {}).as_deref(), Some("policies/webhook"));
        assert!(asked(|webhook| webhook["namespaceSelector"] = json!({ "matchLabels": { "a": "b" } })).is_some());
        assert!(asked(|webhook| webhook["objectSelector"] = json!({})).is_some());
    }

    #[test]
    fn a_webhook_that_can_be_left_out_is_not() {
        assert_eq!(asked(|webhook| webhook["failurePolicy"] = json!("Ignore")), None);
        assert_eq!(asked(|webhook| webhook["objectSelector"] = json!({ "matchLabels": { "a": "b" } })), None);
        assert_eq!(asked(|webhook| webhook["rules"][0]["resources"] = json!(["pods", "roles"])), None);
        assert_eq!(asked(|webhook| webhook["rules"][0]["apiGroups"] = json!(["apps"])), None);
        assert_eq!(asked(|webhook| webhook["rules"][0]["operations"] = json!(["DELETE"])), None);
        assert_eq!(asked(|webhook| webhook["rules"][0]["scope"] = json!("Namespaced")), None);
        assert_eq!(asked(|webhook| webhook["clientConfig"] = json!({ "url": "https://example.com" })), None);
    }

    #[test]
    fn an_endpoint_is_ready_unless_it_says_otherwise() {
        let slice = |endpoints: Value| -> EndpointSlice {
            serde_json::from_value(json!({ "addressType": "IPv4", "metadata": {}, "endpoints": endpoints })).unwrap()
        };
        assert!(!has_ready_endpoint(&slice(json!([]))));
        assert!(!has_ready_endpoint(&slice(json!([{ "addresses": [], "conditions": { "ready": false } }]))));
        assert!(has_ready_endpoint(&slice(json!([{ "addresses": [], "conditions": {} }]))));
    }
}
