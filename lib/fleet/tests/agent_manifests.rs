//! The manifests of the agent.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking")]

use std::collections::BTreeSet;

use keelway_fleet::{AgentRights, agent_manifests, agent_rules};
use serde_json::Value;

fn resources(rights: &AgentRights) -> BTreeSet<String> {
    let rules = agent_rules(rights);
    let of = |rule: &Value, field: &str| -> Vec<String> { serde_json::from_value(rule[field].clone()).unwrap() };
    rules.iter().flat_map(|rule| of(rule, "resources").into_iter().chain(of(rule, "verbs"))).collect()
}

fn all_rights() -> AgentRights {
    let resources = vec!["widgets.example.com".to_owned()];
    AgentRights { rbac: true, webhooks: true, resources, ..AgentRights::default() }
}

#[test]
fn the_agent_has_named_rights_only() {
    let all = all_rights();
    for rights in [AgentRights::default(), all] {
        let named = resources(&rights);
        assert!(!named.contains("*") && !named.contains("escalate") && !named.contains("impersonate"), "{named:?}");
        for (resource, is_asked) in [
            ("roles", rights.rbac),
            ("mutatingwebhookconfigurations", rights.webhooks),
            ("widgets", !rights.resources.is_empty()),
        ] {
            assert_eq!(named.contains(resource), is_asked, "{resource}");
        }
    }
}

#[test]
fn the_token_is_in_its_secret_only() {
    let manifests = agent_manifests("the-token", "registry.example/fleet-agent:v1", &AgentRights::default());
    let with_token: Vec<&str> = manifests
        .iter()
        .filter(|manifest| manifest.to_string().contains("the-token"))
        .filter_map(|manifest| manifest["kind"].as_str())
        .collect();
    assert_eq!(with_token, ["Secret"]);
    assert!(manifests.iter().any(|manifest| manifest.to_string().contains("registry.example/fleet-agent:v1")));
}

#[test]
fn an_agent_that_applies_nothing_only_reads() {
    let writes = ["create", "patch", "delete", "update", "deletecollection"];
    let delegated = AgentRights { delegated: true, ..all_rights() };
    for (rights, may_write) in [(all_rights(), true), (delegated, false)] {
        let named = resources(&rights);
        assert!(named.contains("jobs") && named.contains("watch"));
        assert_eq!(writes.iter().any(|verb| named.contains(*verb)), may_write, "{named:?}");
        let flag = "--orchestration-enabled=false";
        let manifests = agent_manifests("token", "image", &rights);
        assert_eq!(manifests.iter().any(|manifest| manifest.to_string().contains(flag)), !may_write);
    }
}
