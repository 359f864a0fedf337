//! The metrics of the manager, and the alerts and the dashboard that use them.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod collector;
mod manager;
mod manifests;
mod promtool;
mod traces;

use std::collections::BTreeSet;

use manager::Manager;

/// Returns the names of the metric families in a scrape. The names of their samples begin with these.
fn families(scrape: &str) -> BTreeSet<&str> {
    scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

/// Returns the metrics that an expression names.
fn named(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("keelway_") || word.starts_with("process_")).collect()
}

#[test]
fn metrics_are_valid_for_prometheus() {
    let mut manager = Manager::start();
    let line = manager.says(|line| line["span"]["cluster"] == "c1");
    assert!(line["span"]["pass"].as_u64().unwrap() >= 1, "{line}");
    let scrape = manager.tells(&[
        "keelway_clusters{state=\"Progressing\"} 1.0",
        "keelway_hypervisors{role=\"Private\",state=\"NotReady\"} 1.0",
        "keelway_hypervisor_condition{hypervisor=\"hv-1\",condition=\"Ready\"} 0.0",
        "keelway_documents_refused 0.0",
        "keelway_leading 1",
        "keelway_passes_total{result=\"failed\"} 0",
        "keelway_actions_total{kind=\"converge\",result=\"failed\"} 0",
    ]);
    promtool::takes(&["check", "metrics"], &scrape);
    manager.is_ready();
    let open = manager.get("/metrics", "Accept: application/openmetrics-text\r\n");
    assert!(open.contains("application/openmetrics-text; version=1.0.0") && open.ends_with("# EOF\n"), "{open}");
}

#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let manager = Manager::start();
    let scrape = manager.tells(&["keelway_clusters{state=\"Progressing\"} 1.0"]);
    let families = families(&scrape);
    let values = |name: &str| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .is_some_and(|name| families.contains(name))
    };
    for (place, expression) in manifests::expressions() {
        let unknown: Vec<_> =
            named(&expression).into_iter().filter(|name| !families.contains(name) && !values(name)).collect();
        assert!(unknown.is_empty(), "{place} asks for {unknown:?}, which nobody tells");
        assert!(!named(&expression).is_empty(), "{place} asks for nothing");
    }
}

#[test]
fn every_expression_is_valid() {
    let monitoring = manifests::monitoring();
    promtool::takes(&["check", "rules", &monitoring.join("rules.yaml").display().to_string()], "");
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("dashboard.yaml");
    std::fs::write(&rules, manifests::dashboard_as_rules()).unwrap();
    promtool::takes(&["check", "rules", &rules.display().to_string()], "");
}

/// Each alert has a promtool test in which it fires.
#[test]
fn every_alert_fires_when_it_should() {
    let tests = manifests::monitoring().join("rules_test.yaml");
    promtool::takes(&["test", "rules", &tests.display().to_string()], "");
    let tested = manifests::tested();
    let alerts: BTreeSet<String> = manifests::alerts().into_iter().map(|alert| alert.name).collect();
    assert_eq!(alerts, tested);
}

#[test]
fn every_alert_has_instructions() {
    let page = manifests::read("docs/alerts.md");
    for alert in manifests::alerts() {
        let name = &alert.name;
        assert!(page.contains(&format!("\n## {name}\n")), "docs/alerts.md says nothing of {name}");
        let link = format!("https://keelway.dev/docs/alerts#{}", name.to_lowercase());
        assert_eq!(alert.annotations["runbook_url"], link, "{name}");
        assert!(["critical", "warning"].contains(&alert.severity.as_str()), "{name}: {}", alert.severity);
        for text in ["summary", "description"] {
            assert!(alert.annotations.contains_key(text), "{name} has no {text}");
        }
        assert!(!alert.after.is_empty(), "{name} fires at once");
    }
    let pages = page.lines().filter(|line| line.starts_with("## Keelway")).count();
    assert_eq!(pages, manifests::alerts().len(), "docs/alerts.md tells of an alert that is not there");
}
