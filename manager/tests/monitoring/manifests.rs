//! The files of manifests/monitoring.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

pub(crate) struct Alert {
    pub(crate) name: String,
    pub(crate) expression: String,
    pub(crate) after: String,
    pub(crate) severity: String,
    pub(crate) annotations: BTreeMap<String, String>,
}

pub(crate) fn monitoring() -> PathBuf {
    workspace().join("manifests/monitoring")
}

/// Reads a file by its path in the workspace.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap()
}

pub(crate) fn alerts() -> Vec<Alert> {
    let rules = yaml("manifests/monitoring/rules.yaml");
    let groups = rules["groups"].as_array().unwrap().iter();
    groups.flat_map(|group| group["rules"].as_array().unwrap()).map(alert).collect()
}

fn alert(rule: &Value) -> Alert {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let annotations = rule["annotations"].as_object().unwrap();
    Alert {
        name: text(&rule["alert"]),
        expression: text(&rule["expr"]),
        after: text(&rule["for"]),
        severity: text(&rule["labels"]["severity"]),
        annotations: annotations.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
    }
}

/// Returns the alerts that a test expects to fire.
pub(crate) fn tested() -> BTreeSet<String> {
    let tests = yaml("manifests/monitoring/rules_test.yaml");
    let asked = tests["tests"].as_array().unwrap().iter().flat_map(|test| test["alert_rule_test"].as_array().unwrap());
    let fires = asked.filter(|asked| !asked["exp_alerts"].as_array().unwrap().is_empty());
    fires.map(|asked| asked["alertname"].as_str().unwrap().to_owned()).collect()
}

/// Returns every expression with the name of its alert or panel.
pub(crate) fn expressions() -> Vec<(String, String)> {
    let of_alerts = alerts().into_iter().map(|alert| (alert.name, alert.expression));
    of_alerts.chain(panels()).collect()
}

/// Returns the expressions of the dashboard as recording rules, because promtool reads rules.
pub(crate) fn dashboard_as_rules() -> String {
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (place, (_, expression)) in panels().into_iter().enumerate() {
        let expression =
            ["$job", "$namespace", "$cluster"].iter().fold(expression, |text, name| text.replace(name, ".*"));
        writeln!(rules, "  - record: panel:{place}\n    expr: {}", Value::String(expression)).unwrap();
    }
    rules
}

fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("manifests/monitoring/dashboard.json")).unwrap();
    let targets = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    };
    let found: Vec<_> = dashboard["panels"].as_array().unwrap().iter().flat_map(targets).collect();
    assert!(!found.is_empty());
    found
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).unwrap()
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
