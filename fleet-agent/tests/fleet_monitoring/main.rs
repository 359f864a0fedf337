//! The metrics of fleets, and the alerts and the dashboard that use them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../../manager/tests/monitoring/promtool.rs"]
mod promtool;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use keelway_fleet_agent::AgentMetrics;
use keelway_fleet_controller::{FleetMetrics, placement::FleetCensus};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::Value;

struct FleetAlert {
    name: String,
    expression: String,
    annotations: BTreeMap<String, String>,
    severity: String,
}

fn monitoring() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/monitoring")
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn alerts() -> Vec<FleetAlert> {
    let rules = yaml("manifests/monitoring/fleet-rules.yaml");
    let rules = rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let alert = |rule: &Value| {
        let annotations = rule["annotations"].as_object().unwrap().iter();
        assert!(!text(&rule["for"]).is_empty(), "{rule} fires at once");
        FleetAlert {
            name: text(&rule["alert"]),
            expression: text(&rule["expr"]),
            annotations: annotations.map(|(name, value)| (name.clone(), text(value))).collect(),
            severity: text(&rule["labels"]["severity"]),
        }
    };
    rules.map(alert).collect()
}

/// Returns every expression of the dashboard with the title of its panel.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("manifests/monitoring/fleet-dashboard.json")).unwrap();
    let targets = |panel: &Value| {
        let title = text(&panel["title"]);
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| (title.clone(), text(&target["expr"])))
    };
    dashboard["panels"].as_array().unwrap().iter().flat_map(targets).collect()
}

/// Returns a scrape of both programs, in which each family has a value.
fn scrape() -> String {
    let mut registry = Registry::default();
    let agent = AgentMetrics::new(&mut registry);
    agent.count_attempt("Applied");
    let controller = FleetMetrics::new(&mut registry);
    controller.set_clusters("True", 1);
    let works = BTreeMap::from([("west".to_owned(), BTreeMap::new())]);
    controller.set_census(&FleetCensus { works, ..FleetCensus::default() });
    controller.count_request("Denied", "TokenUsed");
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

/// Returns the names that queries use: those of samples, without the ends of histograms.
fn families(scrape: &str) -> BTreeSet<String> {
    let samples = scrape.lines().filter(|line| !line.starts_with('#'));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next()).map(|name| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        histogram.unwrap_or(name).to_owned()
    });
    names.collect()
}

fn named(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    let names = words.filter(|word| word.starts_with("keelway_"));
    names.map(|name| name.strip_suffix("_bucket").unwrap_or(name)).collect()
}

#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let families = families(&scrape());
    let of_alerts = alerts().into_iter().map(|alert| (alert.name, alert.expression));
    for (place, expression) in of_alerts.chain(panels()) {
        let names = named(&expression);
        assert!(!names.is_empty(), "{place} reads no metric");
        let unknown: Vec<_> = names.into_iter().filter(|name| !families.contains(*name)).collect();
        assert!(unknown.is_empty(), "{place} reads {unknown:?}, which no program serves: {families:?}");
    }
}

/// The page lists each metric by its full name.
#[test]
fn every_metric_is_documented() {
    let page = read("docs/fleet.md");
    for family in families(&scrape()) {
        assert!(page.contains(&format!("`{family}")), "docs/fleet.md lacks {family}");
    }
}

#[test]
fn every_expression_is_valid() {
    promtool::takes(&["check", "rules", &monitoring().join("fleet-rules.yaml").display().to_string()], "");
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (place, (_, expression)) in panels().into_iter().enumerate() {
        let expression = Value::String(expression.replace("$job", ".*"));
        writeln!(rules, "  - record: panel:{place}\n    expr: {expression}").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dashboard.yaml");
    fs::write(&file, rules).unwrap();
    promtool::takes(&["check", "rules", &file.display().to_string()], "");
}

/// Each alert has a promtool test in which it fires.
#[test]
fn every_alert_fires_when_it_should() {
    promtool::takes(&["test", "rules", &monitoring().join("fleet-rules_test.yaml").display().to_string()], "");
    let tests = yaml("manifests/monitoring/fleet-rules_test.yaml");
    let asked = tests["tests"].as_array().unwrap().iter().flat_map(|test| test["alert_rule_test"].as_array().unwrap());
    let fires = asked.filter(|asked| !asked["exp_alerts"].as_array().unwrap().is_empty());
    let tested: BTreeSet<String> = fires.map(|asked| text(&asked["alertname"])).collect();
    assert_eq!(alerts().into_iter().map(|alert| alert.name).collect::<BTreeSet<_>>(), tested);
}

#[test]
fn every_alert_has_instructions() {
    let page = read("docs/fleet-alerts.md");
    for FleetAlert { name, annotations, severity, .. } in alerts() {
        assert!(page.contains(&format!("\n## {name}\n")), "docs/fleet-alerts.md does not explain {name}");
        let link = format!("https://keelway.dev/docs/fleet-alerts#{}", name.to_lowercase());
        assert_eq!(annotations["runbook_url"], link, "{name}");
        assert!(["critical", "warning"].contains(&severity.as_str()), "{name}: {severity}");
        assert!(annotations.contains_key("summary") && annotations.contains_key("description"), "{name}");
    }
    let pages = page.lines().filter(|line| line.starts_with("## Keelway")).count();
    assert_eq!(pages, alerts().len(), "docs/fleet-alerts.md explains an alert that does not exist");
}
