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
            MutatingWebhookConfiguration, RuleWithOperations, ServiceReference, ValidatingWebhookConfiguration,
            WebhookClientConfig,
        },
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use keelway_planner::SilentWebhook;
use kube::{Api, Client, ResourceExt};

use crate::listing::list_all;

/// What API servers write when they start, by group and resource.
const WRITTEN: [(&str, &str); 5] = [
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
    ("scheduling.k8s.io", "priorityclasses"),
];

/// What both kinds of webhooks have in common.
struct AdmissionWebhook {
    configuration: String,
    name: String,
    is_required: bool,
    is_selective: bool,
    rules: Vec<RuleWithOperations>,
    service: Option<ServiceReference>,
}

impl AdmissionWebhook {
    /// Returns the Service that an API server which starts asks.
    fn asked(&self) -> Option<&ServiceReference> {
        let is_asked = self.is_required && !self.is_selective && self.rules.iter().any(concerns_starts);
        self.service.as_ref().filter(|_| is_asked)
    }
}

/// Returns the webhooks that are asked and have no ready endpoint. The error is text for users.
pub(super) async fn silent(client: &Client) -> Result<BTreeSet<SilentWebhook>, String> {
    let mut webhooks = Vec::new();
    for found in list_all(&Api::<ValidatingWebhookConfiguration>::all(client.clone()), "").await? {
        webhooks.extend(of_validating(&found));
    }
    for found in list_all(&Api::<MutatingWebhookConfiguration>::all(client.clone()), "").await? {
        webhooks.extend(of_mutating(&found));
    }
    let found = try_join_all(webhooks.iter().map(|webhook| silence_of(client, webhook))).await?;
    Ok(found.into_iter().flatten().collect())
}

async fn silence_of(client: &Client, webhook: &AdmissionWebhook) -> Result<Option<SilentWebhook>, String> {
    let Some(service) = webhook.asked() else { return Ok(None) };
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), &service.namespace);
    let slices = list_all(&slices, &format!("kubernetes.io/service-name={}", service.name)).await?;
    let is_silent = !slices.iter().any(has_ready_endpoint);
    Ok(is_silent.then(|| SilentWebhook {
        configuration: webhook.configuration.clone(),
        name: webhook.name.clone(),
        service: format!("{}/{}", service.namespace, service.name),
    }))
}

fn of_validating(configuration: &ValidatingWebhookConfiguration) -> Vec<AdmissionWebhook> {
    let webhooks = configuration.webhooks.iter().flatten();
    let read = webhooks.map(|webhook| AdmissionWebhook {
        configuration: format!("validatingwebhookconfiguration/{}", configuration.name_any()),
        name: webhook.name.clone(),
        is_required: is_required(webhook.failure_policy.as_deref()),
        is_selective: is_selective(webhook.object_selector.as_ref(), webhook.match_conditions.is_some()),
        rules: webhook.rules.clone().unwrap_or_default(),
        service: service(&webhook.client_config),
    });
    read.collect()
}

fn of_mutating(configuration: &MutatingWebhookConfiguration) -> Vec<AdmissionWebhook> {
    let webhooks = configuration.webhooks.iter().flatten();
    let read = webhooks.map(|webhook| AdmissionWebhook {
        configuration: format!("mutatingwebhookconfiguration/{}", configuration.name_any()),
        name: webhook.name.clone(),
        is_required: is_required(webhook.failure_policy.as_deref()),
        is_selective: is_selective(webhook.object_selector.as_ref(), webhook.match_conditions.is_some()),
        rules: webhook.rules.clone().unwrap_or_default(),
        service: service(&webhook.client_config),
    });
    read.collect()
}

fn service(client: &WebhookClientConfig) -> Option<ServiceReference> {
    client.service.clone()
}

/// `Fail` is the default.
fn is_required(failure_policy: Option<&str>) -> bool {
    failure_policy.is_none_or(|policy| policy == "Fail")
}

fn is_selective(objects: Option<&LabelSelector>, has_conditions: bool) -> bool {
    has_conditions || objects.is_some_and(|selector| *selector != LabelSelector::default())
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
        let webhooks = of_validating(&serde_json::from_value(configuration).unwrap());
        webhooks[0].asked().map(|service| format!("{}/{}", service.namespace, service.name))
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
